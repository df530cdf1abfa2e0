"""The command ask: the streamed transcript, coloured by tags, and the summary line."""

from dataclasses import replace
from io import StringIO
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.cli.ask import TranscriptPrinter, ask, summary_line
from sleuth.cli.terminal import Terminal
from sleuth.errors import ConfigError, InputError
from sleuth.records import Answer, Malformed, Outcome, Question, Segment, StopReason, ToolCall, Trajectory, Turn

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


def trajectory(stop: StopReason, *turns: Turn) -> Trajectory:
    return Trajectory(Question("q", "Who?", (), "asked"), 0, 0, 0, (Segment((1,), (False,), (), ()),), turns, stop)


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
    "No answer: the prompt exceeds agent.context_tokens; ask a shorter question": (StopReason.OUT_OF_TOKENS,),
}


@pytest.mark.parametrize(("line", "ended"), list(LINES.items()), ids=LINES)
def test_summary_line_has_the_answer_or_the_reason(line: str, ended: tuple[StopReason, *tuple[Turn, ...]]) -> None:
    stop, *turns = ended
    assert summary_line(trajectory(stop, *turns)) == line


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


def test_a_failed_function_is_named_in_the_summary_line() -> None:
    lost = replace(
        trajectory(StopReason.FUNCTION_FAILED), failure="'import:mine.method' raised KeyError: 'x' (mine.py:3)"
    )
    assert summary_line(lost) == "No answer: 'import:mine.method' raised KeyError: 'x' (mine.py:3)"
