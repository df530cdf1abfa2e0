"""AdamW on fp32 master weights: a half-precision parameter has a separate copy, an fp32 parameter is its own.

Updates are in place: the engine's captured CUDA graphs read the storage of each parameter.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from math import isfinite
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from sleuth.config.train import TrainConfig
from sleuth.errors import ConfigError, InputError, MissingExtra

Kind = Literal["adamw", "adamw8bit"]

MASTER, COUNT = "master", "step"
# State per parameter besides the step count; 8-bit AdamW keeps 32-bit state below 4,096 values.
MOMENTS: dict[Kind, frozenset[str]] = {
    "adamw": frozenset({"exp_avg", "exp_avg_sq"}),
    "adamw8bit": frozenset({"state1", "state2", "qmap1", "qmap2", "absmax1", "absmax2"}),
}
PARAMETER_SHAPED = frozenset({MASTER, "exp_avg", "exp_avg_sq", "state1", "state2"})
CLIP_EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_


class Optimiser:
    """Accumulates gradients in fp32 over any number of backward passes, and steps on them.

    Each half-precision gradient is added to its fp32 sum and freed at once, which bounds peak memory. With
    `offload`, masters and moments are in host memory, where the step is computed. Weight decay applies to every
    parameter.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        *,
        learning_rate: float,
        weight_decay: float,
        kind: Kind = "adamw",
        offload: bool = False,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        self.kind: Kind = kind
        self._parameters = {name: parameter for name, parameter in parameters if parameter.requires_grad}
        sharded = any(isinstance(each, DTensor) for each in self._parameters.values())
        if sharded and (offload or kind != "adamw"):
            setting = "train.offload = true" if offload else f'train.optimiser = "{kind}"'
            raise ConfigError(f"{setting} supports one GPU; several GPUs share the optimiser's state, so leave it out")
        self._masters = {name: _master(parameter, offload) for name, parameter in self._parameters.items()}
        halves = {name: each for name, each in self._parameters.items() if each.dtype.itemsize < torch.float32.itemsize}
        # Allocated once: reallocating buffers for each update would fragment memory.
        self._sums = {name: torch.zeros_like(each, dtype=torch.float32) for name, each in halves.items()}
        self._summed: set[str] = set()
        self._norm: Tensor | None = None
        for name, parameter in halves.items():
            parameter.register_post_accumulate_grad_hook(partial(self._accumulate, name))
        settings = {"lr": learning_rate, "betas": betas, "eps": epsilon, "weight_decay": weight_decay}
        self._inner = _inner_optimiser(kind, list(self._masters.values()), settings, offload)

    @classmethod
    def build(cls, parameters: Iterable[tuple[str, nn.Parameter]], train: TrainConfig, learning_rate: float) -> Self:
        """Create the optimiser that the settings describe."""
        return cls(
            parameters,
            learning_rate=learning_rate,
            weight_decay=train.weight_decay,
            kind=train.optimiser,
            offload=train.offload,
            betas=(train.beta1, train.beta2),
            epsilon=train.epsilon,
        )

    def _accumulate(self, name: str, parameter: Tensor) -> None:
        assert parameter.grad is not None  # noqa: S101  the hook runs after the gradient is computed
        self._sums[name].add_(parameter.grad)
        self._summed.add(name)
        parameter.grad = None

    def zero(self) -> None:
        self._norm = None
        self._summed.clear()
        if self._sums:
            torch._foreach_zero_(list(self._sums.values()))
        for tensor in (*self._parameters.values(), *self._masters.values()):
            tensor.grad = None

    def norm(self) -> float:
        """Compute the norm of the accumulated gradients; do not run another backward pass before `step`."""
        return float(self._total_norm())

    @torch.no_grad()
    def step(self, learning_rate: float, clip: float) -> float:
        """Clip the gradients and step; return the norm before clipping. A non-finite norm skips the step."""
        gradients, total = self._gradients(), self._total_norm()
        norm = float(total)
        if not isfinite(norm) or not gradients:
            return norm
        scale = torch.clamp(clip / (total + CLIP_EPSILON), max=1.0)
        torch._foreach_mul_(list(gradients.values()), scale)
        for name, gradient in gradients.items():
            master = self._masters[name]
            if master.device != gradient.device:
                gradient = torch.empty(gradient.shape, dtype=gradient.dtype, pin_memory=True).copy_(gradient)
            master.grad = gradient
        for group in self._inner.param_groups:
            group["lr"] = learning_rate
        self._inner.step()
        self._copy_masters()
        return norm

    def finite(self) -> bool:
        """Whether all parameter values in this rank's shards are finite."""
        return find_non_finite(self._parameters) is None

    def _gradients(self) -> dict[str, Tensor]:
        gradients = {
            name: self._sums[name] if name in self._summed else parameter.grad
            for name, parameter in self._parameters.items()
        }
        return {name: gradient for name, gradient in gradients.items() if gradient is not None}

    @torch.no_grad()
    def _total_norm(self) -> Tensor:
        if self._norm is None:
            norm = torch.nn.utils.get_total_norm(list(self._gradients().values()))
            self._norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        return self._norm

    def _copy_masters(self) -> None:
        if names := self.separate_masters:
            parameters: list[Tensor] = [self._parameters[name] for name in names]
            torch._foreach_copy_(parameters, [self._masters[name] for name in names])

    @property
    def separate_masters(self) -> list[str]:
        """Names of the parameters with a separate master copy."""
        return [name for name, master in self._masters.items() if master is not self._parameters[name]]

    def state(self, whole: bool = False) -> dict[str, Tensor]:
        """Return the tensors to save, named like exp_avg.NAME, without copying; copy them before the next step.

        Includes the separate master copies, or the masters of all parameters with `whole`.
        """
        names = self._masters if whole else self.separate_masters
        state = {f"{MASTER}.{name}": self._masters[name].detach() for name in names}
        for name, master in self._masters.items():
            kept: Mapping[str, Tensor | int] = self._inner.state.get(master, {})
            for kind, value in kept.items():
                state[f"{kind}.{name}"] = value.detach() if isinstance(value, Tensor) else torch.tensor(float(value))
        return state

    def blank(self, name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Allocate a host tensor for the named state, sharded like its parameter."""
        kind, master = self._owner(name)
        if kind in PARAMETER_SHAPED and shape != master.shape:
            raise InputError(f"{name} has the shape {tuple(shape)}, expected {tuple(master.shape)}")
        if kind in PARAMETER_SHAPED and isinstance(master, DTensor):
            return torch.empty_like(master, dtype=dtype, device="cpu")
        return torch.empty(shape, dtype=dtype)

    def _owner(self, name: str) -> tuple[str, Tensor]:
        kind, _, parameter = name.partition(".")
        if parameter not in self._masters:
            raise InputError(f"{name} belongs to no trained parameter")
        if kind not in MOMENTS[self.kind] | {MASTER, COUNT}:
            raise InputError(f"{name} is not part of the state of {self.kind}")
        return kind, self._masters[parameter]

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Load a saved `state`; raises InputError and changes nothing if it does not match."""
        self.require(state)
        self.zero()
        self._inner.state.clear()
        for name, tensor in state.items():
            kind, master = self._owner(name)
            if kind == MASTER:
                master.copy_(tensor)
            elif kind == COUNT:  # in the form that the kernel reads
                on_device = self._inner.param_groups[0].get("fused")
                count = tensor.to(master.device if on_device else "cpu", copy=True)
                self._inner.state[master][kind] = int(count) if self.kind == "adamw8bit" else count
            else:
                self._inner.state[master][kind] = tensor.to(master.device, copy=True)
        self._copy_masters()

    def require(self, state: Mapping[str, Tensor]) -> None:
        """Raise InputError with the name of the first mismatched tensor, if there is one."""
        for name, tensor in state.items():
            self.blank(name, tensor.shape, tensor.dtype)
        if missing := [name for name in self.separate_masters if f"{MASTER}.{name}" not in state]:
            raise InputError(f"{MASTER}.{missing[0]} is missing")
        moments = {name.partition(".")[2] for name in state if not name.startswith((f"{MASTER}.", f"{COUNT}."))}
        counted = {name.partition(".")[2] for name in state if name.startswith(f"{COUNT}.")}
        if unmatched := sorted(moments ^ counted):
            raise InputError(f"{unmatched[0]} has moments without a step count, or a step count without moments")


@torch.no_grad()
def find_non_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first tensor with NaN or infinite values in this rank's shard, or None."""
    local = {name: each.to_local() if isinstance(each, DTensor) else each.detach() for name, each in tensors.items()}
    floats = {name: each for name, each in local.items() if each.is_floating_point() and each.numel()}
    # A finite sum proves that all values are finite, at a twentieth of the cost (50 million fp32, one core).
    sums: dict[torch.device, list[Tensor]] = {}
    for each in floats.values():
        sums.setdefault(each.device, []).append(each.sum(dtype=torch.float32))
    if all(isfinite(value) for group in sums.values() for value in torch.stack(group).tolist()):
        return None
    # Large finite values can overflow the sum, so every value is checked.
    return next((name for name, each in floats.items() if not bool(each.isfinite().all())), None)


def _master(parameter: nn.Parameter, offload: bool) -> Tensor:
    to_host = offload and parameter.is_cuda
    if parameter.dtype.itemsize >= torch.float32.itemsize and not to_host:
        return parameter
    master = parameter.detach().to("cpu" if to_host else parameter.device, torch.float32, copy=True)
    return master.pin_memory() if to_host else master  # pinned memory doubles the speed of the copy back to the device


def _inner_optimiser(
    kind: Kind, masters: list[Tensor], settings: Mapping[str, Any], offload: bool
) -> torch.optim.Optimizer:
    if kind == "adamw":
        # On a CPU without offload, torch's default implementation keeps results reproducible bit for bit.
        fused = True if offload or all(master.is_cuda for master in masters) else None
        return torch.optim.AdamW(masters, fused=fused, **settings)
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as error:
        raise MissingExtra("bitsandbytes", "bitsandbytes") from error
    inner: torch.optim.Optimizer = AdamW8bit(masters, **settings)
    return inner
