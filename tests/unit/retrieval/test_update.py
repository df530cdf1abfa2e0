"""Updates of an index of documents: equal to a new build, without reading or encoding what did not change."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sleuth
from sleuth.config.retrieval import AnnSettings, BM25Settings, EncoderSettings, IndexPlan
from sleuth.corpus.passages import stream
from sleuth.corpus.survey import read_survey
from sleuth.errors import InputError, SearchUnavailable
from sleuth.retrieval.index import build, load
from sleuth.retrieval.update import IndexUpdate, update

WORDS = BM25Settings(stemmer="auto", analyzer=2)
QUERIES = ["harbour of Oslo", "cheese", "Städte am Fluss", "trains", "document 7"]


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    (folder / "sub").mkdir(parents=True)
    for number in range(8):
        text = f"# Document {number}\n\n" + f"The town number {number} exports cheese and steel by trains. " * (
            number * 5 + 1
        )
        (folder / "sub" / f"d{number}.md").write_text(text)
    (folder / "a.txt").write_text("Oslo\n\nThe harbour was frozen for most of the winter, and the ferries stayed.")
    (folder / "broken.pdf").write_text("broken")
    return folder


def change(folder: Path) -> None:
    (folder / "sub" / "d2.md").unlink()
    (folder / "sub" / "d5.md").write_text("# Document 5\n\nIt was written anew, about a volcano.")
    (folder / "0-new.txt").write_text(
        "Die Städte liegen am Fluss. Die Menschen leben in den Städten und arbeiten dort."
    )
    (folder / "broken.pdf").rename(folder / "broken.md")


def results(folder: Path) -> list[list[tuple[str, float]]]:
    found = asyncio.run(load(folder, verify=True, device="cpu").search(QUERIES, 10))
    assert not any(isinstance(hits, SearchUnavailable) for hits in found)
    return [[(hit.passage.id, hit.score) for hit in hits] for hits in found if not isinstance(hits, SearchUnavailable)]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_updated_index_equals_a_new_build(documents: Path, tmp_path: Path) -> None:
    plan = IndexPlan.of("bm25", WORDS)
    build(documents, tmp_path / "index", plan)
    before = (tmp_path / "index").stat().st_ino
    assert update(tmp_path / "index", documents) == IndexUpdate(added=0, changed=0, removed=0, unchanged=9)
    assert (tmp_path / "index").stat().st_ino == before
    change(documents)
    assert update(tmp_path / "index", documents) == IndexUpdate(added=2, changed=1, removed=1, unchanged=7)
    build(documents, tmp_path / "fresh", plan)
    assert files(tmp_path / "index") == files(tmp_path / "fresh")
    assert results(tmp_path / "index") == results(tmp_path / "fresh")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["docs", "fresh", "index"]


@pytest.mark.parametrize("kind", ["hybrid", "ann"])
def test_only_changed_documents_are_encoded(
    documents: Path, tmp_path: Path, kind: Any, small_model: Callable[..., Path]
) -> None:
    plan = IndexPlan.of(kind, WORDS, EncoderSettings(model=str(small_model())), AnnSettings(links=8))
    build(documents, tmp_path / "index", plan, device="cpu")
    change(documents)
    heard: list[tuple[str, int, int]] = []
    update(tmp_path / "index", documents, device="cpu", progress=lambda *report: heard.append(report))
    build(documents, tmp_path / "fresh", plan, device="cpu")
    encoded = [(done, total) for stage, done, total in heard if stage == "encoding"]
    new = {"0-new.txt", "broken.md", "sub/d5.md"}
    passages = list(stream(tmp_path / "fresh" / "corpus.jsonl"))
    assert encoded[-1] == (len(passages), len(passages))
    assert len(passages) - encoded[0][0] <= sum(passage.extra["source"] in new for passage in passages) <= 3
    for mine, fresh in zip(results(tmp_path / "index"), results(tmp_path / "fresh"), strict=True):
        assert [name for name, _ in mine] == [name for name, _ in fresh]
        np.testing.assert_allclose([score for _, score in mine], [score for _, score in fresh], rtol=1e-3)


def test_documents_are_read_again_after_a_change_of_the_readers(documents: Path, tmp_path: Path) -> None:
    plan = IndexPlan.of("bm25", WORDS)
    build(documents, tmp_path / "index", plan)
    expected = files(tmp_path / "index")
    # As an older version would have cut it.
    corpus, manifest = tmp_path / "index" / "corpus.jsonl", tmp_path / "index" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["documents"]["reader"] = 1
    del content["seal"]
    manifest.write_text(json.dumps(content))
    assert update(tmp_path / "index", documents).unchanged == 9
    assert files(tmp_path / "index") == expected
    assert corpus.is_file()


def test_open_index_searches_the_new_documents(documents: Path, tmp_path: Path) -> None:
    index = sleuth.Index.build(documents, tmp_path / "index")
    assert index.search("volcano") == []
    change(documents)
    assert index.update(documents).changed == 1
    assert [hit.passage.extra["source"] for hit in index.search("volcano")] == ["sub/d5.md"]
    survey = read_survey(tmp_path / "index")
    assert survey is not None
    assert survey.languages["de"] == 1


def test_interrupted_update_is_replaced(documents: Path, tmp_path: Path) -> None:
    build(documents, tmp_path / "index", IndexPlan.of("bm25", WORDS))
    (tmp_path / ".building-index").mkdir()
    (tmp_path / ".building-index" / "order.json").write_text("{}")
    (tmp_path / ".building-index" / "corpus.jsonl").write_text("half")
    change(documents)
    assert update(tmp_path / "index", documents).added == 2
    assert len(results(tmp_path / "index")) == len(QUERIES)


def test_index_of_rows_is_refused(documents: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"id": "a", "contents": "words"}\n')
    build(tmp_path / "corpus.jsonl", tmp_path / "index", IndexPlan.of("bm25"))
    with pytest.raises(InputError, match=r"index was not built from documents"):
        update(tmp_path / "index", documents)


def test_source_without_documents_is_refused(documents: Path, tmp_path: Path) -> None:
    build(documents, tmp_path / "index", IndexPlan.of("bm25", WORDS))
    expected = files(tmp_path / "index")
    (tmp_path / "corpus.jsonl").write_text('{"id": "a", "contents": "words"}\n')
    with pytest.raises(InputError, match=r"corpus\.jsonl holds no documents"):
        update(tmp_path / "index", tmp_path / "corpus.jsonl")
    assert files(tmp_path / "index") == expected
