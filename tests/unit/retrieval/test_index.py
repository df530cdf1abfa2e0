"""Index folders: build, import of FAISS indexes, and the damage that is rejected."""

import asyncio
import errno
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from sleuth.config.retrieval import AnnSettings, BM25Settings, EncoderSettings, IndexPlan
from sleuth.errors import InputError
from sleuth.retrieval import manifest
from sleuth.retrieval.dense.encoder import Encoder
from sleuth.retrieval.dense.encoder_config import encoder_settings
from sleuth.retrieval.index import build, import_faiss, load

FILES = (
    "offsets.npy",
    "ranks.npy",
    "bm25/data.csc.index.npy",
    "bm25/indices.csc.index.npy",
    "bm25/indptr.csc.index.npy",
    "order.npy",
)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b"".join(rows("the red apple", "a green pear", "apples and pears")))
    return path


@pytest.fixture
def folder(corpus: Path) -> Path:
    build(corpus, corpus.parent / "index")
    return corpus.parent / "index"


def rows(*contents: str) -> Iterator[bytes]:
    for number, text in enumerate(contents):
        yield json.dumps({"id": f"p{number}", "contents": text}).encode() + b"\n"


def hits(folder: Path, query: str) -> list[str]:
    (found,) = asyncio.run(load(folder).search([query], 3))
    assert isinstance(found, list)
    return [hit.passage.id for hit in found]


def without_checksums(folder: Path) -> Path:
    """The index as an older version wrote it."""
    content = json.loads((folder / "manifest.json").read_bytes())
    del content["files"], content["seal"]
    (folder / "manifest.json").write_text(json.dumps(content))
    return folder


def refusal(folder: Path, *, verify: bool = False) -> str:
    with pytest.raises(InputError) as refused:
        load(folder, verify=verify)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_manifest_names_corpus_counts_settings_and_versions(corpus: Path) -> None:
    built = build(corpus, corpus.parent / "index", IndexPlan.of("bm25", BM25Settings(k1=1.2, b=0.75)))
    assert built == manifest.read(corpus.parent / "index")
    assert (built.format, built.kind, built.passages, built.counts) == (2, "bm25", 3, {"terms": 4, "postings": 6})
    assert built.bm25 == BM25Settings(k1=1.2, b=0.75, stemmer="english")
    assert (built.encoder, built.dimensions, built.ann) == (None, None, None)
    assert built.corpus.path == "../corpus.jsonl"
    assert built.corpus.bytes == corpus.stat().st_size
    assert built.corpus.sha256 == sha256(corpus.read_bytes()).hexdigest()
    assert {"sleuth", "PyStemmer", "numpy"} <= set(built.libraries)


def test_fingerprint_covers_content_and_settings(folder: Path, corpus: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(tmp_path, tmp_path / "elsewhere") / "index"
    assert manifest.fingerprint(moved) == manifest.fingerprint(folder)
    build(corpus, tmp_path / "other", IndexPlan.of("bm25", BM25Settings(k1=1.2)))
    assert manifest.fingerprint(tmp_path / "other") != manifest.fingerprint(folder)


def test_progress_reports_complete_stages(corpus: Path) -> None:
    heard: dict[str, tuple[int, int]] = {}
    corpus.write_bytes(b"".join(rows(*["text"] * 2500)))
    build(corpus, corpus.parent / "index", progress=lambda stage, done, total: heard.update({stage: (done, total)}))
    assert set(heard) >= {"reading", "indexing words"}
    assert all(done == total for done, total in heard.values())


def test_corpus_outside_the_parent_has_an_absolute_path(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "deeper" / "index"
    assert build(corpus, out).corpus.path == str(corpus)
    assert hits(out, "green") == ["p1"]


def test_corpus_and_index_move_together(folder: Path, corpus: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    moved.mkdir()
    shutil.move(corpus, moved)
    shutil.move(folder, moved)
    assert hits(moved / "index", "green") == ["p1"]


def test_index_is_independent_of_the_working_directory(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(corpus.parent)
    build(Path("corpus.jsonl"), Path("index"))
    monkeypatch.chdir("/")
    assert hits(corpus.parent / "index", "green") == ["p1"]


def test_compressed_corpus_is_unpacked_into_the_index(corpus: Path, folder: Path, tmp_path: Path) -> None:
    packed = tmp_path / "corpus.jsonl.gz"
    packed.write_bytes(gzip.compress(corpus.read_bytes()))
    built = build(packed, tmp_path / "other")
    packed.unlink()
    assert built.corpus.path == "corpus.jsonl"
    assert built.corpus.sha256 == manifest.read(folder).corpus.sha256
    assert hits(tmp_path / "other", "green") == ["p1"]


def test_same_corpus_gives_the_same_bytes(folder: Path, corpus: Path) -> None:
    program = "import sys, pathlib; from sleuth.retrieval.index import build; build(*map(pathlib.Path, sys.argv[1:]))"
    again = corpus.parent / "again"
    command = [sys.executable, "-c", program, str(corpus), str(again)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "1"})
    names = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(again) for path in again.rglob("*") if path.is_file())
    for name in names:
        assert (folder / name).read_bytes() == (again / name).read_bytes(), name


def test_existing_folder_is_not_overwritten(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="index already exists"):
        build(corpus, tmp_path / "index")
    assert [path.name for path in (tmp_path / "index").iterdir()] == ["thesis.tex"]


REFUSED = {
    "the same id twice": (
        b'{"id": "a", "contents": "one two"}\n{"id": "b", "contents": ""}\n{"id": "a", "contents": ""}',
        "passages 1 and 3",
    ),
    "no words": (b'{"id": "a", "contents": "the !"}', "no words to index"),
    "empty": (b"", "corpus.jsonl is empty"),
    "a bad line": (b'{"id": "a", "contents": "x"}\n{}', 'corpus.jsonl, line 2: "id" is missing'),
}


@pytest.mark.parametrize(("content", "problem"), REFUSED.values(), ids=REFUSED)
def test_rejected_corpus_leaves_no_files(corpus: Path, content: bytes, problem: str) -> None:
    corpus.write_bytes(content)
    with pytest.raises(InputError) as refused:
        build(corpus, corpus.parent / "index")
    assert problem in str(refused.value)
    assert list(corpus.parent.iterdir()) == [corpus]


def test_full_disk_is_an_input_error_and_the_build_resumes(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(np, "save", full)
        with pytest.raises(InputError, match="cannot be written: the disk is full"):
            build(corpus, corpus.parent / "index")
    assert not (corpus.parent / "index").exists()
    build(corpus, corpus.parent / "index")
    assert hits(corpus.parent / "index", "green") == ["p1"]


def test_folder_without_manifest_is_rejected(tmp_path: Path) -> None:
    assert "manifest.json" in refusal(tmp_path)


@pytest.mark.parametrize("there", [True, False])
def test_run_folder_is_rejected_with_a_hint(there: bool, folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "a run"
    run.mkdir()
    (run / "manifest.json").write_text('{"format": 1, "kind": "run"}')
    if there:
        folder.rename(run / "index")
    assert f"{run} is not an index folder" in refusal(run)
    assert (str(run / "index") in refusal(run)) == there


DAMAGE: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "scores of nothing": ("data.csc.index.npy", np.zeros_like),
    "scores that are no numbers": ("data.csc.index.npy", lambda array: np.full_like(array, np.nan)),
    "whole scores": ("data.csc.index.npy", lambda array: array.astype(np.int32)),
    "rows behind the last": ("indices.csc.index.npy", lambda array: np.full_like(array, 1000)),
    "rows that are no numbers": ("indices.csc.index.npy", lambda array: array.astype(np.float64)),
    "starts that go back": (
        "indptr.csc.index.npy",
        lambda array: np.concatenate([array[:1], array[1:-1] + 99, array[-1:]]),
    ),
    "highest scores of nothing": ("maxima.npy", np.zeros_like),
}


@pytest.mark.parametrize(("name", "damage"), DAMAGE.values(), ids=DAMAGE)
def test_array_with_invalid_values_is_rejected(name: str, damage: Callable[[Any], Any], folder: Path) -> None:
    path = folder / "bm25" / name
    np.save(path, damage(np.load(path)))
    assert str(path) in refusal(without_checksums(folder))


@pytest.mark.parametrize("content", [None, "{"])
def test_unreadable_parameters_are_reported(content: str | None, folder: Path) -> None:
    path = folder / "bm25" / "params.index.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    assert refusal(without_checksums(folder)) == f"{path} is missing or damaged; build the index again"


def test_another_format_is_rejected(folder: Path) -> None:
    content = json.loads((without_checksums(folder) / "manifest.json").read_bytes()) | {"format": 1, "later": True}
    (folder / "manifest.json").write_text(json.dumps(content))
    assert refusal(folder) == f"{folder} has index format 1, expected 2; build the index again"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "Expecting property name"),
        ('{"format": 2}', "kind: Field required"),
        ("[]", "manifest.json: Input should"),
    ],
)
def test_damaged_manifest_is_rejected(folder: Path, content: str, problem: str) -> None:
    (folder / "manifest.json").write_text(content)
    assert f"manifest.json is damaged ({problem}" in refusal(folder)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kept", [0, 20, -1], ids=["emptied", "header only", "last byte lost"])
def test_truncated_index_is_rejected(folder: Path, name: str, kept: int) -> None:
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[:kept])
    message = refusal(folder)
    assert str(folder / name) in message
    assert "build the index again" in message


@pytest.mark.parametrize("name", FILES)
def test_index_without_a_file_is_rejected(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert str(folder / name) in refusal(folder)


@pytest.mark.parametrize("name", ["ranks.npy", "bm25/indptr.csc.index.npy", "bm25/data.csc.index.npy"])
def test_arrays_of_another_index_are_rejected(folder: Path, name: str) -> None:
    np.save(folder / name, np.load(folder / name)[:-1])
    assert "expected" in refusal(without_checksums(folder))


def test_missing_corpus_is_rejected(folder: Path, corpus: Path) -> None:
    corpus.unlink()
    assert f"the corpus {corpus} of the index {folder} does not exist" in refusal(folder)


def test_changed_corpus_is_rejected(folder: Path, corpus: Path) -> None:
    content = corpus.read_bytes()
    for changed in (content + b"\n", content.replace(b"green", b"brown")):
        corpus.write_bytes(changed)
        assert refusal(folder) == f"the corpus {corpus} changed after {folder} was built from it; build the index again"


def test_change_in_the_middle_of_a_large_file_needs_full_verification(corpus: Path, tmp_path: Path) -> None:
    filler = "." * manifest.EDGE
    corpus.write_bytes(b"".join(rows(filler, "a green pear", filler)))
    written = build(corpus, tmp_path / "index")
    corpus.write_bytes(corpus.read_bytes().replace(b"green", b"brown"))
    assert "changed after" in refusal(tmp_path / "index")
    assert manifest.verified_corpus(tmp_path / "index", written.corpus, full=False, limit=manifest.EDGE) == corpus
    with pytest.raises(InputError, match="changed after"):
        manifest.verified_corpus(tmp_path / "index", written.corpus, full=True, limit=manifest.EDGE)


def test_flipped_bit_in_any_file_is_detected(folder: Path) -> None:
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert {"manifest.json", "bm25/finished.json", "bm25/vocab.index.json", *FILES} <= set(names)
    for name in names:
        path, place = folder / name, (folder / name).stat().st_size // 2
        written = path.read_bytes()
        path.write_bytes(written[:place] + bytes([written[place] ^ 4]) + written[place + 1 :])
        assert str(path) in refusal(folder)
        path.write_bytes(written)
    assert hits(folder, "pear") == ["p1", "p2"]
    # One bit of the word "format", without which an index is of another format.
    path = folder / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"format"', b'"fozmat"'))
    assert refusal(folder).startswith(f"{path} is damaged")


def test_index_without_checksums_still_opens(folder: Path) -> None:
    named = manifest.fingerprint(folder)
    assert hits(without_checksums(folder), "pear") == ["p1", "p2"]
    assert manifest.fingerprint(folder) == named


def test_ivfpq_needs_its_vectors(tmp_path: Path, small_model: Callable[..., Path]) -> None:
    texts = [f"{['river', 'castle', 'painter'][row % 3]} {row}" for row in range(300)]
    (tmp_path / "corpus.jsonl").write_bytes(b"".join(rows(*texts)))
    lists = AnnSettings(method="ivfpq", lists=2, bytes=8)
    plan = IndexPlan.of("ann", encoder=encoder_settings(str(small_model()), pooling="mean"), ann=lists)
    build(tmp_path / "corpus.jsonl", tmp_path / "index", plan, device="cpu")
    assert hits(tmp_path / "index", texts[7])[0] == "p7"
    (tmp_path / "index" / "vectors.npy").unlink()
    assert "vectors.npy do not exist; build the index again" in refusal(without_checksums(tmp_path / "index"))


COUNT = 300
WORDS = ["river", "castle", "painter", "village", "novel", "island", "comet", "treaty", "orchestra", "harbour"]
TEXTS = [
    " ".join(WORDS[(row * (place + 3) + row // 10) % 10] for place in range(8)) + f" {row}" for row in range(COUNT)
]


@pytest.fixture(scope="module")
def settings(small_model: Callable[..., Path]) -> EncoderSettings:
    return encoder_settings(str(small_model()), pooling="mean")


@pytest.fixture(scope="module")
def published(settings: EncoderSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus and its indexes as others make them: flat, a graph, inverted lists."""
    folder = tmp_path_factory.mktemp("published")
    rows = [{"id": f"p{row}", "contents": text} for row, text in enumerate(TEXTS)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    vectors = Encoder.load(settings, "cpu").encode_passages(TEXTS).astype(np.float32)
    for name in ("Flat", "HNSW16", "IVF4,Flat"):
        index = faiss.index_factory(vectors.shape[1], name, faiss.METRIC_INNER_PRODUCT)
        index.train(vectors)
        index.add(vectors)
        faiss.write_index(index, str(folder / f"{name}.faiss"))
    return folder


def best(folder: Path, query: str) -> list[str]:
    (found,) = asyncio.run(load(folder, device="cpu").search([query], 3))
    assert isinstance(found, list)
    return [hit.passage.id for hit in found]


@pytest.mark.parametrize(
    ("name", "kind", "ann"),
    [
        ("Flat", "dense", None),
        ("HNSW16", "ann", AnnSettings(method="hnsw")),
        ("IVF4,Flat", "ann", AnnSettings(method="ivfpq")),
    ],
)
def test_faiss_index_is_imported_and_searched(
    name: str, kind: str, ann: AnnSettings | None, published: Path, settings: EncoderSettings, tmp_path: Path
) -> None:
    home = shutil.copytree(published, tmp_path / "here")
    manifest = import_faiss(home / f"{name}.faiss", home / "corpus.jsonl", home / "index", settings)
    assert (manifest.kind, manifest.ann, manifest.passages, manifest.dimensions) == (kind, ann, COUNT, 32)
    assert (home / "index" / "vectors.npy").exists() is (kind == "dense")
    assert [stamp.path for stamp in manifest.faiss] == ([] if kind == "dense" else [f"../{name}.faiss"])
    moved = shutil.move(home, tmp_path / "there")
    for row in (0, 17, COUNT - 1):
        assert best(Path(moved, "index"), TEXTS[row])[0] == f"p{row}"


def test_changed_faiss_file_is_rejected(published: Path, settings: EncoderSettings, tmp_path: Path) -> None:
    home = shutil.copytree(published, tmp_path / "here")
    import_faiss(home / "HNSW16.faiss", home / "corpus.jsonl", home / "index", settings)
    shutil.copy(home / "Flat.faiss", home / "HNSW16.faiss")
    with pytest.raises(InputError, match=r"the FAISS index .*HNSW16\.faiss changed after .*index was built from it"):
        load(home / "index", device="cpu")


@pytest.mark.parametrize("name", ["Flat", "HNSW16"])
def test_foreign_vectors_are_rejected_early(
    name: str, published: Path, settings: EncoderSettings, small_model: Callable[..., Path], tmp_path: Path
) -> None:
    heard: list[str] = []

    def told(corpus: Path, used: EncoderSettings) -> str:
        index, hear = published / f"{name}.faiss", lambda stage, *_: heard.append(stage)
        with pytest.raises(InputError) as refused:
            import_faiss(index, corpus, tmp_path / "index", used, progress=hear)
        return str(refused.value)

    rows = (published / "corpus.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "turned.jsonl").write_bytes(b"".join(reversed(rows)))
    (tmp_path / "fewer.jsonl").write_bytes(b"".join(rows[1:]))
    stranger = encoder_settings(str(small_model(seed=5)), pooling="mean")
    assert f"the vectors of {published / name}.faiss are in another order than the passages: 4 of 5" in told(
        tmp_path / "turned.jsonl", settings
    )
    assert re.search(f"{name}.faiss .*{stranger.model}.*cosine", told(published / "corpus.jsonl", stranger))
    assert re.search(rf"{name}.faiss .*300 vectors.*fewer.jsonl.*299", told(tmp_path / "fewer.jsonl", settings))
    assert re.search("32 dimensions.* minilm .*384", told(published / "corpus.jsonl", encoder_settings("minilm")))
    assert set(heard) == {"reading"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fewer.jsonl", "turned.jsonl"]


def test_interrupted_import_resumes(published: Path, settings: EncoderSettings, tmp_path: Path) -> None:
    def interrupting(stage: str, *_: int) -> None:
        if stage == "importing vectors":
            raise KeyboardInterrupt

    heard: list[str] = []
    words: tuple[Any, ...] = (published / "Flat.faiss", published / "corpus.jsonl", tmp_path / "index", settings)
    with pytest.raises(KeyboardInterrupt):
        import_faiss(*words, progress=interrupting)
    assert [path.name for path in tmp_path.iterdir()] == [".building-index"]
    import_faiss(*words, progress=lambda stage, *_: heard.append(stage))
    assert set(heard) == {"resuming an unfinished build", "importing vectors"}
    import_faiss(published / "Flat.faiss", published / "corpus.jsonl", tmp_path / "again", settings)
    for path in (tmp_path / "again").iterdir():
        assert path.read_bytes() == (tmp_path / "index" / path.name).read_bytes()


def test_existing_folder_is_rejected_before_reading(tmp_path: Path, settings: EncoderSettings) -> None:
    (tmp_path / "index").mkdir()
    with pytest.raises(InputError, match="index already exists"):
        import_faiss(tmp_path / "no.faiss", tmp_path / "no.jsonl", tmp_path / "index", settings)
