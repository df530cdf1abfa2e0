"""A Triton kernel that adds the rows of a matrix in fp32 and leaves their sum in the dtype that is wanted.

Suffixes: P rows, X columns, G groups of rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sleuth.model.kernels.device import processors

NUMBERS = 2048  # that one program adds at a time
ROWS = 32  # of them at most
FEW = 256  # rows that are added at once; more, first in groups
EACH = 4  # programs a multiprocessor, of those that add groups


@triton.jit(do_not_specialize=["rows", "each"])
def _sum(parts, out, rows, each, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    group = tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    last = tl.minimum((group + 1) * each, rows)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(group * each, last, ROWS):
        row = (start + tl.arange(0, ROWS))[:, None]
        place = row.to(tl.int64) * width + column[None, :]
        total += tl.load(parts + place, (row < last) & inside[None, :], 0.0).to(tl.float32)
    tl.store(out + group * width + column, tl.sum(total, 0).to(out.dtype.element_ty), inside)


def summed(parts_PX: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum of the rows of a contiguous matrix."""
    rows, width = parts_PX.shape
    if rows > FEW:
        groups = min(triton.cdiv(rows, ROWS), triton.cdiv(EACH * processors(parts_PX.device), _across(rows, width)))
        parts_PX = _added(parts_PX, min(groups, FEW), torch.float32)
    return _added(parts_PX, 1, dtype)[0]


def _added(parts_PX: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    """The sums of as many groups of rows that follow each other."""
    rows, width = parts_PX.shape
    out_GX = torch.empty(groups, width, dtype=dtype, device=parts_PX.device)
    _sum[(_across(rows, width), groups)](
        parts_PX, out_GX, rows, triton.cdiv(rows, groups), width, *_tile(rows), num_warps=4, enable_fp_fusion=False
    )
    return out_GX


def _tile(rows: int) -> tuple[int, int]:
    own = min(ROWS, triton.next_power_of_2(max(1, rows)))
    return own, NUMBERS // own


def _across(rows: int, width: int) -> int:
    across: int = triton.cdiv(width, _tile(rows)[1])
    return across
