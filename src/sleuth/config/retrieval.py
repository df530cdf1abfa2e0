"""Settings of retrieval: which index or service to search, and how."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sleuth.config.section import Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, Section


class ServiceConfig(Section):
    concurrency: Annotated[
        int, Field(gt=0, le=10_000, description="Maximum requests, or calls of a function, in flight.")
    ] = 64
    rate: Annotated[PositiveFloat | None, Field(description="Maximum requests per second. Default: no limit.")] = None
    deadline: Annotated[PositiveFloat, Field(description="Seconds per search, including retries and queueing.")] = 60.0
    token_env: Annotated[
        str | None, Field(description="Environment variable that holds the bearer token of a retrieval server.")
    ] = None
    proxy: Annotated[str | None, Field(description="Proxy URL.")] = None
    language: Annotated[str | None, Field(description="Web search: language of the results, such as en.")] = None
    country: Annotated[str | None, Field(description="Web search: country of the search, such as us.")] = None
    pages: Annotated[bool, Field(description="Web search: show page text around the snippet.")] = False


class RetrievalConfig(Section):
    index: Annotated[
        str | None,
        Field(
            description="An index folder, the http:// address of a retrieval server, web:serper (serpapi, google, "
            "brave), or import:package.function. Default: built from the corpus."
        ),
    ] = None
    k: Annotated[int, Field(gt=0, le=10_000, description="Passages per search.")] = 3
    kind: Annotated[
        Literal["bm25", "dense", "ann", "hybrid"], Field(description="Kind of an index that the run builds.")
    ] = "bm25"
    k1: Annotated[NonNegativeFloat, Field(description="BM25 term saturation of an index that the run builds.")] = 0.9
    b: Annotated[Fraction, Field(description="BM25 length normalisation of an index that the run builds.")] = 0.4
    stemmer: Annotated[str, Field(description="BM25 stemmer language, or none, of an index that the run builds.")] = (
        "english"
    )
    encoder: Annotated[
        str, Field(description="Sentence encoder of an index that the run builds: minilm, a folder, or a hub name.")
    ] = "minilm"
    device: Annotated[str, Field(description="Device of the vector search: auto, cpu, cuda (all GPUs), or cuda:0.")] = (
        "auto"
    )
    rerank: Annotated[str | None, Field(description="Cross-encoder that reranks the hits: folder or hub name.")] = None
    rerank_depth: Annotated[int, Field(gt=0, le=10_000, description="Hits passed to the reranker.")] = 10
    cache: Annotated[NonNegativeInt, Field(description="Search results kept in memory; 0 disables the cache.")] = 0
    record: Annotated[bool, Field(description="Record every search and its results in searches.jsonl.")] = False
    replay: Annotated[str | None, Field(description="Answer searches from such a recording instead.")] = None
    pages: Annotated[
        str | None,
        Field(description="Pages the access tool opens: JSONL with url and contents. Default: the server's pages."),
    ] = None
    service: ServiceConfig = ServiceConfig()

    @property
    def remote(self) -> bool:
        """Whether searches go to a server or the web."""
        return self.index is not None and self.index.startswith(("http://", "https://", "web:"))

    @property
    def local(self) -> bool:
        """Whether the index is a folder, given or built by the run."""
        return not self.remote and not (self.index or "").startswith("import:")

    @model_validator(mode="after")
    def _check_build_settings(self) -> Self:
        bm25, dense = ("k1", "b", "stemmer"), ("encoder",)
        if self.index is not None:
            self._reject_unused("retrieval.index, which is already built", "kind", *bm25, *dense)
        elif self.replay is not None:
            self._reject_unused("retrieval.replay, which needs no index", "kind", *bm25, *dense)
        elif self.kind == "bm25":
            self._reject_unused("retrieval.kind = bm25", *dense, *(("device",) if self.rerank is None else ()))
        elif self.kind != "hybrid":
            self._reject_unused(f"retrieval.kind = {self.kind}", *bm25)
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
        index = str(self.index)
        unused = set(ServiceConfig.model_fields)
        if not self.local and self.replay is None:
            if index.startswith("import:"):
                unused -= {"concurrency", "deadline"}
            else:
                unused = {"token_env"} if index.startswith("web:") else {"language", "country", "pages"}
        condition = "an index that the run builds" if self.index is None else f"retrieval.index = {index}"
        self.service._reject_unused(
            "retrieval.replay" if self.replay is not None else condition, *sorted(unused), table="service."
        )
        return self
