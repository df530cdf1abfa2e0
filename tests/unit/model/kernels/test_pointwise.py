"""Pointwise kernels match the transformers modules bit for bit, and their gradients match autograd."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from sleuth.model.fused_layers import split_count, weight_gradient
from sleuth.model.kernels import pointwise
from sleuth.model.kernels.reductions import sum_rows
from sleuth.model.kernels.rotary import HeadLayout, Norms, rotate, rotate_backward

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


def ulps(mine: Tensor, theirs: Tensor) -> Tensor:
    """How many numbers of the dtype lie between two tensors."""
    integers = {2: torch.int16, 4: torch.int32}[mine.element_size()]
    return (mine.contiguous().view(integers).long() - theirs.contiguous().view(integers).long()).abs()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [8, 576, 1024])
@torch.no_grad()
def test_add_norm(width: int, dtype: torch.dtype) -> None:
    residual, delta = eighths(3, width, dtype=dtype), eighths(3, width, dtype=dtype, seed=1)
    weight = eighths(width, dtype=dtype, seed=2) / 3
    module = norm(weight, 1e-5)
    first = pointwise.add_rms_norm(None, residual, weight, 1e-5)
    assert ulps(first, module(residual)).max() <= (dtype == torch.float32)
    summed = residual + delta
    out = torch.empty_like(residual)
    second = pointwise.add_rms_norm(delta, residual, weight, 1e-5, out)
    assert second is out
    assert torch.equal(residual, summed)
    assert ulps(second, module(summed)).max() <= (dtype == torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(3, 2100), (19, 384)])
def test_silu_and_silu_mul(rows: int, width: int, dtype: torch.dtype) -> None:
    """Over more columns than one program takes, of which the last has few; over more rows, in tiles of them."""
    both = torch.randn(rows, 2 * width, generator=torch.Generator().manual_seed(0)).mul(4).to(dtype).to(DEVICE)
    gate, up = both.chunk(2, 1)
    pairs = (
        (pointwise.silu_mul(both), silu(gate) * up),
        (pointwise.silu(gate.contiguous()), silu(gate)),
    )
    for found, expected in pairs:
        apart = ulps(found, expected)
        # The exponential of one library is not that of another to the last bit of fp32: a rounding may fall otherwise.
        assert apart.max() <= (4 if dtype == torch.float32 else 2)
        assert dtype == torch.float32 or (apart > 0).float().mean() < 1e-3


@pytest.mark.filterwarnings("ignore:overflow")  # numpy, which computes here where there is no GPU, tells of it
def test_silu_of_numbers_far_out() -> None:
    """Where an exponential overflows or vanishes the activation is still a number."""
    far = torch.tensor([-1e30, -200.0, -90.0, 0.0, 90.0, 200.0, 1e30], device=DEVICE)
    torch.testing.assert_close(pointwise.silu(far), silu(far), rtol=1e-6, atol=1e-30)


EPS = 1e-5
SHAPES = {"grouped": HeadLayout(3, 1, 8, EPS), "plain": HeadLayout(4, 4, 24, EPS)}
TOKENS = 19  # more than the programs of an interpreted kernel: each takes several


def normal(*size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


def assert_near(found: Tensor | None, expected: Tensor, dtype: torch.dtype) -> None:
    assert found is not None
    assert found.dtype == dtype
    near = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), expected, rtol=near, atol=2e-6 + near * float(expected.abs().max()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "passed"), [(16, True), (24, False), (24, True), (30, True)])
def test_norm(dtype: torch.dtype, width: int, passed: bool) -> None:
    """Of rows that are a power of two, that are taken in two parts, and that are padded."""
    states, weight = normal(TOKENS, width, dtype=dtype), normal(width, dtype=dtype, seed=1)
    upstream, around = normal(TOKENS, width, dtype=dtype, seed=2), normal(TOKENS, width, dtype=dtype, seed=3)
    exact = [each.double().requires_grad_() for each in (states, weight)]
    scale = torch.rsqrt(exact[0].square().mean(-1, keepdim=True) + EPS)
    of_states, of_weight = torch.autograd.grad(exact[0] * scale * exact[1], exact, upstream.double())
    found = pointwise.rms_norm_backward(upstream, states, weight, EPS, around if passed else None, recompute=True)
    assert_near(found[0], of_states + around.double() if passed else of_states, dtype)
    assert_near(found[1], of_weight, dtype)
    assert found[2] is not None
    assert torch.equal(found[2], pointwise.add_rms_norm(None, states, weight, EPS))
    bare = pointwise.rms_norm_backward(upstream, states, weight, EPS, around if passed else None, weight=False)
    assert torch.equal(bare[0], found[0])
    assert bare[1:] == (None, None)


def test_pieces_of_a_row() -> None:
    assert [pointwise.split_width(width) for width in (576, 896, 1536, 2048, 1)] == [
        (512, 64), (1024, 0), (1024, 512), (2048, 0), (1, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(0, 5), (3, 70), (300, 24), (5, 3000)])
def test_rows_summed(rows: int, width: int, dtype: torch.dtype) -> None:
    """Few of them at once, and more than are added at once."""
    parts = normal(rows, width, dtype=dtype)
    assert_near(sum_rows(parts, dtype), parts.double().sum(0), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(3, 2100), (19, 384)])
def test_silu_mul(rows: int, width: int, dtype: torch.dtype) -> None:
    """Over more columns than one program takes, and over more rows."""
    both, upstream = 3 * normal(rows, 2 * width, dtype=dtype), normal(rows, width, dtype=dtype, seed=1)
    exact = both.double().requires_grad_()
    gate, up = exact.chunk(2, 1)
    (expected,) = torch.autograd.grad(gate * gate.sigmoid() * up, exact, upstream.double())
    found, product = pointwise.silu_mul_backward(both, upstream, recompute=True)
    assert_near(found, expected, dtype)
    assert product is not None
    assert torch.equal(product, pointwise.silu_mul(both))
    bare, nothing = pointwise.silu_mul_backward(both, upstream, recompute=False)
    assert torch.equal(bare, found)
    assert nothing is None


def norms(shape: HeadLayout, dtype: torch.dtype, normed: bool) -> Norms:
    if not normed:
        return None, None
    return normal(shape.width, dtype=dtype, seed=4), normal(shape.width, dtype=dtype, seed=5)


def tables(shape: HeadLayout, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    angle = normal(TOKENS, shape.width // 2, seed=3).repeat(1, 2)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def heads(qkv: Tensor, cos: Tensor, sin: Tensor, weights: Norms, shape: HeadLayout) -> list[Tensor]:
    """Queries, keys and values by the formulas."""

    def turned(states: Tensor, weight: Tensor | None) -> Tensor:
        if weight is not None:
            states = states * torch.rsqrt(states.square().mean(-1, keepdim=True) + EPS) * weight
        left, right = states.chunk(2, -1)
        return states * cos[:, None] + torch.cat([-right, left], -1) * sin[:, None]

    query, key, value = shape.split(qkv)
    return [turned(query, weights[0]), turned(key, weights[1]), value]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("normed", [False, True])
def test_rotation(shape: HeadLayout, dtype: torch.dtype, normed: bool) -> None:
    width = (shape.heads + 2 * shape.key_heads) * shape.width
    qkv, weights, (cos, sin) = normal(TOKENS, width, dtype=dtype), norms(shape, dtype, normed), tables(shape, dtype)
    exact = [each.double().requires_grad_() for each in (qkv, *weights) if each is not None]
    doubled = (exact[1], exact[2]) if normed else (None, None)
    expected = heads(exact[0], cos.double(), sin.double(), doubled, shape)
    out = torch.empty_like(qkv)
    rotate(qkv, cos, sin, weights, shape, out)
    for mine, theirs in zip(shape.split(out), expected, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=0, atol=20 * torch.finfo(dtype).eps)
    in_place = qkv.clone()
    rotate(in_place, cos, sin, weights, shape, in_place)
    assert torch.equal(in_place, out)

    upstream = [normal(*each.shape, dtype=dtype, seed=6 + number) for number, each in enumerate(expected)]
    to_exact = torch.autograd.grad(expected, exact, [each.double() for each in upstream])
    found = rotate_backward(upstream[0], upstream[1], upstream[2], qkv, cos, sin, weights, shape)
    for own, exactly in zip(found, to_exact, strict=False):
        assert_near(own, exactly, dtype)
    assert (found[1] is None) == (not normed)


@pytest.mark.parametrize(("tokens", "parts"), [(99, 1), (100, 3), (5000, 6)])
def test_parts_that_were_measured(tokens: int, parts: int) -> None:
    """Fewer tokens than were measured, and matrices that were not, are shared out by their size."""
    given = torch.empty(tokens, 5, device=DEVICE), torch.empty(tokens, 4, device=DEVICE)
    assert split_count(*given, {(5, 4): ((100, 3), (200, 6))}) == parts
    assert split_count(*given, {(4, 5): ((100, 3),)}) == split_count(*given, {})


@pytest.mark.parametrize("tokens", [7, 12])
@pytest.mark.parametrize("parts", [1, 3])
def test_weights_summed_in_parts(tokens: int, parts: int) -> None:
    upstream, states = normal(tokens, 5), normal(tokens, 4, seed=1)
    found = weight_gradient(upstream, states, parts)
    torch.testing.assert_close(found, upstream.t() @ states, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize(("tokens", "rows", "columns"), [(8192, 576, 576), (5001, 960, 576), (100, 64, 64)])
def test_weights_of_many_tokens_on_a_gpu(tokens: int, rows: int, columns: int) -> None:
    upstream = normal(tokens, rows, dtype=torch.bfloat16)
    states = normal(tokens, columns, dtype=torch.bfloat16, seed=1)
    exact = upstream.double().t() @ states.double()
    for parts in (None, 1, 3):
        found = weight_gradient(upstream, states, parts)
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.double(), exact, rtol=2**-7, atol=0.05)
