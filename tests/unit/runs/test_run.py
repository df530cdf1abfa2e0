"""The run folder: nothing is overwritten, and only complete files have final names."""

import subprocess
import sys
from pathlib import Path

import pytest

from sleuth.errors import InputError
from sleuth.runs.atomic import temporary_path
from sleuth.runs.json_files import read_json
from sleuth.runs.run import Run, next_run_path, step_of
from sleuth.runs.trajectory import FORMAT


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "runs" / "first", {"config": {"name": "first"}})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_create_writes_a_manifest_with_the_format(run: Run) -> None:
    assert Run.open(run.path).manifest() == {"format": FORMAT, "kind": "run", "config": {"name": "first"}}


def test_create_refuses_an_existing_path(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(InputError, match=f"already exists .* sleuth train --resume {tmp_path}"):
        Run.create(tmp_path, {})
    assert names(tmp_path) == ["mine.txt"]


def test_create_below_a_file_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written: "):
        Run.create(tmp_path / "file" / "run", {})


def test_open_refuses_other_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run folder"):
        Run.open(tmp_path)


def test_open_refuses_another_format(run: Run) -> None:
    run.write_json("manifest.json", {"format": 99, "kind": "run"})
    with pytest.raises(InputError, match=r"format 99\b.*format 1\b"):
        Run.open(run.path)


def test_open_refuses_another_kind(run: Run) -> None:
    run.write_json("manifest.json", {"format": FORMAT, "kind": "bm25"})
    with pytest.raises(InputError, match="bm25"):
        Run.open(run.path)


def test_metrics_are_read_in_order(run: Run) -> None:
    assert list(run.metrics()) == []
    for step in (1, 2):
        run.append_metrics(step, {"reward/mean": step / 3})
    assert list(run.metrics()) == [{"step": 1, "reward/mean": 1 / 3}, {"step": 2, "reward/mean": 2 / 3}]


def test_metrics_refuse_nan(run: Run) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        run.append_metrics(1, {"loss/value": float("nan")})
    assert list(run.metrics()) == []


def test_rewind_removes_later_records(run: Run) -> None:
    for step in (1, 2, 3, 10):
        run.append_metrics(step, {})
        run.write_trajectories(step, [{"step": step}])
        run.write_token_log(step, [{"ratio": [1.0]}])
        run.checkpoint(step).mkdir()
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "rew')
    run.rewind(2)
    run.append_metrics(3, {"again": True})
    assert list(run.metrics()) == [{"step": 1}, {"step": 2}, {"step": 3, "again": True}]
    files = ("jsonl", "learned.jsonl", "learned.offsets", "offsets")
    assert names(run.path / "trajectories") == [f"step-{step}.{each}" for step in (1, 2) for each in files]
    assert [step_of(path) for path in run.checkpoints()] == [1, 2, 3, 10]


def test_rewind_removes_later_events_but_not_rollbacks(run: Run) -> None:
    assert list(run.events()) == []
    events = [(2, "warn"), (5, "rollback"), (5, "warn"), (7, "skip")]
    for step, action in events:
        run.append_event(step, {"guard": "answerless", "action": action, "value": 0.9, "limit": None})
    run.rewind(4)
    assert [(each["step"], each["action"]) for each in run.events()] == [(2, "warn"), (5, "rollback")]
    assert next(run.events()) == {"step": 2, "guard": "answerless", "action": "warn", "value": 0.9, "limit": None}


def test_later_checkpoints_are_removed(run: Run) -> None:
    for step in (2, 4, 10):
        run.checkpoint(step).mkdir()
    run.remove_checkpoints_after(4)
    assert names(run.path / "checkpoints") == ["step-2", "step-4"]


def test_rewind_to_the_start_removes_all_metrics(run: Run) -> None:
    run.append_metrics(1, {})
    run.rewind(0)
    assert list(run.metrics()) == []


def test_only_complete_checkpoints_are_listed_and_locking_removes_the_rest(run: Run) -> None:
    assert run.latest() is None
    for name in ("step-2", "step-10", ".tmp-step-12", "notes"):
        (run.path / "checkpoints" / name).mkdir()
        (run.path / "checkpoints" / name / "model.safetensors").write_text(name)
    assert run.latest() == run.checkpoint(10)
    with run.lock():
        assert run.checkpoints() == [run.checkpoint(2), run.checkpoint(10)]
    assert not (run.path / "checkpoints" / ".tmp-step-12").exists()


def test_checkpoint_moved_aside_is_restored(run: Run) -> None:
    """The state after a process was killed between the two renames of a replacement."""
    for name in ("old-step-3", "step-3", "old-step-5"):
        temporary_path(run.path / "checkpoints" / name).mkdir()
    run.checkpoint(5).mkdir()
    with run.lock():
        assert names(run.path / "checkpoints") == ["step-3", "step-5"]


def test_open_removes_nothing(run: Run) -> None:
    (run.path / "checkpoints" / ".tmp-step-12").mkdir()
    Run.open(run.path)
    assert (run.path / "checkpoints" / ".tmp-step-12").exists()


def test_prune_keeps_the_newest(run: Run) -> None:
    for step in (1, 2, 10, 20):
        run.checkpoint(step).mkdir()
    run.prune(keep=2)
    assert names(run.path / "checkpoints") == ["step-10", "step-20"]


def test_prune_keeps_the_best_and_given_steps(run: Run) -> None:
    for step in (0, 1, 2, 10, 20):
        run.checkpoint(step).mkdir()
    run.record_score(1, 0.4)
    run.record_score(2, 0.3)
    run.prune(keep=1, also={0})
    assert names(run.path / "checkpoints") == ["step-0", "step-1", "step-20"]
    assert run.best() == run.checkpoint(1)


def test_removed_best_is_replaced_by_a_lower_score(run: Run) -> None:
    assert run.best() is None
    for step, score in ((1, 0.5), (2, 0.25)):
        run.checkpoint(step).mkdir()
        run.record_score(step, score)
    assert run.best() == run.checkpoint(1)
    run.checkpoint(1).rmdir()
    assert run.best() is None
    run.record_score(2, 0.25)
    assert run.best() == run.checkpoint(2)


def test_summary_is_replaced(run: Run) -> None:
    for em in (0.5, 0.75):
        path = run.write_summary({"em_after": em})
    assert read_json(path) == {"em_after": 0.75}


def test_failed_write_of_metrics_is_a_one_line_error_and_the_partial_line_is_ignored(run: Run) -> None:
    run.append_metrics(1, {})
    script = (
        "import pathlib, resource, sys\n"
        "from sleuth.runs.run import Run\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))\n"
        "Run.open(pathlib.Path(sys.argv[1])).append_metrics(2, {'reward/mean': 0.5})\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(run.path)], capture_output=True, text=True, timeout=30)
    assert "InputError: " in ended.stderr
    assert "metrics.jsonl cannot be written: it exceeds the file size limit" in ended.stderr
    assert (run.path / "metrics.jsonl").stat().st_size == 20
    assert list(run.metrics()) == [{"step": 1}]


def test_next_run_path_is_unused(tmp_path: Path) -> None:
    assert next_run_path(tmp_path / "runs", "quickstart") == tmp_path / "runs" / "quickstart-1"
    (tmp_path / "quickstart-1").mkdir()
    assert next_run_path(tmp_path, "quickstart") == tmp_path / "quickstart-2"


def test_step_of_refuses_other_names() -> None:
    with pytest.raises(InputError, match="expected a name like step-20"):
        step_of(Path("checkpoints/last"))


def test_run_is_trained_by_one_process_at_a_time(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    with run.lock():
        with pytest.raises(InputError, match="another process is training in"), Run.open(run.path).lock():
            pass
        assert next(iter(run.metrics()), None) is None
    with Run.open(run.path).lock():
        run.append_metrics(1, {})
