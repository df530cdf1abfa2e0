"""Import of published FAISS indexes: checks, resumption and search in place."""

import asyncio
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from sleuth.config.retrieval import AnnSettings, EncoderSettings
from sleuth.errors import InputError
from sleuth.retrieval.dense.encoder import Encoder
from sleuth.retrieval.dense.encoder_config import encoder_settings
from sleuth.retrieval.index import import_faiss, load

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
