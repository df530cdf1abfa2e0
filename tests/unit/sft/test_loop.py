"""Supervised training: batch order, held-out split, early stopping, kept weights and checkpoints."""

import math
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from sleuth.errors import InputError, Interrupted, TrainingStopped
from sleuth.model.packing import Row, row
from sleuth.model.policy import Policy
from sleuth.runs.interruption import INTERRUPTION
from sleuth.sft.loop import Checkpoints, evaluate_loss, plan_batches, split_held_out, train
from sleuth.sft.settings import SFTConfig
from sleuth.sft.traces import Trace
from sleuth.train.observer import SilentObserver


def row_of(*ids: int) -> Row:
    return row(ids, [0.0] + [1.0] * (len(ids) - 1))


def trace_of(question: str, *ids: int) -> Trace:
    return Trace(np.array(ids, dtype=np.int32), np.array([0.0] + [1.0] * (len(ids) - 1), dtype=np.float32), question)


RISING = [row_of(5, 6, 7, 8), row_of(9, 10, 11)]
FALLING = [row_of(8, 7, 6, 5), row_of(11, 10, 9)]  # reversed tokens: learning one unlearns the other


class Recorder(SilentObserver):
    """Records log lines and progress."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.advanced = 0

    def log(self, line: str) -> None:
        self.lines.append(line)

    def advance(self, parts: int = 1) -> None:
        self.advanced += parts


def test_every_epoch_is_a_different_permutation() -> None:
    settings = SFTConfig(epochs=3, batch_rows=4)
    found = plan_batches([7] * 10, settings)
    assert [len(batch) for batch in found] == [4, 4, 2] * 3
    epochs = [[number for batch in found[start : start + 3] for number in batch] for start in (0, 3, 6)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert found == plan_batches([7] * 10, settings)
    assert found != plan_batches([7] * 10, SFTConfig(epochs=3, batch_rows=4, seed=1))


def test_steps_override_epochs() -> None:
    assert len(plan_batches([7] * 10, SFTConfig(steps=2, batch_rows=4))) == 2
    assert len(plan_batches([7] * 10, SFTConfig(steps=8, batch_rows=4))) == 8


def test_batches_respect_the_token_limit() -> None:
    lengths = [3, 9, 2, 7, 5, 1, 8]
    found = plan_batches(lengths, SFTConfig(epochs=2, batch_tokens=10, row_tokens=10))
    assert all(sum(lengths[number] for number in batch) <= 10 for batch in found)
    assert sorted(number for batch in found for number in batch) == sorted([*range(7), *range(7)])


def test_held_out_split_is_by_question() -> None:
    traces = [trace_of(f"q{number % 10}", 5, number) for number in range(1, 41)]
    learned, held = split_held_out(traces, 0.2, seed=0)
    questions = {int(each.ids_L[1]) % 10 for each in held}
    assert len(questions) == 2
    assert len(held) == 8
    assert not questions & {int(each.ids_L[1]) % 10 for each in learned}
    all_of_them, none = split_held_out(traces, 0.0, seed=0)
    assert [each.ids_L.tolist() for each in all_of_them] == [each.ids_L.tolist() for each in traces]
    assert none == []
    assert len(split_held_out(traces, 0.99, seed=0)[0]) == 4


def test_one_question_cannot_be_split() -> None:
    with pytest.raises(InputError, match="--held-out 0"):
        split_held_out([trace_of("q", 5, 6)] * 3, 0.1, seed=0)


def test_loss_decreases_and_is_logged(policy: Callable[..., Policy]) -> None:
    ours, recorder = policy(), Recorder()
    settings = SFTConfig(epochs=20, batch_rows=1, learning_rate=0.02, held_out=0.0)
    found = train(ours, RISING, [], settings, recorder)
    assert recorder.advanced == len(found.updates) == 40
    assert found.updates[-1].loss < found.updates[0].loss / 3
    assert found.as_json()["kept_step"] == 40
    assert len(recorder.lines) == 10
    assert recorder.lines[-1].startswith("step 40 of 40: loss ")


def test_early_stopping_keeps_the_best_weights(policy: Callable[..., Policy]) -> None:
    ours, recorder = policy(), Recorder()
    settings = SFTConfig(steps=30, batch_rows=2, learning_rate=0.01, evaluate_every=1, patience=3, decay="none")
    found = train(ours, RISING, FALLING, settings, recorder)
    assert len(found.updates) < 30
    assert found.kept == found.best.step == len(found.updates) - 3
    assert evaluate_loss(ours, FALLING, 1000) == pytest.approx(found.best.loss, rel=1e-6)
    assert f"step {found.kept}" in recorder.lines[-1]


def test_without_patience_training_continues_and_keeps_the_best(policy: Callable[..., Policy]) -> None:
    ours = policy()
    settings = SFTConfig(steps=12, batch_rows=2, learning_rate=0.01, evaluate_every=4, patience=0)
    found = train(ours, RISING, FALLING, settings, SilentObserver())
    assert [each.step for each in found.held_out] == [0, 4, 8, 12]
    assert evaluate_loss(ours, FALLING, 1000) == pytest.approx(min(each.loss for each in found.held_out), rel=1e-6)


def test_keep_last_disables_early_stopping(policy: Callable[..., Policy]) -> None:
    ours = policy()
    settings = SFTConfig(epochs=8, batch_rows=2, learning_rate=0.01, decay="none", keep="last")
    found = train(ours, RISING, FALLING, settings, SilentObserver())
    assert found.kept == len(found.updates) == 8
    assert len(found.held_out) - 1 - found.held_out.index(found.best) > settings.patience
    assert evaluate_loss(ours, FALLING, 1000) == pytest.approx(found.held_out[-1].loss, rel=1e-6)
    assert found.held_out[-1].loss > found.best.loss


def test_improving_training_keeps_the_last_weights(policy: Callable[..., Policy]) -> None:
    settings = SFTConfig(epochs=4, batch_rows=2, learning_rate=0.01)
    found = train(policy(), RISING, RISING, settings, SilentObserver())
    assert found.kept == 4
    assert [each.step for each in found.held_out] == [0, 1, 2, 3, 4]


def test_nan_loss_stops_training(policy: Callable[..., Policy]) -> None:
    ours = policy()
    with torch.no_grad():
        next(ours.model.parameters()).fill_(math.nan)
    with pytest.raises(TrainingStopped, match=r"step 1 .*nan"):
        train(ours, RISING, [], SFTConfig(steps=1), SilentObserver())


def test_infinite_weights_stop_training(policy: Callable[..., Policy]) -> None:
    """Loss and gradient are finite; a weight decay of 1e39 is not."""
    settings = SFTConfig(steps=1, weight_decay=1e3, warmup=0.0, decay="none").model_copy(
        update={"learning_rate": 1e36}  # above the limit of the setting
    )
    with pytest.raises(TrainingStopped, match=r"1e\+36"):
        train(policy(), RISING, [], settings, SilentObserver())


class Signalled(SilentObserver):
    """Raises SIGTERM after a number of updates."""

    def __init__(self, after: int) -> None:
        self._left = after

    def advance(self, parts: int = 1) -> None:
        self._left -= parts
        if self._left == 0:
            signal.raise_signal(signal.SIGTERM)


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in policy.parameters()}


@pytest.mark.parametrize("held_out", [FALLING, []], ids=["best", "last"])
def test_resumed_training_equals_an_uninterrupted_one(
    held_out: list[Row], policy: Callable[..., Policy], tmp_path: Path
) -> None:
    share = {"patience": 0, "evaluate_every": 1} if held_out else {"held_out": 0.0}
    settings = SFTConfig.model_validate({"steps": 8, "batch_rows": 1, "learning_rate": 0.01, **share})
    whole = policy()
    expected = train(whole, RISING, held_out, settings, SilentObserver())
    for after in (2, 5):  # of all updates
        with pytest.raises(Interrupted), INTERRUPTION.handle_signals(), INTERRUPTION.defer():
            train(policy(), RISING, held_out, settings, Signalled(after), Checkpoints(tmp_path, 60.0))
        assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [f"step-{after}"]
    resumed, recorder = policy(), Recorder()
    assert train(resumed, RISING, held_out, settings, recorder, Checkpoints(tmp_path, 60.0)) == expected
    assert "update 5" in recorder.lines[0]
    assert recorder.advanced == 8
    for name, weight in weights(whole).items():
        assert torch.equal(weights(resumed)[name], weight), name


def test_damaged_checkpoint_is_rejected(policy: Callable[..., Policy], tmp_path: Path) -> None:
    settings = SFTConfig(steps=4, batch_rows=1, learning_rate=0.01, held_out=0.0)
    with pytest.raises(Interrupted), INTERRUPTION.handle_signals(), INTERRUPTION.defer():
        train(policy(), RISING, [], settings, Signalled(2), Checkpoints(tmp_path, 60.0))
    weights = tmp_path / "checkpoints" / "step-2" / "model.safetensors"
    written = bytearray(weights.read_bytes())
    written[-1] ^= 1
    weights.write_bytes(written)
    with pytest.raises(InputError, match=r"model\.safetensors"):
        train(policy(), RISING, [], settings, SilentObserver(), Checkpoints(tmp_path, 60.0))


def test_checkpoints_are_written_when_due_and_removed(policy: Callable[..., Policy], tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 0.0)
    settings = SFTConfig(steps=3, batch_rows=2, learning_rate=0.01, evaluate_every=1)
    found = train(policy(), RISING, FALLING, settings, SilentObserver(), checkpoints)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"best-{found.best.step}.safetensors", "checkpoints", "course.json"]
    checkpoints.remove()
    assert list(tmp_path.iterdir()) == []
