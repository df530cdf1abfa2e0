"""The kernels around attention are transformers' own modules, rounding by rounding, and the plain inputs of a step."""

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from sleuth.engines.paged.kernels import pointwise
from sleuth.engines.paged.pages import PAGE

# Triton's interpreter cuts bf16 off where a GPU rounds it; what rounds fp16 is the same code.
DTYPES = (torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def drawn(*size: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
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
    qkv = drawn(tokens, (heads + 2 * key_heads) * width, dtype=dtype)
    angles = torch.rand(positions, width // 2, generator=torch.Generator().manual_seed(0)).repeat(1, 2) * 7
    cos, sin = angles.cos().to(dtype).to(DEVICE), angles.sin().to(dtype).to(DEVICE)
    position = torch.tensor([39, 0, 17, 17, 3], dtype=torch.int32, device=DEVICE)
    address = torch.tensor([3 * PAGE + 5, 0, -1, PAGE - 1, PAGE], dtype=torch.int32, device=DEVICE)
    keys, values = (torch.full((pages, key_heads, PAGE, width), 7.0, dtype=dtype, device=DEVICE) for _ in range(2))
    norms = [drawn(width, dtype=dtype, seed=seed) / 3 if normed else None for seed in (1, 2)]

    found = pointwise.rotate_and_store(
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
            expected_keys[where // PAGE, :, where % PAGE] = key[token]
            expected_values[where // PAGE, :, where % PAGE] = value[token]
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
    lengths = torch.tensor([0, PAGE, pages * PAGE, 2 * PAGE - 1, 9], dtype=torch.int32, device=DEVICE)
    tokens = torch.tensor([50, 51, 52, 53, 54], dtype=torch.int32, device=DEVICE)
    slots = torch.tensor([3, 4, 0, 2, 4, 1], dtype=torch.int32, device=DEVICE)
    ids, positions, addresses = (torch.full((8,), -7, dtype=torch.int32, device=DEVICE) for _ in range(3))
    pointwise.inputs(slots, tokens, lengths, table, ids, positions, addresses)
    assert ids.tolist() == [53, 54, 50, 52, 54, 51, -7, -7]
    assert positions.tolist() == [2 * PAGE - 1, 0, 0, 3 * PAGE - 1, 0, PAGE, -7, -7]
    assert lengths.tolist() == [1, PAGE + 1, pages * PAGE, 2 * PAGE, 1]
    assert addresses.tolist() == [20 * PAGE + PAGE - 1, -1, 10 * PAGE, -1, -1, 14 * PAGE, -7, -7]


def test_inputs_of_more_lanes_than_a_program_takes() -> None:
    lanes = pointwise.LANES + 3
    table = torch.arange(lanes + 1, dtype=torch.int32, device=DEVICE)[:, None].contiguous()
    lengths = torch.full((lanes + 1,), 4, dtype=torch.int32, device=DEVICE)
    slots = torch.arange(lanes, dtype=torch.int32, device=DEVICE).flip(0)
    ids, positions, addresses = (torch.zeros(lanes, dtype=torch.int32, device=DEVICE) for _ in range(3))
    pointwise.inputs(slots, table[:, 0].contiguous(), lengths, table, ids, positions, addresses)
    assert torch.equal(ids, slots)
    assert torch.equal(addresses, slots * PAGE + 4)
    assert lengths.tolist() == [5] * lanes + [4]
