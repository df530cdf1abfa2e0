"""Linear layers that read the same input as one matrix product, over the very storage of their parameters."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

Projection = Callable[[Tensor], Tensor]


def joined(modules: Sequence[nn.Module]) -> Projection:
    """What all of the modules make of an input, side by side.

    The weights of plain linear layers become parts of one tensor and stay the parameters they were. Others (adapters)
    are called one by one, as are layers of which only some have a bias.
    """
    if (parts := plain(modules)) is None:
        return partial(_side_by_side, tuple(modules))
    weights, biases = parts
    return partial(linear, weight=_one_storage(weights), bias=_one_storage(biases) if biases else None)


def _side_by_side(modules: tuple[nn.Module, ...], states: Tensor) -> Tensor:
    return modules[0](states) if len(modules) == 1 else torch.cat([module(states) for module in modules], -1)


def _one_storage(parameters: Sequence[Tensor]) -> Tensor:
    """The rows of all parameters as one tensor; they are made parts of it, unless they already are parts of one."""
    together = whole(parameters)
    if together.data_ptr() != parameters[0].data_ptr():
        rows = [len(parameter) for parameter in parameters]
        for parameter, part in zip(parameters, together.split(rows), strict=True):
            parameter.data = part
    return together


def _follows(after: Tensor, before: Tensor) -> bool:
    return (
        before.is_contiguous()
        and after.is_contiguous()
        and after.untyped_storage().data_ptr() == before.untyped_storage().data_ptr()
        and after.storage_offset() == before.storage_offset() + before.numel()
    )


def whole(parameters: Sequence[Tensor]) -> Tensor:
    """The rows of all parameters as one tensor: where they lie if they are parts of one, else copied."""
    first, *others = parameters
    if all(_follows(after, before) for before, after in pairwise(parameters)):
        rows = len(first) + sum(len(parameter) for parameter in others)
        return first.detach().as_strided((rows, *first.shape[1:]), first.stride())
    return torch.cat([parameter.detach() for parameter in parameters])


def plain(modules: Sequence[nn.Module]) -> tuple[list[Tensor], list[Tensor]] | None:
    """Weights and biases of plain linear layers, all of them biased or none; None of others, such as adapters."""
    linears = [module for module in modules if type(module) is nn.Linear]
    biases: list[Tensor] = [module.bias for module in linears if module.bias is not None]
    if len(linears) < len(modules) or len(biases) not in (0, len(modules)):
        return None
    return [module.weight for module in linears], biases
