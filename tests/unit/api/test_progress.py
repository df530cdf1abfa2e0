"""Progress as a person sees it: stages in words, counts, rates and the time that is left."""

import io
import re

from rich.console import Console

from sleuth.api.progress import StageProgress


def shown(*reports: tuple[str, int, int], terminal: bool = False, pause: float = 0.0) -> str:
    screen = io.StringIO()
    with StageProgress(Console(file=screen, force_terminal=terminal, width=120, color_system=None), pause) as meter:
        for report in reports:
            meter(*report)
    return screen.getvalue()


def test_without_a_terminal_each_stage_is_a_line() -> None:
    reports = [("reading", done, 9) for done in range(9)] + [("encoding", 0, 5), ("encoding", 5, 5)]
    assert shown(*reports, pause=60) == "reading\nencoding\n"


def test_without_a_terminal_long_work_says_where_it_is() -> None:
    first, again, later = shown(("encoding", 0, 21_000_000), ("encoding", 10_500, 21_000_000)).splitlines()
    assert (first, again) == ("encoding", "encoding: 0 of 21.0M, 0/s, time left unknown")
    assert re.fullmatch(r"encoding: 10\.5k of 21\.0M, [\d.,]+[kMG]?/s, [\d,]+ s left", later)


def test_work_whose_end_nobody_knows_has_no_time_left() -> None:
    *_, last = shown(("unpacking", 0, 0), ("unpacking", 2_500_000_000, 0)).splitlines()
    assert re.fullmatch(r"unpacking: 2\.5G, [\d.,]+[kMG]?/s, time left unknown", last)


def test_what_an_earlier_run_did_is_no_speed_of_this_one() -> None:
    *_, last = shown(("encoding", 9000, 9999)).splitlines()
    assert last == "encoding: 9,000 of 9,999, 0/s, time left unknown"


def test_a_terminal_shows_a_bar_a_stage_and_ends_each() -> None:
    drawn = shown(("reading", 0, 40), ("reading", 39, 40), ("encoding", 5, 5), terminal=True)
    *_, reading, encoding = [
        line for line in re.split(r"[\r\n]", re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", drawn)) if line.strip()
    ]
    assert reading.startswith("reading ")
    assert "39 of 40" in reading
    assert re.search(r"[\d.,]+[kMG]?/s", reading)
    assert "left 0:00:00" in re.sub(r"\s+", " ", encoding)


def test_silence_shows_nothing() -> None:
    assert shown() == ""
