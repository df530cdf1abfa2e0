"""Where the time of a run went, as its report shows it."""

from collections.abc import Callable

from sleuth.page.pace import pace
from sleuth.page.text import joined

Read = Callable[[str], tuple[list[tuple[str, dict[str, str | None]]], str]]
ROWS = [
    {"step": 0, "evaluate/em": 0.1},
    {
        "step": 1,
        "time/generate": 3.0,
        "time/train": 1.0,
        "time/step": 5.0,
        "speed/tokens": 1000.0,
        "memory/gpu_gib": 10.0,
    },
    {
        "step": 2,
        "time/generate": 5.0,
        "time/train": 2.0,
        "time/step": 7.0,
        "speed/tokens": 3000.0,
        "memory/gpu_gib": 12.0,
    },
    {"step": 3, "time/generate": float("nan"), "time/unknown": 9.0, "speed/mfu": 0.5123},
]


def test_parts_have_their_mean_and_their_share_in_the_order_of_a_step(read: Read) -> None:
    _, text = read(joined(pace(ROWS)))
    assert "generating episodes467%forward and backward1.525%the whole step6100%" in text
    assert "unknown" not in text


def test_speeds_are_means_and_memory_is_its_peak(read: Read) -> None:
    _, text = read(joined(pace(ROWS)))
    assert "tokens a second2,000" in text
    assert "(6N a token)0.512" in text
    assert "GiB of memory at most, gpu12" in text


def test_parts_without_a_whole_have_no_share(read: Read) -> None:
    _, text = read(joined(pace([{"step": 1, "time/train": 2.0}])))
    assert "forward and backward2–" in text


def test_a_run_without_times_says_so(read: Read) -> None:
    _, text = read(joined(pace([{"step": 1}])))
    assert text == "No times were recorded."
