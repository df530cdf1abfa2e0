"""Parts of a decoder layer with the engine's kernels, and backward passes that recompute cheap intermediates.

A layer keeps the residual stream before and after attention, one QKV row, the attention output with its log-sum-exp,
and gate and up. Linear layers with the same input become one product over the storage of their parameters.

Suffixes: N packed tokens, W model width, X outputs side by side, I intermediate width, P parts.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from sleuth.model.kernels import pointwise
from sleuth.model.kernels.reductions import sm_count, sum_rows

Projection = Callable[[Tensor], Tensor]

TILE = 128  # rows and columns of a matrix product that one multiprocessor computes
MIN_PART = 2048  # tokens
SplitTable = Mapping[tuple[int, int], Sequence[tuple[int, int]]]
# Measured optima by (outputs, inputs): (minimum tokens, parts).
MEASURED_SPLITS: SplitTable = {
    (960, 576): ((8192, 1), (16384, 4)),
    (576, 576): ((8192, 4), (32768, 8)),
    (576, 1536): ((8192, 1), (32768, 4)),
    (1152, 896): ((8192, 1), (16384, 2)),
    (896, 896): ((8192, 1), (32768, 3)),
}


def fuse_linears(modules: Sequence[nn.Module]) -> Projection:
    """Return a function that applies all modules to one input and concatenates their outputs.

    Weights of plain linear layers become views of one tensor and stay parameters. Other modules (adapters), and layers
    of which only some have a bias, are called one by one.
    """
    if (parameters := plain_linears(modules)) is None:
        first, *others = modules
        if not others:
            return first
        return lambda states: torch.cat([module(states) for module in modules], -1)
    weights, biases = parameters
    return partial(linear, weight=_share_storage(weights), bias=_share_storage(biases) if biases else None)


def _share_storage(parameters: Sequence[Tensor]) -> Tensor:
    """Make the parameters views of one tensor, unless they already are, and return that tensor."""
    whole = concatenate(parameters)
    if whole.data_ptr() != parameters[0].data_ptr():
        rows = [len(parameter) for parameter in parameters]
        for parameter, part in zip(parameters, whole.split(rows), strict=True):
            parameter.data = part
    return whole


def concatenate(parameters: Sequence[Tensor]) -> Tensor:
    """Concatenate the rows of all parameters: a view if they are adjacent in memory, otherwise a copy."""
    first, *others = parameters
    adjacent = all(
        before.is_contiguous()
        and after.is_contiguous()
        and after.untyped_storage().data_ptr() == before.untyped_storage().data_ptr()
        and after.storage_offset() == before.storage_offset() + before.numel()
        for before, after in pairwise(parameters)
    )
    if adjacent:
        rows = len(first) + sum(len(parameter) for parameter in others)
        return first.detach().as_strided((rows, *first.shape[1:]), first.stride())
    return torch.cat([parameter.detach() for parameter in parameters])


def plain_linears(modules: Sequence[nn.Module]) -> tuple[list[Tensor], list[Tensor]] | None:
    """Weights and biases if all modules are exactly nn.Linear and all or none have a bias; otherwise None."""
    linears = [module for module in modules if type(module) is nn.Linear]
    biases: list[Tensor] = [module.bias for module in linears if module.bias is not None]
    if len(linears) < len(modules) or len(biases) not in (0, len(modules)):
        return None
    return [module.weight for module in linears], biases


def weight_gradient(upstream_NX: Tensor, states_NW: Tensor, parts: int | None = None) -> Tensor:
    """Gradient of a linear layer's weight, summed over tokens in parts to keep a GPU busy.

    Forward products are never split (`disable_split_k`), since their bits must not depend on the number of tokens.
    """
    parts = split_count(upstream_NX, states_NW) if parts is None else parts
    if parts == 1:
        return upstream_NX.t() @ states_NW
    each, left = divmod(len(states_NW), parts)
    shape = upstream_NX.shape[1], states_NW.shape[1]
    sums_PXW = torch.empty(parts + bool(left), *shape, dtype=torch.float32, device=states_NW.device)
    upstream_PNX, states_PNW = (
        states[: parts * each].unflatten(0, (parts, each)) for states in (upstream_NX, states_NW)
    )
    _multiply_to_fp32(upstream_PNX.transpose(1, 2), states_PNW, sums_PXW[:parts])
    if left:
        _multiply_to_fp32(upstream_NX[None, -left:].transpose(1, 2), states_NW[None, -left:], sums_PXW[parts:])
    return sum_rows(sums_PXW.flatten(1), states_NW.dtype).view(shape)


def split_count(upstream_NX: Tensor, states_NW: Tensor, measured: SplitTable = MEASURED_SPLITS) -> int:
    """Number of parts of a weight gradient: a measured value, or enough to fill the multiprocessors."""
    tokens, rows, columns = len(states_NW), upstream_NX.shape[1], states_NW.shape[1]
    for least, parts in reversed(measured.get((rows, columns), ())):
        if tokens >= least:
            return parts
    tiles = -(-rows // TILE) * -(-columns // TILE)
    return max(1, min(sm_count(states_NW.device) // tiles, tokens // MIN_PART))


def _multiply_to_fp32(left: Tensor, right: Tensor, out: Tensor) -> None:
    if left.is_cuda and left.dtype != torch.float32:
        torch.bmm(left, right, out_dtype=torch.float32, out=out)
    else:
        torch.bmm(left.float(), right.float(), out=out)


def rms_norm(module: Any, states: Tensor) -> Tensor:
    flat_NW = states.contiguous().view(-1, states.shape[-1])
    _, normed_NW = _AddNorm.apply(flat_NW, None, module.weight, module.variance_epsilon)  # type: ignore[no-untyped-call]
    normed: Tensor = normed_NW.view(states.shape)
    return normed


def silu(states: Tensor) -> Tensor:
    activated: Tensor = _Silu.apply(states)  # type: ignore[no-untyped-call]
    return activated


def add_norm_project(
    residual_NW: Tensor, delta_NW: Tensor | None, norm: Any, projections: Sequence[nn.Module]
) -> tuple[Tensor, Tensor]:
    """Add `delta_NW` to the residual stream, then norm and project; return the new stream and the projections."""
    call = (residual_NW, delta_NW, norm.weight, norm.variance_epsilon)
    total_NW: Tensor
    out_NX: Tensor
    if (parameters := plain_linears(projections)) is None:
        total_NW, normed_NW = _AddNorm.apply(*call)  # type: ignore[no-untyped-call]
        return total_NW, torch.cat([projection(normed_NW) for projection in projections], -1)
    weights, biases = parameters
    total_NW, out_NX = _AddNormProject.apply(*call, len(weights), *weights, *biases)  # type: ignore[no-untyped-call]
    return total_NW, out_NX


def project(states_NX: Tensor, projection: nn.Module) -> Tensor:
    """Apply a linear layer, or an adapter in its place."""
    if (parameters := plain_linears((projection,))) is None:
        out_NW: Tensor = projection(states_NX)
    else:
        weights, biases = parameters
        out_NW = _Project.apply(states_NX, *weights, *(biases or (None,)))  # type: ignore[no-untyped-call]
    return out_NW


def gate_project(both_N2I: Tensor, projection: nn.Module) -> Tensor:
    """Project silu(gate) * up for rows that hold gate and up side by side."""
    if (parameters := plain_linears((projection,))) is None:
        out_NW: Tensor = projection(_SiluMul.apply(both_N2I))  # type: ignore[no-untyped-call]
    else:
        weights, biases = parameters
        out_NW = _GateProject.apply(both_N2I, *weights, *(biases or (None,)))  # type: ignore[no-untyped-call]
    return out_NW


def _add_norm(residual_NW: Tensor, delta_NW: Tensor | None, weight_W: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the sum and its RMSNorm, leaving the inputs unchanged."""
    total_NW = residual_NW if delta_NW is None else torch.empty_like(residual_NW)
    return total_NW, pointwise.add_rms_norm(delta_NW, residual_NW, weight_W, eps, total_NW=total_NW)


class _AddNorm(torch.autograd.Function):
    """Add and norm; also returns the residual stream, so that both of its gradients are added in one kernel."""

    @staticmethod
    def forward(
        ctx: Any, residual_NW: Tensor, delta_NW: Tensor | None, weight_W: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        total_NW, normed_NW = _add_norm(residual_NW, delta_NW, weight_W, eps)
        ctx.save_for_backward(total_NW, weight_W)
        ctx.eps, ctx.added = eps, delta_NW is not None
        ctx.set_materialize_grads(False)
        return total_NW, normed_NW

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_total_NW: Tensor | None, to_normed_NW: Tensor | None) -> tuple[Tensor | None, ...]:
        total_NW, weight_W = ctx.saved_tensors
        if to_normed_NW is None:
            return to_total_NW, to_total_NW if ctx.added else None, None, None
        passed_NW = None if to_total_NW is None else to_total_NW.contiguous()
        to_states_NW, to_weight_W, _ = pointwise.rms_norm_backward(
            to_normed_NW.contiguous(), total_NW, weight_W, ctx.eps, passed_NW, weight=ctx.needs_input_grad[2]
        )
        return to_states_NW, to_states_NW if ctx.added else None, to_weight_W, None


class _AddNormProject(torch.autograd.Function):
    """Add, norm and project; saves only the residual stream, and the backward kernel recomputes its norm."""

    @staticmethod
    def forward(
        ctx: Any, residual_NW: Tensor, delta_NW: Tensor | None, norm_W: Tensor, eps: float, count: int,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        weights, biases = parameters[:count], parameters[count:]
        total_NW, normed_NW = _add_norm(residual_NW, delta_NW, norm_W, eps)
        ctx.save_for_backward(total_NW, norm_W, *weights)
        ctx.eps, ctx.added, ctx.biases = eps, delta_NW is not None, len(biases)
        return total_NW, linear(normed_NW, concatenate(weights), concatenate(biases) if biases else None)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_total_NW: Tensor, to_out_NX: Tensor) -> tuple[Tensor | None, ...]:
        total_NW, norm_W, *weights = ctx.saved_tensors
        of_norm, of_weights = ctx.needs_input_grad[2], ctx.needs_input_grad[5 : 5 + len(weights)]
        of_biases, rows = ctx.needs_input_grad[5 + len(weights) :], [len(weight) for weight in weights]
        to_out_NX = to_out_NX.contiguous()
        to_states_NW, to_norm_W, normed_NW = pointwise.rms_norm_backward(
            to_out_NX @ concatenate(weights), total_NW, norm_W, ctx.eps, to_total_NW.contiguous(),
            weight=of_norm, recompute=any(of_weights),
        )  # fmt: skip
        to_weights: Sequence[Tensor | None] = [None] * len(rows)
        if normed_NW is not None:
            to_weights = weight_gradient(to_out_NX, normed_NW).split(rows)
        to_biases = sum_rows(to_out_NX, to_out_NX.dtype).split(rows) if any(of_biases) else [None] * ctx.biases
        return to_states_NW, to_states_NW if ctx.added else None, to_norm_W, None, None, *to_weights, *to_biases


class _Project(torch.autograd.Function):
    """A linear layer whose weight gradient may be summed in parts."""

    @staticmethod
    def forward(ctx: Any, states_NX: Tensor, weight_WX: Tensor, bias_W: Tensor | None) -> Tensor:
        ctx.save_for_backward(states_NX, weight_WX)
        return linear(states_NX, weight_WX, bias_W)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_out_NW: Tensor) -> tuple[Tensor | None, ...]:
        states_NX, weight_WX = ctx.saved_tensors
        of_states, of_weight, of_bias = ctx.needs_input_grad
        to_out_NW = to_out_NW.contiguous()
        to_states_NX = to_out_NW @ weight_WX if of_states else None
        to_weight_WX = weight_gradient(to_out_NW, states_NX) if of_weight else None
        return to_states_NX, to_weight_WX, sum_rows(to_out_NW, to_out_NW.dtype) if of_bias else None


class _GateProject(torch.autograd.Function):
    """Gate and project; saves only gate and up, and the backward kernel recomputes their product."""

    @staticmethod
    def forward(ctx: Any, both_N2I: Tensor, weight_WI: Tensor, bias_W: Tensor | None) -> Tensor:
        ctx.save_for_backward(both_N2I, weight_WI)
        return linear(pointwise.silu_mul(both_N2I), weight_WI, bias_W)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_out_NW: Tensor) -> tuple[Tensor | None, ...]:
        both_N2I, weight_WI = ctx.saved_tensors
        _, of_weight, of_bias = ctx.needs_input_grad
        to_out_NW = to_out_NW.contiguous()
        to_both_N2I, product_NI = pointwise.silu_mul_backward(both_N2I, to_out_NW @ weight_WI, recompute=of_weight)
        to_weight_WI = None if product_NI is None else weight_gradient(to_out_NW, product_NI)
        return to_both_N2I, to_weight_WI, sum_rows(to_out_NW, to_out_NW.dtype) if of_bias else None


class _SiluMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, both_N2I: Tensor) -> Tensor:
        ctx.save_for_backward(both_N2I)
        return pointwise.silu_mul(both_N2I)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_product_NI: Tensor) -> Tensor:
        (both_N2I,) = ctx.saved_tensors
        to_both_N2I, _ = pointwise.silu_mul_backward(both_N2I, to_product_NI.contiguous(), recompute=False)
        return to_both_N2I


class _Silu(torch.autograd.Function):
    """SiLU with our kernel forward and PyTorch's backward."""

    @staticmethod
    def forward(ctx: Any, states: Tensor) -> Tensor:
        ctx.save_for_backward(states)
        return pointwise.silu(states.contiguous())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (states,) = ctx.saved_tensors
        to_states: Tensor = torch.ops.aten.silu_backward(gradient, states)
        return to_states
