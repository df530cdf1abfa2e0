"""What a person sees while a run goes on."""

from io import StringIO

import pytest
from rich.console import Console

from sleuth.api.progress import TrainingProgress, format_metrics

METRICS = {
    "reward/mean": 0.5,
    "episode/em": 0.25,
    "episode/searches": 1.44,
    "episode/tokens_all": 3000.0,
    "time/step": 1.5,
}
LINE = "reward 0.50  EM 0.25  searches 1.4  2,000 tokens/s"


def shown(*, terminal: bool) -> str:
    file = StringIO()
    with TrainingProgress(Console(file=file, force_terminal=terminal, width=140)) as live:
        live.advance()
        live.begin("indexing", 1)
        live.begin("training", 20)
        for step in (9, 10, 11):
            live.step(step, METRICS)
            live.advance()
    return file.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_told_is_a_line_of_its_own(terminal: bool) -> None:
    file = StringIO()
    with TrainingProgress(Console(file=file, force_terminal=terminal, width=20)) as live:
        live.log("longer than the terminal is wide")
    assert "longer than the terminal is wide\n" in file.getvalue()


def test_figures_are_one_line() -> None:
    assert format_metrics(METRICS) == LINE


def test_without_a_terminal_stages_and_every_tenth_step_are_lines() -> None:
    assert shown(terminal=False).splitlines() == ["indexing", "training", f"step 10: {LINE}"]


@pytest.mark.parametrize("words", ["indexing", "1/1", "training", "3/20", LINE])
def test_on_a_terminal_stages_are_bars_with_figures(words: str) -> None:
    assert words in shown(terminal=True)
