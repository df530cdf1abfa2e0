"""The command ask: the streamed transcript, coloured by tags, and the summary line."""

from io import StringIO
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    with pytest.raises(InputError, match=f"sleuth serve agent {tmp_path} --index INDEX"):
        ask(str(tmp_path), "Who?")


def test_index_of_a_run_cannot_be_changed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"sleuth serve agent {tmp_path} --index INDEX"):
        ask(str(tmp_path), "Who?", index="other")


def test_empty_question_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="question is empty"):
        ask(str(tmp_path), "  ")


def test_escape_sequences_do_not_reach_the_terminal() -> None:
    assert streamed(["<think>\x1b[8m", "hidden\u202e</think>"]) == "<think>\ufffd[8mhidden\ufffd</think>"
