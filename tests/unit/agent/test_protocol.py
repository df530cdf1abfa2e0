"""The grammar of tags, case by case."""

import pytest

from sleuth.agent.protocol import Tags, named
from sleuth.errors import ConfigError
from sleuth.records import Action, Answer, Hit, Malformed, Passage, Search

UNCLOSED = Malformed("neither a search nor an answer was closed")


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<search>oslo</search>", Search("oslo")),
        ("<think> a </think>\n<search>\n oslo \n</search>", Search("oslo")),
        ("<answer> Rome </answer>", Answer("Rome")),
        ("<answer></answer>", Answer("")),
        ("<answer>Rome</answer> <search>more</search>", Answer("Rome")),
        ("<search>a <search>b</search>", Search("b")),
        ("<answer>a <search>b</search>", Search("b")),
        ("<search>a <answer>b</search>", Search("a <answer>b")),
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
    assert Tags().act(Search("oslo")) == "<search> oslo </search>"
    assert Tags().act(Answer("Rome")) == "<answer> Rome </answer>"


def test_documents_as_search_r1_shows_them() -> None:
    hits = [Hit(Passage("7", '"Oslo"\nA city.'), 2.0), Hit(Passage("8", '"Rome"\nAnother.\nOld.'), 1.0)]
    assert "".join(Tags().observe(hits)) == (
        "\n\n<information>Doc 1(Title: Oslo) A city.\nDoc 2(Title: Rome) Another.\nOld.\n</information>\n\n"
    )


def test_nothing_found_is_said() -> None:
    assert "".join(Tags().observe([])) == "\n\n<information>Nothing was found.\n</information>\n\n"


def test_a_correction_names_the_fault_and_the_remedy() -> None:
    opening, told, closing = Tags().correct(Malformed("the search is empty"))
    assert (opening, closing) == ("\n\n<information>", "</information>\n\n")
    assert told.startswith("No action was taken: the search is empty. Write <search> query </search>")


def test_the_instruction_shows_every_tag() -> None:
    for name in ("think", "search", "information", "answer"):
        assert f"<{name}>" in Tags.instruction
        assert f"</{name}>" in Tags.instruction


def test_by_name() -> None:
    assert isinstance(named("tags"), Tags)
    assert isinstance(named("import:sleuth.agent.protocol.Tags"), Tags)
    with pytest.raises(ConfigError, match=r"agent\.protocol = 'tag' is unknown"):
        named("tag")
