"""Where the time of a run went, how fast it was, and what memory it took."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from sleuth.page.axis import drawable
from sleuth.page.number import short
from sleuth.page.table import pairs, table
from sleuth.page.text import Html, element

Rows = Sequence[Mapping[str, Any]]

_PARTS = {
    "generate": "generating episodes",
    "search": "of it, waiting for searches",
    "reward": "rewards",
    "score": "scoring: old, reference and critic",
    "pack": "packing",
    "train": "forward and backward",
    "optimiser": "optimiser",
    "publish": "weights to the engine",
    "write": "writing trajectories",
    "save": "copying a checkpoint",
    "step": "the whole step",
}
_FIGURES = {
    "speed/tokens": "tokens a second",
    "speed/trajectories": "trajectories a second",
    "speed/mfu": "model FLOP utilisation, forward and backward (6N a token)",
    "search/latency": "seconds a search",
    "engine/reused": "share of given tokens found in the cache",
    "staleness/mean": "versions that sampled tokens are behind",
}


def pace(rows: Rows) -> Iterator[Html]:
    """Mean seconds of each part with its share of the step, then means of speed and the peaks of memory."""
    seconds = {name: mean for name in _PARTS if (mean := _mean(rows, f"time/{name}")) is not None}
    if not seconds:
        yield element("p", "No times were recorded.", class_="quiet")
        return
    whole = seconds.get("step")
    lines = [[_PARTS[name], short(_rounded(mean)), _share(mean, whole)] for name, mean in seconds.items()]
    parts = table(("Part", "Seconds a step", "Share"), lines)
    figures = [
        (words, short(_rounded(mean))) for key, words in _FIGURES.items() if (mean := _mean(rows, key)) is not None
    ]
    yield element("div", parts, pairs([*figures, *_memory(rows)]), class_="charts")


def _memory(rows: Rows) -> list[tuple[str, str]]:
    """The most that was held of each kind of memory."""
    keys = dict.fromkeys(key for row in rows for key in row if key.startswith("memory/"))
    peaks = {key: max(_known(rows, key), default=None) for key in keys}
    return [
        (f"GiB of memory at most, {key.removeprefix('memory/').removesuffix('_gib')}", short(_rounded(peak)))
        for key, peak in peaks.items()
        if peak is not None
    ]


def _share(mean: float, whole: float | None) -> str:
    return f"{mean / whole:.0%}" if whole else "–"


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _mean(rows: Rows, key: str) -> float | None:
    known = _known(rows, key)
    return fmean(known) if known else None


def _known(rows: Rows, key: str) -> list[float]:
    return [row[key] for row in rows if drawable(row.get(key))]
