"""Disk space and time of a reproduction, before it begins."""

import shutil
from pathlib import Path

import pytest

from sleuth.cli.plan import model_shape
from sleuth.config import recipe
from sleuth.errors import InputError
from sleuth.pipeline.stage import Stage
from sleuth.reproduce.forecast import (
    describe_stages,
    describe_training,
    plan_disks,
    plan_training,
    require_disk_space,
    with_checkpoints,
)
from sleuth.reproduce.stages import TRAINING

GB = 10**9


def test_finished_and_partial_outputs_need_less_space(tmp_path: Path) -> None:
    (tmp_path / "done").touch()
    (tmp_path / "begun.partial").write_bytes(b"x" * 1000)
    (tmp_path / ".building-index").mkdir()
    (tmp_path / ".building-index" / "vectors").write_bytes(b"x" * 500)
    stages = [Stage(name, "", (tmp_path / name,), space=5000) for name in ("done", "begun", "index", "new/er")]
    (disk,) = plan_disks(stages)
    assert disk.needed == 4000 + 4500 + 5000
    assert disk.free == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.01)


def test_too_little_space_is_refused_with_the_sizes(tmp_path: Path) -> None:
    require_disk_space([Stage("small", "", (tmp_path / "x",), space=1)])
    with pytest.raises(InputError, match=r"1,000,000.0 GB needed at .* GB free.*SLEUTH_DATA"):
        require_disk_space([Stage("large", "", (tmp_path / "x",), space=1_000_000 * GB)])


@pytest.mark.parametrize(
    ("name", "settings", "bytes_per_parameter"),
    [
        ("search-r1-grpo-qwen2.5-3b", [], 4 * 14),
        ("search-r1-grpo-qwen2.5-3b", ["train.keep=1"], 3 * 14),
        ("search-r1-grpo-qwen2.5-3b", ["model.lora.rank=8"], 4 * 2),
        ("search-r1-ppo-qwen2.5-3b", [], 2 * 4 * 14),
    ],
)
def test_checkpoints_take_14_bytes_per_trained_parameter(
    name: str, settings: list[str], bytes_per_parameter: int, tmp_path: Path
) -> None:
    stages = [Stage("index", "", (tmp_path / "a",), space=7), Stage(TRAINING, "", (tmp_path / "b",))]
    found = with_checkpoints(stages, recipe.load(name, settings), 1000)
    assert [stage.space for stage in found] == [7, bytes_per_parameter * 1000]


def test_the_time_of_the_training_is_that_of_its_steps() -> None:
    config = recipe.load("search-r1-grpo-qwen2.5-3b", ["model.policy=tiny", "train.steps=100"])
    plan, models = plan_training(config, model_shape, "h200", 1)
    seconds, memory = describe_training(plan, 100)
    assert f"100 steps of about {plan.seconds.total:.3g} s" in seconds
    assert memory.endswith(": fits")
    assert models.policy.parameters < 1e6
    assert "on 8 of them" in describe_training(plan_training(config, model_shape, "h200", 8)[0], 100)[0]


def test_large_outputs_are_shown(tmp_path: Path) -> None:
    stages = [Stage("a", "", (tmp_path / "a",), space=14 * GB), Stage("b", "", (tmp_path / "b",), space=5)]
    assert describe_stages(stages, ["1 a", "x", "2 b", "y"]) == ["1 a [14 GB]", "x", "2 b", "y"]
