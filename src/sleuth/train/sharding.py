"""Distribution over ranks: assign rows to ranks, and shard the weights with FSDP2.

Every rank knows the lengths of all rows and computes the same assignment, which is verified by checksum.
Collectives run inside the forward and backward passes, so ranks with fewer packs run empty packs.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heapreplace
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers.modeling_layers import GradientCheckpointingLayer

from sleuth.model.packing import Pack, Row, batch_by_length, concatenate
from sleuth.model.policy import Policy
from sleuth.train.ranks import Ranks

Compute = Callable[..., Any]


def assign_rows(lengths: Sequence[int], world: int) -> list[list[int]]:
    """Assign row indices to ranks, balanced by tokens: longest row first, to the rank with the fewest tokens."""
    if world == 1:
        return [list(range(len(lengths)))]
    assigned: list[list[int]] = [[] for _ in range(world)]
    totals = [(0, rank) for rank in range(world)]  # a heap
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        tokens, rank = totals[0]
        assigned[rank].append(index)
        heapreplace(totals, (tokens + lengths[index], rank))
    return [sorted(indices) for indices in assigned]


def rank_packs(
    rows: Sequence[Row], tokens: int, device: torch.device, ranks: Ranks, *, whole: bool = False
) -> Iterator[Pack]:
    """Yield the packs of this rank, padded with empty packs, which have no scored tokens.

    Rows of a family and, with `whole`, those of a trajectory are in one pack, which may have more than `tokens` tokens.
    """
    units: dict[tuple[str, int], list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        key = ("row", row.key(index) if whole else index) if row.family is None else ("family", row.family)
        units[key].append(index)
    members = list(units.values())
    lengths = [sum(len(rows[index].ids_L) for index in unit) for unit in members]
    every = [
        [
            [index for place in batch for index in members[share[place]]]
            for batch in batch_by_length([lengths[unit] for unit in share], tokens)
        ]
        for share in assign_rows(lengths, ranks.world)
    ]
    # Ranks with different rows or packs would deadlock.
    checksum = f"checksum {crc32(repr(lengths).encode()):08x}"
    ranks.barrier(f"a batch of {len(rows)} rows, {sum(lengths)} tokens in packs of {tokens}, {checksum}")
    for indices in every[ranks.rank]:
        yield concatenate(rows, indices, device)
    if idle := max(map(len, every)) - len(every[ranks.rank]):
        shortest = min(rows, key=lambda row: len(row.ids_L))
        columns = {name: column[:0] for name, column in shortest.columns.items()}
        empty = Row(shortest.ids_L, shortest.positions_S[:0], columns)
        yield from (replace(concatenate([empty], [0], device), rows=()) for _ in range(idle))


@torch.no_grad()
def score_rows(
    rows: Sequence[Row], tokens: int, device: torch.device, ranks: Ranks, score: Callable[[Pack], Tensor]
) -> list[Tensor]:
    """Apply `score` to the scored tokens of each row; returns CPU tensors for all rows on every rank."""
    mine: list[tuple[Pack, Tensor]] = []
    for packed in rank_packs(rows, tokens, device, ranks):
        values_T = score(packed).float()
        if packed.rows:
            mine.append((packed, values_T))
    # One copy per pack, after all passes are launched. Pickling a view would send the whole tensor to the other ranks.
    copies = [
        (index, part.clone())
        for packed, values_T in mine
        for index, part in zip(packed.rows, values_T.cpu().split(packed.scored), strict=True)
    ]
    values = dict(pair for theirs in ranks.gather(copies, "the logprobs of a batch") for pair in theirs)
    return [values[index] for index in range(len(rows))]


@torch.no_grad()
def gather_weights(weights: Mapping[str, Tensor], dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
    """Yield each weight whole, in `dtype` if given; collective if the weights are sharded."""
    for name, weight in weights.items():
        converted = weight.detach().to(dtype or weight.dtype)
        yield name, converted.full_tensor() if isinstance(converted, DTensor) else converted


def shard_policy(policy: Policy, ranks: Ranks) -> Policy:
    """Return the policy with its weights sharded over the ranks; unchanged for a single process."""
    return policy if ranks.world == 1 else replace(policy, sharded=shard(policy.score, [policy.model], ranks))


def shard(compute: Compute, modules: Sequence[nn.Module], ranks: Ranks) -> Compute:
    """Shard the modules in place and return a `compute` that gathers their weights layer by layer.

    Parameters in half precision become fp32 shards for the optimiser and are gathered in half precision.
    """
    root = _Root(compute, modules)
    device = next(root.parameters()).device
    mesh = init_device_mesh(device.type, (ranks.world,))
    units: list[nn.Module] = []  # decoder layers, or the whole module if it has none
    for module in modules:
        units += [each for each in module.modules() if isinstance(each, GradientCheckpointingLayer)] or [module]
    for unit in (*units, root):
        fully_shard(unit, mesh=mesh, mp_policy=_mixed_precision(unit))
    for module in root.modules():
        if isinstance(module, FSDPModule):
            # Loss weights are normalised over the batch of all ranks, so gradients are summed, not averaged.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    assert isinstance(root, FSDPModule)  # noqa: S101  fully_shard makes it one

    def gathered(*arguments: Any) -> Any:
        result = root(*arguments)
        if not torch.is_grad_enabled():
            root.reshard()  # FSDP would free the weights in a backward pass, which does not run here
        return result

    return gathered


class _Root(nn.Module):
    """Wraps a computation as a module, so that FSDP gathers its weights in the forward and backward passes."""

    def __init__(self, compute: Compute, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self._compute = compute
        self._modules_of_it = nn.ModuleList(modules)

    def forward(self, *arguments: Any) -> Any:
        return self._compute(*arguments)


def _mixed_precision(unit: nn.Module) -> MixedPrecisionPolicy:
    """Convert trained parameters to fp32 shards; return a policy that computes in their original dtype."""
    own = [each for each in unit.parameters() if not isinstance(each, DTensor)]
    if not any(each.requires_grad for each in own):
        return MixedPrecisionPolicy(cast_forward_inputs=False)
    (dtype,) = {each.dtype for each in own}
    for each in own:
        each.data = each.data.float()
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
