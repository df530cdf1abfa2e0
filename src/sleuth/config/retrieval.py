"""Settings of retrieval: which index or service to search, and how."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sleuth.config.section import Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, Section

IndexKind = Literal["bm25", "dense", "ann", "hybrid"]
Component = Literal["bm25", "encoder", "ann"]
# The components of each kind of index. A new kind needs an entry here, its module, and a few lines in
# `retrieval/index.py` that build and open it; options and error messages follow from this table.
INDEX_KINDS: dict[IndexKind, tuple[Component, ...]] = {
    "bm25": ("bm25",),
    "dense": ("encoder",),
    "ann": ("encoder", "ann"),
    "hybrid": ("bm25", "encoder"),
}

Backend = Literal["folder", "server", "web", "function"]
WEB_PREFIX = "web:"
# Prefixes of the backends' names; any other name is an index folder.
BACKENDS: dict[str, Backend] = {"http://": "server", "https://": "server", WEB_PREFIX: "web", "import:": "function"}
# The settings of `retrieval.service` that each backend uses.
SERVICE_SETTINGS: dict[Backend, frozenset[str]] = {
    "folder": frozenset(),
    "server": frozenset({"concurrency", "rate", "deadline", "token_env", "proxy"}),
    "web": frozenset({"concurrency", "rate", "deadline", "proxy", "language", "country", "pages"}),
    "function": frozenset({"concurrency", "deadline"}),
}

Pooling = Literal["mean", "cls", "last"]


def backend_of(name: str | None) -> Backend:
    """Return the backend of a `retrieval.index` value; None stands for an index folder built by the run."""
    return next((backend for prefix, backend in BACKENDS.items() if (name or "").startswith(prefix)), "folder")


class BM25Settings(Section):
    """Lucene's BM25; `stemmer` is a Snowball language, none, or auto: by the language of each passage.

    `analyzer` is the version of the text analysis. Version 2 folds diacritics and splits Thai and similar scripts.
    """

    k1: Annotated[float, Field(ge=0)] = 0.9
    b: Annotated[float, Field(ge=0, le=1)] = 0.4
    stemmer: str = "english"
    analyzer: Literal[1, 2] = 1


class EncoderSettings(Section):
    """A sentence encoder and its input format; `model` is minilm, a folder, or a Hugging Face name."""

    model: str = "minilm"
    query_prefix: str = ""
    passage_prefix: str = ""
    pooling: Pooling = "mean"
    normalise: bool = True
    query_tokens: Annotated[int, Field(gt=0)] = 256
    passage_tokens: Annotated[int, Field(gt=0)] = 256


class AnnSettings(Section):
    """An approximate FAISS index: a graph (hnsw), or inverted lists of compressed vectors (ivfpq)."""

    method: Literal["hnsw", "ivfpq"] = "hnsw"
    # FAISS crashes or hangs with a single link.
    links: Annotated[int, Field(ge=2)] = 64
    """hnsw: neighbours per node"""
    effort: Annotated[int, Field(gt=0)] = 128
    """hnsw: candidates kept while searching; ivfpq: lists probed"""
    lists: Annotated[int, Field(ge=0)] = 0
    """ivfpq: inverted lists; 0 chooses by the number of passages"""
    bytes: Annotated[int, Field(gt=0)] = 64
    """ivfpq: bytes per compressed vector"""


class IndexPlan(Section):
    """An index to build: its kind, and the settings of the kind's components."""

    kind: IndexKind
    bm25: BM25Settings | None = None
    encoder: EncoderSettings | None = None
    ann: AnnSettings | None = None

    @classmethod
    def of(
        cls,
        kind: IndexKind,
        bm25: BM25Settings | None = None,
        encoder: EncoderSettings | None = None,
        ann: AnnSettings | None = None,
    ) -> "IndexPlan":
        """Plan an index of this kind: use defaults for missing settings, and drop settings of unused components."""
        settings = {
            "bm25": bm25 or BM25Settings(),
            "encoder": encoder or EncoderSettings(),
            "ann": ann or AnnSettings(),
        }
        return cls.model_validate({"kind": kind, **{name: settings[name] for name in INDEX_KINDS[kind]}})


class ServiceConfig(Section):
    concurrency: Annotated[int, Field(gt=0, le=10000)] = 64
    """Maximum requests, or calls of a function, in flight."""
    rate: PositiveFloat | None = None
    """Maximum requests per second. Default: no limit."""
    deadline: PositiveFloat = 60.0
    """Seconds per search, including retries and queueing."""
    token_env: str | None = None
    """Environment variable that holds the bearer token of a retrieval server."""
    proxy: str | None = None
    """Proxy URL."""
    language: str | None = None
    """Web search: language of the results, such as en."""
    country: str | None = None
    """Web search: country of the search, such as us."""
    pages: bool = False
    """Web search: show page text around the snippet."""


class RetrievalConfig(Section):
    index: str | None = None
    """An index folder, the http:// address of a retrieval server, web:serper (serpapi, google, brave), or
    import:package.function. Default: built from the corpus."""
    k: Annotated[int, Field(gt=0, le=10000)] = 3
    """Passages per search."""
    kind: IndexKind = "bm25"
    """Kind of an index that the run builds."""
    k1: NonNegativeFloat = 0.9
    """BM25 term saturation of an index that the run builds."""
    b: Fraction = 0.4
    """BM25 length normalisation of an index that the run builds."""
    stemmer: str = "english"
    """BM25 stemmer of an index that the run builds: a language, none, or auto (by the language of each passage)."""
    encoder: str = "minilm"
    """Sentence encoder of an index that the run builds: minilm, a folder, or a hub name."""
    device: str = "auto"
    """Device of the vector search: auto, cpu, cuda (all GPUs), or cuda:0."""
    rerank: str | None = None
    """Cross-encoder that reranks the hits: folder or hub name."""
    rerank_depth: Annotated[int, Field(gt=0, le=10000)] = 10
    """Hits passed to the reranker."""
    cache: NonNegativeInt = 0
    """Search results kept in memory; 0 disables the cache."""
    record: bool = False
    """Record every search and its results in searches.jsonl."""
    replay: str | None = None
    """Answer searches from this recording instead."""
    pages: str | None = None
    """Pages the access tool opens: JSONL with url and contents. Default: the server's pages."""
    service: ServiceConfig = ServiceConfig()

    @property
    def remote(self) -> bool:
        """Whether searches go to a server or the web."""
        return backend_of(self.index) in ("server", "web")

    @property
    def local(self) -> bool:
        """Whether the index is a folder, given or built by the run."""
        return backend_of(self.index) == "folder"

    @model_validator(mode="after")
    def _check_build_settings(self) -> Self:
        settings: dict[Component, tuple[str, ...]] = {"bm25": ("k1", "b", "stemmer"), "encoder": ("encoder",)}
        used = INDEX_KINDS[self.kind] if self.index is None and self.replay is None else ()
        unused = [name for component, names in settings.items() if component not in used for name in names]
        if self.index is not None:
            self._reject_unused("retrieval.index, which is already built", "kind", *unused)
        elif self.replay is not None:
            self._reject_unused("retrieval.replay, which needs no index", "kind", *unused)
        else:
            device = () if "encoder" in used or self.rerank is not None else ("device",)
            self._reject_unused(f"retrieval.kind = {self.kind}", *unused, *device)
        return self

    @model_validator(mode="after")
    def _check_search_settings(self) -> Self:
        if self.replay is not None:
            self._reject_unused("retrieval.replay", "device", "rerank", "rerank_depth", "cache", "record")
        if not self.local:
            self._reject_unused(f"retrieval.index = {self.index}", "device", "rerank", "rerank_depth")
        if self.rerank is None:
            self._reject_unused("no retrieval.rerank", "rerank_depth")
        return self

    @model_validator(mode="after")
    def _check_service_settings(self) -> Self:
        used = SERVICE_SETTINGS[backend_of(self.index)] if self.replay is None else frozenset()
        unused = [name for name in ServiceConfig.model_fields if name not in used]
        condition = "an index that the run builds" if self.index is None else f"retrieval.index = {self.index}"
        self.service._reject_unused(condition if self.replay is None else "retrieval.replay", *unused, table="service.")
        return self
