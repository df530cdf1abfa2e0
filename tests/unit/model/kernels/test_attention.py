"""Paged attention, by kernels and in PyTorch, equals a softmax over the sequences in the pages."""

from dataclasses import dataclass
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sleuth.engines.paged import torch_backend
from sleuth.model.attention import Tiles
from sleuth.model.kernels import attention

PAGE = 16
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FORMS = {"kernels": attention, "plain": torch_backend}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> ModuleType:
    return FORMS[request.param]


@dataclass(frozen=True, slots=True)
class Heads:
    heads: int
    key_heads: int
    width: int


SHAPES = [Heads(4, 2, 16), Heads(9, 3, 32), Heads(3, 3, 24), Heads(20, 1, 16)]


class Pages:
    """Sequences of known keys and values, kept in pages drawn by seed; the last slot is nobody's and empty.

    What no sequence holds is a large number: whoever looks there is found out.
    """

    def __init__(
        self, shape: Heads, lengths: list[int], *, seed: int = 0, dtype: torch.dtype = torch.float32, spare: int = 3
    ) -> None:
        states, placing = torch.Generator().manual_seed(7), torch.Generator().manual_seed(seed)
        size = (shape.key_heads, shape.width)
        self.sequences = [
            [torch.randn(length, *size, generator=states).to(dtype) for _ in range(2)] for length in lengths
        ]
        needs = [-(-length // PAGE) for length in lengths]
        drawn = torch.randperm(sum(needs) + spare, generator=placing).tolist()
        self.table_SX = torch.zeros(len(lengths) + 1, max(needs) + 2, dtype=torch.int32)
        self.keys = torch.full((len(drawn), shape.key_heads, PAGE, shape.width), 100.0).to(dtype)
        self.values = self.keys.clone()
        self.addresses: list[Tensor] = []
        for slot, (length, need) in enumerate(zip(lengths, needs, strict=True)):
            pages = torch.tensor([drawn.pop() for _ in range(need)])
            self.table_SX[slot, :need] = pages
            self.addresses.append((pages[:, None] * PAGE + torch.arange(PAGE)).flatten()[:length].int())
        self.lengths_S = torch.tensor([*lengths, 0], dtype=torch.int32)
        for (key, value), address in zip(self.sequences, self.addresses, strict=True):
            self.keys[address // PAGE, :, address % PAGE] = key
            self.values[address // PAGE, :, address % PAGE] = value
        for name in ("keys", "values", "table_SX", "lengths_S"):
            setattr(self, name, getattr(self, name).to(DEVICE))

    def seen(self, query_HD: Tensor, slot: int, tokens: int) -> Tensor:
        """Softmax over the first tokens of a sequence, in double precision."""
        group = len(query_HD) // self.keys.shape[1]
        key, value = (
            states[:tokens].double().repeat_interleave(group, 1).to(query_HD.device) for states in self.sequences[slot]
        )
        weight_HL = torch.einsum("hd,lhd->hl", query_HD.double() * scale(query_HD), key).softmax(-1)
        return torch.einsum("hl,lhd->hd", weight_HL, value)


def scale(query: Tensor) -> float:
    return float(query.shape[-1] ** -0.5)


def queries(tokens: int, shape: Heads, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """A slice of a wider tensor, as a packed projection of queries, keys and values leaves it."""
    wide = torch.randn(
        tokens, shape.heads + 2 * shape.key_heads, shape.width, generator=torch.Generator().manual_seed(1)
    )
    return wide.to(DEVICE, dtype)[:, : shape.heads]


def integers(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=DEVICE)


def decoded(form: ModuleType, pages: Pages, query_BHD: Tensor, slots: list[int], **chosen: object) -> Tensor:
    cached = (pages.keys, pages.values, pages.table_SX)
    out: Tensor = form.decode(query_BHD, *cached, integers(*slots), pages.lengths_S, scale(query_BHD), **chosen)
    return out


def cut(form: ModuleType, shape: Heads, segments: list[tuple[int, int, int]], first: int) -> Tiles:
    """Tiles of segments (slot, position, count) that are packed from `first` on."""
    most = form.tile_queries(shape.heads, shape.key_heads)
    tiles: list[tuple[int, int, int, int]] = []
    for slot, position, count in segments:
        starts = range(0, count, most)
        tiles += [(first + start, slot, position + start, min(most, count - start)) for start in starts]
        first += count
    return Tiles(*(integers(*column) for column in zip(*tiles, strict=True)))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_lane_sees_its_sequence_and_nothing_else(form: ModuleType, shape: Heads) -> None:
    pages = Pages(shape, [1, 15, 16, 17, 70])
    slots = [4, 0, 5, 3, 1, 2, 5]  # the sixth slot is nobody's
    query_BHD = queries(len(slots), shape)
    out_BHD = decoded(form, pages, query_BHD, slots)
    assert out_BHD.shape == query_BHD.shape
    for lane, slot in enumerate(slots):
        right = pages.seen(query_BHD[lane], slot, 71) if slot < 5 else torch.zeros_like(out_BHD[lane])
        torch.testing.assert_close(out_BHD[lane].double(), right.double(), rtol=1e-5, atol=1e-5)


def test_lanes_that_all_see_nothing_are_zeros(form: ModuleType) -> None:
    pages = Pages(SHAPES[0], [5])
    assert decoded(form, pages, queries(3, SHAPES[0]), [1, 1, 1]).tolist() == torch.zeros(3, 4, 16).tolist()


def test_no_lanes(form: ModuleType) -> None:
    assert decoded(form, Pages(SHAPES[0], [5]), queries(0, SHAPES[0]), []).shape == (0, 4, 16)


def test_a_lane_writes_where_it_is_told(form: ModuleType) -> None:
    pages, query_BHD = Pages(SHAPES[0], [20, 3]), queries(2, SHAPES[0])
    out_NHD = torch.full((3, 4, 16), 7.0, device=DEVICE)
    decoded(form, pages, query_BHD, [0, 1], out_BHD=out_NHD[:2])
    assert torch.equal(out_NHD[:2], decoded(form, pages, query_BHD, [0, 1]))
    assert (out_NHD[2] == 7.0).all()


def test_more_lanes_than_are_gathered_at_once() -> None:
    shape = Heads(4, 2, 128)
    lengths = [120, *range(30, 65)]
    pages, query_BHD = Pages(shape, lengths), queries(37, shape)
    assert 36 * 120 * pages.keys[0, :, 0].nbytes > torch_backend.GATHER_BYTES
    out_BHD = decoded(torch_backend, pages, query_BHD, [*range(36), 36])
    right = [pages.seen(query_BHD[slot], slot, 120) for slot in range(36)]
    torch.testing.assert_close(out_BHD[:36].double(), torch.stack(right), rtol=1e-5, atol=1e-5)
    assert not out_BHD[36].any()


@pytest.mark.parametrize("splits", [1, 2, 3, 7])
def test_shares_of_a_sequence_add_up(splits: int) -> None:
    pages = Pages(SHAPES[0], [1, 16, 33, 97])
    slots, query_BHD = [0, 1, 2, 3, 4], queries(5, SHAPES[0])
    out_BHD = decoded(attention, pages, query_BHD, slots, splits=splits)
    for lane in range(4):
        right = pages.seen(query_BHD[lane], lane, 97)
        torch.testing.assert_close(out_BHD[lane].double(), right, rtol=1e-5, atol=1e-5)
    assert not out_BHD[4].any()


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=5), st.integers(0, 100))
def test_neither_pages_nor_neighbours_change_a_bit(lengths: list[int], seed: int) -> None:
    query_BHD = queries(len(lengths), SHAPES[0])
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed)).tolist()
    here = decoded(torch_backend, Pages(SHAPES[0], lengths), query_BHD, list(range(len(lengths))))
    there = decoded(torch_backend, Pages(SHAPES[0], lengths, seed=seed + 1), query_BHD[order], order)
    assert torch.equal(here[order], there)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_prompt_sees_itself_and_what_came_before(form: ModuleType, shape: Heads) -> None:
    pages = Pages(shape, [70, 9, 80])
    segments = [(0, 0, 70), (2, 66, 14), (1, 8, 1)]  # (slot, position, count)
    query_NHD = queries(90, shape)
    out_NHD = torch.full((90, shape.heads, shape.width), 7.0, device=DEVICE)
    cached = (pages.keys, pages.values, pages.table_SX)
    form.prefill(query_NHD, out_NHD, *cached, cut(form, shape, segments, 3), scale(query_NHD))
    positions = [(slot, position + step) for slot, position, count in segments for step in range(count)]
    right = torch.stack([pages.seen(query_NHD[3 + n], slot, at + 1) for n, (slot, at) in enumerate(positions)])
    torch.testing.assert_close(out_NHD[3:88].double(), right, rtol=1e-5, atol=1e-5)
    assert (out_NHD[[0, 1, 2, 88, 89]] == 7.0).all()


def test_a_prompt_longer_than_a_block_and_a_tile() -> None:
    shape = Heads(8, 2, 16)
    pages, query_NHD = Pages(shape, [150]), queries(150, shape)
    cached = (pages.keys, pages.values, pages.table_SX)
    out, plain = (torch.zeros(150, 8, 16, device=DEVICE) for _ in range(2))
    attention.prefill(query_NHD, out, *cached, cut(attention, shape, [(0, 0, 150)], 0), 0.25)
    torch_backend.prefill(query_NHD, plain, *cached, cut(torch_backend, shape, [(0, 0, 150)], 0), 0.25)
    torch.testing.assert_close(out, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_new_tokens_go_to_their_addresses(form: ModuleType, shape: Heads) -> None:
    pages = Pages(shape, [20, 5])
    right_keys, right_values = pages.keys.clone(), pages.values.clone()
    pages.keys.fill_(100.0)
    pages.values.fill_(100.0)
    (key, value), (other_key, other_value) = pages.sequences
    nowhere = torch.full((1, shape.key_heads, shape.width), 5.0)
    wide = torch.stack((torch.cat((key, nowhere, other_key)), torch.cat((value, nowhere, other_value))), 1).to(DEVICE)
    addresses_N = torch.cat((pages.addresses[0], torch.tensor([-1]), pages.addresses[1])).int().to(DEVICE)
    form.store(wide[:, 0], wide[:, 1], pages.keys, pages.values, addresses_N)
    assert torch.equal(pages.keys, right_keys)
    assert torch.equal(pages.values, right_values)


@pytest.mark.parametrize(("heads", "key_heads", "most"), [(9, 3, 42), (16, 2, 16), (4, 4, 128), (300, 1, 1)])
def test_a_tile_fills_the_rows_of_a_product(heads: int, key_heads: int, most: int) -> None:
    assert attention.tile_queries(heads, key_heads) == most


def test_tokens_are_shared_among_programs_only_where_contexts_are_long() -> None:
    device = torch.device("cpu")  # counts as one multiprocessor
    assert [attention.splits_for(1, context, device) for context in (16, 4096, 4112)] == [1, 1, 1]
    assert attention.splits_for(2, 10**6, device) == 1


REAL = [Heads(9, 3, 64), Heads(16, 2, 128), Heads(32, 8, 96), Heads(8, 4, 256), Heads(4, 2, 16)]
BOUNDS = {torch.bfloat16: 8e-3, torch.float32: 5e-6}


def wrongness(out: Tensor, right: Tensor) -> float:
    return float((out.double() - right.double()).norm() / right.double().norm())


def test_kernels_in_half_precision() -> None:
    # Not bf16: Triton's interpreter multiplies its bits as integers.
    shape = Heads(6, 2, 32)
    pages, query_NHD = Pages(shape, [40], dtype=torch.float16), queries(40, shape, dtype=torch.float16)
    right = torch.stack([pages.seen(query_NHD[at], 0, at + 1) for at in range(40)])
    out_NHD = torch.empty(40, 6, 32, dtype=torch.float16, device=DEVICE)
    cached = (pages.keys, pages.values, pages.table_SX)
    attention.prefill(query_NHD, out_NHD, *cached, cut(attention, shape, [(0, 0, 40)], 0), scale(query_NHD))
    assert wrongness(out_NHD, right) < 1e-3
    assert wrongness(decoded(attention, pages, query_NHD[-1:], [0]), right[-1:]) < 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("lengths", [[364] * 96, [4000, 1, 2777]], ids=["many", "long"])
@pytest.mark.parametrize("shape", REAL, ids=str)
def test_compiled_lanes(shape: Heads, lengths: list[int], dtype: torch.dtype) -> None:
    pages = Pages(shape, lengths, dtype=dtype)
    slots = [*range(len(lengths)), len(lengths)]
    query_BHD = queries(len(slots), shape, dtype=dtype)
    out_BHD = decoded(attention, pages, query_BHD, slots)
    right = [pages.seen(query_BHD[slot], slot, 4000) for slot in slots[:-1]]
    assert wrongness(out_BHD[:-1], torch.stack(right)) < BOUNDS[dtype]
    assert not out_BHD[-1].any()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("shape", REAL, ids=str)
def test_compiled_prompts(shape: Heads, dtype: torch.dtype) -> None:
    pages = Pages(shape, [300, 1500, 40], dtype=dtype)
    segments = [(0, 0, 300), (1, 1001, 499), (2, 17, 23)]
    query_NHD = queries(822, shape, dtype=dtype)
    out_NHD = torch.empty(822, shape.heads, shape.width, dtype=dtype, device=DEVICE)
    cached = (pages.keys, pages.values, pages.table_SX)
    attention.prefill(query_NHD, out_NHD, *cached, cut(attention, shape, segments, 0), scale(query_NHD))
    positions = [(slot, position + step) for slot, position, count in segments for step in range(count)]
    right = torch.stack([pages.seen(query_NHD[n], slot, at + 1) for n, (slot, at) in enumerate(positions)])
    assert wrongness(out_NHD, right) < BOUNDS[dtype]


@pytest.mark.gpu
def test_a_captured_step_reads_lengths_of_its_replay() -> None:
    shape = REAL[1]
    pages, query_BHD = Pages(shape, [500, 500]), queries(2, shape)
    pages.lengths_S.fill_(3)
    decoded(attention, pages, query_BHD, [0, 1])
    slots_B, graph = integers(0, 1), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out_BHD = attention.decode(
            query_BHD, pages.keys, pages.values, pages.table_SX, slots_B, pages.lengths_S, scale(query_BHD)
        )
    pages.lengths_S.copy_(integers(444, 17, 0))
    graph.replay()
    right = torch.stack([pages.seen(query_BHD[0], 0, 444), pages.seen(query_BHD[1], 1, 17)])
    assert wrongness(out_BHD, right) < BOUNDS[torch.float32]
