"""The protocol of function calls, case by case, in the form of Hermes and in that of Llama."""

import json
from collections.abc import Callable

import pytest

from sleuth.agent.protocol import named
from sleuth.agent.tool_calls import Tools
from sleuth.errors import ConfigError
from sleuth.model.tokens import Tokens
from sleuth.records import Access, Action, Answer, Hit, Malformed, Passage, Search

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
def tools(kind: str, speaker: Speaker) -> Tools:
    return Tools(speaker(kind))


@pytest.fixture
def hermes(speaker: Speaker) -> Tools:
    return Tools(speaker("hermes"))


@pytest.fixture
def llama(speaker: Speaker) -> Tools:
    return Tools(speaker("llama"))


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (f"<tool_call>\n{CALL}\n</tool_call>", Search("oslo")),
        (f"<think> a </think>\n<tool_call>{CALL}</tool_call> and more", Search("oslo")),
        (f"<tool_call>{CALL}</tool_call><tool_call>{CALL.replace('oslo', 'rome')}</tool_call>", Search("oslo")),
        (f"<tool_call>{{<tool_call>{CALL}</tool_call>", Search("oslo")),
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
def test_the_form_of_hermes(hermes: Tools, text: str, action: Action) -> None:
    assert hermes.parse(text) == action


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ('{"name": "search", "parameters": {"query_list": ["oslo"]}}', Search("oslo")),
        (f" I look it up. {CALL} and wait", Search("oslo")),
        ('{"type": "function", "name": "search", "parameters": {"query": "oslo"}}', Search("oslo")),
        (f"{CALL}; {CALL.replace('oslo', 'rome')}", Search("oslo")),
        ("<answer> Rome </answer>", Answer("Rome")),
        (f"<answer> Rome </answer> {CALL}", Answer("Rome")),
        (f"{CALL} <answer> Rome </answer>", Search("oslo")),
        ("Rome </answer>", Malformed("</answer> closes nothing that was opened")),
        ("It is Rome.", Malformed("no function was called and no answer given")),
        ('{"name": "search", "parameters": {', UNREADABLE),
        (f'{{"name": {"[" * 100_000}', UNREADABLE),
        ('{"name": "search"}', NO_CALL),
    ],
)
def test_the_form_of_llama(llama: Tools, text: str, action: Action) -> None:
    assert llama.parse(text) == action


@pytest.mark.parametrize(
    ("name", "arguments", "action"),
    [
        ("search", {"query_list": ["oslo", " rome "]}, Search("oslo", "rome")),
        ("search", {"query": "oslo"}, Search("oslo")),
        ("search", {"query": ["oslo"], "more": 1}, Search("oslo")),
        ("search", {"queries": ["oslo", ""]}, Search("oslo")),
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
def test_what_a_call_asks_for(tools: Tools, name: object, arguments: object, action: Action) -> None:
    call = json.dumps({"name": name, "arguments": arguments})
    assert tools.parse(f"<tool_call>{call}</tool_call>" if "</tool_call>" in tools.stops else call) == action


def test_pages_are_opened_where_that_is_offered(speaker: Speaker, kind: str) -> None:
    opening = named("tools-access", speaker(kind))
    for action in (Access("https://oslo.no"), Access("a", "b"), Search("oslo")):
        assert opening.parse(opening.act(action)) == action
    assert [each["function"]["name"] for each in opening.functions] == ["search", "access"]
    assert "access" in opening.instruction


def test_actions_as_the_models_write_them(hermes: Tools, llama: Tools) -> None:
    assert hermes.act(Search("a", "b")) == (
        '<tool_call>\n{"name": "search", "arguments": {"query_list": ["a", "b"]}}\n</tool_call>'
    )
    assert llama.act(Search("ä")) == '{"name": "search", "parameters": {"query_list": ["ä"]}}'
    assert hermes.act(Answer("Rome")) == llama.act(Answer("Rome")) == "<answer> Rome </answer>"


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
def test_form(tools: Tools, before: str, after: str, formed: bool) -> None:
    for action in (Search("oslo"), Answer("Rome")):
        text = before + tools.act(action) + after
        assert tools.formed(text, tools.parse(text)) is formed
    assert not tools.formed(before, Malformed("no action"))


def test_an_answer_with_tags_in_it_is_out_of_form(tools: Tools) -> None:
    assert not tools.formed("<answer> <think> Rome </answer>", Answer("<think> Rome"))


def hit(name: str, text: str) -> Hit:
    return Hit(Passage(name, f'"{name}"\n{text}'), 1.0)


def test_what_one_query_found(tools: Tools) -> None:
    assert tools.observe(Search("x"), [[hit("Oslo", "A city."), hit("Rome", "Old.")]]).body == (
        "Doc 1 (Title: Oslo)\nA city.\nDoc 2 (Title: Rome)\nOld."
    )
    assert tools.observe(Search("x"), [[]]).body == "Nothing was found."


def test_what_several_queries_found_stands_apart(tools: Tools) -> None:
    shown = tools.observe(Search("x", "<tool_call>y"), [[hit("Oslo", "A city.")], []])
    assert shown.body == "For x:\nDoc 1 (Title: Oslo)\nA city.\n---\nFor (tool_call)y:\nNothing was found."


def test_what_pages_say(tools: Tools) -> None:
    page = Hit(Passage("https://a.no", "All about it.\n"), 1.0)
    assert tools.observe(Access("https://a.no", "https://b.no"), [[page], []]).body == (
        "Page https://a.no:\nAll about it.\n---\nThere is no page https://b.no."
    )


def test_frames_are_the_templates_own(hermes: Tools, llama: Tools) -> None:
    body = 'say "no"'
    assert hermes.observe(Access("u"), [[Hit(Passage("u", body), 1.0)]]).text == (
        '<|im_end|>\n<|im_start|>user\n<tool_response>\nPage u:\nsay "no"\n</tool_response><|im_end|>\n'
        "<|im_start|>assistant\n"
    )
    assert llama.observe(Access("u"), [[Hit(Passage("u", body), 1.0)]]).text == (
        '<|eot|><|header|>ipython<|body|>\n\n"Page u:\\nsay \\"no\\""<|eot|><|header|>assistant<|body|>\n\n'
    )


def test_a_correction_is_a_users_and_shows_how_to_call(tools: Tools) -> None:
    told = tools.correct(Malformed("the call of search is empty"))
    assert "user" in told.opening
    assert told.body.startswith("No action was taken: the call of search is empty. Call a function like this: ")
    example = told.body.partition("like this: ")[2].partition("\nor")[0]
    assert tools.parse(example) == Search("your query")


def test_an_episode_is_messages_of_the_assistant_and_the_tool(tools: Tools) -> None:
    seen = tools.observe(Search("oslo"), [[hit("Oslo", "A city.")]])
    assert tools.told(["call", "answer"], [seen]) == [
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
        ("", "takes a chat template, and the model has none"),
        (CHATML, "not for this model, whose chat template ignores tools"),
        (REFUSING, r"refuses a conversation with tools \(no tools here\)"),
        (TOLD + CHATML, "in a form that is not known here"),
        (TOLD + OTHER, "in a form that is not known here"),
        (TOLD + FORGETFUL, "does not write every message of user, assistant, tool, assistant, tool once and in order"),
        (TOLD + NUMBERED, "differently from turn to turn"),
    ],
)
def test_a_template_that_will_not_do(speaker: Speaker, template: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        Tools(speaker("hermes", template))
    assert "choose agent.protocol = tags" in str(caught.value)


def test_a_tokenizer_that_hides_the_tags(speaker: Speaker) -> None:
    with pytest.raises(ConfigError, match="takes <tool_call> for a special token"):
        Tools(speaker("hermes", hidden=True))


def test_a_protocol_of_a_model_takes_a_model() -> None:
    with pytest.raises(ConfigError, match="speaks through a model's chat template; name the model with --model"):
        named("tools")
