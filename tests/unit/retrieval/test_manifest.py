"""The manifest of an index folder, and verification of the files it names."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from sleuth.config.retrieval import AnnSettings, EncoderSettings
from sleuth.errors import InputError
from sleuth.retrieval import manifest
from sleuth.retrieval.manifest import (
    FileDigest,
    FileStamp,
    Manifest,
    edges_hash,
    fingerprint,
    read,
    relative_path,
    verified_file,
)
from sleuth.runs.checksums import seal


def made(**changes: Any) -> Manifest:
    fields: dict[str, Any] = {
        "kind": "ann",
        "corpus": FileDigest(path="../corpus.jsonl", bytes=3, edges="e", sha256="s"),
        "passages": 2,
        "skipped": ("a.pdf: no text",),
        "counts": {"links": 64},
        "encoder": EncoderSettings(model="/models/e5", query_prefix="query: "),
        "encoder_sha256": "w",
        "dimensions": 8,
        "ann": AnnSettings(),
        "faiss": (FileStamp(path="../part_aa", bytes=5, edges="f"),),
        "libraries": {"sleuth": "1"},
    }
    return Manifest(**fields | changes)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    made().write(tmp_path)
    assert read(tmp_path) == made()


def test_unknown_key_is_rejected(tmp_path: Path) -> None:
    made().write(tmp_path)
    content = json.loads((tmp_path / "manifest.json").read_text()) | {"colour": "red"}
    (tmp_path / "manifest.json").write_bytes(seal({name: content[name] for name in content if name != "seal"}))
    with pytest.raises(InputError, match=r"manifest.json is damaged \(colour: Extra inputs are not permitted\)"):
        read(tmp_path)


ELSEWHERE: dict[str, dict[str, Any]] = {
    "corpus": {"corpus": FileDigest(path="/other/corpus.jsonl", bytes=3, edges="e", sha256="s")},
    "vectors": {"faiss": (FileStamp(path="/other/part_aa", bytes=5, edges="f"),)},
    "encoder": {"encoder": EncoderSettings(model="intfloat/e5-base-v2", query_prefix="query: ")},
}
OTHERS: dict[str, dict[str, Any]] = {
    "corpus": {"corpus": FileDigest(path="../corpus.jsonl", bytes=3, edges="e", sha256="t")},
    "vectors": {"faiss": (FileStamp(path="../part_aa", bytes=5, edges="g"),)},
    "weights": {"encoder_sha256": "v"},
    "prefix": {"encoder": EncoderSettings(model="/models/e5", query_prefix="q: ")},
    "effort": {"ann": AnnSettings(effort=7)},
    "words": {"encoder": None, "encoder_sha256": None, "ann": None},
}


@pytest.mark.parametrize(
    ("changes", "same"), [(each, True) for each in ELSEWHERE.values()] + [(each, False) for each in OTHERS.values()]
)
def test_fingerprint_is_of_contents_not_of_places(changes: dict[str, Any], same: bool, tmp_path: Path) -> None:
    made().write(tmp_path)
    before = fingerprint(tmp_path)
    made(**changes).write(tmp_path)
    assert (fingerprint(tmp_path) == before) is same


def test_file_is_verified_after_a_move(tmp_path: Path) -> None:
    file, home = tmp_path / "vectors", tmp_path / "index"
    home.mkdir()
    file.write_bytes(b"12345")
    stamp = FileStamp.of(file, relative_path(file, home))
    assert stamp == FileStamp(path="../vectors", bytes=5, edges=edges_hash(file))
    assert verified_file(home, stamp, "FAISS index") == file
    moved = shutil.move(tmp_path, tmp_path.with_name(tmp_path.name + "-moved"))
    assert verified_file(Path(moved, "index"), stamp, "FAISS index") == Path(moved, "vectors")
    Path(moved, "vectors").write_bytes(b"54321")
    with pytest.raises(InputError, match=r"FAISS index .*vectors changed"):
        verified_file(Path(moved, "index"), stamp, "FAISS index")
    Path(moved, "vectors").unlink()
    with pytest.raises(InputError, match=r"FAISS index .*vectors .* does not exist"):
        verified_file(Path(moved, "index"), stamp, "FAISS index")


def test_folder_reached_by_a_link_finds_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "real" / "index"
    home.mkdir(parents=True)
    (tmp_path / "real" / "vectors").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(home)
    stamp = FileStamp.of(tmp_path / "real" / "vectors", relative_path(tmp_path / "real" / "vectors", home))
    monkeypatch.chdir(tmp_path)
    assert verified_file(Path("link"), stamp, "corpus") == tmp_path / "real" / "vectors"
    assert relative_path(Path("real/vectors"), tmp_path / "elsewhere" / "index") == str(tmp_path / "real" / "vectors")


@pytest.mark.parametrize("place", [0, manifest.EDGE - 1, 2 * manifest.EDGE, -1])
def test_edges_hash_covers_both_ends_only(place: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = bytearray(4 * manifest.EDGE)
    path.write_bytes(content)
    before = edges_hash(path)
    content[place] = 1
    path.write_bytes(content)
    assert (edges_hash(path) == before) is (place == 2 * manifest.EDGE)


def test_edges_of_a_small_file_are_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    hashes = set()
    for content in (b"", b"a", b"aa", os.urandom(9)):
        path.write_bytes(content)
        hashes.add(edges_hash(path))
    assert len(hashes) == 4
