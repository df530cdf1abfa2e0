"""The checksums of a checkpoint: every file is refused with a bit flipped, and a newer format by its number."""

import json
from pathlib import Path

import pytest

from sleuth.errors import InputError
from sleuth.runs.checkpoints import CHECKSUMS, FORMAT, verify
from sleuth.runs.checksums import digests, files, sealed
from sleuth.runs.trajectory import newer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "trainer").mkdir()
    for name in ("config.json", "model.safetensors", "trainer/progress.json"):
        (tmp_path / name).write_text(f"the contents of {name}")
    sign(tmp_path, FORMAT)
    return tmp_path


def sign(folder: Path, version: int) -> None:
    (folder / CHECKSUMS).unlink(missing_ok=True)
    (folder / CHECKSUMS).write_bytes(sealed({"format": version, "files": digests(folder, files(folder))}))


def test_every_bit_of_every_file_counts(folder: Path) -> None:
    assert verify(folder, resuming=True)
    for name in files(folder):
        path = folder / name
        written = path.read_bytes()
        for bit in range(len(written) * 8):
            flipped = bytearray(written)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            with pytest.raises(InputError) as refused:
                verify(folder, resuming=True)
            assert str(path) in str(refused.value)
        path.write_bytes(written)
    assert verify(folder, resuming=True)


def test_who_only_loads_the_model_does_not_read_what_the_trainer_left(folder: Path) -> None:
    (folder / "trainer" / "progress.json").write_text("other")
    assert verify(folder)
    with pytest.raises(InputError, match=r"progress\.json does not match its checksum"):
        verify(folder, resuming=True)
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match=r"config\.json is missing"):
        verify(folder)


def test_a_newer_format_is_refused_by_its_number_and_none_is_the_first(folder: Path) -> None:
    sign(folder, FORMAT + 1)
    with pytest.raises(InputError, match=f"is of checkpoint format {FORMAT + 1}.* update Sleuth"):
        verify(folder)
    (folder / CHECKSUMS).unlink()
    assert not verify(folder, resuming=True)


def test_a_trajectory_of_a_newer_format_is_told_by_its_number() -> None:
    assert newer({}) is None
    assert newer({"version": 1}) is None
    assert "format 2, and this version of Sleuth reads up to 1" in str(newer(json.loads('{"version": 2}')))
