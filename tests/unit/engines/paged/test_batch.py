"""Packed prefill arrays, and padding as in captured steps."""

import asyncio
from array import array
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from sleuth.engines.base import Completion, Sampling
from sleuth.engines.paged.batch import PackedPrefill, PrefillBuffers, max_tiles, pad_decode_lanes, pad_mixed_lanes
from sleuth.engines.paged.engine import PagedEngine
from sleuth.engines.paged.page_pool import PAGE_SIZE
from sleuth.engines.paged.request import Request
from sleuth.engines.paged.scheduler import PrefillChunk
from sleuth.model.tokens import Tokens


def make_request(ids: list[int], slot: int, pages: list[int]) -> Request:
    loop = asyncio.new_event_loop()
    future: asyncio.Future[Completion] = loop.create_future()
    loop.close()
    return Request(array("i", ids), len(ids), Sampling(1), 1, 0, (0, 0), None, None, future, slot, pages)


@pytest.fixture
def prefill() -> PackedPrefill:
    """Two lanes, the end of a row of 20 tokens, and the beginning of one of 40."""
    first, second = make_request([*range(20)], 3, [7, 5]), make_request([*range(100, 140)], 1, [0, 2, 4])
    return PackedPrefill.of([PrefillChunk(first, 12, 20), PrefillChunk(second, 0, 9)], 2, 4)


def test_chunks_follow_the_lanes(prefill: PackedPrefill) -> None:
    assert prefill.ids_N[2:].tolist() == [*range(12, 20), *range(100, 109)]
    assert prefill.positions_N[2:].tolist() == [*range(12, 20), *range(9)]
    assert prefill.addresses_N[2:].tolist() == [7 * PAGE_SIZE + 12 + n for n in range(4)] + [
        5 * PAGE_SIZE + n for n in range(4)
    ] + [*range(9)]
    assert prefill.ends_2G.tolist() == [[3, 1], [20, 9]]


def test_only_lanes_and_last_chunks_are_sampled(prefill: PackedPrefill) -> None:
    assert prefill.last_M.tolist() == [0, 1, 9]


def test_tiles_cover_every_prefill_token_once(prefill: PackedPrefill) -> None:
    first, slot, position, count = prefill.tiles_4T
    assert [*zip(first.tolist(), slot.tolist(), position.tolist(), count.tolist(), strict=True)] == [
        (2, 3, 12, 4),
        (6, 3, 16, 4),
        (10, 1, 0, 4),
        (14, 1, 4, 4),
        (18, 1, 8, 1),
    ]
    assert count.sum() == 17
    assert len(count) <= max_tiles(17, 2, 4)


def test_padding_has_no_address(prefill: PackedPrefill) -> None:
    full = prefill.padded(32, 9, 6)
    assert [len(each) for each in (full.ids_N, full.positions_N, full.addresses_N, full.last_M)] == [32, 32, 32, 6]
    assert full.tiles_4T.shape == (4, 9)
    assert (full.addresses_N[19:] == -1).all()
    assert (full.tiles_4T[3, 5:] == 0).all()
    np.testing.assert_array_equal(full.ids_N[:19], prefill.ids_N)


@pytest.mark.parametrize(("lanes", "filled"), [(0, 0), (1, 64), (64, 64), (65, 128)])
def test_lanes_are_padded(lanes: int, filled: int) -> None:
    assert pad_decode_lanes(lanes) == filled


def test_buffers_fit_every_step_with_little_padding() -> None:
    made = PrefillBuffers.allocate_all(1200, slots=100, queries=8, device=torch.device("cpu"))
    assert [(each.tokens, each.chunks) for each in made] == [(512, 64), (1024, 64), (1200, 100)]
    assert made[0].fits(512, 64)
    assert not made[0].fits(513, 1)
    assert not made[0].fits(65, 65)
    assert made[-1].fits(1200, 100)
    assert [each.tokens for each in PrefillBuffers.allocate_all(512, 4, 8, torch.device("cpu"))] == [512]
    assert [each.tokens for each in PrefillBuffers.allocate_all(16, 4, 8, torch.device("cpu"))] == [16]
    assert [pad_mixed_lanes(lanes) for lanes in (0, 1, 64, 65, 200, 512)] == [0, 64, 64, 128, 256, 512]


@pytest.mark.parametrize("prefill_tokens", [16, 24, 100, 700])
def test_padded_steps_give_the_same_completions(
    tiny: Callable[..., PreTrainedModel], tokens: Tokens, prefill_tokens: int
) -> None:
    """On a CPU nothing is captured; fillers, full chunks and rows sampled for nobody are as on a GPU."""
    lengths = (1, 3, 3, 5, 2, 7, 1, 30, 31)
    prompts = [tokens.encode("Who wrote the book that Ada read?" * n + " Oslo" * (n % 3)) for n in lengths]

    async def said(graphs: bool) -> list[Completion]:
        engine = PagedEngine(tiny(), tokens, slots=5, context=500, prefill_tokens=prefill_tokens, graphs=graphs)
        calls = [engine.generate(ids, Sampling(9 + n, seed=n, top_k=n)) for n, ids in enumerate(prompts)]
        return await asyncio.gather(*calls)

    plain, filled = asyncio.run(said(False)), asyncio.run(said(True))
    for mine, theirs in zip(filled, plain, strict=True):
        assert (mine.ids, mine.finish) == (theirs.ids, theirs.finish)
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


def test_a_warm_up_writes_to_no_pages(tiny: Callable[..., PreTrainedModel], tokens: Tokens) -> None:
    """A step is rehearsed before it is captured, while other rows' keys and values are cached."""
    engine = PagedEngine(tiny(), tokens, slots=5, context=200, prefill_tokens=600, graphs=True)
    asyncio.run(engine.generate(tokens.encode("Who wrote the book that Ada read?" * 3), Sampling(5)))
    runner = engine._core.runner
    assert runner._graphs is not None
    cached = (*runner.cache.keys, *runner.cache.values)
    # As if the pages had other tenants by now.
    for states in cached:
        states.fill_(1.0)
    with runner.inference():
        for buffers in runner._buffers:
            runner._graphs.prepare(f"rehearsed anew {buffers.tokens}", 0, partial(runner._mixed, buffers))
    assert all((states == 1.0).all() for states in cached)
