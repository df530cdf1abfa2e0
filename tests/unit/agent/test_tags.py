"""The grammar of tags, case by case."""

import time

import pytest

from sleuth.agent.function_calls import RemoteFunctionCalls
from sleuth.agent.tags import Tags
from sleuth.records import Action, Answer, Hit, Malformed, Passage, ToolCall

UNCLOSED = Malformed("neither a search nor an answer was closed")


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<search>oslo</search>", ToolCall.search("oslo")),
        ("<think> a </think>\n<search>\n oslo \n</search>", ToolCall.search("oslo")),
        ("<answer> Rome </answer>", Answer("Rome")),
        ("<answer></answer>", Answer("")),
        ("<answer>Rome</answer> <search>more</search>", Answer("Rome")),
        ("<search>a <search>b</search>", ToolCall.search("b")),
        ("<answer>a <search>b</search>", ToolCall.search("b")),
        ("<search>a <answer>b</search>", ToolCall.search("a <answer>b")),
        ("<search> </search>", Malformed("the search is empty")),
        ("oslo</search>", Malformed("</search> closes nothing that was opened")),
        ("<answer>oslo</search>", Malformed("</search> closes nothing that was opened")),
        ("</answer><answer>Rome</answer>", Malformed("</answer> closes nothing that was opened")),
        ("", UNCLOSED),
        ("<search>oslo", UNCLOSED),
        ("<SEARCH>oslo</SEARCH>", UNCLOSED),
        ("<search>oslo</ search>", UNCLOSED),
        ("I know: Rome.", UNCLOSED),
    ],
)
def test_parse(text: str, action: Action) -> None:
    assert Tags().parse(text) == action


def test_actions_as_the_model_writes_them() -> None:
    assert Tags().write(ToolCall.search("oslo")) == "<search> oslo </search>"
    assert Tags().write(Answer("Rome")) == "<answer> Rome </answer>"


def test_documents_as_search_r1_shows_them() -> None:
    hits = (Hit(Passage("7", '"Oslo"\nA city.'), 2.0), Hit(Passage("8", '"Rome"\nAnother.\nOld.'), 1.0))
    assert Tags().observe(ToolCall.search("x"), (hits,)).text == (
        "\n\n<information>Doc 1(Title: Oslo) A city.\nDoc 2(Title: Rome) Another.\nOld.\n</information>\n\n"
    )


def test_nothing_found_is_said() -> None:
    assert Tags().observe(ToolCall.search("x"), ((),)).text == "\n\n<information>Nothing was found.\n</information>\n\n"


def test_a_correction_names_the_fault_and_the_remedy() -> None:
    told = Tags().correct(Malformed("the search is empty"))
    assert (told.opening, told.closing) == Tags.marks == ("\n\n<information>", "</information>\n\n")
    assert told.body.startswith("No action was taken: the search is empty. Write <search> query </search>")


def test_the_instruction_shows_every_tag() -> None:
    for name in ("think", "search", "information", "answer"):
        assert f"<{name}>" in Tags.instruction
        assert f"</{name}>" in Tags.instruction


def test_the_hits_of_several_queries_are_numbered_through() -> None:
    oslo, rome = (Hit(Passage(name, f'"{name}"\nA city.'), 1.0) for name in ("Oslo", "Rome"))
    assert Tags().observe(ToolCall.search("a", "b"), ((oslo,), (rome,))).body == (
        "Doc 1(Title: Oslo) A city.\nDoc 2(Title: Rome) A city.\n"
    )


def test_an_episode_is_one_message() -> None:
    seen = Tags().observe(ToolCall.search("oslo"), ((),))
    assert Tags().to_messages(["<search> oslo </search>", "<answer> Rome </answer>"], [seen]) == [
        {"role": "assistant", "content": f"<search> oslo </search>{seen.text}<answer> Rome </answer>"}
    ]


@pytest.mark.parametrize("action", [ToolCall.search("a", "b")])
def test_there_are_no_tags_for_other_calls(action: ToolCall) -> None:
    with pytest.raises(ValueError, match="one query at a time"):
        Tags().write(action)


SEARCH = "<think>look</think><search>capital</search>"


@pytest.mark.parametrize(
    "text",
    [
        "<think>so</think><answer>Oslo</answer>",
        "<think>so</think>\n\n<answer>Oslo</answer>",
        "  <think>so\nit < seems</think> <answer>Oslo</answer>\n",
        "<think></think><answer>Oslo</answer>",
        "<think>a <b>bold</b> thought</think><answer>Oslo</answer>",
    ],
)
def test_an_answer_in_form(text: str) -> None:
    assert Tags().is_well_formed(text, Answer("Oslo"))


@pytest.mark.parametrize(
    "text",
    [
        "<answer>Oslo</answer>",
        "so <think>so</think><answer>Oslo</answer>",
        "<think>so</think> then <answer>Oslo</answer>",
        "<think>so</think><answer>Oslo</answer> done",
        "<think>so</think><think>and</think><answer>Oslo</answer>",
        "<think>so <answer>Oslo</answer></think><answer>Oslo</answer>",
        "<think>so</think><answer><search>Oslo</search></answer>",
        "<think>so</think><answer>Oslo</answer><answer>Oslo</answer>",
        "<think>so</think><information>Oslo</information><answer>Oslo</answer>",
        "<think>so<answer>Oslo</answer>",
        "so</think><answer>Oslo</answer>",
        "<think>so</think><answer>Oslo",
        "<Think>so</Think><answer>Oslo</answer>",
        f"{SEARCH}<information>Oslo</information><think>so</think><answer>Oslo</answer>",
    ],
)
def test_an_answer_out_of_form(text: str) -> None:
    assert not Tags().is_well_formed(text, Answer("Oslo"))


@pytest.mark.parametrize("text", [SEARCH, f"\n\n{SEARCH}\n"])
def test_a_search_in_form(text: str) -> None:
    assert Tags().is_well_formed(text, ToolCall.search("capital"))


@pytest.mark.parametrize(
    "text",
    [
        "<search>capital</search>",
        "<think>look</think><answer>Oslo</answer>",
        f"{SEARCH}<search>capital</search>",
        f"{SEARCH}\n<information>Oslo</information>",
        f"{SEARCH} please",
    ],
)
def test_a_search_out_of_form(text: str) -> None:
    assert not Tags().is_well_formed(text, ToolCall.search("capital"))


def test_what_is_malformed_has_no_form() -> None:
    assert not Tags().is_well_formed("<think>so</think><></>", Malformed("no action"))


def test_an_unclosed_bracket_in_a_document_takes_linear_time() -> None:
    def seconds(spaces: int, protocol: Tags | RemoteFunctionCalls) -> float:
        hit = Hit(Passage("1", '"t"\n<' + " " * spaces + "x"), 1.0)
        start = time.process_time()
        protocol.observe(ToolCall.search("q"), ((hit,),))
        return time.process_time() - start

    for protocol in (Tags(), RemoteFunctionCalls()):
        small = max(seconds(4_000, protocol), 1e-4)
        assert seconds(64_000, protocol) < 64 * small  # sixteen times the text: quadratic is 256
