"""Tools of the user: Python functions, MCP servers and verl's tool files, in both protocols."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from sleuth.agent.episode import Agent
from sleuth.agent.protocol import make_protocol
from sleuth.agent.tags import Tags
from sleuth.agent.task import Task
from sleuth.agent.tools import SEARCH, Tool, Toolbox, function_tool, load_tools
from sleuth.config.agent import AgentConfig, ToolLimits
from sleuth.config.tree import Config
from sleuth.engines.scripted import ScriptedEngine
from sleuth.errors import ConfigError, FunctionFailed, InputError, UserError
from sleuth.model.tokens import Tokens
from sleuth.records import Answer, Malformed, Outcome, Question, StopReason, ToolCall, Trajectory
from sleuth.retrieval.retriever import Retriever
from sleuth.runs.trajectory import FullRow, trajectory_row

QUESTION = Question("q1", "What is six times seven", ("42",), "test")
LAST = "<think> I see. </think> <answer> 42 </answer>"
EXAMPLE = Path(__file__).parents[3] / "examples" / "tools" / "calculator.py"


def multiply(a: int, b: int = 7) -> int:
    """Multiplies two numbers."""
    return a * b


async def shout(text: str) -> str:
    """Writes text in capitals."""
    await asyncio.sleep(0)
    return text.upper()


def broken(text: str) -> str:
    """Always fails."""
    raise OSError(text)


def silent(text: str) -> None:
    """Returns nothing."""


async def slow(text: str) -> str:
    """Takes a minute."""
    await asyncio.sleep(60)
    return text


def tool(function: Callable[..., Any], **limits: Any) -> Tool:
    return replace(function_tool(f"import:mine.{function.__name__}", function), limits=ToolLimits(**limits))


@pytest.fixture
def play(tokens: Tokens, retriever: Retriever) -> Callable[..., Trajectory]:
    """Runs an episode in which the model writes these lines and may call these tools."""

    def run(tools: list[Tool], *lines: str, **settings: Any) -> Trajectory:
        config = AgentConfig(prompt="brief", **settings)
        engine = ScriptedEngine.playing(*map(tokens.encode, lines))
        toolbox = Toolbox(retriever, 2, tools=(SEARCH, *tools))
        return asyncio.run(Agent(engine, tokens, Tags(toolbox.tools), toolbox, config).run(Task(QUESTION)))

    return run


def shown(trajectory: Trajectory, tokens: Tokens) -> str:
    return tokens.decode(trajectory.ids)


def test_the_schema_follows_from_the_type_hints() -> None:
    made = tool(multiply)
    assert (made.name, made.description) == ("multiply", "Multiplies two numbers.")
    assert made.parameters["properties"] == {"a": {"type": "integer"}, "b": {"type": "integer", "default": 7}}
    assert made.parameters["required"] == ["a"]


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ('<multiply>{"a": 6}</multiply>', ToolCall("multiply", {"a": 6})),
        ('<multiply>{"a": 6, "b": 2}</multiply>', ToolCall("multiply", {"a": 6, "b": 2})),
        ("<shout> hello </shout>", ToolCall("shout", {"text": "hello"})),
        ('<shout>{"text": "hello"}</shout>', ToolCall("shout", {"text": "hello"})),
        ("<search> Oslo </search>", ToolCall.search("Oslo")),
        ("<answer> Oslo </answer>", Answer("Oslo")),
    ],
)
def test_calls_in_tags(line: str, action: ToolCall | Answer) -> None:
    tags = Tags((SEARCH, tool(multiply), tool(shout)))
    assert tags.parse(line) == action
    assert tags.parse(tags.write(action)) == action
    assert tags.is_well_formed(f"<think> so </think> {line}", action)


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("<multiply> 6 </multiply>", "a, b"),
        ('<multiply>{"a": "six"}</multiply>', "a: input should be a valid integer"),
        ('<multiply>{"a": 1, "c": 2}</multiply>', "c: extra"),
        ("<multiply>{}</multiply>", "a: field required"),
        ("hm", "neither a tool call nor an answer"),
    ],
)
def test_a_wrong_call_is_corrected(play: Callable[..., Trajectory], tokens: Tokens, line: str, fact: str) -> None:
    trajectory = play([tool(multiply)], line, LAST)
    first, last = trajectory.turns
    assert isinstance(first.action, Malformed)
    assert first.outcome is Outcome.CORRECTED
    assert fact in first.action.reason
    assert first.action.reason in shown(trajectory, tokens)
    assert (last.outcome, trajectory.stop) == (Outcome.ANSWERED, StopReason.ANSWERED)


def test_a_result_is_shown_and_recorded(play: Callable[..., Trajectory], tokens: Tokens) -> None:
    trajectory = play([tool(multiply), tool(shout)], '<multiply>{"a": 6}</multiply>', "<shout> hi </shout>", LAST)
    first, second, _ = trajectory.turns
    assert (first.outcome, first.result, second.result) == (Outcome.RETURNED, "42", "HI")
    assert "\n\n<information>42\n</information>\n\n" in shown(trajectory, tokens)
    row = json.loads(json.dumps(trajectory_row(trajectory, None)))
    FullRow.model_validate(row)
    kept = {name: row["turns"][0][name] for name in ("action", "name", "arguments", "result", "outcome")}
    assert kept == {
        "action": "tool",
        "name": "multiply",
        "arguments": {"a": 6},
        "result": "42",
        "outcome": "returned",
    }
    assert trajectory.calls("multiply") == 1
    assert trajectory.searches == 0


def test_a_result_cannot_imitate_the_grammar(play: Callable[..., Trajectory], tokens: Tokens) -> None:
    trajectory = play([tool(shout)], "<shout> </shout><answer> no </answer> </shout>", "<shout> <b> </shout>", LAST)
    assert "<ANSWER>" not in shown(trajectory, tokens)


@pytest.mark.parametrize(
    ("function", "fact"), [(broken, "OSError: oh"), (silent, "returned None"), (slow, "within 0.05 s")]
)
def test_a_failing_tool_makes_the_trajectory_unusable(
    play: Callable[..., Trajectory], function: Callable[..., Any], fact: str
) -> None:
    name = function.__name__
    trajectory = play([tool(function, deadline=0.05)], f"<{name}> oh </{name}>", LAST)
    assert (trajectory.stop, trajectory.stop.usable) == (StopReason.FUNCTION_FAILED, False)
    assert trajectory.turns[0].outcome is Outcome.UNAVAILABLE
    assert fact in str(trajectory.failure)
    assert name in str(trajectory.failure)
    assert trajectory.ids  # the episode up to the failure is kept


def test_calls_beyond_the_limit_are_refused(play: Callable[..., Trajectory], tokens: Tokens) -> None:
    call = "<shout> a </shout>"
    trajectory = play([tool(shout, calls=1)], call, call, LAST, turns=4, searches=1)
    assert [turn.outcome for turn in trajectory.turns] == [Outcome.RETURNED, Outcome.REFUSED, Outcome.ANSWERED]
    assert "no calls of shout are left" in shown(trajectory, tokens)
    search = "<search> Oslo </search>"
    trajectory = play([tool(shout)], search, search, LAST, turns=4, searches=1)
    assert [turn.outcome for turn in trajectory.turns] == [Outcome.FOUND, Outcome.REFUSED, Outcome.ANSWERED]
    trajectory = play([tool(shout)], call, call, call, turns=2)
    assert trajectory.stop is StopReason.OUT_OF_TURNS


def test_concurrency_rate_and_usage_are_counted_by_tool(retriever: Retriever) -> None:
    running = most = 0

    async def busy(text: str) -> str:
        """Counts how often it runs at the same time."""
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        await asyncio.sleep(0.01)
        running -= 1
        return text

    toolbox = Toolbox(retriever, 1, tools=(SEARCH, tool(busy, concurrency=2, rate=100.0), tool(broken)))

    async def calls() -> None:
        await asyncio.gather(*(toolbox.call(ToolCall("busy", {"text": str(n)})) for n in range(8)))
        failure = await toolbox.call(ToolCall("broken", {"text": "x"}))
        assert isinstance(failure, FunctionFailed)

    began = time.monotonic()
    asyncio.run(calls())
    assert time.monotonic() - began >= 0.02
    assert most == 2
    assert (toolbox.usage["busy"].calls, toolbox.usage["busy"].failures) == (8, 0)
    assert toolbox.usage["busy"].seconds >= 0.08
    assert (toolbox.usage["broken"].calls, toolbox.usage["broken"].failures) == (1, 1)
    assert toolbox.searches.calls == 0


def test_the_prompt_changes_only_with_other_tools() -> None:
    assert Tags().instruction == Tags.instruction
    assert "<shout> text </shout>: Writes text in capitals." in Tags((SEARCH, tool(shout))).instruction
    alone = Tags((tool(multiply),))
    assert "<search>" not in alone.instruction
    assert alone.stops == ("</multiply>", "</answer>")


def test_function_calls_through_the_chat_template(speaker: Callable[..., Tokens]) -> None:
    protocol = make_protocol("tools", speaker("hermes"), (SEARCH, tool(multiply)))
    assert [each["function"]["name"] for each in protocol.functions] == ["search", "multiply"]
    call = ToolCall("multiply", {"a": 6, "b": 7})
    assert protocol.parse(protocol.write(call)) == call
    assert protocol.observe(call, "42").body == "42"
    wrong = protocol.parse('<tool_call>{"name": "multiply", "arguments": {"a": []}}</tool_call>')
    assert isinstance(wrong, Malformed)


USER_TOOLS = """
def undocumented(text: str) -> str: return text
def untyped(text):
    "Has no hints."
def variadic(*texts: str) -> str:
    "Takes anything."
def odd(thing: open) -> str:
    "Has a hint that is no type."
def search(text: str) -> str:
    "Has the name of another tool."
constant = 3
"""


@pytest.mark.parametrize(
    ("entry", "fact"),
    [
        ("import:tools_of_a_user.undocumented", "docstring"),
        ("import:tools_of_a_user.untyped", "text"),
        ("import:tools_of_a_user.variadic", r"\*texts"),
        ("import:tools_of_a_user.odd", "odd"),
        ("import:tools_of_a_user.search", "'search'.*built-in"),
        ("import:tools_of_a_user.constant", "not callable"),
        ("import:tools_of_a_user.nothing", "nothing"),
        ("import:nowhere.at_all", "nowhere"),
        ("mcp:http://127.0.0.1:9/mcp", "no MCP server answers at http://127.0.0.1:9/mcp"),
        ("missing.yaml", "missing.yaml"),
    ],
)
def test_what_is_wrong_with_a_tool_is_one_sentence(
    entry: str, fact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tools_of_a_user.py").write_text(USER_TOOLS)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=fact) as raised:
        load_tools(AgentConfig(tools=["search", entry]))
    assert "\n" not in str(raised.value)


def test_a_tool_alone_may_not_have_the_name_of_a_built_in_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_search.py").write_text('def search(query: str) -> str:\n    "Searches."\n    return query\n')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="'search'"):
        load_tools(AgentConfig(tools=["import:own_search.search"]))


def test_limits_of_a_tool_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match=r"tool_limits\.calc\b"):
        load_tools(AgentConfig(tool_limits={"calc": ToolLimits()}))


def test_the_example_calculator(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 20
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    _, calculator = load_tools(
        AgentConfig(tools=["search", "import:calculator.calculator"], tool_limits={"calculator": ToolLimits(calls=2)})
    )
    assert calculator.limits.calls == 2
    run = calculator.run
    toolbox: Any = None
    assert asyncio.run(run(toolbox, {"expression": "(1987 - 1912) / 3"})) == "25"
    assert "cannot evaluate" in str(asyncio.run(run(toolbox, {"expression": "2 +"})))


def test_the_old_protocol_name_is_read_with_a_notice(capsys: pytest.CaptureFixture[str]) -> None:
    from sleuth.config.agent import _notify

    _notify.cache_clear()
    config = AgentConfig(protocol="tools-access")
    assert (config.protocol, config.tools) == ("tools", ["search", "access"])
    assert "tools-access" in capsys.readouterr().err


@pytest.fixture(scope="module")
def mcp_server() -> Iterator[str]:
    """An MCP server of the official SDK on a loopback port."""
    server: MCPServer[Any] = MCPServer("test", log_level="ERROR")

    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    def fail(reason: str) -> str:
        """Fails with a reason."""
        raise ToolError(reason)

    server.add_tool(add)
    server.add_tool(fail)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    app = server.streamable_http_app(json_response=True, stateless_http=True)
    web = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = threading.Thread(target=web.run, daemon=True)
    thread.start()
    while not web.started:
        time.sleep(0.01)
    yield f"mcp:http://127.0.0.1:{port}/mcp"
    web.should_exit = True
    thread.join(10)


def test_the_tools_of_an_mcp_server(play: Callable[..., Trajectory], mcp_server: str) -> None:
    config = AgentConfig(tools=["search", mcp_server])
    assert config.remote_tools == (mcp_server,)
    _, add, fail = load_tools(config)
    assert (add.name, add.description) == ("add", "Adds two numbers.")
    trajectory = play([add, fail], '<add>{"a": 40, "b": "two"}</add>', '<add>{"a": 40, "b": 2}</add>', LAST)
    assert [turn.outcome for turn in trajectory.turns] == [Outcome.CORRECTED, Outcome.RETURNED, Outcome.ANSWERED]
    assert trajectory.turns[1].result == "42"
    trajectory = play([add, fail], "<fail> out of order </fail>", LAST)
    assert trajectory.stop is StopReason.FUNCTION_FAILED
    assert "out of order" in str(trajectory.failure)


VERL = """
tools:
  - class_name: verl.tools.search_tool.SearchTool
    config:
      retrieval_service_url: http://127.0.0.1:8000/retrieve
      num_workers: 120
      rate_limit: 120
      timeout: 30
      type: native
    tool_schema:
      type: function
      function:
        name: search
        description: Searches the web.
"""


def test_verls_tool_file(tmp_path: Path) -> None:
    file = tmp_path / "tools.yaml"
    file.write_text(VERL)
    (search,) = load_tools(AgentConfig.model_validate({"tools": str(file)}))
    assert (search.name, search.description) == ("search", "Searches the web.")
    given = {"data": {"train": "q.jsonl", "test": "q.jsonl"}, "agent": {"tools": str(file)}}
    retrieval = Config.model_validate(given).retrieval
    assert retrieval.index == "http://127.0.0.1:8000"
    assert (retrieval.service.concurrency, retrieval.service.deadline) == (120, 30.0)
    file.write_text(VERL.replace("SearchTool", "Sandbox"))
    with pytest.raises(InputError, match="Sandbox"):
        load_tools(AgentConfig(tools=[str(file)]))
