"""Exact dense search equals sorting all scores, for any shards, batches and ties."""

from collections.abc import Callable
from threading import Thread

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sleuth.errors import ConfigError
from sleuth.retrieval.dense.exact import Dense, DeviceShard, ExactIndex, HostShard, Shard, devices_for, nearest

Floats = NDArray[np.float32]
Halves = NDArray[np.float16]
Ranks = NDArray[np.uint32]


def unit(count: int, dimensions: int, seed: int) -> Floats:
    drawn = np.random.default_rng(seed).standard_normal((count, dimensions)).astype(np.float32)
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True), np.float32)


def brute(vectors: Halves, ranks: Ranks, queries: Floats, k: int) -> tuple[NDArray[np.int64], Floats]:
    """All scores in float64, ordered by score and rank."""
    scores = (queries.astype(np.float16).astype(np.float64) @ vectors.astype(np.float64).T).astype(np.float32)
    rows = np.stack([np.lexsort((ranks, -row))[:k] for row in scores])
    return rows, np.take_along_axis(scores, rows, 1)


def host(vectors: Halves, ranks: Ranks) -> Shard:
    return HostShard(vectors, torch.from_numpy(ranks.astype(np.int32)))


def device(vectors: Halves, ranks: Ranks) -> Shard:
    place = "cuda" if torch.cuda.is_available() else "cpu"
    return DeviceShard(torch.from_numpy(vectors).to(place), torch.from_numpy(ranks.astype(np.int32)).to(place))


SHARDS: dict[str, Callable[[Halves, Ranks], Shard]] = {"host": host, "kernels": device}


@pytest.fixture(params=SHARDS)
def make(request: pytest.FixtureRequest) -> Callable[[Halves, Ranks], Shard]:
    return SHARDS[request.param]


@pytest.mark.parametrize(("rows", "dimensions", "asked", "k"), [(300, 24, 3, 3), (129, 8, 20, 1), (5, 16, 2, 9)])
def test_equals_brute_force(
    make: Callable[[Halves, Ranks], Shard], rows: int, dimensions: int, asked: int, k: int
) -> None:
    vectors, queries = unit(rows, dimensions, 0).astype(np.float16), unit(asked, dimensions, 1)
    ranks = np.random.default_rng(2).permutation(rows).astype(np.uint32)
    found, scores = nearest(make(vectors, ranks), queries, k)
    right, values = brute(vectors, ranks, queries, k)
    assert found.tolist() == right.tolist()
    assert scores.tolist() == values.tolist()


def test_more_equal_rows_than_candidates_are_ordered_by_rank(make: Callable[[Halves, Ranks], Shard]) -> None:
    vectors = unit(400, 16, 0).astype(np.float16)
    vectors[50:350] = vectors[7]  # many groups share their maximum: the first candidates cannot hold them all
    ranks = np.random.default_rng(3).permutation(400).astype(np.uint32)
    queries = vectors[[7, 1]].astype(np.float32)
    found, _ = nearest(make(vectors, ranks), queries, 5)
    assert found.tolist() == brute(vectors, ranks, queries, 5)[0].tolist()


def test_together_as_alone(make: Callable[[Halves, Ranks], Shard]) -> None:
    vectors, queries = unit(300, 24, 0).astype(np.float16), unit(18, 24, 1)
    shard = make(vectors, np.arange(300, dtype=np.uint32))
    together = nearest(shard, queries, 3)
    alone = [nearest(shard, queries[n : n + 1], 3) for n in (0, 7, 17)]
    for place, (rows, scores) in zip((0, 7, 17), alone, strict=True):
        assert rows[0].tolist() == together[0][place].tolist()
        assert scores[0].tolist() == together[1][place].tolist()


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 80), k=st.integers(1, 12), shards=st.integers(1, 5), seed=st.integers(0, 99))
def test_shards_together_equal_the_whole(rows: int, k: int, shards: int, seed: int) -> None:
    rough = np.round(unit(rows, 6, seed) * 2) / 2  # coarse numbers, so that many scores are equal
    vectors, queries = rough.astype(np.float16), unit(4, 6, seed + 1)
    ranks = np.random.default_rng(seed).permutation(rows).astype(np.uint32)
    found, scores = ExactIndex(vectors, ranks, ["cpu"] * shards, unit=False).nearest(queries, k)
    right, values = brute(vectors, ranks, queries, k)
    assert found.tolist() == right.tolist()
    assert scores.tolist() == values.tolist()


def test_rows_longer_than_one_are_searched_exactly() -> None:
    vectors = (unit(500, 12, 0) * np.linspace(1, 200, 500)[:, None]).astype(np.float16)
    ranks = np.arange(500, dtype=np.uint32)
    queries = unit(5, 12, 1) * 30
    found, _ = ExactIndex(vectors, ranks, ["cpu"], unit=False).nearest(queries, 10)
    assert found.tolist() == brute(vectors, ranks, queries, 10)[0].tolist()


def test_blank_queries_find_nothing_and_are_not_encoded() -> None:
    vectors = unit(20, 4, 0)
    asked: list[list[str]] = []

    def encode(texts: list[str]) -> Floats:
        asked.append(texts)
        return vectors[[int(text) for text in texts]]

    ranker = Dense(ExactIndex(vectors.astype(np.float16), np.arange(20, dtype=np.uint32), ["cpu"]), encode)
    assert [[row for row, _ in found[:1]] for found in ranker.rank(["3", " ", "", "9"], 2)] == [[3], [], [], [9]]
    assert ranker.rank(["", "\n"], 2) == [[], []]
    assert asked == [["3", "9"]]


@pytest.mark.parametrize("wanted", ["cuda", "cuda:0"])
def test_gpu_that_is_not_there_is_rejected(wanted: str) -> None:
    if torch.cuda.is_available():
        assert devices_for(wanted, 1)
    else:
        with pytest.raises(ConfigError, match="not available; choose from cpu"):
            devices_for(wanted, 1)


def test_without_a_gpu_auto_is_the_cpu() -> None:
    assert devices_for("cpu", 1 << 60) == ["cpu"]
    assert devices_for("auto", 1 << 60) == ["cpu"]  # more than any GPU holds


def test_nan_rows_do_not_block_a_search(make: Callable[[Halves, Ranks], Shard]) -> None:
    vectors = unit(300, 8, 0).astype(np.float16)
    vectors[5:9] = np.nan
    searching = Thread(target=nearest, args=(make(vectors, np.arange(300, dtype=np.uint32)), unit(2, 8, 1), 3))
    searching.daemon = True
    searching.start()
    searching.join(20)
    assert not searching.is_alive()


@pytest.mark.gpu
@pytest.mark.parametrize("asked", [1, 16, 17, 33, 64, 65, 512, 700])
def test_every_tile_of_the_compiled_kernels_equals_brute_force(asked: int) -> None:
    vectors, queries = unit(100_003, 768, 0).astype(np.float16), unit(asked, 768, 1)
    ranks = np.random.default_rng(2).permutation(100_003).astype(np.uint32)
    found, scores = nearest(device(vectors, ranks), queries, 10)
    rows, values = nearest(host(vectors, ranks), queries, 10)
    assert found.tolist() == rows.tolist()
    assert scores.tolist() == values.tolist()


@pytest.mark.gpu
def test_odd_number_of_dimensions_on_a_gpu() -> None:
    vectors, queries = unit(5_000, 77, 0).astype(np.float16), unit(9, 77, 1)
    ranks = np.arange(5_000, dtype=np.uint32)
    found, _ = ExactIndex(vectors, ranks, ["cuda:0", "cuda:0", "cpu"]).nearest(queries, 5)
    assert found.tolist() == brute(vectors, ranks, queries, 5)[0].tolist()
