"""Norms and activations of the training forward, by the engine's kernels where it runs on a GPU in half precision.

In half precision two computations that differ in one bit soon differ in all: every rounding after it widens the gap.
So the trainer's logprobs equal the engine's only where both begin each operation from the same bits and end with the
same.
"""

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation


def install(model: PreTrainedModel) -> None:
    """Lets RMSNorm and silu modules compute by the kernels, and elsewhere as they did."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
            module.forward = MethodType(_norm, module)
        elif isinstance(module, SiLUActivation | nn.SiLU):
            module.forward = MethodType(_silu, module)  # type: ignore[method-assign]


def _norm(module: Any, states: Tensor) -> Tensor:
    if not _by_kernel(states):
        plain: Tensor = type(module).forward(module, states)
        return plain
    normed: Tensor = Norm.apply(states, module.weight, module.variance_epsilon)  # type: ignore[no-untyped-call]
    return normed


def _silu(module: Any, states: Tensor) -> Tensor:
    if not _by_kernel(states):
        plain: Tensor = type(module).forward(module, states)
        return plain
    activated: Tensor = Silu.apply(states)  # type: ignore[no-untyped-call]
    return activated


def _by_kernel(states: Tensor) -> bool:
    return states.is_cuda and states.dtype.itemsize == 2


class Norm(torch.autograd.Function):
    """RMSNorm: the kernel forwards, its formula in fp32 backwards."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight_W: Tensor, eps: float) -> Tensor:
        from sleuth.model.kernels import pointwise

        ctx.save_for_backward(states, weight_W)
        ctx.eps = eps
        flat_NW = states.contiguous().view(-1, states.shape[-1])
        return pointwise.add_norm(None, flat_NW, weight_W, eps).view(states.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None]:
        states, weight_W = ctx.saved_tensors
        gradient, single = gradients[0].float(), states.float()
        scale = torch.rsqrt(single.square().mean(-1, keepdim=True) + ctx.eps)
        normed = single * scale
        weighed = gradient * weight_W.float()
        to_states = scale * (weighed - normed * (weighed * normed).mean(-1, keepdim=True))
        if not ctx.needs_input_grad[1]:
            return to_states.to(states.dtype), None, None
        to_weight = (gradient * normed).flatten(0, -2).sum(0)
        return to_states.to(states.dtype), to_weight.to(weight_W.dtype), None


class Silu(torch.autograd.Function):
    """x * sigmoid(x): the kernel forwards, PyTorch's own backwards."""

    @staticmethod
    def forward(ctx: Any, states: Tensor) -> Tensor:
        from sleuth.model.kernels import pointwise

        ctx.save_for_backward(states)
        return pointwise.silu(states.contiguous())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (states,) = ctx.saved_tensors
        backwards: Tensor = torch.ops.aten.silu_backward(gradients[0], states)
        return backwards
