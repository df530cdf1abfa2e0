"""Recording and replay of searches."""

import asyncio
import gc
import json
import resource
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.errors import InputError, ReplayMiss, SearchUnavailable, UserError
from sleuth.records import Hit, Passage
from sleuth.retrieval.replay import RecordingRetriever, ReplayRetriever

Outcome = list[Hit] | SearchUnavailable

HIT = Hit(
    Passage("7", '"Łódź"\n東京 🗺\u2028', {"url": "https://example.org", "score": "their own", "n": [1, None]}), 0.1
)
OTHER = Hit(Passage("8", "text"), 1e-300)


class Script:
    """Gives the outcomes it was told, in their order, the last one for ever."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)

    async def search(self, queries: Sequence[str], k: int) -> list[Outcome]:
        return [self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0] for _ in queries]


def record(path: Path, *outcomes: Outcome, queries: Sequence[str] = ("q",), k: int = 3, index: str = "abc") -> None:
    recorded = RecordingRetriever(Script(*outcomes), path, index)
    for query in queries:
        asyncio.run(recorded.search([query], k))
    recorded.close()


def replay(path: Path, *queries: str, k: int = 3) -> list[Outcome]:
    replayed = ReplayRetriever(path, "abc")
    return asyncio.run(replayed.search(queries, k))


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_recorded_hits_are_replayed(tmp_path: Path) -> None:
    path = tmp_path / "run" / "searches.jsonl"
    recorded = RecordingRetriever(Script([HIT, OTHER], [], [OTHER]), path, "abc")
    answers = asyncio.run(recorded.search(["a", "b\n", "\ud800"], 3))
    assert answers == [[HIT, OTHER], [], [OTHER]]
    assert replay(path, "\ud800", "a", "b\n") == [[OTHER], [HIT, OTHER], []]
    assert rows(path)[0] == {"format": 1, "kind": "searches", "index": "abc"}


def test_failure_is_replayed_as_one(tmp_path: Path) -> None:
    record(tmp_path / "r", SearchUnavailable("q", "status 500"))
    (outcome,) = replay(tmp_path / "r", "q")
    assert isinstance(outcome, SearchUnavailable)
    assert (outcome.query, outcome.cause) == ("q", "status 500")


@given(st.lists(st.tuples(st.text(), st.floats(allow_nan=False, allow_infinity=False)), max_size=4), st.text())
@settings(max_examples=50, deadline=None)
def test_scores_and_texts_come_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, found: list[tuple[str, float]], query: str
) -> None:
    path = tmp_path_factory.mktemp("replay") / "r"
    hits = [Hit(Passage(str(n), text), score) for n, (text, score) in enumerate(found)]
    record(path, hits, queries=[query])
    assert replay(path, query) == [hits]


def test_missing_search_raises_replay_miss(tmp_path: Path) -> None:
    path = tmp_path / "r"
    record(path, [HIT])
    with pytest.raises(ReplayMiss, match=r"'other' with k=3"):
        replay(path, "q", "other")
    with pytest.raises(ReplayMiss, match="'q' with k=2"):
        replay(path, "q", k=2)
    assert issubclass(ReplayMiss, UserError)


def test_same_outcome_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "r"
    recorded = RecordingRetriever(Script([HIT]), path, "abc")
    for _ in range(3):
        asyncio.run(recorded.search(["q", "q"], 3))
    asyncio.run(recorded.search(["q"], 2))
    assert [(row["query"], row["k"]) for row in rows(path)[1:]] == [("q", 3), ("q", 2)]


def test_changed_outcomes_replay_in_order_and_the_last_repeats(tmp_path: Path) -> None:
    path = tmp_path / "r"
    record(path, SearchUnavailable("q", "down"), [HIT], [HIT], [OTHER], queries=["q"] * 5)
    assert len(rows(path)) == 4
    replayed = ReplayRetriever(path, None)
    outcomes = [asyncio.run(replayed.search(["q"], 3))[0] for _ in range(5)]
    assert isinstance(outcomes[0], SearchUnavailable)
    assert outcomes[1:] == [[HIT], [OTHER], [OTHER], [OTHER]]


def test_recording_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "r"
    record(path, [HIT], queries=["a"])
    record(path, [HIT], [OTHER], queries=["a", "b"])
    assert [row["query"] for row in rows(path)[1:]] == ["a", "b"]
    assert replay(path, "a", "b") == [[HIT], [OTHER]]


def test_recording_cut_anywhere_is_continued(tmp_path: Path) -> None:
    record(tmp_path / "whole", [HIT], [OTHER], queries=["a", "b"])
    whole = (tmp_path / "whole").read_bytes()
    for end in range(0, len(whole), 7):
        path = tmp_path / f"cut-{end}"
        path.write_bytes(whole[:end])
        record(path, [HIT], [OTHER], queries=["a", "b"])
        assert path.read_bytes() == whole


def test_truncated_last_line_is_not_replayed(tmp_path: Path) -> None:
    path = tmp_path / "r"
    record(path, [HIT], queries=["a", "b"])
    path.write_bytes(path.read_bytes()[:-1])
    assert replay(path, "a") == [[HIT]]
    with pytest.raises(ReplayMiss):
        replay(path, "b")


def test_another_index_is_refused_and_the_file_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "r"
    record(path, [HIT])
    before = path.read_bytes()
    with pytest.raises(InputError, match="recorded from index"):
        RecordingRetriever(Script([HIT]), path, "def")
    with pytest.raises(InputError, match="recorded from index"):
        ReplayRetriever(path, "def")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"some notes of mine", "not a recording"),
        (b"[1]\n", "not a recording"),
        (b'{"format": 1, "kind": "run", "index": "abc"}\n', "'run'"),
        (b'{"format": 2, "kind": "searches", "index": "abc"}\n', "format 2"),
        (b'{"format":1,"kind":"searches","index":"abc"}\n{"query":"q"}\n', "line 2, is not a row"),
        (b'{"format":1,"kind":"searches","index":"abc"}\nx\n', "line 2, is not a row"),
        (
            b'{"format":1,"kind":"searches","index":"abc"}\n{"query":"q","k":' + b"1" * 5000 + b',"hits":[]}\n',
            "not a row",
        ),
    ],
)
def test_other_files_are_refused_and_left_alone(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "r"
    path.write_bytes(content)
    for opener in (lambda: RecordingRetriever(Script([HIT]), path, "abc"), lambda: ReplayRetriever(path, "abc")):
        with pytest.raises(InputError, match=words):
            opener()
    assert path.read_bytes() == content


def test_row_damaged_after_opening_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "r"
    record(path, [HIT])
    replayed = ReplayRetriever(path, "abc")
    path.write_bytes(path.read_bytes().replace(b'"score":0.1', b'"score":"x"'))
    with pytest.raises(InputError, match="restore the file"):
        asyncio.run(replayed.search(["q"], 3))


def test_row_damaged_before_opening_is_an_error_when_read(tmp_path: Path) -> None:
    path = tmp_path / "r"
    record(path, [HIT], [OTHER], queries=["a", "b"])
    path.write_bytes(path.read_bytes().replace(b'"score":0.1', b'"score":0.1.1'))
    assert replay(path, "b") == [[OTHER]]
    with pytest.raises(InputError, match="the row at byte 45, is not a row of a recording; restore the file"):
        replay(path, "a")


@pytest.mark.parametrize("query", ["plain", 'a "quoted" \\ one', "Łódź 東京 🗺\u2028", "\x7f\t\n\0", ""])
def test_rows_that_another_program_wrote_are_the_same_rows(tmp_path: Path, query: str) -> None:
    path = tmp_path / "r"
    record(path, [HIT], SearchUnavailable(query, "down"), [OTHER], queries=[query] * 3)
    ours = rows(path)
    path.write_text("".join(f"{json.dumps(dict(sorted(row.items())), ensure_ascii=False)}\n" for row in ours))
    replayed = ReplayRetriever(path, "abc")
    first, second, third = (asyncio.run(replayed.search([query], 3))[0] for _ in range(3))
    assert (first, third) == ([HIT], [OTHER])
    assert isinstance(second, SearchUnavailable)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot be read"):
        ReplayRetriever(tmp_path / "none", None)
    for path in (tmp_path, tmp_path / "file" / "r"):
        with pytest.raises(InputError, match="cannot be written"):
            RecordingRetriever(Script([HIT]), path, "abc")


def test_recording_is_exclusive(tmp_path: Path) -> None:
    first = RecordingRetriever(Script([HIT]), tmp_path / "r", "abc")
    with pytest.raises(InputError, match="another process"):
        RecordingRetriever(Script([HIT]), tmp_path / "r", "abc")
    del first
    gc.collect()
    record(tmp_path / "r", [HIT])


def test_full_disk_is_an_error_and_leaves_whole_rows(tmp_path: Path) -> None:
    path = tmp_path / "r"
    recorded = RecordingRetriever(Script([HIT]), path, "abc")
    asyncio.run(recorded.search(["a"], 3))
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, hard))
    try:
        with pytest.raises(InputError, match="cannot be written"):
            asyncio.run(recorded.search(["b"], 3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    asyncio.run(recorded.search(["b"], 3))
    assert replay(path, "a", "b") == [[HIT], [HIT]]
