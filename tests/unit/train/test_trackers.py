"""Metrics that go elsewhere too: delivered in order, found again after a resume, and never in the way of a run."""

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from sleuth.config.train import TRACKERS, TrackConfig
from sleuth.errors import MissingExtra
from sleuth.runs.json_files import read_json
from sleuth.runs.run import Run
from sleuth.train.observer import SilentObserver
from sleuth.train.trackers import TRACKERS as TABLE
from sleuth.train.trackers import Session, Tracker, Trackers, TrackerThread


class Listening(SilentObserver):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, line: str) -> None:
        self.lines.append(line)


class Notebook:
    """A tracker that writes down what it hears, and fails at a step or waits at the end where told to."""

    def __init__(self, fails_at: int = 0, waits_for: Event | None = None) -> None:
        self.heard: list[object] = []
        self._fails_at = fails_at
        self._waits_for = waits_for

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == self._fails_at:
            raise ConnectionError("refused\nby the server")
        self.heard.append((step, metrics))

    def close(self) -> None:
        if self._waits_for is not None:
            self._waits_for.wait()
        self.heard.append("closed")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "first", {"config": {"name": "q", "train": {"steps": 3, "seed": 0}}})


def test_every_tracker_of_the_settings_is_in_the_table() -> None:
    assert set(TABLE) == set(TRACKERS)


def test_rows_arrive_in_order_and_all_of_them() -> None:
    books = [Notebook(), Notebook()]
    trackers = Trackers(
        [TrackerThread("one", lambda: books[0]), TrackerThread("two", lambda: books[1])], observer := Listening()
    )
    for step in (1, 2, 1):
        trackers.log(step, {"reward/mean": step / 2})
    trackers.close()
    for book in books:
        assert book.heard == [(1, {"reward/mean": 0.5}), (2, {"reward/mean": 1.0}), (1, {"reward/mean": 0.5}), "closed"]
    assert observer.lines == []


def test_one_that_fails_is_told_of_once_and_the_others_go_on() -> None:
    broken, sound = Notebook(fails_at=2), Notebook()
    trackers = Trackers(
        [TrackerThread("broken", lambda: broken), TrackerThread("sound", lambda: sound)], observer := Listening()
    )
    for step in (1, 2, 3, 4):
        trackers.log(step, {})
    trackers.close()
    trackers.close()
    (line,) = observer.lines
    assert line.startswith("broken ")
    assert "refused by the server" in line
    assert sound.heard[-2:] == [(4, {}), "closed"]


def test_one_that_cannot_be_opened_is_dropped() -> None:
    def opening() -> Tracker:
        raise OSError

    trackers = Trackers([TrackerThread("closed", opening)], observer := Listening())
    trackers.log(1, {})
    trackers.close()
    (line,) = observer.lines
    assert line.startswith("closed ")
    assert "OSError" in line


def test_one_that_hangs_keeps_nobody_waiting() -> None:
    hung = Event()
    trackers = Trackers(
        [TrackerThread("slow", lambda: Notebook(waits_for=hung))], observer := Listening(), timeout=0.05
    )
    trackers.log(1, {})
    trackers.close()
    (line,) = observer.lines
    assert line.startswith("slow ")
    assert "0.05 s" in line
    hung.set()


@pytest.mark.parametrize("name", TRACKERS)
def test_a_library_that_is_not_installed_is_told_first(name: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=rf"{name} is not installed; .*'sleuth\[{name}\]'"):
        Trackers.build(TrackConfig(to=name), run, SilentObserver())


def test_a_run_is_known_by_one_id(run: Run) -> None:
    session = Session(run, "sleuth")
    assert session.saved_id("wandb") is None
    given = session.id_for("wandb")
    assert Session(Run.open(run.path), "sleuth").id_for("wandb") == given
    assert session.id_for("trackio") != given
    assert session.settings() == {"name": "q", "train.steps": 3, "train.seed": 0}


def shown(name: str, run: Run, *rows: tuple[int, float]) -> None:
    """The rows go to a tracker of a run that is begun, or resumed."""
    trackers = Trackers.build(TrackConfig(to=name), run, observer := Listening())
    for step, value in rows:
        trackers.log(step, {"reward/mean": value, "time/step": 1.0})
    trackers.close()
    assert observer.lines == []


@pytest.mark.tensorboard
def test_event_files_hold_what_was_logged_last(run: Run) -> None:
    shown("tensorboard", run, (1, 0.1), (2, 0.2), (3, 0.3), (2, 0.5), (3, 0.6))
    shown("tensorboard", run, (3, 0.7), (4, 0.8))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(run.path / "tracking" / "tensorboard"))
    read.Reload()
    found = [(each.step, round(each.value, 3)) for each in read.Scalars("reward/mean")]
    assert found == [(1, 0.1), (2, 0.5), (3, 0.7), (4, 0.8)]


@pytest.fixture
def anew() -> Iterator[None]:
    """W&B reads its settings once a process, unless it is told to forget them."""
    import wandb

    wandb.teardown()
    yield
    wandb.teardown()


@pytest.mark.wandb
@pytest.mark.usefixtures("anew")
def test_wandb_writes_one_run_offline(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    shown("wandb", run, (1, 0.1))
    shown("wandb", run, (2, 0.2), (1, 0.3))
    given = read_json(run.path / "tracking" / "wandb.json")["id"]
    import wandb

    wandb.teardown()  # as at the end of a process: until then its own process may hold a part back
    written = sorted(run.path.glob("wandb/offline-run-*/*.wandb"))
    assert len(written) == 2
    assert {path.name for path in written} == {f"run-{given}.wandb"}
    assert all(b"reward/mean" in path.read_bytes() for path in written)


@pytest.mark.wandb
@pytest.mark.usefixtures("anew")
def test_wandb_without_a_key_asks_nobody(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    trackers = Trackers.build(TrackConfig(to="wandb"), run, observer := Listening())
    trackers.close()
    (line,) = observer.lines
    assert "there is no API key: run wandb login, or set WANDB_MODE=offline" in line


@pytest.mark.trackio
def test_trackio_keeps_one_run_here(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    # Read once, when it is first imported.
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "kept"))
    shown("trackio", run, (1, 0.1), (2, 0.2))
    shown("trackio", run, (3, 0.3))
    assert capsys.readouterr().out == ""
    from trackio.sqlite_storage import SQLiteStorage

    name = f"first-{read_json(run.path / 'tracking' / 'trackio.json')['id']}"
    assert SQLiteStorage.get_runs("sleuth") == [name]
    written = SQLiteStorage.get_logs("sleuth", name)
    assert [(row["step"], row["reward/mean"]) for row in written] == [(1, 0.1), (2, 0.2), (3, 0.3)]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """A store of MLflow in files, which the smallest of its packages can read and write."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())

    def client() -> Any:
        from mlflow.tracking import MlflowClient

        return MlflowClient()

    return client


@pytest.mark.mlflow
@pytest.mark.filterwarnings("default")
def test_mlflow_goes_on_with_the_run_it_knows(run: Run, store: Callable[[], Any]) -> None:
    shown("mlflow", run, (1, 0.1), (2, 0.2))
    shown("mlflow", run, (2, 0.4))
    given = read_json(run.path / "tracking" / "mlflow.json")["id"]
    history = store().get_metric_history(given, "reward/mean")
    assert sorted((each.step, each.value) for each in history) == [(1, 0.1), (2, 0.2), (2, 0.4)]
    assert store().get_run(given).data.params["train.steps"] == "3"
