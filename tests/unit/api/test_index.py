"""Indexes in Python: documents of every form, search in every form, and settings without effect."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import sleuth
from sleuth.errors import ConfigError, InputError, SearchUnavailable
from sleuth.records import Passage

DOCUMENTS: list[str | dict[str, Any] | Passage] = [
    "Oslo is the capital of Norway.",
    {"id": "bergen", "title": "Bergen", "text": "Bergen lies by the sea."},
    {"id": "ada", "contents": '"Ada"\nAda wrote programs.', "year": 1843},
    Passage("p", '"Tromsø"\nTromsø is far north.'),
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> sleuth.Index:
    return sleuth.Index.build(iter(DOCUMENTS), tmp_path_factory.mktemp("index") / "index")


@pytest.mark.parametrize(
    ("query", "found"), [("capital", "0#0"), ("sea", "bergen#0"), ("programs", "ada"), ("north", "p")]
)
def test_documents_and_passages_are_found(index: sleuth.Index, query: str, found: str) -> None:
    assert [hit.passage.id for hit in index.search(query)] == [found]


def test_other_fields_of_a_row_are_kept(index: sleuth.Index) -> None:
    assert index.search("programs")[0].passage.extra == {"year": 1843}


def test_several_queries_give_several_lists(index: sleuth.Index) -> None:
    assert [[hit.passage.title for hit in hits] for hits in index.search(["sea", "nothing", "Ada Bergen"], k=1)] == [
        ["Bergen"],
        [],
        ["Ada"],
    ]


def test_search_is_the_same_in_async_code(index: sleuth.Index) -> None:
    async def search() -> Any:
        return await asyncio.gather(index.search_async("sea"), index.search_async(["sea", "north"]))

    assert asyncio.run(search()) == [index.search("sea"), index.search(["sea", "north"])]


def test_long_documents_are_cut_into_passages(tmp_path: Path) -> None:
    text = " ".join(f"Sentence {n} is about town {n}." for n in range(100))
    built = sleuth.Index.build([{"id": "towns", "title": "Towns", "text": text}], tmp_path / "index")
    assert built.manifest.passages > 3
    assert built.search("town 99")[0].passage.id == f"towns#{built.manifest.passages - 1}"


def test_a_file_is_indexed_in_place_and_opened_again(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "oslo.txt").write_text("Oslo is the capital.")
    sleuth.Index.build(tmp_path / "notes", tmp_path / "index", k1=1.5)
    opened = sleuth.Index.open(tmp_path / "index")
    assert opened.search("capital")[0].passage.id == "oslo.txt#0"
    assert opened.manifest.bm25 is not None
    assert opened.manifest.bm25.k1 == 1.5


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kind": "bm25", "encoder": "minilm"}, "encoder has no effect with kind = bm25"),
        ({"kind": "ann", "lists": 3}, "lists has no effect with method = hnsw"),
        ({"kind": "bm25", "ray": "local"}, "ray has no effect with kind = bm25"),
        ({"kind": "dense", "replicas": 2}, "replicas has no effect without ray"),
        ({"kind": "bm52"}, "bm52"),
        ({"b": 3.0}, "b = 3.0"),
    ],
)
def test_settings_that_are_wrong_or_unused_are_rejected(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        sleuth.Index.build(["text"], tmp_path / "index", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_document_of_another_form_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="document 1 is 7"):
        sleuth.Index.build(["text", 7], tmp_path / "index")  # type: ignore[list-item]


def test_a_folder_that_is_no_index_is_an_error_when_opened(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=str(tmp_path)):
        sleuth.Index.open(tmp_path)


def test_a_function_is_a_search_backend() -> None:
    def search(queries: Sequence[str], k: int) -> list[list[dict[str, str]]]:
        if "fire" in queries:
            raise OSError("it burns")
        return [[{"id": query, "contents": query}] * k for query in queries]

    index = sleuth.Index.open(search)
    assert [hit.passage.id for hit in index.search("Oslo", k=2)] == ["Oslo", "Oslo"]
    with pytest.raises(SearchUnavailable, match="it burns"):
        index.search("fire")


@pytest.mark.parametrize("option", [{"device": "cpu"}, {"token_env": "TOKEN"}])
def test_options_of_other_backends_are_rejected(option: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(option))} has no effect"):
        sleuth.Index.open("import:mine.search", **option)
