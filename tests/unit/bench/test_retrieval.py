"""BM25 next to bm25s."""

import json
from pathlib import Path

from sleuth.bench.retrieval import BM25Timing, compare_bm25


def test_all_tasks_are_timed(tmp_path: Path) -> None:
    rows = (json.dumps({"id": str(row), "contents": f"red apple number {row}"}) for row in range(30))
    (tmp_path / "corpus.jsonl").write_text("\n".join(rows) + "\n")
    timings = compare_bm25(tmp_path / "corpus.jsonl", [f"apple {row}" for row in range(5)], 3, compiled=False)
    assert [timing.task for timing in timings] == [
        "index 30 passages, s",
        "queries/s, one at a time",
        "queries/s, 5 at once",
    ]
    for timing in timings:
        assert set(timing.seconds) == {"ours", "bm25s"}
        assert all(0 < seconds < 60 for seconds in timing.seconds.values())


def test_shown_values() -> None:
    rate = BM25Timing("queries/s", {"ours": 0.5, "bm25s": 2.0}, scale=100)
    assert (rate.shown("ours"), rate.shown("bm25s"), rate.shown("bm25s with numba")) == (200.0, 50.0, "-")
    assert (rate.ratio("bm25s"), rate.ratio("bm25s with numba")) == (4.0, "-")
    assert BM25Timing("seconds", {"ours": 0.5}).shown("ours") == 0.5
