"""The course of supervised training: order, what is held out, when it ends, and which weights are kept."""

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
from sleuth.sft import loop as course
from sleuth.sft.checkpoint import Checkpoints
from sleuth.sft.settings import SFTConfig
from sleuth.sft.step import measure
from sleuth.sft.traces import Trace
from sleuth.train.observer import SilentObserver


def made(*ids: int) -> Row:
    return row(ids, [0.0] + [1.0] * (len(ids) - 1))


def traced(question: str, *ids: int) -> Trace:
    return Trace(np.array(ids, dtype=np.int32), np.array([0.0] + [1.0] * (len(ids) - 1), dtype=np.float32), question)


RISING = [made(5, 6, 7, 8), made(9, 10, 11)]
FALLING = [made(8, 7, 6, 5), made(11, 10, 9)]  # the same tokens the other way round: learning one unlearns the other


class Heard(SilentObserver):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.advanced = 0

    def log(self, line: str) -> None:
        self.lines.append(line)

    def advance(self, parts: int = 1) -> None:
        self.advanced += parts


def test_every_row_is_seen_once_an_epoch_in_orders_that_differ() -> None:
    settings = SFTConfig(epochs=3, batch_rows=4)
    found = course.batches([7] * 10, settings)
    assert [len(batch) for batch in found] == [4, 4, 2] * 3
    epochs = [[number for batch in found[start : start + 3] for number in batch] for start in (0, 3, 6)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert found == course.batches([7] * 10, settings)
    assert found != course.batches([7] * 10, SFTConfig(epochs=3, batch_rows=4, seed=1))


def test_steps_end_in_the_middle_of_an_epoch_or_go_beyond_it() -> None:
    assert len(course.batches([7] * 10, SFTConfig(steps=2, batch_rows=4))) == 2
    assert len(course.batches([7] * 10, SFTConfig(steps=8, batch_rows=4))) == 8


def test_batches_by_tokens_are_no_larger() -> None:
    lengths = [3, 9, 2, 7, 5, 1, 8]
    found = course.batches(lengths, SFTConfig(epochs=2, batch_tokens=10, row_tokens=10))
    assert all(sum(lengths[number] for number in batch) <= 10 for batch in found)
    assert sorted(number for batch in found for number in batch) == sorted([*range(7), *range(7)])


def test_what_is_held_out_is_held_out_by_question() -> None:
    traces = [traced(f"q{number % 10}", 5, number) for number in range(1, 41)]
    learned, held = course.apart(traces, 0.2, seed=0)
    questions = {int(each.ids_L[1]) % 10 for each in held}
    assert len(questions) == 2
    assert len(held) == 8
    assert not questions & {int(each.ids_L[1]) % 10 for each in learned}
    all_of_them, none = course.apart(traces, 0.0, seed=0)
    assert [each.ids_L.tolist() for each in all_of_them] == [each.ids_L.tolist() for each in traces]
    assert none == []
    assert len(course.apart(traces, 0.99, seed=0)[0]) == 4


def test_one_question_cannot_be_held_out() -> None:
    with pytest.raises(InputError, match="--held-out 0"):
        course.apart([traced("q", 5, 6)] * 3, 0.1, seed=0)


def test_loss_falls_and_is_written_down(policy: Callable[..., Policy]) -> None:
    ours, heard = policy(), Heard()
    settings = SFTConfig(epochs=20, batch_rows=1, learning_rate=0.02, held_out=0.0)
    found = course.train(ours, RISING, [], settings, heard)
    assert heard.advanced == len(found.updates) == 40
    assert found.updates[-1].loss < found.updates[0].loss / 3
    assert found.as_json()["kept_step"] == 40
    assert len(heard.lines) == 10
    assert heard.lines[-1].startswith("step 40 of 40: loss ")


def test_best_weights_are_kept_and_training_ends_when_they_are_behind(policy: Callable[..., Policy]) -> None:
    ours, heard = policy(), Heard()
    settings = SFTConfig(steps=30, batch_rows=2, learning_rate=0.01, evaluate_every=1, patience=3, decay="none")
    found = course.train(ours, RISING, FALLING, settings, heard)
    assert len(found.updates) < 30
    assert found.kept == found.best.step == len(found.updates) - 3
    assert measure(ours, FALLING, 1000) == pytest.approx(found.best.loss, rel=1e-6)
    assert heard.lines[-1].startswith(f"the held-out loss has not fallen since step {found.kept}")


def test_without_patience_it_goes_on_and_still_keeps_the_best(policy: Callable[..., Policy]) -> None:
    ours = policy()
    settings = SFTConfig(steps=12, batch_rows=2, learning_rate=0.01, evaluate_every=4, patience=0)
    found = course.train(ours, RISING, FALLING, settings, SilentObserver())
    assert [each.step for each in found.held_out] == [0, 4, 8, 12]
    assert measure(ours, FALLING, 1000) == pytest.approx(min(each.loss for each in found.held_out), rel=1e-6)


def test_last_weights_are_kept_however_they_do_and_nothing_ends_early(policy: Callable[..., Policy]) -> None:
    ours = policy()
    settings = SFTConfig(epochs=8, batch_rows=2, learning_rate=0.01, decay="none", keep="last")
    found = course.train(ours, RISING, FALLING, settings, SilentObserver())
    assert found.kept == len(found.updates) == 8
    assert found.worsening() > settings.patience
    assert measure(ours, FALLING, 1000) == pytest.approx(found.held_out[-1].loss, rel=1e-6)
    assert found.held_out[-1].loss > found.best.loss


def test_what_helps_the_held_out_is_kept_to_the_end(policy: Callable[..., Policy]) -> None:
    settings = SFTConfig(epochs=4, batch_rows=2, learning_rate=0.01)
    found = course.train(policy(), RISING, RISING, settings, SilentObserver())
    assert found.kept == 4
    assert [each.step for each in found.held_out] == [0, 1, 2, 3, 4]


def test_loss_that_is_no_number_stops_it(policy: Callable[..., Policy]) -> None:
    ours = policy()
    with torch.no_grad():
        next(ours.model.parameters()).fill_(math.nan)
    with pytest.raises(TrainingStopped, match="the loss of step 1 is nan"):
        course.train(ours, RISING, [], SFTConfig(steps=1), SilentObserver())


def test_update_that_breaks_the_weights_stops_it(policy: Callable[..., Policy]) -> None:
    """The loss and its gradient are finite; a decay of 1e39 is not."""
    settings = SFTConfig(steps=1, weight_decay=1e3, warmup=0.0, decay="none").model_copy(
        update={"learning_rate": 1e36}  # more than may be asked for
    )
    with pytest.raises(TrainingStopped, match="the weights are not finite after an update"):
        course.train(policy(), RISING, [], settings, SilentObserver())


class Signalled(SilentObserver):
    """A observer that gets SIGTERM after so many updates."""

    def __init__(self, after: int) -> None:
        self._left = after

    def advance(self, parts: int = 1) -> None:
        self._left -= parts
        if self._left == 0:
            signal.raise_signal(signal.SIGTERM)


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in policy.parameters()}


@pytest.mark.parametrize("held_out", [FALLING, []], ids=["with the best weights", "with the last"])
def test_interrupted_training_continues_as_if_it_had_not_been(
    held_out: list[Row], policy: Callable[..., Policy], tmp_path: Path
) -> None:
    share = {"patience": 0, "evaluate_every": 1} if held_out else {"held_out": 0.0}
    settings = SFTConfig.model_validate({"steps": 8, "batch_rows": 1, "learning_rate": 0.01, **share})
    whole = policy()
    expected = course.train(whole, RISING, held_out, settings, SilentObserver())
    for after in (2, 5):  # of all updates
        with pytest.raises(Interrupted), INTERRUPTION.handle_signals(), INTERRUPTION.defer():
            course.train(policy(), RISING, held_out, settings, Signalled(after), Checkpoints(tmp_path, 60.0))
        assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [f"step-{after}"]
    resumed, heard = policy(), Heard()
    assert course.train(resumed, RISING, held_out, settings, heard, Checkpoints(tmp_path, 60.0)) == expected
    assert heard.lines[0] == "continuing after update 5, where this training was interrupted"
    assert heard.advanced == 8
    for name, weight in weights(whole).items():
        assert torch.equal(weights(resumed)[name], weight), name


def test_damaged_checkpoint_is_not_continued(policy: Callable[..., Policy], tmp_path: Path) -> None:
    settings = SFTConfig(steps=4, batch_rows=1, learning_rate=0.01, held_out=0.0)
    with pytest.raises(Interrupted), INTERRUPTION.handle_signals(), INTERRUPTION.defer():
        course.train(policy(), RISING, [], settings, Signalled(2), Checkpoints(tmp_path, 60.0))
    weights = tmp_path / "checkpoints" / "step-2" / "model.safetensors"
    written = bytearray(weights.read_bytes())
    written[-1] ^= 1
    weights.write_bytes(written)
    with pytest.raises(InputError, match=r"is damaged: .*model\.safetensors does not match its checksum"):
        course.train(policy(), RISING, [], settings, SilentObserver(), Checkpoints(tmp_path, 60.0))


def test_checkpoints_are_written_when_due_and_removed_without_a_trace(
    policy: Callable[..., Policy], tmp_path: Path
) -> None:
    checkpoints = Checkpoints(tmp_path, 0.0)
    settings = SFTConfig(steps=3, batch_rows=2, learning_rate=0.01, evaluate_every=1)
    found = course.train(policy(), RISING, FALLING, settings, SilentObserver(), checkpoints)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"best-{found.best.step}.safetensors", "checkpoints", "course.json"]
    checkpoints.remove()
    assert list(tmp_path.iterdir()) == []
