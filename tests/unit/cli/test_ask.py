"""The command ask: the streamed transcript, coloured by tags, and the summary line."""

import sys
from io import StringIO
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sleuth
from sleuth.cli.ask import TranscriptPrinter, ask
from sleuth.cli.terminal import Terminal
from sleuth.errors import ConfigError, InputError

TEXT = "Question: is 1 < 2?\n<think> I [bold] know </think> <search> Ada </search>\n\n<answer> x</y </answer>"


def streamed(pieces: list[str], *, colour: bool = False) -> str:
    file = StringIO()
    printer = TranscriptPrinter(
        Terminal(file=file, width=20, color_system="standard" if colour else None, highlight=False)
    )
    for piece in pieces:
        printer.write(piece)
    printer.flush()
    return file.getvalue()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, len(TEXT)), max_size=12).map(sorted))
def test_text_is_unchanged_however_it_is_split(cuts: list[int]) -> None:
    bounds = [0, *cuts, len(TEXT)]
    pieces = [TEXT[low:high] for low, high in pairwise(bounds)]
    assert streamed(pieces) == TEXT


@pytest.mark.parametrize(
    "pieces", [["<search> Ada </search>"], ["<sea", "rch> Ada <", "/search", ">"], list("<search> Ada </search>")]
)
def test_tags_colour_their_content(pieces: list[str]) -> None:
    printed = streamed(pieces, colour=True)
    assert printed.startswith("\x1b[2m<search>\x1b[0m\x1b[36m ")
    assert printed.endswith("\x1b[0m\x1b[2m</search>\x1b[0m")


def test_model_without_an_index_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=f"{tmp_path} .*--index"):
        ask(str(tmp_path), "Who?")


def test_before_needs_a_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="--before"):
        ask(str(tmp_path), "Who?", before=True, index="somewhere")


def test_folder_of_nothing_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"manifest\.json.*config\.json"):
        ask(str(tmp_path), "Who?", index="somewhere")


def test_missing_index_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        ask("quickstart", "Who?", index=str(tmp_path / "nowhere"))


@pytest.fixture
def library(tmp_path: Path) -> str:
    documents = [{"id": "mirror", "title": "Amber Mirror", "text": "The Amber Mirror was founded by Kellan Whitlock."}]
    sleuth.Index.build(documents, tmp_path / "index")
    return str(tmp_path / "index")


def test_any_model_with_any_index(library: str, capsys: pytest.CaptureFixture[str]) -> None:
    ask("quickstart", "Who founded the Amber Mirror?", index=library)
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1].startswith("Answer: ")
    assert "agent.protocol=tags (" in printed.err
    assert "agent.context_tokens=1024 (" in printed.err


def test_conversation_on_a_pipe(
    library: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO("Who founded the Amber Mirror?\n/new\nWho else?\n"))
    ask("quickstart", index=library, settings=["agent.prompt=brief"])
    printed = capsys.readouterr()
    asked = [line for line in printed.out.splitlines() if line.startswith("> ")]
    assert asked == ["> Who founded the Amber Mirror?", "> Who else?"]
    assert "every question stands alone: " in printed.err


def test_empty_input_is_rejected(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO("\n"))
    with pytest.raises(InputError, match="no question"):
        ask("quickstart", index=library)


def test_empty_question_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="question is empty"):
        ask(str(tmp_path), "  ")


def test_escape_sequences_do_not_reach_the_terminal() -> None:
    assert streamed(["<think>\x1b[8m", "hidden\u202e</think>"]) == "<think>\ufffd[8mhidden\ufffd</think>"
