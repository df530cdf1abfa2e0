"""Steps of a decoder layer by the engine's kernels, with backward passes that make again what is cheap to make.

Of a layer there is kept: the residual stream before and after attention, one row of heads, what was attended and its
softmax's sums, and gate and up. Norms and activations are made again, by kernels that run backwards anyway.

Suffixes: N packed tokens, W model width, X outputs side by side, I intermediate width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from sleuth.model.projection import plain, whole
from sleuth.model.weights import weight_gradient


def norm(module: Any, states: Tensor) -> Tensor:
    """RMSNorm of states of whatever shape."""
    flat_NW = states.contiguous().view(-1, states.shape[-1])
    _, normed_NW = _Normed.apply(flat_NW, None, module.weight, module.variance_epsilon)  # type: ignore[no-untyped-call]
    normed: Tensor = normed_NW.view(states.shape)
    return normed


def silu(states: Tensor) -> Tensor:
    """x * sigmoid(x)."""
    activated: Tensor = _Silu.apply(states)  # type: ignore[no-untyped-call]
    return activated


def normed_product(
    residual_NW: Tensor, delta_NW: Tensor | None, module: Any, projections: Sequence[nn.Module]
) -> tuple[Tensor, Tensor]:
    """The residual stream with `delta_NW` added, and what the projections make of its norm, side by side."""
    call = (residual_NW, delta_NW, module.weight, module.variance_epsilon)
    total_NW: Tensor
    out_NX: Tensor
    if (parts := plain(projections)) is None:
        total_NW, normed_NW = _Normed.apply(*call)  # type: ignore[no-untyped-call]
        return total_NW, torch.cat([projection(normed_NW) for projection in projections], -1)
    weights, biases = parts
    total_NW, out_NX = _NormedProduct.apply(*call, len(weights), *weights, *biases)  # type: ignore[no-untyped-call]
    return total_NW, out_NX


def product(states_NX: Tensor, projection: nn.Module) -> Tensor:
    """What the projection makes of the states."""
    if (parts := plain((projection,))) is None:
        made: Tensor = projection(states_NX)
        return made
    weights, biases = parts
    out_NW: Tensor = _Product.apply(states_NX, *weights, *(biases or (None,)))  # type: ignore[no-untyped-call]
    return out_NW


def gated_product(both_N2I: Tensor, projection: nn.Module) -> Tensor:
    """What the projection makes of silu(gate) * up, which lie side by side."""
    out_NW: Tensor
    if (parts := plain((projection,))) is None:
        product_NI = _SiluMul.apply(both_N2I)  # type: ignore[no-untyped-call]
        out_NW = projection(product_NI)
        return out_NW
    weights, biases = parts
    out_NW = _GatedProduct.apply(both_N2I, *weights, *(biases or (None,)))  # type: ignore[no-untyped-call]
    return out_NW


def _added(residual_NW: Tensor, delta_NW: Tensor | None, weight_W: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The sum, and its norm; what was given stays as it is."""
    from sleuth.model.kernels import pointwise

    total_NW = residual_NW if delta_NW is None else torch.empty_like(residual_NW)
    return total_NW, pointwise.add_norm(delta_NW, residual_NW, weight_W, eps, total_NW=total_NW)


def _bias_gradient(to_out_NX: Tensor) -> Tensor:
    from sleuth.model.kernels.sums import summed

    return summed(to_out_NX, to_out_NX.dtype)


class _Normed(torch.autograd.Function):
    """The residual stream goes through, so that both ways back are added where they meet."""

    @staticmethod
    def forward(
        ctx: Any, residual_NW: Tensor, delta_NW: Tensor | None, weight_W: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        total_NW, normed_NW = _added(residual_NW, delta_NW, weight_W, eps)
        ctx.save_for_backward(total_NW, weight_W)
        ctx.eps, ctx.added = eps, delta_NW is not None
        ctx.set_materialize_grads(False)
        return total_NW, normed_NW

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_total_NW: Tensor | None, to_normed_NW: Tensor | None) -> tuple[Tensor | None, ...]:
        from sleuth.model.kernels import gradients

        total_NW, weight_W = ctx.saved_tensors
        if to_normed_NW is None:
            return to_total_NW, to_total_NW if ctx.added else None, None, None
        passed_NW = None if to_total_NW is None else to_total_NW.contiguous()
        to_states_NW, to_weight_W, _ = gradients.norm(
            to_normed_NW.contiguous(), total_NW, weight_W, ctx.eps, passed_NW, weight=ctx.needs_input_grad[2]
        )
        return to_states_NW, to_states_NW if ctx.added else None, to_weight_W, None


class _NormedProduct(torch.autograd.Function):
    """Keeps the residual stream; the norm is made again while the gradient passes through it."""

    @staticmethod
    def forward(
        ctx: Any, residual_NW: Tensor, delta_NW: Tensor | None, norm_W: Tensor, eps: float, count: int,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        weights, biases = parameters[:count], parameters[count:]
        total_NW, normed_NW = _added(residual_NW, delta_NW, norm_W, eps)
        ctx.save_for_backward(total_NW, norm_W, *weights)
        ctx.eps, ctx.added, ctx.biases = eps, delta_NW is not None, len(biases)
        return total_NW, linear(normed_NW, whole(weights), whole(biases) if biases else None)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_total_NW: Tensor, to_out_NX: Tensor) -> tuple[Tensor | None, ...]:
        from sleuth.model.kernels import gradients

        total_NW, norm_W, *weights = ctx.saved_tensors
        of_norm, of_weights = ctx.needs_input_grad[2], ctx.needs_input_grad[5 : 5 + len(weights)]
        of_biases, rows = ctx.needs_input_grad[5 + len(weights) :], [len(weight) for weight in weights]
        to_out_NX = to_out_NX.contiguous()
        to_states_NW, to_norm_W, normed_NW = gradients.norm(
            to_out_NX @ whole(weights), total_NW, norm_W, ctx.eps, to_total_NW.contiguous(),
            weight=of_norm, again=any(of_weights),
        )  # fmt: skip
        to_weights: Sequence[Tensor | None] = [None] * len(rows)
        if normed_NW is not None:
            to_weights = weight_gradient(to_out_NX, normed_NW).split(rows)
        to_biases = _bias_gradient(to_out_NX).split(rows) if any(of_biases) else [None] * ctx.biases
        return to_states_NW, to_states_NW if ctx.added else None, to_norm_W, None, None, *to_weights, *to_biases


class _Product(torch.autograd.Function):
    """A linear layer, whose weight's gradient is summed in parts."""

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
        return to_states_NX, to_weight_WX, _bias_gradient(to_out_NW) if of_bias else None


class _GatedProduct(torch.autograd.Function):
    """Keeps gate and up; their product is made again while the gradient passes through it."""

    @staticmethod
    def forward(ctx: Any, both_N2I: Tensor, weight_WI: Tensor, bias_W: Tensor | None) -> Tensor:
        from sleuth.model.kernels import pointwise

        ctx.save_for_backward(both_N2I, weight_WI)
        return linear(pointwise.silu_mul(both_N2I), weight_WI, bias_W)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_out_NW: Tensor) -> tuple[Tensor | None, ...]:
        from sleuth.model.kernels import gradients

        both_N2I, weight_WI = ctx.saved_tensors
        _, of_weight, of_bias = ctx.needs_input_grad
        to_out_NW = to_out_NW.contiguous()
        to_both_N2I, product_NI = gradients.silu_mul(both_N2I, to_out_NW @ weight_WI, again=of_weight)
        to_weight_WI = None if product_NI is None else weight_gradient(to_out_NW, product_NI)
        return to_both_N2I, to_weight_WI, _bias_gradient(to_out_NW) if of_bias else None


class _SiluMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, both_N2I: Tensor) -> Tensor:
        from sleuth.model.kernels import pointwise

        ctx.save_for_backward(both_N2I)
        return pointwise.silu_mul(both_N2I)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_product_NI: Tensor) -> Tensor:
        from sleuth.model.kernels import gradients

        (both_N2I,) = ctx.saved_tensors
        to_both_N2I, _ = gradients.silu_mul(both_N2I, to_product_NI.contiguous(), again=False)
        return to_both_N2I


class _Silu(torch.autograd.Function):
    """The kernel forwards, PyTorch's own backwards."""

    @staticmethod
    def forward(ctx: Any, states: Tensor) -> Tensor:
        from sleuth.model.kernels import pointwise

        ctx.save_for_backward(states)
        return pointwise.silu(states.contiguous())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (states,) = ctx.saved_tensors
        backwards: Tensor = torch.ops.aten.silu_backward(gradient, states)
        return backwards
