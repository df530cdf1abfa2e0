"""The command ask: a transcript that streams, coloured by its tags, and a closing line."""

from dataclasses import replace
from io import StringIO
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.cli.ask import Stream, ask, closing
from sleuth.cli.terminal import Terminal
from sleuth.errors import ConfigError, InputError
from sleuth.records import Answer, Malformed, Outcome, Question, StopReason, ToolCall, Trajectory, Turn

TEXT = "Question: is 1 < 2?\n<think> I [bold] know </think> <search> Ada </search>\n\n<answer> x</y </answer>"


def streamed(pieces: list[str], *, colour: bool = False) -> str:
    file = StringIO()
    stream = Stream(Terminal(file=file, width=20, color_system="standard" if colour else None, highlight=False))
    for piece in pieces:
        stream.hear(piece)
    stream.end()
    return file.getvalue()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, len(TEXT)), max_size=12).map(sorted))
def test_text_comes_out_as_it_came_in_however_it_is_cut(cuts: list[int]) -> None:
    bounds = [0, *cuts, len(TEXT)]
    pieces = [TEXT[low:high] for low, high in pairwise(bounds)]
    assert streamed(pieces) == TEXT


@pytest.mark.parametrize(
    "pieces", [["<search> Ada </search>"], ["<sea", "rch> Ada <", "/search", ">"], list("<search> Ada </search>")]
)
def test_tags_colour_what_they_hold_also_in_pieces(pieces: list[str]) -> None:
    printed = streamed(pieces, colour=True)
    assert printed.startswith("\x1b[2m<search>\x1b[0m\x1b[36m ")
    assert printed.endswith("\x1b[0m\x1b[2m</search>\x1b[0m")


def trajectory(stop: StopReason, *turns: Turn) -> Trajectory:
    return Trajectory(Question("q", "Who?", (), "asked"), 0, 0, 0, (1,), (False,), (), (), turns, stop)


SEARCHED = Turn("", ToolCall.search("Ada"), Outcome.FOUND, 3)
LINES = {
    "Answer: Ada (2 searches)": (StopReason.ANSWERED, SEARCHED, SEARCHED, Turn("", Answer("Ada"), Outcome.ANSWERED, 3)),
    "No answer: the search engine failed (1 search)": (
        StopReason.SEARCH_UNAVAILABLE,
        SEARCHED,
        Turn("", ToolCall.search("Ada"), Outcome.UNAVAILABLE, 3),
    ),
    "No answer: out of turns (1 search)": (StopReason.OUT_OF_TURNS, SEARCHED),
    "No answer: out of tokens (0 searches)": (
        StopReason.OUT_OF_TOKENS,
        Turn("", Malformed("no"), Outcome.CORRECTED, 3),
    ),
    "No answer: engine failed (0 searches)": (StopReason.ENGINE_FAILED,),
    "No answer: the prompt with this question leaves no room (agent.context_tokens); ask something shorter": (
        StopReason.OUT_OF_TOKENS,
    ),
}


@pytest.mark.parametrize(("line", "ended"), list(LINES.items()), ids=LINES)
def test_closing_line_is_the_answer_or_why_there_is_none(
    line: str, ended: tuple[StopReason, *tuple[Turn, ...]]
) -> None:
    stop, *turns = ended
    assert closing(trajectory(stop, *turns)) == line


def test_model_without_an_index_is_told_what_can_be_asked(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match=f"serve it with: sleuth serve agent {tmp_path} --index INDEX"):
        ask(str(tmp_path), "Who?")


def test_index_of_a_run_cannot_be_changed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"another index is searched by: sleuth serve agent {tmp_path} --index INDEX"):
        ask(str(tmp_path), "Who?", index="other")


def test_empty_question_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the question is empty"):
        ask(str(tmp_path), "  ")


def test_escapes_of_a_model_do_not_reach_the_terminal() -> None:
    assert streamed(["<think>\x1b[8m", "hidden\u202e</think>"]) == "<think>\ufffd[8mhidden\ufffd</think>"


def test_a_function_that_failed_is_named_in_the_closing_line() -> None:
    lost = replace(
        trajectory(StopReason.FUNCTION_FAILED), failure="'import:mine.method' raised KeyError: 'x' (mine.py:3)"
    )
    assert closing(lost) == "No answer: 'import:mine.method' raised KeyError: 'x' (mine.py:3)"
