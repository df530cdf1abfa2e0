"""The optimiser: bit for bit AdamW on fp32, AdamW on masters in half precision, storage that never moves."""

import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sleuth.errors import InputError, MissingExtra
from sleuth.train.optimiser import Optimiser, find_non_finite

RATE, DECAY, CLIP = 1e-2, 0.1, 1.0
SHAPES = {"wide": (4, 6), "flat": (5,), "one": (1, 1)}
Parameters = dict[str, nn.Parameter]


def drawn(dtype: torch.dtype, seed: int = 0, shapes: dict[str, tuple[int, ...]] = SHAPES) -> Parameters:
    dice = torch.Generator().manual_seed(seed)
    return {name: nn.Parameter(torch.randn(shape, generator=dice).to(dtype)) for name, shape in shapes.items()}


def gradients(parameters: Parameters, seed: int) -> dict[str, Tensor]:
    dice = torch.Generator().manual_seed(seed)
    return {name: torch.randn(each.shape, generator=dice).to(each.dtype) for name, each in parameters.items()}


def backward(parameters: Parameters, given: dict[str, Tensor]) -> None:
    """A backward pass that gives each parameter exactly this gradient."""
    sum((parameters[name] * gradient).sum() for name, gradient in given.items()).backward()  # type: ignore[union-attr]


def made(parameters: Parameters, **settings: object) -> Optimiser:
    return Optimiser(parameters.items(), learning_rate=RATE, weight_decay=DECAY, **settings)  # type: ignore[arg-type]


def move(optimiser: Optimiser, parameters: Parameters, seed: int, rate: float = RATE) -> float:
    optimiser.zero()
    for part in range(3):
        backward(parameters, gradients(parameters, 10 * seed + part))
    return optimiser.step(rate, CLIP)


def test_fp32_is_adamw_bit_for_bit() -> None:
    ours, theirs = drawn(torch.float32), drawn(torch.float32)
    optimiser = made(ours)
    stock = torch.optim.AdamW(theirs.values(), lr=RATE, betas=(0.9, 0.999), weight_decay=DECAY)
    for seed, rate in enumerate((RATE, RATE / 3, RATE / 7)):
        norm = move(optimiser, ours, seed, rate)
        stock.zero_grad()
        for part in range(3):
            backward(theirs, gradients(theirs, 10 * seed + part))
        expected = torch.nn.utils.clip_grad_norm_(theirs.values(), CLIP)
        stock.param_groups[0]["lr"] = rate
        stock.step()
        assert norm == float(expected) > CLIP
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("offload", [False, True])
def test_half_precision_follows_fp32_to_rounding(dtype: torch.dtype, offload: bool) -> None:
    """Steps far below what half precision resolves add up in the masters."""
    halves = drawn(dtype)
    singles = {name: nn.Parameter(each.detach().float()) for name, each in halves.items()}
    optimiser, reference = made(halves, offload=offload), made(singles)
    for seed in range(40):
        optimiser.zero()
        reference.zero()
        given = gradients(halves, seed)
        backward(halves, given)
        backward(singles, {name: each.float() for name, each in given.items()})
        assert optimiser.step(1e-4, CLIP) == pytest.approx(reference.step(1e-4, CLIP), rel=1e-6)
    state = optimiser.state()
    for name, single in singles.items():
        assert torch.allclose(state[f"master.{name}"], single, rtol=1e-6, atol=1e-7)
        assert torch.equal(halves[name], state[f"master.{name}"].to(dtype))
    assert not torch.equal(halves["wide"], drawn(dtype)["wide"])


def test_gradients_are_summed_in_fp32_and_never_kept_in_half() -> None:
    parameters = drawn(torch.bfloat16)
    optimiser = made(parameters)
    optimiser.zero()
    ones = {name: torch.ones_like(each) for name, each in parameters.items()}
    backward(parameters, ones)
    for _ in range(1000):
        backward(parameters, {name: each * 2**-10 for name, each in ones.items()})
        assert all(each.grad is None for each in parameters.values())
    count = sum(each.numel() for each in parameters.values())
    assert optimiser.norm() == pytest.approx((1 + 1000 * 2**-10) * count**0.5, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_storage_never_moves(dtype: torch.dtype) -> None:
    parameters = drawn(dtype)
    whole = torch.cat([each.detach().flatten() for each in parameters.values()])
    for parameter, part in zip(
        parameters.values(), whole.split([each.numel() for each in parameters.values()]), strict=True
    ):
        parameter.data = part.view(parameter.shape)
    before = whole.clone()
    optimiser = made(parameters)
    move(optimiser, parameters, 0)
    optimiser.load(optimiser.state(whole=True))
    assert not torch.equal(whole, before)
    assert torch.equal(whole, torch.cat([each.detach().flatten() for each in parameters.values()]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_gradient_that_is_not_finite_changes_nothing(dtype: torch.dtype, bad: float) -> None:
    parameters = drawn(dtype)
    optimiser = made(parameters)
    move(optimiser, parameters, 0)
    before = {name: each.clone() for name, each in {**parameters, **optimiser.state()}.items()}
    optimiser.zero()
    backward(parameters, gradients(parameters, 5))
    backward(parameters, {"flat": torch.full((5,), bad, dtype=dtype)})
    assert not torch.tensor(optimiser.step(RATE, CLIP)).isfinite()
    after = {**parameters, **optimiser.state()}
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_frozen_and_unused_parameters_stay_as_they_are() -> None:
    parameters = drawn(torch.bfloat16)
    parameters["flat"].requires_grad = False
    before = {name: each.clone() for name, each in parameters.items()}
    optimiser = made(parameters)
    optimiser.zero()
    backward(parameters, {"wide": torch.ones(4, 6, dtype=torch.bfloat16)})
    optimiser.step(RATE, CLIP)
    assert [name for name in before if not torch.equal(before[name], parameters[name])] == ["wide"]
    assert set(optimiser.state()) == {"master.wide", "master.one", "exp_avg.wide", "exp_avg_sq.wide", "step.wide"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_goes_on_in_another_optimiser(dtype: torch.dtype) -> None:
    first, second = drawn(dtype, 0), drawn(dtype, 1)
    one, other = made(first), made(second)
    for seed in range(3):
        move(one, first, seed)
    move(other, second, 9)
    with torch.no_grad():
        for name in first:
            second[name].copy_(first[name])
    other.load(one.state())
    for seed in (4, 5):
        assert move(one, first, seed) == move(other, second, seed)
    mine, theirs = {**first, **one.state()}, {**second, **other.state()}
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_state_without_moments_is_that_of_a_start() -> None:
    first, second = drawn(torch.float32), drawn(torch.float32)
    moved = made(second)
    move(moved, second, 0)
    with torch.no_grad():
        for name in first:
            second[name].copy_(first[name])
    moved.load({})
    fresh = made(first)
    move(fresh, first, 1)
    move(moved, second, 1)
    assert all(torch.equal(first[name], second[name]) for name in first)


Spoil = Callable[[dict[str, Tensor]], object]
SPOILT: dict[str, tuple[Spoil, str]] = {
    "no such parameter": (lambda state: state.update({"exp_avg.tall": torch.zeros(1)}), "exp_avg.tall belongs to no"),
    "no such kind": (lambda state: state.update({"state1.wide": torch.zeros(4, 6)}), "state1.wide .* adamw"),
    "other shape": (
        lambda state: state.update({"exp_avg.wide": torch.zeros(4, 7)}),
        r"exp_avg.wide has the shape \(4, 7\)",
    ),
    "master missing": (lambda state: state.pop("master.wide"), "master.wide is missing"),
    "count missing": (lambda state: state.pop("step.wide"), "wide has moments without"),
}


@pytest.mark.parametrize(("spoil", "sentence"), SPOILT.values(), ids=SPOILT)
def test_state_that_does_not_fit_is_refused_before_anything_changes(spoil: Spoil, sentence: str) -> None:
    parameters = drawn(torch.bfloat16)
    optimiser = made(parameters)
    move(optimiser, parameters, 0)
    state = {name: each.clone() for name, each in optimiser.state().items()}
    move(optimiser, parameters, 1)
    before = {name: each.clone() for name, each in optimiser.state().items()}
    spoil(state)
    with pytest.raises(InputError, match=sentence):
        optimiser.load(state)
    assert all(torch.equal(each, optimiser.state()[name]) for name, each in before.items())


def test_missing_library_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(MissingExtra, match=r"pip install 'sleuth\[bitsandbytes\]'"):
        made(drawn(torch.float32), kind="adamw8bit")


@pytest.mark.bitsandbytes
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moments_in_8_bits_stay_near_those_in_32_and_go_on_after_loading(dtype: torch.dtype) -> None:
    shapes = {"large": (64, 128), "small": (5,)}
    first, second, plain = (drawn(dtype, 0, shapes) for _ in range(3))
    begun = {name: each.detach().clone() for name, each in first.items()}
    one, other, reference = made(first, kind="adamw8bit"), made(second, kind="adamw8bit"), made(plain)
    for seed in range(5):
        move(one, first, seed)
        move(reference, plain, seed)
    state, expected = one.state(whole=True), reference.state(whole=True)
    assert state["state1.large"].dtype == torch.uint8
    for name in first:
        moved = (expected[f"master.{name}"] - begun[name]).abs().max()
        assert (state[f"master.{name}"] - expected[f"master.{name}"]).abs().max() < 0.15 * moved
    with torch.no_grad():
        for name in first:
            second[name].copy_(first[name])
    other.load({name: each.clone() for name, each in state.items()})
    for seed in (7, 8):
        move(one, first, seed)
        move(other, second, seed)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.gpu
@pytest.mark.parametrize("offload", [False, True])
def test_steps_on_a_gpu_are_those_on_a_cpu(offload: bool) -> None:
    here = drawn(torch.bfloat16)
    there = {name: nn.Parameter(each.detach().cuda()) for name, each in here.items()}
    one, other = made(here), made(there, offload=offload)
    addresses = [each.data_ptr() for each in there.values()]
    for seed in range(5):
        one.zero()
        other.zero()
        given = gradients(here, seed)
        backward(here, given)
        backward(there, {name: each.cuda() for name, each in given.items()})
        assert other.step(RATE, CLIP) == pytest.approx(one.step(RATE, CLIP), rel=1e-5)
    state = other.state()
    assert {each.device.type for name, each in state.items() if name.startswith("master")} == {
        "cpu" if offload else "cuda"
    }
    assert addresses == [each.data_ptr() for each in there.values()]
    for name, each in one.state().items():
        assert torch.allclose(each, state[name].cpu(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_number_that_is_not_finite_is_found_by_name(dtype: torch.dtype, value: float) -> None:
    """Numbers whose sum alone is infinite are finite."""
    tensors: dict[str, Tensor] = {
        "large": torch.full((7,), 3e38, dtype=dtype), "empty": torch.empty(0), "count": torch.tensor(3),
        "wide": torch.ones(3, 5, dtype=dtype),
    }  # fmt: skip
    assert find_non_finite(tensors) is None
    tensors["wide"][1, 2] = value
    assert find_non_finite(tensors) == "wide"
