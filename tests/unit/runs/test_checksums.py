"""Checksums of checkpoints, files, folders and the code."""

from pathlib import Path

import pytest

from sleuth import __version__
from sleuth.errors import InputError
from sleuth.runs.checksums import (
    CHECKPOINT_FORMAT,
    CHECKSUMS,
    code_version,
    files_sha256,
    fingerprint,
    list_files,
    seal,
    verify_checkpoint,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "trainer").mkdir()
    for name in ("config.json", "model.safetensors", "trainer/progress.json"):
        (tmp_path / name).write_text(f"the contents of {name}")
    sign(tmp_path, CHECKPOINT_FORMAT)
    return tmp_path


def sign(folder: Path, version: int) -> None:
    (folder / CHECKSUMS).unlink(missing_ok=True)
    (folder / CHECKSUMS).write_bytes(seal({"format": version, "files": files_sha256(folder, list_files(folder))}))


def test_every_flipped_bit_is_detected(folder: Path) -> None:
    assert verify_checkpoint(folder, resuming=True)
    for name in list_files(folder):
        path = folder / name
        written = path.read_bytes()
        for bit in range(len(written) * 8):
            flipped = bytearray(written)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            with pytest.raises(InputError) as refused:
                verify_checkpoint(folder, resuming=True)
            assert str(path) in str(refused.value)
        path.write_bytes(written)
    assert verify_checkpoint(folder, resuming=True)


def test_trainer_state_is_checked_only_when_resuming(folder: Path) -> None:
    (folder / "trainer" / "progress.json").write_text("other")
    assert verify_checkpoint(folder)
    with pytest.raises(InputError, match=r"progress\.json does not match its checksum"):
        verify_checkpoint(folder, resuming=True)
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match=r"config\.json is missing"):
        verify_checkpoint(folder)


def test_newer_format_is_refused_and_format_1_has_no_checksums(folder: Path) -> None:
    sign(folder, CHECKPOINT_FORMAT + 1)
    with pytest.raises(InputError, match=f"has checkpoint format {CHECKPOINT_FORMAT + 1}.* update Sleuth"):
        verify_checkpoint(folder)
    (folder / CHECKSUMS).unlink()
    assert not verify_checkpoint(folder, resuming=True)


def test_fingerprint_of_a_file_is_its_sha256(tmp_path: Path) -> None:
    (tmp_path / "abc").write_text("abc")
    assert fingerprint(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_fingerprint_of_a_folder_depends_on_names_and_contents(tmp_path: Path) -> None:
    seen = set()
    for name, content in (("a", "1"), ("b", "1"), ("b", "2")):
        folder = tmp_path / f"{name}{content}"
        (folder / "inner").mkdir(parents=True)
        (folder / "inner" / name).write_text(content)
        assert fingerprint(folder) == fingerprint(folder)
        seen.add(fingerprint(folder))
    assert len(seen) == 3


def test_fingerprint_of_a_missing_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        fingerprint(tmp_path / "missing")


def test_code_version_starts_with_the_package_version() -> None:
    version, _, commit = code_version().partition("+")
    assert version == __version__
    assert commit == "" or len(commit.removesuffix("-dirty")) == 12
