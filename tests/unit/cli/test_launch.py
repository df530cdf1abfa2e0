"""Multi-process commands: GPU selection, exit codes, and the error that the launcher prints."""

import json
import os
import signal
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from sleuth.cli import launch
from sleuth.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "rank", "taken"),
    [(None, "2", "2"), ("4,5,7", "1", "5"), ("GPU-8932f937", "0", "GPU-8932f937"), ("", "1", "")],
)
def test_each_process_sees_one_gpu(given: str | None, rank: str, taken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", rank)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given or "")
    if given is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    launch.select_gpu()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == taken


def test_process_without_a_gpu_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    with pytest.raises(ConfigError, match=r"CUDA_VISIBLE_DEVICES.*4,5.* 3 .* 2"):
        launch.select_gpu()


def test_a_single_process_prints_its_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv(launch.ERROR_FILE, raising=False)
    with pytest.raises(SystemExit) as left:
        launch.exit_with("sleuth: no", 2)
    assert left.value.code == 2
    assert capsys.readouterr().err == "sleuth: no\n"


def failed(folder: Path, rank: int, code: int, line: str | None, at: float) -> ProcessFailure:
    """A failed process as seen by its launcher."""
    file = folder / f"error-{rank}.json"
    if line is not None:
        file.write_text(json.dumps({"message": line, "timestamp": int(at), "at": at}))
    return ProcessFailure(rank, 100 + rank, code, str(file))


Case = tuple[int, str | None, float]


@pytest.mark.parametrize(
    ("cases", "expected", "code"),
    [
        ([(2, "sleuth: mine", 5.2), (1, "Traceback", 5.1)], "Traceback", 1),
        ([(2, "sleuth: mine", 5.1), (1, "Traceback", 5.2)], "sleuth: mine", 2),
        ([(2, "sleuth: mine", 5.1), (-signal.SIGTERM, None, 0)], "sleuth: mine", 2),
        ([(-signal.SIGTERM, None, 0), (2, "sleuth: theirs", 5.0)], "sleuth: theirs", 2),
        ([(1, "Connection closed", 5.0), (-signal.SIGKILL, None, 0)], "SIGKILL", 1),
    ],
)
def test_the_first_failure_is_reported(
    cases: list[Case], expected: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failures = {rank: failed(tmp_path, rank, *case) for rank, case in enumerate(cases)}
    with pytest.raises(SystemExit) as left:
        launch._exit_like_first(failures)
    assert left.value.code == code
    assert expected in capsys.readouterr().err


def test_a_rank_leaves_its_error_to_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "error-0.json"
    monkeypatch.setenv(launch.ERROR_FILE, str(file))
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(SystemExit) as left:
        launch.exit_with("sleuth: no", 2)
    assert left.value.code == 2
    assert capsys.readouterr().err == ""
    assert ProcessFailure(0, 1, 2, str(file)).message == "sleuth: no"
