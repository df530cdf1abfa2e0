"""FSDP2: weights split over the ranks, and gathered layer by layer where they are computed with.

Parameters in half precision become fp32 shards, which the optimiser steps on, and are gathered in half precision.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers.modeling_layers import GradientCheckpointingLayer

from sleuth.train.policy import Policy
from sleuth.train.ranks import Ranks

Compute = Callable[..., Any]


def shard(policy: Policy, ranks: Ranks) -> Policy:
    """The policy with its weights split over the ranks; one process keeps it as it is."""
    return policy if ranks.world == 1 else replace(policy, sharded=split(policy.score, [policy.model], ranks))


def split(compute: Compute, modules: Sequence[nn.Module], ranks: Ranks) -> Compute:
    """`compute`, which reads weights of the modules, with these split over the ranks in place."""
    root = _Root(compute, modules)
    device = next(root.parameters()).device
    mesh = init_device_mesh(device.type, (ranks.world,))
    for unit in (*_units(modules), root):
        fully_shard(unit, mesh=mesh, mp_policy=_mixed(unit))
    for each in root.modules():
        if isinstance(each, FSDPModule):
            # The loss of a pack is weighted for the batch of all ranks: gradients are added up.
            each.set_gradient_divide_factor(1.0)
            each.set_force_sum_reduction_for_comms(True)
    assert isinstance(root, FSDPModule)  # noqa: S101  fully_shard makes it one
    return _Gathered(root)


class _Root(nn.Module):
    """A computation as one module: within it the weights of its modules are whole, backwards too."""

    def __init__(self, compute: Compute, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self._compute = compute
        self._modules_of_it = nn.ModuleList(modules)

    def forward(self, *call: Any) -> Any:
        return self._compute(*call)


@dataclass(frozen=True, slots=True)
class _Gathered:
    """Calls the root."""

    root: FSDPModule

    def __call__(self, *call: Any) -> Any:
        found = self.root(*call)  # type: ignore[operator]
        if not torch.is_grad_enabled():
            # Its weights are let go of backwards, and nothing goes back through this.
            self.root.reshard()
        return found


def _units(modules: Sequence[nn.Module]) -> Iterator[nn.Module]:
    """What is gathered at once: a decoder layer, or a module without any."""
    for module in modules:
        layers = [each for each in module.modules() if isinstance(each, GradientCheckpointingLayer)]
        yield from layers or (module,)


def _mixed(unit: nn.Module) -> MixedPrecisionPolicy:
    """Lets a unit compute in the dtype its parameters have, and makes fp32 of those where any is trained."""
    own = [each for each in unit.parameters() if not isinstance(each, DTensor)]
    if not any(each.requires_grad for each in own):
        return MixedPrecisionPolicy(cast_forward_inputs=False)
    (dtype,) = {each.dtype for each in own}
    for each in own:
        each.data = each.data.float()
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
