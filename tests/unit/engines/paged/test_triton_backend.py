"""Triton kernels of a step match the transformers modules and the PyTorch sampler."""

from collections.abc import Iterable
from itertools import cycle, product

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from sleuth.engines.paged import torch_backend, triton_backend
from sleuth.engines.paged.page_pool import PAGE_SIZE
from sleuth.engines.paged.triton_backend import BLOCK, sample

# Triton's interpreter cuts bf16 off where a GPU rounds it; what rounds fp16 is the same code.
DTYPES = (torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def eighths(*size: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Multiples of an eighth: sums of their squares are exact in fp32, so that every order of summing gives them."""
    dice = torch.Generator().manual_seed(seed)
    return (torch.randint(-31, 32, size, generator=dice) / 8).to(dtype).to(DEVICE)


def norm(weight: Tensor, eps: float) -> LlamaRMSNorm:
    module = LlamaRMSNorm(len(weight), eps).to(DEVICE)
    module.weight.data = weight
    return module


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("heads", "key_heads", "width"), [(4, 4, 8), (9, 3, 64), (2, 1, 24)])
@torch.no_grad()
def test_rotate_and_store(heads: int, key_heads: int, width: int, normed: bool, dtype: torch.dtype) -> None:
    tokens, pages, positions = 5, 4, 40
    qkv = eighths(tokens, (heads + 2 * key_heads) * width, dtype=dtype)
    angles = torch.rand(positions, width // 2, generator=torch.Generator().manual_seed(0)).repeat(1, 2) * 7
    cos, sin = angles.cos().to(dtype).to(DEVICE), angles.sin().to(dtype).to(DEVICE)
    position = torch.tensor([39, 0, 17, 17, 3], dtype=torch.int32, device=DEVICE)
    address = torch.tensor([3 * PAGE_SIZE + 5, 0, -1, PAGE_SIZE - 1, PAGE_SIZE], dtype=torch.int32, device=DEVICE)
    keys, values = (torch.full((pages, key_heads, PAGE_SIZE, width), 7.0, dtype=dtype, device=DEVICE) for _ in range(2))
    norms = [eighths(width, dtype=dtype, seed=seed) / 3 if normed else None for seed in (1, 2)]

    found = triton_backend.rotate_and_store(
        qkv, cos, sin, position, address, keys, values, norms[0], norms[1], 1e-6, heads, key_heads
    )

    query, key, value = qkv.view(tokens, -1, width).split([heads, key_heads, key_heads], 1)
    query, key = (
        states if weight is None else norm(weight, 1e-6)(states)
        for states, weight in zip((query, key), norms, strict=True)
    )
    query, key = apply_rotary_pos_emb(query, key, cos[position.long()], sin[position.long()])
    expected_keys, expected_values = torch.full_like(keys, 7.0), torch.full_like(values, 7.0)
    for token, where in enumerate(address.tolist()):
        if where >= 0:
            expected_keys[where // PAGE_SIZE, :, where % PAGE_SIZE] = key[token]
            expected_values[where // PAGE_SIZE, :, where % PAGE_SIZE] = value[token]
    assert found.is_contiguous()
    assert torch.equal(values, expected_values)
    if normed and dtype == torch.float32:
        torch.testing.assert_close(found, query)
        torch.testing.assert_close(keys, expected_keys)
    else:
        assert torch.equal(found, query)
        assert torch.equal(keys, expected_keys)


def test_inputs() -> None:
    """Slots 0 to 3 are somebody's; slot 2 fills its row of the table."""
    pages = 3
    table = torch.arange(10, 10 + 5 * pages, dtype=torch.int32, device=DEVICE).view(5, pages)
    lengths = torch.tensor([0, PAGE_SIZE, pages * PAGE_SIZE, 2 * PAGE_SIZE - 1, 9], dtype=torch.int32, device=DEVICE)
    tokens = torch.tensor([50, 51, 52, 53, 54], dtype=torch.int32, device=DEVICE)
    slots = torch.tensor([3, 4, 0, 2, 4, 1], dtype=torch.int32, device=DEVICE)
    ids, positions, addresses = (torch.full((8,), -7, dtype=torch.int32, device=DEVICE) for _ in range(3))
    triton_backend.next_inputs(slots, tokens, lengths, table, ids, positions, addresses)
    assert ids.tolist() == [53, 54, 50, 52, 54, 51, -7, -7]
    assert positions.tolist() == [2 * PAGE_SIZE - 1, 0, 0, 3 * PAGE_SIZE - 1, 0, PAGE_SIZE, -7, -7]
    assert lengths.tolist() == [1, PAGE_SIZE + 1, pages * PAGE_SIZE, 2 * PAGE_SIZE, 1]
    assert addresses.tolist() == [20 * PAGE_SIZE + PAGE_SIZE - 1, -1, 10 * PAGE_SIZE, -1, -1, 14 * PAGE_SIZE, -7, -7]


def test_inputs_of_more_lanes_than_a_program_takes() -> None:
    lanes = triton_backend.LANES + 3
    table = torch.arange(lanes + 1, dtype=torch.int32, device=DEVICE)[:, None].contiguous()
    lengths = torch.full((lanes + 1,), 4, dtype=torch.int32, device=DEVICE)
    slots = torch.arange(lanes, dtype=torch.int32, device=DEVICE).flip(0)
    ids, positions, addresses = (torch.zeros(lanes, dtype=torch.int32, device=DEVICE) for _ in range(3))
    triton_backend.next_inputs(slots, table[:, 0].contiguous(), lengths, table, ids, positions, addresses)
    assert torch.equal(ids, slots)
    assert torch.equal(addresses, slots * PAGE_SIZE + 4)
    assert lengths.tolist() == [5] * lanes + [4]


NEVER = float("-inf")
BORDER = 1e-5  # how near to the next token rounding may move a number
WHOLE = (1.0, 0, 1.0, 0.0)
ODD = BLOCK + 389  # two blocks, the second not full
# Shares .05 .1 .4 .1 .05 .3
SHARES = torch.tensor([0.05, 0.1, 0.4, 0.1, 0.05, 0.3]).log()

Settings = tuple[float, float, float, float]


def drawn(logits_MV: Tensor, settings_M4: Tensor, uniform_M: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens and logprobs, each row in a slot of its own, in reverse."""
    rows, device = len(logits_MV), logits_MV.device
    slots_M = torch.arange(rows - 1, -1, -1, dtype=torch.int32, device=device)
    tokens_S = torch.full((rows + 1,), -1, dtype=torch.int32, device=device)
    out_M, logprob_M = torch.full_like(slots_M, -1), torch.zeros(rows, device=device)
    padded_S4 = torch.cat([settings_M4.flip(0), torch.tensor([WHOLE], device=device)])
    sample(logits_MV, padded_S4, slots_M, uniform_M.float(), tokens_S, out_M, logprob_M)
    assert tokens_S.tolist() == [*out_M.flip(0).tolist(), -1]
    return out_M.long(), logprob_M


def draw(logits: Tensor, setting: Settings, numbers: Iterable[float]) -> tuple[list[int], list[float]]:
    """The tokens and logprobs of one distribution at some numbers."""
    uniform_M = torch.tensor(list(numbers))
    rows = len(uniform_M)
    tokens, logprobs = drawn(logits.repeat(rows, 1), torch.tensor([setting] * rows), uniform_M)
    return tokens.tolist(), logprobs.tolist()


def check(logits_MV: Tensor, settings_M4: Tensor, uniform_M: Tensor, border: float = BORDER) -> Tensor:
    """The tokens, which are the plain form's, or its neighbours' where a number is at a border."""
    token_M, logprob_M = drawn(logits_MV, settings_M4, uniform_M)
    first_M, _ = torch_backend.draw(logits_MV, settings_M4, (uniform_M - border).clamp_min(0))
    last_M, _ = torch_backend.draw(logits_MV, settings_M4, (uniform_M + border).clamp_max(1))
    assert ((first_M <= token_M) & (token_M <= last_M)).all()
    assert (last_M - first_M == 0).float().mean() > 0.5, "most numbers are far from a border"
    temperature_M1 = settings_M4[:, :1].where(settings_M4[:, :1] > 0, 1.0)
    whole_MV = torch.log_softmax(logits_MV / temperature_M1, -1)
    torch.testing.assert_close(logprob_M, whole_MV.gather(-1, token_M[:, None])[:, 0], atol=1e-5, rtol=0)
    return token_M


def combinations(temperatures: Iterable[float]) -> Tensor:
    """Every way to truncate, each at the next temperature."""
    cuts = product((0, 1, 5, 10**6), (1e-6, 0.5, 0.999, 1.0), (0.0, 0.1))
    return torch.tensor([(temperature, *cut) for cut, temperature in zip(cuts, cycle(temperatures), strict=False)])


@pytest.mark.parametrize("rows", [slice(0, 11), slice(11, 22), slice(22, 32)])
def test_every_combination_draws_as_the_plain_form(rows: slice) -> None:
    dice = torch.Generator().manual_seed(3)
    settings_M4 = combinations([0.6, 1.0, 0.0, 1.7, 1.0])[rows]
    wide_MV = 3 * torch.randn(len(settings_M4), ODD + 7, generator=dice)
    check(wide_MV[:, :ODD], settings_M4, torch.rand(len(settings_M4), generator=dice))


def test_every_block_is_drawn_from() -> None:
    dice = torch.Generator().manual_seed(4)
    logits_MV = torch.randn(6, ODD, generator=dice)
    uniform_M = torch.tensor([0.01, 0.1, 0.4, 0.7, 0.96, 0.99])
    token_M = check(logits_MV, torch.tensor([WHOLE, (0.9, 0, 0.95, 0.0)] * 3), uniform_M)
    assert token_M[0] < BLOCK
    assert token_M[-1] >= BLOCK


def test_logits_without_probability_are_never_drawn() -> None:
    dice = torch.Generator().manual_seed(5)
    settings_M4 = torch.tensor(
        [WHOLE, (0.7, 3, 1.0, 0.0), (1.0, 0, 0.9, 0.0), (1.0, 10, 0.99, 0.01), (0.0, 0, 1.0, 0.0)]
    )
    for number in (0.0, 1.0):
        logits_MV = torch.full((5, 2 * BLOCK + 9), NEVER)  # the first and last block are empty
        logits_MV[:, BLOCK + 2 : BLOCK + 40] = torch.randn(5, 38, generator=dice)
        token_M, logprob_M = drawn(logits_MV, settings_M4, torch.full((5,), number))
        assert ((token_M >= BLOCK + 2) & (token_M < BLOCK + 40)).all()
        assert torch.isfinite(logprob_M).all()


@pytest.mark.parametrize("setting", [WHOLE, (0.0, 0, 1.0, 0.0), (1.0, 5, 1.0, 0.0), (0.3, 2, 0.5, 0.2)])
@pytest.mark.parametrize("place", [0, BLOCK - 1, BLOCK, ODD - 1])
def test_a_certain_token_is_always_drawn(place: int, setting: Settings) -> None:
    logits = torch.full((ODD,), NEVER)
    logits[place] = 0.3
    assert draw(logits, setting, [0.0, 0.5, 1.0]) == ([place] * 3, [0.0] * 3)


def test_ties() -> None:
    logits = torch.zeros(ODD)
    logits[[7, BLOCK + 3]] = 2.5
    assert draw(logits, (0.0, 0, 1.0, 0.0), [0.9])[0] == [7]
    for cut in ((1, 1.0, 0.0), (0, 1e-6, 0.0), (0, 1.0, 1.0), (2, 0.1, 0.5)):
        assert draw(logits, (1.0, *cut), [0.1, 0.9])[0] == [7, BLOCK + 3]
    assert draw(logits, (1.0, 3, 1.0, 0.0), [0.0, 1.0])[0] == [0, ODD - 1]  # the third is as likely as all the others


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:divide by zero", "ignore:All-NaN")  # what is tested here
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("setting", [WHOLE, (0.0, 0, 1.0, 0.0), (1.0, 3, 0.5, 0.1)])
def test_logits_that_are_no_numbers_show_in_the_logprob(setting: Settings, wrong: float) -> None:
    one, every, none = torch.randn(3, ODD, generator=torch.Generator().manual_seed(0)).unbind()
    one[BLOCK + 1] = wrong
    every[:] = wrong
    none[:] = NEVER
    for logits in (one, every, none):
        (token,), (logprob,) = draw(logits, setting, [0.5])
        assert 0 <= token < ODD
        assert logprob != logprob


@pytest.mark.parametrize(
    ("cut", "counts"),
    [
        ((0, 1.0, 0.0), [1, 2, 8, 2, 1, 6]),
        ((2, 1.0, 0.0), [0, 0, 8, 0, 0, 6]),
        ((3, 0.99, 0.7), [0, 0, 4, 0, 0, 3]),
    ],
)
def test_a_grid_of_numbers_draws_by_the_shares(cut: tuple[float, float, float], counts: list[int]) -> None:
    numbers = [(step + 0.5) / sum(counts) for step in range(sum(counts))]
    tokens, _ = draw(SHARES, (1.0, *cut), numbers)
    assert torch.bincount(torch.tensor(tokens), minlength=6).tolist() == counts


def naive(logits: list[float], setting: Settings) -> int:
    """How many of the falling logits are kept."""
    temperature, top_k, top_p, min_p = setting
    shares = torch.softmax(torch.tensor(logits, dtype=torch.float64) / temperature, -1).tolist()
    if 0 < top_k < len(logits):
        logits = [logit for logit in logits if logit >= logits[int(top_k) - 1]]
    total, reached, last = sum(shares[: len(logits)]), 0.0, logits[-1]
    for logit, share in zip(logits, shares, strict=False):
        assume(abs(reached + share - top_p * total) > BORDER)
        reached += share
        if reached >= top_p * total:
            last = logit
            break
    ratios = [share / shares[0] for share in shares]
    assume(all(abs(ratio - min_p) > BORDER for ratio in ratios))
    return sum(logit >= last and ratio >= min_p for logit, ratio in zip(logits, ratios, strict=False))


@given(
    st.lists(st.one_of(st.integers(-3, 3).map(float), st.floats(-3, 3, width=32)), min_size=1, max_size=12),
    st.sampled_from([0.7, 1.0, 2.0]),
    st.integers(0, 13),
    st.floats(0.01, 0.999) | st.just(1.0),
    st.floats(0, 0.9),
)
@example([0.0, -0.0, 0.0, -1.0], 1.0, 1, 1.0, 0.0)
@example([1e-45, 0.0, -1e-45], 1.0, 2, 1.0, 0.0)
@settings(max_examples=15, deadline=None)
def test_what_is_kept_is_what_sorting_keeps(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """Falling logits are kept up to some place, which the highest number draws; rising ones from it on."""
    falling, setting = sorted(logits, reverse=True), (temperature, top_k, top_p, min_p)
    kept = naive(falling, setting)
    logits_MV, settings_M4 = torch.tensor([falling, falling[::-1]]), torch.tensor([setting, setting])
    assert drawn(logits_MV, settings_M4, torch.tensor([1.0, 0.0]))[0].tolist() == [kept - 1, len(falling) - kept]


def test_lanes_that_fill_up_a_batch_share_the_last_slot() -> None:
    slots_M = torch.tensor([0, 2, 2, 2], dtype=torch.int32)
    settings_S4 = torch.tensor([(0.0, 0, 1.0, 0.0), (0.0, 0, 1.0, 0.0), WHOLE])
    tokens_S, out_M = torch.full((3,), -1, dtype=torch.int32), torch.full((4,), -1, dtype=torch.int32)
    sample(SHARES.repeat(4, 1), settings_S4, slots_M, torch.full((4,), 0.5), tokens_S, out_M, torch.zeros(4))
    assert tokens_S.tolist() == [2, -1, 2]
    assert out_M.tolist() == [2, 2, 2, 2]


@pytest.mark.gpu
@pytest.mark.parametrize("vocabulary", [49_152, 151_936])
@pytest.mark.parametrize("scale", [0.5, 4.0])
def test_real_sizes(vocabulary: int, scale: float) -> None:
    dice = torch.Generator("cuda").manual_seed(1)
    settings_M4 = torch.cat([combinations([warmth]) for warmth in (0.0, 0.6, 1.0, 1.7)]).cuda()
    rows = len(settings_M4)
    wide_MV = scale * torch.randn(rows, vocabulary + 64, generator=dice, device="cuda")
    uniform_M = torch.rand(rows, generator=dice, device="cuda")
    logits_MV = wide_MV[:, :vocabulary]
    # A token more or less at the end of what top_p keeps moves every border by its share.
    token_M, logprob_M = drawn(logits_MV, settings_M4, uniform_M)
    first_M, _ = torch_backend.draw(logits_MV, settings_M4, (uniform_M - 3e-5).clamp_min(0))
    last_M, _ = torch_backend.draw(logits_MV, settings_M4, (uniform_M + 3e-5).clamp_max(1))
    assert ((first_M <= token_M) & (token_M <= last_M)).all()
    temperature_M1 = settings_M4[:, :1].where(settings_M4[:, :1] > 0, 1.0)
    # In double precision: a sum of this many numbers in fp32 is further off than the kernel's own.
    whole_MV = torch.log_softmax(logits_MV.double() / temperature_M1, -1)
    torch.testing.assert_close(logprob_M.double(), whole_MV.gather(-1, token_M[:, None])[:, 0], atol=1e-5, rtol=0)
    for top_k in (1, 5):
        row_R = settings_M4[:, 1] == top_k
        last_R = logits_MV[row_R].topk(top_k, -1).values[:, -1]
        assert (logits_MV[row_R].gather(-1, token_M[row_R][:, None])[:, 0] >= last_R).all()


@pytest.mark.gpu
def test_a_captured_draw_follows_its_inputs() -> None:
    dice = torch.Generator("cuda").manual_seed(2)
    logits_MV = 3 * torch.randn(64, 49_152, generator=dice, device="cuda")
    uniform_M = torch.rand(64, generator=dice, device="cuda")
    settings_S4 = torch.tensor([WHOLE, (0.7, 20, 0.9, 0.0)] * 32, device="cuda")
    slots_M = torch.arange(64, dtype=torch.int32, device="cuda")
    tokens_S, out_M, logprob_M = torch.zeros_like(slots_M), torch.zeros_like(slots_M), torch.zeros(64, device="cuda")
    given_ = (logits_MV, settings_S4, slots_M, uniform_M, tokens_S, out_M, logprob_M)
    sample(*given_)  # compiled outside the graph
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sample(*given_)
    settings_S4.copy_(settings_S4.roll(1, 0))
    logits_MV.copy_(logits_MV.flip(-1))
    graph.replay()
    expected_M, expected_logprob_M = out_M.clone(), logprob_M.clone()
    sample(*given_)
    assert torch.equal(out_M, expected_M)
    assert torch.equal(logprob_M, expected_logprob_M)
    assert torch.equal(tokens_S, out_M)
