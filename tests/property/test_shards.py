"""Shards of an exact index: the merged results are those of the whole index, bit for bit."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sleuth.cluster.serving import merge_rankings, shard_rows
from sleuth.retrieval.dense.exact import Dense, ExactIndex


@given(st.integers(0, 10**8), st.integers(1, 100))
def test_shards_cover_every_row_once_and_are_even(passages: int, shards: int) -> None:
    ranges = shard_rows(passages, shards)
    assert [ranges[0].start, *(each.stop for each in ranges)] == [*(each.start for each in ranges), passages]
    sizes = [len(each) for each in ranges]
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 40), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_merged_shards_rank_like_the_whole_index(data: st.DataObject, passages: int, k: int, seed: int) -> None:
    """Few distinct vectors make ties, which only the order of ids resolves."""
    shards = data.draw(st.integers(1, passages))
    random = np.random.default_rng(seed)
    vectors = random.integers(-1, 2, (passages, 4)).astype(np.float16)
    id_order = random.permutation(passages).astype(np.uint32)
    asked = random.integers(-2, 3, (3, 4)).astype(np.float32)

    def ranker(rows: range) -> Dense:
        part = slice(rows.start, rows.stop)
        return Dense(ExactIndex(vectors[part], id_order[part], ["cpu"], unit=False), lambda _: asked, rows.start)

    queries, k = ["a", "b", "c"], min(k, passages)
    whole = ranker(range(passages)).rank(queries, k)
    parts = [ranker(rows).rank(queries, k) for rows in shard_rows(passages, shards)]
    assert [merge_rankings(found, id_order, k) for found in zip(*parts, strict=True)] == whole
