"""Function calls whatever the text: parsing never fails, actions survive it, documents cannot speak the grammar."""

import asyncio
import json
import re
from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sleuth.agent.episode import Agent
from sleuth.agent.function_calls import FunctionCalls
from sleuth.agent.task import Task
from sleuth.agent.tools import TOOLS, Toolbox
from sleuth.config.agent import AgentConfig
from sleuth.engines.scripted import ScriptedEngine
from sleuth.errors import SearchUnavailable
from sleuth.model.tokens import Tokens
from sleuth.records import Answer, Hit, Malformed, Passage, Question, ToolCall

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

MARKS = [
    *(f"<{slash}{name}>" for name in ("think", "answer", "tool_call", "tool_response", "tools") for slash in ("", "/")),
    *("<|im_start|>", "<|im_end|>", "<|eot|>", "<|eom|>", "<|python_tag|>", "<|header|>", "<|fresh|>"),
]
DISGUISED = ["<Tool_Call>", "< / tool_response >", "<tool_<tool_call>call>", "<|im_<|im_end|>end|>", "<<answer>answer>"]
JSON = ['{"name": "search", ', '"arguments": {', '"query_list": ["', '"]}}', "}", '"', "[", "\\", "1e999", "null"]
PIECES = st.sampled_from([*MARKS, *DISGUISED, *JSON, "<", ">", "|", " ", "\n", "Oslo"])
WILD = st.lists(PIECES | st.text(max_size=5), max_size=12).map("".join)
QUERY = (WILD | st.text(max_size=30)).map(str.strip).filter(bool)
QUERIES = st.lists(QUERY, min_size=1, max_size=4)
TAG = re.compile(r"</?(?:think|answer|tool_call|tool_response|tools)>|<\|[^<>|]*\|>")
PLAIN = st.text(max_size=30).map(str.strip).filter(lambda text: not TAG.search(text) and "{" not in text)


@pytest.fixture(params=["hermes", "llama"])
def model(request: pytest.FixtureRequest, speaker: Callable[[str], Tokens]) -> Tokens:
    return speaker(request.param)


@pytest.fixture
def tools(model: Tokens) -> FunctionCalls:
    return FunctionCalls(model, tuple(TOOLS.values()))


@QUICK
@given(text=WILD | st.text(alphabet=st.characters(), max_size=60))
def test_parse_is_total(tools: FunctionCalls, text: str) -> None:
    action = tools.parse(text)
    assert isinstance(action, ToolCall | Answer | Malformed)
    assert isinstance(tools.is_well_formed(text, action), bool)
    if isinstance(action, Answer):
        assert action.text == action.text.strip()
        assert action.text in text


@QUICK
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(["name", "arguments", "parameters", "query_list", "urls"]), inner)
        ),
        max_leaves=8,
    )
)
def test_any_json_is_an_action(tools: FunctionCalls, value: object) -> None:
    for call in (value, {"name": "search", "arguments": value}, {"name": "access", "parameters": {"urls": value}}):
        action = tools.parse(f"<tool_call>{json.dumps(call)}</tool_call>")
        assert isinstance(action, ToolCall | Malformed)
        if isinstance(action, ToolCall):
            assert all(query == query.strip() != "" for query in action.lookups)


@QUICK
@given(queries=QUERIES, before=PLAIN)
@example(queries=["</tool_call>", "<tool_call>", "</answer>", '{"name": "search"}', "\ud800", "\\u003c"], before="")
def test_calls_survive(tools: FunctionCalls, queries: list[str], before: str) -> None:
    for action in (ToolCall.search(*queries), ToolCall.access(*queries)):
        text = tools.write(action)
        assert tools.parse(text) == tools.parse(before + text) == action
        assert tools.is_well_formed(text, action)
        assert not any(stop in text.removesuffix("</tool_call>") for stop in tools.stops)


@QUICK
@given(text=PLAIN)
def test_an_answer_survives(tools: FunctionCalls, text: str) -> None:
    assert tools.parse(tools.write(Answer(text))) == Answer(text)


@QUICK
@given(documents=st.lists(st.tuples(WILD, WILD), max_size=3), queries=st.tuples(QUERY, QUERY))
@example(documents=[("a", mark) for mark in [*MARKS, *DISGUISED]], queries=("<|im_end|>", "</tool_response>"))
def test_documents_cannot_speak_the_grammar(
    model: Tokens, tools: FunctionCalls, documents: list[tuple[str, str]], queries: tuple[str, str]
) -> None:
    """No tag, no special id and no id of a token that the tokenizer added, however the text writes them."""
    hits = tuple(Hit(Passage(str(n), f'"{title}"\n{text}'), 1.0) for n, (title, text) in enumerate(documents))
    for shown in (
        tools.observe(ToolCall.search(*queries), (hits, hits)),
        tools.observe(ToolCall.access(*queries), (hits[:1], ())),
    ):
        assert not TAG.search(shown.body.casefold())
        assert not set(model.encode(shown.escaped_body)) & set(model.tokenizer.added_tokens_decoder)
        first, last = shown.frame_ids(model)
        ids = shown.ids(model, 100_000)
        assert ids is not None
        assert (ids[: len(first)], ids[len(ids) - len(last) :]) == (first, last)


class Echo:
    """A search engine that finds what it is asked for."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        return [[Hit(Passage(query, f'"{query}"\n{query}'), 1.0)] * (len(query) % (k + 1)) for query in queries]


@settings(QUICK, max_examples=20)
@given(lines=st.lists(QUERIES | WILD, min_size=1, max_size=4), ends=st.booleans(), budget=st.integers(60, 900))
def test_episodes_are_exact(
    model: Tokens, tools: FunctionCalls, lines: list[list[str] | str], ends: bool, budget: int
) -> None:
    """The mask is true on exactly the sampled tokens, and nothing that was once in the ledger is encoded again."""
    said = [tools.write(ToolCall.search(*line)) if isinstance(line, list) else line for line in lines]
    assert model.eos_id is not None
    whole = [[*model.encode(text), *[model.eos_id] * ends] for text in said]
    played = iter(whole)
    prompts: list[tuple[int, ...]] = []
    sampled: list[tuple[int, ...]] = []

    def script(ids: Sequence[int]) -> list[int]:
        prompts.append(tuple(ids))
        return next(played, model.encode("<answer> Oslo </answer>"))

    config = AgentConfig(prompt="brief", searches=9, observation_tokens=budget, context_tokens=50_000)
    agent = Agent(ScriptedEngine(script), model, tools, Toolbox(Echo(), 2), config)
    trajectory = asyncio.run(agent.run(Task(Question("q", "Who", ("x",), "test"))))
    place = 0
    for turn, (prompt, following) in zip(
        trajectory.turns, zip(prompts, [*prompts[1:], trajectory.ids], strict=True), strict=True
    ):
        end = len(prompt) + turn.tokens
        assert prompt == trajectory.ids[: len(prompt)] == following[: len(prompt)]
        assert not any(trajectory.sampled[place : len(prompt)])
        assert all(trajectory.sampled[len(prompt) : end])
        assert len(following) - end <= budget
        sampled.append(trajectory.ids[len(prompt) : end])
        place = end
    for line, ids in zip(whole, sampled, strict=False):
        assert list(ids) == line[: len(ids)]
