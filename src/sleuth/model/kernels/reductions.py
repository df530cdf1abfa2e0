"""Grid sizes by multiprocessor count, and a deterministic sum of matrix rows in fp32.

Suffixes: P rows, X columns, G groups of rows.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS_PER_SM = 8  # of kernels whose programs loop over rows
SUM_PROGRAMS_PER_SM = 4
ELEMENTS = 2048  # per program and iteration
MAX_ROWS = 32  # per iteration
ONE_PASS_ROWS = 256  # more rows are first summed in groups


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


def sum_rows(parts_PX: Tensor, dtype: torch.dtype) -> Tensor:
    """Sum the rows of a contiguous matrix in fp32, in a fixed order."""
    rows, width = parts_PX.shape
    if rows > ONE_PASS_ROWS:
        groups = min(
            triton.cdiv(rows, MAX_ROWS),
            triton.cdiv(SUM_PROGRAMS_PER_SM * sm_count(parts_PX.device), _column_blocks(rows, width)),
        )
        parts_PX = _sum_groups(parts_PX, min(groups, ONE_PASS_ROWS), torch.float32)
    return _sum_groups(parts_PX, 1, dtype)[0]


def _sum_groups(parts_PX: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    rows, width = parts_PX.shape
    out_GX = torch.empty(groups, width, dtype=dtype, device=parts_PX.device)
    _sum[(_column_blocks(rows, width), groups)](
        parts_PX, out_GX, rows, triton.cdiv(rows, groups), width, *_tile(rows), num_warps=4, enable_fp_fusion=False
    )
    return out_GX


def _tile(rows: int) -> tuple[int, int]:
    own = min(MAX_ROWS, triton.next_power_of_2(max(1, rows)))
    return own, ELEMENTS // own


def _column_blocks(rows: int, width: int) -> int:
    blocks: int = triton.cdiv(width, _tile(rows)[1])
    return blocks


@cache
def sm_count(device: torch.device) -> int:
    """Number of streaming multiprocessors of a GPU; 1 under the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def program_count(rows: int, device: torch.device) -> int:
    """Number of programs that share the rows, few enough that adding their partial sums is cheap."""
    return min(rows, PROGRAMS_PER_SM * sm_count(device))
