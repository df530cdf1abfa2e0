"""The protocol of function calls, case by case, in the form of Hermes and in that of Llama."""

import json
from collections.abc import Callable

import pytest

from sleuth.agent.function_calls import FunctionCalls
from sleuth.agent.protocol import make_protocol
from sleuth.agent.tools import TOOLS
from sleuth.errors import ConfigError
from sleuth.model.tokens import Tokens
from sleuth.records import Action, Answer, Hit, Malformed, Passage, ToolCall

Speaker = Callable[..., Tokens]

CALL = '{"name": "search", "arguments": {"query_list": ["oslo"]}}'
UNREADABLE = Malformed("the JSON of the call cannot be read")
NO_LIST = Malformed("the call of search needs query_list, a list of strings")
NO_CALL = Malformed("the call is no object with a name and an object of arguments")
NO_FUNCTION = Malformed("there is no such function; there is search")


@pytest.fixture(params=["hermes", "llama"])
def kind(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def tools(kind: str, speaker: Speaker) -> FunctionCalls:
    return FunctionCalls(speaker(kind))


@pytest.fixture
def hermes(speaker: Speaker) -> FunctionCalls:
    return FunctionCalls(speaker("hermes"))


@pytest.fixture
def llama(speaker: Speaker) -> FunctionCalls:
    return FunctionCalls(speaker("llama"))


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (f"<tool_call>\n{CALL}\n</tool_call>", ToolCall.search("oslo")),
        (f"<think> a </think>\n<tool_call>{CALL}</tool_call> and more", ToolCall.search("oslo")),
        (
            f"<tool_call>{CALL}</tool_call><tool_call>{CALL.replace('oslo', 'rome')}</tool_call>",
            ToolCall.search("oslo"),
        ),
        (f"<tool_call>{{<tool_call>{CALL}</tool_call>", ToolCall.search("oslo")),
        ("<answer> Rome </answer>", Answer("Rome")),
        ("<answer></answer>", Answer("")),
        (f"<answer>Rome</answer><tool_call>{CALL}</tool_call>", Answer("Rome")),
        ("oslo</tool_call>", Malformed("</tool_call> closes nothing that was opened")),
        (f"<tool_call>{CALL}", Malformed("neither a function call nor an answer was closed")),
        (CALL, Malformed("neither a function call nor an answer was closed")),
        ("<tool_call></tool_call>", UNREADABLE),
        ('<tool_call>{"name": "search"</tool_call>', UNREADABLE),
        (f"<tool_call>{'[' * 100_000}</tool_call>", UNREADABLE),
        (f"<tool_call>[{CALL}]</tool_call>", NO_CALL),
    ],
)
def test_the_form_of_hermes(hermes: FunctionCalls, text: str, action: Action) -> None:
    assert hermes.parse(text) == action


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ('{"name": "search", "parameters": {"query_list": ["oslo"]}}', ToolCall.search("oslo")),
        (f" I look it up. {CALL} and wait", ToolCall.search("oslo")),
        ('{"type": "function", "name": "search", "parameters": {"query": "oslo"}}', ToolCall.search("oslo")),
        (f"{CALL}; {CALL.replace('oslo', 'rome')}", ToolCall.search("oslo")),
        ("<answer> Rome </answer>", Answer("Rome")),
        (f"<answer> Rome </answer> {CALL}", Answer("Rome")),
        (f"{CALL} <answer> Rome </answer>", ToolCall.search("oslo")),
        ("Rome </answer>", Malformed("</answer> closes nothing that was opened")),
        ("It is Rome.", Malformed("no function was called and no answer given")),
        ('{"name": "search", "parameters": {', UNREADABLE),
        (f'{{"name": {"[" * 100_000}', UNREADABLE),
        ('{"name": "search"}', NO_CALL),
    ],
)
def test_the_form_of_llama(llama: FunctionCalls, text: str, action: Action) -> None:
    assert llama.parse(text) == action


@pytest.mark.parametrize(
    ("name", "arguments", "action"),
    [
        ("search", {"query_list": ["oslo", " rome "]}, ToolCall.search("oslo", "rome")),
        ("search", {"query": "oslo"}, ToolCall.search("oslo")),
        ("search", {"query": ["oslo"], "more": 1}, ToolCall.search("oslo")),
        ("search", {"queries": ["oslo", ""]}, ToolCall.search("oslo")),
        ("search", {"query_list": []}, Malformed("the call of search is empty")),
        ("search", {"query_list": [" "]}, Malformed("the call of search is empty")),
        ("search", {"query_list": ["x"] * 11}, Malformed("the call of search holds more than 10 texts")),
        ("search", {"query_list": ["oslo", 3]}, NO_LIST),
        ("search", {"query_list": {"a": "b"}}, NO_LIST),
        ("search", {}, NO_LIST),
        ("search", ["oslo"], NO_CALL),
        ("access", {"urls": ["https://oslo.no"]}, NO_FUNCTION),
        ("rm", {"path": "/"}, NO_FUNCTION),
        (3, {"query": "oslo"}, NO_CALL),
    ],
)
def test_what_a_call_asks_for(tools: FunctionCalls, name: object, arguments: object, action: Action) -> None:
    call = json.dumps({"name": name, "arguments": arguments})
    assert tools.parse(f"<tool_call>{call}</tool_call>" if "</tool_call>" in tools.stops else call) == action


def test_pages_are_opened_where_that_is_offered(speaker: Speaker, kind: str) -> None:
    opening = make_protocol("tools", speaker(kind), tuple(TOOLS.values()))
    for action in (ToolCall.access("https://oslo.no"), ToolCall.access("a", "b"), ToolCall.search("oslo")):
        assert opening.parse(opening.write(action)) == action
    assert [each["function"]["name"] for each in opening.functions] == ["search", "access"]
    assert "access" in opening.instruction


def test_actions_as_the_models_write_them(hermes: FunctionCalls, llama: FunctionCalls) -> None:
    assert hermes.write(ToolCall.search("a", "b")) == (
        '<tool_call>\n{"name": "search", "arguments": {"query_list": ["a", "b"]}}\n</tool_call>'
    )
    assert llama.write(ToolCall.search("ä")) == '{"name": "search", "parameters": {"query_list": ["ä"]}}'
    assert hermes.write(Answer("Rome")) == llama.write(Answer("Rome")) == "<answer> Rome </answer>"


@pytest.mark.parametrize(
    ("before", "after", "formed"),
    [
        ("", "", True),
        ("I look.\n", "\n", True),
        ("<think> so </think>\n", "", True),
        ("so </think>", "", False),
        ("<think> so <think>", "", False),
        ("<think> so </think><think> and </think>", "", False),
        ("<answer> maybe ", "", False),
        ("", " done", False),
    ],
)
def test_form(tools: FunctionCalls, before: str, after: str, formed: bool) -> None:
    for action in (ToolCall.search("oslo"), Answer("Rome")):
        text = before + tools.write(action) + after
        assert tools.is_well_formed(text, tools.parse(text)) is formed
    assert not tools.is_well_formed(before, Malformed("no action"))


def test_an_answer_with_tags_in_it_is_out_of_form(tools: FunctionCalls) -> None:
    assert not tools.is_well_formed("<answer> <think> Rome </answer>", Answer("<think> Rome"))


def hit(name: str, text: str) -> Hit:
    return Hit(Passage(name, f'"{name}"\n{text}'), 1.0)


def test_what_one_query_found(tools: FunctionCalls) -> None:
    assert tools.observe(ToolCall.search("x"), ((hit("Oslo", "A city."), hit("Rome", "Old.")),)).body == (
        "Doc 1 (Title: Oslo)\nA city.\nDoc 2 (Title: Rome)\nOld."
    )
    assert tools.observe(ToolCall.search("x"), ((),)).body == "Nothing was found."


def test_what_several_queries_found_stands_apart(tools: FunctionCalls) -> None:
    shown = tools.observe(ToolCall.search("x", "<tool_call>y"), ((hit("Oslo", "A city."),), ()))
    assert shown.body == "For x:\nDoc 1 (Title: Oslo)\nA city.\n---\nFor (tool_call)y:\nNothing was found."


def test_what_pages_say(tools: FunctionCalls) -> None:
    page = Hit(Passage("https://a.no", "All about it.\n"), 1.0)
    assert tools.observe(ToolCall.access("https://a.no", "https://b.no"), ((page,), ())).body == (
        "Page https://a.no:\nAll about it.\n---\nThere is no page https://b.no."
    )


def test_frames_are_the_templates_own(hermes: FunctionCalls, llama: FunctionCalls) -> None:
    body = 'say "no"'
    assert hermes.observe(ToolCall.access("u"), ((Hit(Passage("u", body), 1.0),),)).text == (
        '<|im_end|>\n<|im_start|>user\n<tool_response>\nPage u:\nsay "no"\n</tool_response><|im_end|>\n'
        "<|im_start|>assistant\n"
    )
    assert llama.observe(ToolCall.access("u"), ((Hit(Passage("u", body), 1.0),),)).text == (
        '<|eot|><|header|>ipython<|body|>\n\n"Page u:\\nsay \\"no\\""<|eot|><|header|>assistant<|body|>\n\n'
    )


def test_a_correction_is_a_users_and_shows_how_to_call(tools: FunctionCalls) -> None:
    told = tools.correct(Malformed("the call of search is empty"))
    assert "user" in told.opening
    assert told.body.startswith("No action was taken: the call of search is empty. Call a function like this: ")
    example = told.body.partition("like this: ")[2].partition("\nor")[0]
    assert tools.parse(example) == ToolCall.search("your query")


def test_an_episode_is_messages_of_the_assistant_and_the_tool(tools: FunctionCalls) -> None:
    seen = tools.observe(ToolCall.search("oslo"), ((hit("Oslo", "A city."),),))
    assert tools.to_messages(["call", "answer"], [seen]) == [
        {"role": "assistant", "content": "call"},
        {"role": "tool", "content": "Doc 1 (Title: Oslo)\nA city."},
        {"role": "assistant", "content": "answer"},
    ]


CHATML = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
TOLD = "{% if tools %}{{ tools | tojson }}{% endif %}"
OTHER = "{% for message in messages %}{{ message.content }}{{ message.tool_calls and '[CALL] search' }}{% endfor %}"
CALLED = (
    "{% for message in messages %}<|im_start|>{{ message.content }}{% for call in message.tool_calls %}<tool_call>"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>{% endfor %}'
    "{% endfor %}"
)
# What the tool said is only shown while it is the last message, as templates do that forget earlier results.
FORGETFUL = (
    CALLED.replace("messages %}", "messages %}{% if message.role != 'tool' or loop.last %}", 1).removesuffix(
        "{% endfor %}"
    )
    + "{% endif %}{% endfor %}"
)
NUMBERED = "{% for message in messages %}{{ loop.index }}" + CALLED.partition("%}")[2]
REFUSING = "{% if tools %}{{ raise_exception('no tools here') }}{% endif %}" + CHATML


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("", "needs a chat template"),
        (CHATML, "ignores tools"),
        (REFUSING, r"rejects a conversation with tools \(no tools here\)"),
        (TOLD + CHATML, "unknown format"),
        (TOLD + OTHER, "unknown format"),
        (TOLD + FORGETFUL, "user, assistant, tool, assistant, tool"),
        (TOLD + NUMBERED, "differently from turn to turn"),
    ],
)
def test_a_template_that_will_not_do(speaker: Speaker, template: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        FunctionCalls(speaker("hermes", template))
    assert "choose agent.protocol = tags" in str(caught.value)


def test_a_tokenizer_that_hides_the_tags(speaker: Speaker) -> None:
    with pytest.raises(ConfigError, match="<tool_call>"):
        FunctionCalls(speaker("hermes", hidden=True))


def test_a_protocol_of_a_model_takes_a_model() -> None:
    with pytest.raises(ConfigError, match="--model"):
        make_protocol("tools")
