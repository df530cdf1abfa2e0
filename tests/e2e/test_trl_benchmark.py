"""How the benchmark against TRL reads the logs of both sides; the sides themselves need TRL."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "trl" / "run.py"


@pytest.fixture(scope="module")
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("trl_benchmark", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["trl_benchmark"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_steps_that_trl_printed(program: ModuleType, tmp_path: Path) -> None:
    """Warnings, the summary at the end and a line that is still being written are no steps."""
    log = tmp_path / "trl.log"
    log.write_text(
        "FutureWarning: use something else\n"
        "{'loss': '-0.55', 'rewards/reward_em/mean': '0.2812', 'step_time': '15.22'}\n"
        "{'loss': '-0.02', 'rewards/reward_em/mean': '0.4531', 'step_time': '21.91'}\n"
        "{'train_runtime': '99.26', 'epoch': '0.15'}\n"
        "{'loss': '-0.04', 'rewards/rew"
    )
    assert list(program.trl_steps(log)) == [0.2812, 0.4531]


def test_steps_that_sleuth_recorded(program: ModuleType, tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step":0,"parity/mean":2e-07}\n{"step":1,"episode/em":0.25}\n{"step":2,"episode/em":0.6')
    assert list(program.sleuth_steps(tmp_path)) == [0.25]


def test_the_warm_up_does_not_count(program: ModuleType) -> None:
    steps = [program.Step(100.0, 90.0, 0.1), program.Step(110.0, 95.0, 0.2), program.Step(116.0, 99.0, 0.3)]
    assert program.per_step(steps, 1) == (8.0, 4.5)
    with pytest.raises(ValueError, match="3 steps were finished"):
        program.per_step(steps, 3)


def test_blank_lines_and_comments_are_not_counted(program: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text('# A recipe.\nname = "x"\n\n[train]\n  # indented\nsteps = 2  # trailing\n')
    assert program.user_lines(file) == 3
