"""The library of runs and evaluations, and incremental metrics."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sleuth.errors import InputError
from sleuth.evaluate.folder import EvaluationFolder
from sleuth.runs.run import Run
from sleuth.view.library import MAX_WORKERS_TAIL, Library, make_roots

Evaluate = Callable[..., EvaluationFolder]


def test_overview(run: Run, evaluate: Evaluate, ask: Callable[..., Any]) -> None:
    evaluate("e", ["Ada", "Bob"])
    get = ask("runs", "evaluations")
    found = get("/api/library").json()
    (first,), (evaluation,) = found["runs"], found["evaluations"]
    assert (first["id"], first["state"], first["steps"], first["steps_planned"]) == ("runs/first", "open", 3, 3)
    assert (first["trajectory_files"], first["last"]) == (3, {"step": 3, "reward/mean": 0.5})
    assert (evaluation["id"], evaluation["state"], evaluation["sets"]) == ("evaluations/e", "finished", ["library"])
    assert evaluation["em"]["value"] == 0.5
    run.write_summary({"steps": 3})
    assert get("/api/library").json()["runs"][0]["state"] == "finished"


def test_run(run: Run, ask: Callable[..., Any]) -> None:
    found = ask("runs")("/api/run", run="runs/first").json()
    assert found["manifest"]["config"]["model"] == {"policy": "tiny"}
    assert (found["steps"], found["checkpoints"], found["trajectories"]) == ([1, 2, 3], [2], 12)
    assert (found["summary"], found["tokenizer"]) == (None, True)


def test_new_run_is_found(run: Run, ask: Callable[..., Any], tmp_path: Path) -> None:
    get = ask("runs")
    assert get("/api/run", run="runs/deep/second").status_code == 404
    Run.create(tmp_path / "runs" / "deep" / "second", {})
    assert get("/api/run", run="runs/deep/second").json()["steps"] == []
    assert get("/api/metrics", run="runs/deep/second").json()["columns"] == {}


def test_run_folder_as_root(run: Run, ask: Callable[..., Any]) -> None:
    assert [each["id"] for each in ask("runs/first")("/api/library").json()["runs"]] == ["first"]


def test_roots_of_the_same_name(tmp_path: Path) -> None:
    for parent in ("a", "b"):
        Run.create(tmp_path / parent / "runs" / "x", {})
    roots = make_roots([tmp_path / "a" / "runs", tmp_path / "b" / "runs", tmp_path / "a" / "runs"])
    library = Library(roots)
    assert [each["id"] for each in library.overview()["runs"]] == ["runs/x", "runs~2/x"]


def test_other_and_broken_manifests(run: Run, ask: Callable[..., Any], tmp_path: Path) -> None:
    for name, text in (("index", '{"kind": "index"}'), ("half", '{"kind'), ("new", '{"kind": "run", "format": 9}')):
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "manifest.json").write_text(text)
    found = ask("runs")("/api/library").json()
    assert [each["id"] for each in found["runs"]] == ["runs/first"]
    assert [each["id"] for each in found["broken"]] == ["runs/half", "runs/new"]
    assert "format 9" in found["broken"][1]["detail"]


def test_empty_root(ask: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    get = ask("runs")
    found = get("/api/library").json()
    assert (found["folders"], found["runs"], found["evaluations"], found["broken"]) == (["runs"], [], [], [])
    Run.create(tmp_path / "runs" / "first", {})
    assert [each["id"] for each in get("/api/library").json()["runs"]] == ["runs/first"]


@pytest.mark.parametrize("name", ["absent", "file"])
def test_missing_root_raises(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is not a folder"):
        make_roots([tmp_path / name])


def test_incremental_metrics(run: Run, ask: Callable[..., Any]) -> None:
    get = ask("runs")
    first = get("/api/metrics", run="runs/first").json()
    assert (first["reset"], first["more"], first["state"]) == (True, False, "open")
    assert first["columns"]["step"] == [0, 1, 2, 3]
    assert first["columns"]["evaluate/em"] == [0.25, None, None, None]
    assert [each["sentence"] for each in first["events"]] == ["KL is high"]
    nothing = get("/api/metrics", run="runs/first", cursor=first["cursor"]).json()
    assert (nothing["reset"], nothing["columns"], nothing["events"]) == (False, {}, [])
    run.append_metrics(4, {"reward/mean": 0.75})
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "rew')
    later = get("/api/metrics", run="runs/first", cursor=first["cursor"]).json()
    assert later["columns"] == {"step": [4], "reward/mean": [0.75]}
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('ard/mean": 1.0}\n')
    last = get("/api/metrics", run="runs/first", cursor=later["cursor"]).json()
    assert last["columns"] == {"step": [5], "reward/mean": [1.0]}


def test_metrics_are_reset_after_a_rewind(run: Run, ask: Callable[..., Any]) -> None:
    get = ask("runs")
    first = get("/api/metrics", run="runs/first").json()
    run.rewind(1)
    shorter = get("/api/metrics", run="runs/first", cursor=first["cursor"]).json()
    assert (shorter["reset"], shorter["columns"]["step"]) == (True, [0, 1])
    # As long as before, and not the same.
    run.append_metrics(2, {"reward/mean": 0.9, "time/step": 2.0})
    run.append_metrics(3, {"reward/mean": 0.9, "time/step": 2.0})
    again = get("/api/metrics", run="runs/first", cursor=first["cursor"]).json()
    assert (again["reset"], again["columns"]["reward/mean"]) == (True, [None, 0.5, 0.9, 0.9])


def test_metrics_are_paged(run: Run, ask: Callable[..., Any]) -> None:
    with (run.path / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps({"step": step}) + "\n" for step in range(4, 2500))
    get = ask("runs")
    first = get("/api/metrics", run="runs/first").json()
    second = get("/api/metrics", run="runs/first", cursor=first["cursor"]).json()
    assert (first["more"], second["more"], second["reset"]) == (True, False, False)
    assert first["columns"]["step"] + second["columns"]["step"] == list(range(2500))


@pytest.mark.parametrize("cursor", ["", "1.2.3", "a.b.c.d", "-1.0.0.0", "1" * 30 + ".0.0.0"])
def test_invalid_cursor(cursor: str, run: Run, ask: Callable[..., Any]) -> None:
    assert ask("runs")("/api/metrics", run="runs/first", cursor=cursor).status_code == 400


def test_broken_line_of_metrics(run: Run, ask: Callable[..., Any]) -> None:
    (run.path / "metrics.jsonl").write_text("nonsense\n")
    found = ask("runs")("/api/metrics", run="runs/first")
    assert (found.status_code, "metrics.jsonl of runs/first" in found.json()["detail"]) == (503, True)


def test_workers_are_summed_over_the_newest_steps(run: Run, ask: Callable[..., Any]) -> None:
    get = ask("runs")
    assert get("/api/workers", run="runs/first").json() == {"steps": None, "workers": []}
    figures = {"busy": 2.0, "waiting_search": 1.0, "waiting_weights": 0.5, "idle": 0.25, "episodes": 3}
    run.append_workers(1, [{"number": 0, "node": "10.0.0.0" + MAX_WORKERS_TAIL * " ", **figures}])  # not read
    for step in (2, 3):
        run.append_workers(step, [{"number": number, "node": f"10.0.0.{number}", **figures} for number in (0, 1)])
    found = get("/api/workers", run="runs/first").json()
    assert found["steps"] == [2, 3]
    doubled = {name: 2 * value for name, value in figures.items()}
    assert found["workers"] == [{"number": number, "node": f"10.0.0.{number}", **doubled} for number in (0, 1)]
    run.rewind(2)
    assert get("/api/workers", run="runs/first").json()["steps"] == [2, 2]
    with (run.path / "workers.jsonl").open("a") as file:
        file.write('{"step": 3, "workers": [4]}\n')
    broken = get("/api/workers", run="runs/first")
    assert (broken.status_code, "workers.jsonl of runs/first" in broken.json()["detail"]) == (503, True)


def test_unreadable_file(run: Run, ask: Callable[..., Any]) -> None:
    get = ask("runs")
    assert get("/api/run", run="runs/first").status_code == 200
    trajectories = run.trajectories(2)
    trajectories.unlink()
    trajectories.symlink_to(trajectories.name)  # a link to itself is no file to anyone
    found = get("/api/trajectory", run="runs/first", at="2.0")
    assert found.status_code in (404, 503)
    assert str(run.path) not in found.text
    assert len(found.json()["detail"]) > 20
