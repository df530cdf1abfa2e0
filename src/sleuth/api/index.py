"""Search indexes in Python: build one from documents, open any search backend, and search it."""

import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from reprlib import repr as shorten
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from pydantic import ValidationError

from sleuth.api import background
from sleuth.config.hooks import register
from sleuth.config.retrieval import (
    INDEX_KINDS,
    AnnSettings,
    BM25Settings,
    Component,
    EncoderSettings,
    IndexKind,
    IndexPlan,
    RetrievalConfig,
    ServiceConfig,
    backend_of,
)
from sleuth.corpus.chunks import passages
from sleuth.corpus.documents import Document
from sleuth.corpus.languages import detect_language
from sleuth.corpus.progress import Progress, silent
from sleuth.errors import ConfigError, InputError, SearchUnavailable
from sleuth.records import Hit, Passage
from sleuth.retrieval import index as index_folder
from sleuth.retrieval import manifest
from sleuth.retrieval.backends import open_backend, require_ready
from sleuth.retrieval.dense.encoder_config import encoder_settings
from sleuth.retrieval.retriever import Retriever
from sleuth.retrieval.update import IndexUpdate
from sleuth.retrieval.update import update as update_index

if TYPE_CHECKING:
    from sleuth.retrieval.dense.vectors import EncodeBlocks

TIMEOUT = 2.0  # seconds to wait for a server; short, because a person is waiting

AnyDocument = str | Mapping[str, Any] | Passage
SearchFunction = Callable[[list[str], int], Any]


class IndexSettings(TypedDict, total=False):
    """Settings of the components of an index; those of a component that the kind lacks are rejected."""

    k1: float
    b: float
    stemmer: str
    encoder: str
    query_prefix: str
    passage_prefix: str
    pooling: Literal["mean", "cls", "last"]
    normalise: bool
    query_tokens: int
    passage_tokens: int
    method: Literal["hnsw", "ivfpq"]
    links: int
    effort: int
    lists: int
    bytes: int
    workers: int
    device: str
    ray: str
    replicas: int


# The settings of each component of an index; the encoder's setting `model` is called `encoder`.
COMPONENT_SETTINGS: dict[Component, tuple[str, ...]] = {
    "bm25": tuple(name for name in BM25Settings.model_fields if name != "analyzer"),
    "encoder": tuple(name if name != "model" else "encoder" for name in EncoderSettings.model_fields),
    "ann": tuple(AnnSettings.model_fields),
}
BUILD_SETTINGS: dict[Component, tuple[str, ...]] = {"bm25": ("workers",), "encoder": ("device", "ray", "replicas")}


class Index:
    """A search index, or another search backend, by name."""

    def __init__(self, name: str, *, device: str | None = None, token_env: str | None = None) -> None:
        self.name = name
        self._device, self._service = device or "auto", ServiceConfig(token_env=token_env)

    @classmethod
    def build(
        cls,
        documents: str | Path | Iterable[AnyDocument],
        path: str | Path,
        kind: IndexKind = "bm25",
        *,
        progress: Progress = silent,
        **settings: Unpack[IndexSettings],
    ) -> "Index":
        """Index documents into the new folder `path`; calling it again resumes an interrupted build.

        `documents` is a file or folder (JSONL, Parquet, or text, Markdown, HTML, PDF ...), or an iterable of texts, of
        {"id", "title", "text"} rows, which are cut into passages, or of {"id", "contents"} rows and Passages, which
        are passages already. With `ray`, the address of a Ray cluster (local, auto or HOST:PORT), `replicas` of the
        encoder share the passages; the index has the same bytes.
        """
        plan = plan_index(kind, settings)
        with TemporaryDirectory() as folder, _block_encoder(settings) as encode_blocks:
            if isinstance(documents, str | Path):
                source, fingerprint = Path(documents), None
            else:
                source = Path(folder) / "documents.jsonl.gz"
                fingerprint = _write_passages(documents, source)
            index_folder.build(
                source,
                Path(path),
                plan,
                progress=progress,
                workers=settings.get("workers", 0),
                # On a cluster, only the actors compute; this process needs the encoder's size and hash.
                device=settings.get("device", "auto") if encode_blocks is None else "cpu",
                fingerprint=fingerprint,
                encode_blocks=encode_blocks,
            )
        return cls(str(path), device=settings.get("device"))

    @classmethod
    def open(
        cls, name: str | Path | SearchFunction, *, device: str | None = None, token_env: str | None = None
    ) -> "Index":
        """Open an index folder, a retrieval server by its address, web:PROVIDER, or a function `search(queries, k)`."""
        name = register(name) if callable(name) else str(name)
        if token_env is not None and backend_of(name) != "server":
            raise ConfigError(f"token_env has no effect with {name}, which is not a server; remove it")
        if device is not None and not RetrievalConfig(index=name).local:
            raise ConfigError(f"device has no effect with {name}, which is not an index folder; remove it")
        index = cls(name, device=device, token_env=token_env)
        require_ready(name, index._service, timeout=TIMEOUT)
        index._retriever  # noqa: B018  opened now, so that errors are raised here
        return index

    def update(self, documents: str | Path, *, progress: Progress = silent, workers: int = 0) -> IndexUpdate:
        """Update an index folder from the folder of documents that it was built from; unchanged ones are not read."""
        found = update_index(Path(self.name), Path(documents), progress=progress, workers=workers, device=self._device)
        self.__dict__.pop("_retriever", None)
        return found

    @overload
    def search(self, queries: str, k: int = 3) -> list[Hit]: ...
    @overload
    def search(self, queries: list[str], k: int = 3) -> list[list[Hit]]: ...
    def search(self, queries: str | list[str], k: int = 3) -> list[Hit] | list[list[Hit]]:
        """Return at most `k` hits, best first; for a list of queries, one list of hits per query.

        Raises SearchUnavailable if a search fails.
        """
        found = background.run(self._search(queries, k))
        return found[0] if isinstance(queries, str) else found

    @overload
    async def search_async(self, queries: str, k: int = 3) -> list[Hit]: ...
    @overload
    async def search_async(self, queries: list[str], k: int = 3) -> list[list[Hit]]: ...
    async def search_async(self, queries: str | list[str], k: int = 3) -> list[Hit] | list[list[Hit]]:
        """Like `search`, for async code."""
        found = await background.run_async(self._search(queries, k))
        return found[0] if isinstance(queries, str) else found

    @property
    def manifest(self) -> manifest.Manifest:
        """Describes an index folder: kind, passages, settings and library versions."""
        return manifest.read(Path(self.name))

    def __repr__(self) -> str:
        return f"Index({self.name!r})"

    @cached_property
    def _retriever(self) -> Retriever:
        return open_backend(self.name, self._service, self._device)

    async def _search(self, queries: str | list[str], k: int) -> list[list[Hit]]:
        found: list[list[Hit]] = []
        for outcome in await self._retriever.search([queries] if isinstance(queries, str) else queries, k):
            if isinstance(outcome, SearchUnavailable):
                raise outcome
            found.append(outcome)
        return found


def plan_index(kind: IndexKind, settings: IndexSettings) -> IndexPlan:
    """Return the plan of an index; raises ConfigError for an unknown kind and for settings that are wrong or unused."""
    if kind not in INDEX_KINDS:
        raise ConfigError(f"kind = {kind!r} is unknown; expected {', '.join(INDEX_KINDS)}")
    given: dict[Component, dict[str, Any]] = {}
    for component, names in COMPONENT_SETTINGS.items():
        _reject_unused(kind, component, _given(settings, (*names, *BUILD_SETTINGS.get(component, ()))))
        given[component] = _given(settings, names)
    encoder = encoder_plan({"encoder": "minilm", **given["encoder"]}) if "encoder" in INDEX_KINDS[kind] else None
    try:
        bm25 = BM25Settings(**{"stemmer": "auto", **given["bm25"], "analyzer": 2})
        return IndexPlan.of(kind, bm25, encoder, AnnSettings(**given["ann"]))
    except ValidationError as error:
        wrong = error.errors()[0]
        raise ConfigError(f"{wrong['loc'][0]} = {wrong['input']}: {wrong['msg']}") from error


def encoder_plan(settings: Mapping[str, Any]) -> EncoderSettings:
    """Return the settings of the encoder named by `encoder`, completed with those of its family."""
    return encoder_settings(
        settings["encoder"], **{name: value for name, value in settings.items() if name != "encoder"}
    )


def _given(settings: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: settings[name] for name in names if settings.get(name) is not None}


@contextmanager
def _block_encoder(settings: IndexSettings) -> "Iterator[EncodeBlocks | None]":
    """Connect to the Ray cluster of the settings; None without one."""
    if (address := settings.get("ray")) is None:
        if "replicas" in settings:
            raise ConfigError("replicas has no effect without ray; remove it, or give the address of a Ray cluster")
        yield None
        return
    from sleuth.cluster.embedding import cluster_encoder

    with cluster_encoder(address, settings.get("replicas"), settings.get("device", "auto")) as encode_blocks:
        yield encode_blocks


def _reject_unused(kind: IndexKind, component: Component, given: Mapping[str, Any]) -> None:
    """Reject settings that have no effect with this index kind or ANN method."""
    method = given.get("method", "hnsw")
    unused = set(given) if component not in INDEX_KINDS[kind] else set()
    of_method = ({"lists", "bytes"} if method == "hnsw" else {"links"}) if component == "ann" else set()
    for name in given:
        if name in unused | of_method:
            cause = f"kind = {kind}" if name in unused else f"method = {method}"
            raise ConfigError(f"{name} has no effect with {cause}; remove it")


def _write_passages(documents: Iterable[AnyDocument], file: Path) -> str:
    """Write the passages of the documents as JSONL; return a hash of them."""
    digest = hashlib.sha256()
    with gzip.open(file, "wb", compresslevel=1) as lines:
        for position, document in enumerate(documents):
            for passage in _passages(document, position):
                row = {"id": passage.id, "contents": passage.contents, **passage.extra}
                line = json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
                digest.update(line)
                lines.write(line)
    return digest.hexdigest()


def _passages(document: AnyDocument, position: int) -> Iterator[Passage]:
    match document:
        case Passage():
            yield document
        case str():
            yield from _cut(str(position), "", str(position), document)
        case {"id": str() | int(), "contents": str(contents)}:
            extra = {name: value for name, value in document.items() if name not in ("id", "contents")}
            yield Passage(str(document["id"]), contents, extra)
        case {"text": str(text)}:
            name, title = str(document.get("id", position)), str(document.get("title", ""))
            yield from _cut(name, title, str(document.get("url", name)), text)
        case _:
            raise InputError(
                f"document {position} is {shorten(document)}; expected a text, a row with id, title and text, a row "
                "with id and contents, or a Passage"
            )


def _cut(name: str, title: str, url: str, text: str) -> Iterator[Passage]:
    return passages(Document(name, title, url, text, language=detect_language(text)))
