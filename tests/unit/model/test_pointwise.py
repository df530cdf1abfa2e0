"""The kernels that engine and trainer share are transformers' own modules, rounding by rounding."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from sleuth.model.kernels import pointwise

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


def ulps(mine: Tensor, theirs: Tensor) -> Tensor:
    """How many numbers of the dtype lie between two tensors."""
    integers = {2: torch.int16, 4: torch.int32}[mine.element_size()]
    return (mine.contiguous().view(integers).long() - theirs.contiguous().view(integers).long()).abs()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [8, 576, 1024])
@torch.no_grad()
def test_add_norm(width: int, dtype: torch.dtype) -> None:
    residual, delta = drawn(3, width, dtype=dtype), drawn(3, width, dtype=dtype, seed=1)
    weight = drawn(width, dtype=dtype, seed=2) / 3
    module = norm(weight, 1e-5)
    first = pointwise.add_norm(None, residual, weight, 1e-5)
    assert ulps(first, module(residual)).max() <= (dtype == torch.float32)
    summed = residual + delta
    out = torch.empty_like(residual)
    second = pointwise.add_norm(delta, residual, weight, 1e-5, out)
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
