"""AdamW over fp32 masters: a parameter in fp32 is its own, one in half precision has a copy that steps are taken on.

The storage of a parameter never moves: an engine's captured graphs read it.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from math import isfinite
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from sleuth.errors import ConfigError, InputError, MissingExtra

Kind = Literal["adamw", "adamw8bit"]

BETAS = (0.9, 0.999)
MASTER, COUNT = "master", "step"
# What is kept for a parameter beside its count of steps; below 4,096 numbers 8 bits save nothing, and stay 32.
MOMENTS: dict[Kind, frozenset[str]] = {
    "adamw": frozenset({"exp_avg", "exp_avg_sq"}),
    "adamw8bit": frozenset({"state1", "state2", "qmap1", "qmap2", "absmax1", "absmax2"}),
}
# Of these, what has the shape of the parameter.
SHAPED = frozenset({MASTER, "exp_avg", "exp_avg_sq", "state1", "state2"})
MASTER_BYTES = torch.float32.itemsize
EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_ has it


class Optimiser:
    """Sums gradients in fp32 over any number of backward passes, and steps on them.

    Gradients in half precision are added to their sum and dropped as soon as they are made, so that those of the whole
    model never exist at once. With `offload` masters and moments are in host memory, where steps are computed; the sums
    stay on the device. Weight decay is on every parameter.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        *,
        learning_rate: float,
        weight_decay: float,
        kind: Kind = "adamw",
        offload: bool = False,
        betas: tuple[float, float] = BETAS,
        epsilon: float = 1e-8,
    ) -> None:
        self.kind: Kind = kind
        self._parameters = {name: parameter for name, parameter in parameters if parameter.requires_grad}
        _require_whole(self._parameters.values(), kind, offload)
        self._masters = {name: _master(parameter, offload) for name, parameter in self._parameters.items()}
        halves = {name: each for name, each in self._parameters.items() if each.dtype.itemsize < MASTER_BYTES}
        # Kept for good: made anew in each update, they would lie between what that update keeps only for a while.
        self._sums = {name: torch.zeros_like(each, dtype=torch.float32) for name, each in halves.items()}
        self._summed: set[str] = set()
        self._norm: Tensor | None = None
        for name, parameter in halves.items():
            parameter.register_post_accumulate_grad_hook(partial(self._collect, name))
        settings = {"lr": learning_rate, "betas": betas, "eps": epsilon, "weight_decay": weight_decay}
        self._inner = _inner(kind, list(self._masters.values()), settings, offload)

    def _collect(self, name: str, parameter: Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None  # noqa: S101  the hook runs after it was made
        self._sums[name].add_(gradient)
        self._summed.add(name)
        parameter.grad = None

    def zero(self) -> None:
        """Forgets the gradients."""
        self._norm = None
        self._summed.clear()
        if self._sums:
            torch._foreach_zero_(list(self._sums.values()))
        for tensor in (*self._parameters.values(), *self._masters.values()):
            tensor.grad = None

    def norm(self) -> float:
        """The norm of all gradients summed so far; no backward pass may come between this and the step."""
        return float(self._total())

    @torch.no_grad()
    def step(self, rate: float, clip: float) -> float:
        """Clips the gradients to the norm `clip` and steps by `rate`; returns their norm before.

        Where that is not finite nothing is changed.
        """
        gradients = self._gradients()
        total = self._total()
        norm = float(total)
        if not isfinite(norm) or not gradients:
            return norm
        scale = torch.clamp(clip / (total + EPSILON), max=1.0)
        torch._foreach_mul_(list(gradients.values()), scale)
        for name, gradient in gradients.items():
            self._masters[name].grad = _beside(self._masters[name], gradient)
        for group in self._inner.param_groups:
            group["lr"] = rate
        self._inner.step()
        self._publish()
        return norm

    def finite(self) -> bool:
        """Whether every parameter is finite, of those sharded this rank's part."""
        return not_finite(self._parameters) is None

    def _gradients(self) -> dict[str, Tensor]:
        known = {
            name: self._sums[name] if name in self._summed else parameter.grad
            for name, parameter in self._parameters.items()
        }
        return {name: gradient for name, gradient in known.items() if gradient is not None}

    @torch.no_grad()
    def _total(self) -> Tensor:
        if self._norm is None:
            found = torch.nn.utils.get_total_norm(list(self._gradients().values()))
            self._norm = found.full_tensor() if isinstance(found, DTensor) else found
        return self._norm

    def _publish(self) -> None:
        """Writes the masters into the parameters, where these are."""
        if self.apart:
            parameters: list[Tensor] = [self._parameters[name] for name in self.apart]
            torch._foreach_copy_(parameters, [self._masters[name] for name in self.apart])

    @property
    def apart(self) -> list[str]:
        """The parameters whose masters are not they themselves."""
        return [name for name, master in self._masters.items() if master is not self._parameters[name]]

    def state(self, whole: bool = False) -> dict[str, Tensor]:
        """The tensors a run goes on with, by names like exp_avg.NAME, where they are: copy them before the next step.

        Masters are among them where they are not the parameters, or with `whole` all of them.
        """
        found = {f"{MASTER}.{name}": self._masters[name].detach() for name in (self._masters if whole else self.apart)}
        for name, master in self._masters.items():
            kept: Mapping[str, Any] = self._inner.state.get(master, {})
            found |= {f"{kind}.{name}": _tensor(each) for kind, each in kept.items()}
        return found

    def blank(self, name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """A host tensor to read the state of this name into, sharded as its parameter is."""
        kind, master = self._owner(name)
        if kind in SHAPED and shape != master.shape:
            raise InputError(f"{name} has the shape {tuple(shape)}, expected {tuple(master.shape)}")
        if kind in SHAPED and isinstance(master, DTensor):
            return torch.empty_like(master, dtype=dtype, device="cpu")
        return torch.empty(shape, dtype=dtype)

    def _owner(self, name: str) -> tuple[str, Tensor]:
        kind, _, parameter = name.partition(".")
        if parameter not in self._masters:
            raise InputError(f"{name} belongs to no parameter that is trained")
        if kind not in MOMENTS[self.kind] | {MASTER, COUNT}:
            raise InputError(f"{name} is no state of the optimiser {self.kind}")
        return kind, self._masters[parameter]

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what `state` gave, of this or another optimiser; what does not fit is refused before."""
        self.require(state)
        self.zero()
        self._inner.state.clear()
        for name, tensor in state.items():
            kind, master = self._owner(name)
            if kind == MASTER:
                master.copy_(tensor)
            elif kind == COUNT:
                self._inner.state[master][kind] = self._count(tensor, master)
            else:
                self._inner.state[master][kind] = tensor.to(master.device, copy=True)
        self._publish()

    def require(self, state: Mapping[str, Tensor]) -> None:
        """Refuses a state that does not fit, naming the first tensor that does not."""
        for name, tensor in state.items():
            self.blank(name, tensor.shape, tensor.dtype)
        if missing := [name for name in self.apart if f"{MASTER}.{name}" not in state]:
            raise InputError(f"{MASTER}.{missing[0]} is missing")
        moments = {name.partition(".")[2] for name in state if not name.startswith((f"{MASTER}.", f"{COUNT}."))}
        counted = {name.partition(".")[2] for name in state if name.startswith(f"{COUNT}.")}
        if uneven := sorted(moments ^ counted):
            raise InputError(f"{uneven[0]} has moments without a count of steps, or a count without moments")

    def _count(self, count: Tensor, master: Tensor) -> Tensor | int:
        """Steps are counted where the kernel that reads the count runs."""
        if self.kind == "adamw8bit":
            return int(count)
        fused = self._inner.param_groups[0].get("fused")
        return count.to(master.device if fused else "cpu", copy=True)


@torch.no_grad()
def not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor that holds NaN or an infinity, of those sharded in this rank's part."""
    local = {name: each.to_local() if isinstance(each, DTensor) else each.detach() for name, each in tensors.items()}
    floats = {name: each for name, each in local.items() if each.is_floating_point() and each.numel()}
    # A finite sum proves that every number is finite, and costs a twentieth of asking each (50 million fp32, one core).
    sums = [each.sum(dtype=torch.float32) for each in floats.values()]
    if all(isfinite(each) for group in _by_device(sums) for each in torch.stack(group).tolist()):
        return None
    # Numbers that are large enough have no finite sum: then each is asked.
    return next((name for name, each in floats.items() if not bool(each.isfinite().all())), None)


def _by_device(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    groups: dict[torch.device, list[Tensor]] = {}
    for each in tensors:
        groups.setdefault(each.device, []).append(each)
    return list(groups.values())


def _require_whole(parameters: Iterable[Tensor], kind: Kind, offload: bool) -> None:
    """Blocks of 8 bits, and host copies, are made of whole tensors."""
    if (offload or kind != "adamw") and any(isinstance(each, DTensor) for each in parameters):
        knob = "train.offload = true" if offload else f'train.optimiser = "{kind}"'
        raise ConfigError(f"{knob} is for one GPU, several share the optimiser's state anyway; leave it out")


def _master(parameter: nn.Parameter, offload: bool) -> Tensor:
    away = offload and parameter.is_cuda
    if parameter.dtype.itemsize >= torch.float32.itemsize and not away:
        return parameter
    master = parameter.detach().to("cpu" if away else parameter.device, torch.float32, copy=True)
    # From pinned memory the way back to the device is twice as fast.
    return master.pin_memory() if away else master


def _beside(master: Tensor, gradient: Tensor) -> Tensor:
    if master.device == gradient.device:
        return gradient
    return torch.empty(gradient.shape, dtype=gradient.dtype, pin_memory=True).copy_(gradient)


def _inner(kind: Kind, masters: list[Tensor], settings: Mapping[str, Any], offload: bool) -> torch.optim.Optimizer:
    if kind == "adamw8bit":
        return _eight_bits(masters, settings)
    # On a CPU without offload the bits are those of the plain implementation.
    fused = True if offload or all(master.is_cuda for master in masters) else None
    return torch.optim.AdamW(masters, fused=fused, **settings)


def _eight_bits(masters: list[Tensor], settings: Mapping[str, Any]) -> torch.optim.Optimizer:
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as error:
        raise MissingExtra("bitsandbytes", "bitsandbytes") from error
    inner: torch.optim.Optimizer = AdamW8bit(masters, **settings)
    return inner


def _tensor(kept: Tensor | int) -> Tensor:
    return kept.detach() if isinstance(kept, Tensor) else torch.tensor(float(kept))
