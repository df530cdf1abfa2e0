"""What is searched and how, in this process or by a service."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sleuth.config.section import LARGEST, Factor, NonNegative, Section, Share


class ServiceConfig(Section):
    concurrency: Annotated[
        int, Field(gt=0, le=10_000, description="requests, or calls of a function, in flight at most")
    ] = 64
    rate: Annotated[Factor | None, Field(description="requests a second at most; absent for no limit")] = None
    deadline: Annotated[Factor, Field(description="seconds of one search, retries and waiting included")] = 60.0
    token_env: Annotated[
        str | None, Field(description="environment variable with the bearer token of a retrieval server")
    ] = None
    proxy: Annotated[str | None, Field(description="URL of a proxy")] = None
    language: Annotated[str | None, Field(description="web search: language of the results, such as en")] = None
    country: Annotated[str | None, Field(description="web search: country it is made from, such as us")] = None
    pages: Annotated[bool, Field(description="web search: the text of the page around the snippet")] = False


class RetrievalConfig(Section):
    index: Annotated[
        str | None,
        Field(
            description="an index folder, the http:// address of a retrieval server, web:serper (serpapi, google, "
            "brave), or import:package.function; built from the corpus when absent"
        ),
    ] = None
    k: Annotated[int, Field(gt=0, le=10_000, description="passages shown for a search")] = 3
    kind: Annotated[
        Literal["bm25", "dense", "ann", "hybrid"], Field(description="of the index, when it is built here")
    ] = "bm25"
    k1: Annotated[float, Field(ge=0, le=LARGEST, description="BM25 term saturation, when the index is built here")] = (
        0.9
    )
    b: Annotated[Share, Field(description="BM25 length normalisation, when the index is built here")] = 0.4
    stemmer: Annotated[str, Field(description="BM25 language of stems, or none, when the index is built here")] = (
        "english"
    )
    encoder: Annotated[
        str, Field(description="sentence encoder, when the index is built here: minilm, a folder, or a hub name")
    ] = "minilm"
    device: Annotated[str, Field(description="where vectors are searched: auto, cpu, cuda (all GPUs), cuda:0")] = "auto"
    rerank: Annotated[str | None, Field(description="a cross-encoder that orders the hits anew: folder or name")] = None
    rerank_depth: Annotated[int, Field(gt=0, le=10_000, description="hits it is shown")] = 10
    cache: Annotated[NonNegative, Field(description="answers kept in memory; 0 for none")] = 0
    record: Annotated[bool, Field(description="write every search and its answer to searches.jsonl of the run")] = False
    replay: Annotated[str | None, Field(description="answer from such a file instead of searching")] = None
    pages: Annotated[
        str | None,
        Field(description="what tools-access opens: JSONL with url and contents; absent: the pages of the server"),
    ] = None
    service: ServiceConfig = ServiceConfig()

    @property
    def remote(self) -> bool:
        """Whether searches leave this process: to a server, or to the web."""
        return self.index is not None and self.index.startswith(("http://", "https://", "web:"))

    @property
    def local(self) -> bool:
        """Whether the index is a folder, of the user's own or built here."""
        return not self.remote and not (self.index or "").startswith("import:")

    @model_validator(mode="after")
    def _built(self) -> Self:
        words, vectors = ("k1", "b", "stemmer"), ("encoder",)
        if self.index is not None:
            self._without_effect("retrieval.index, which was built with its own", "kind", *words, *vectors)
        elif self.replay is not None:
            self._without_effect("retrieval.replay, for which no index is built", "kind", *words, *vectors)
        elif self.kind == "bm25":
            self._without_effect("retrieval.kind = bm25", *vectors, *(("device",) if self.rerank is None else ()))
        elif self.kind != "hybrid":
            self._without_effect(f"retrieval.kind = {self.kind}", *words)
        return self

    @model_validator(mode="after")
    def _searched(self) -> Self:
        if self.replay is not None:
            self._without_effect("retrieval.replay", "device", "rerank", "rerank_depth", "cache", "record")
        if not self.local:
            self._without_effect(f"retrieval.index = {self.index}", "device", "rerank", "rerank_depth")
        if self.rerank is None:
            self._without_effect("no retrieval.rerank", "rerank_depth")
        return self

    @model_validator(mode="after")
    def _served(self) -> Self:
        when = f"retrieval.index = {self.index}" if self.index else "an index that is built here"
        if self.replay is not None:
            useless, when = tuple(ServiceConfig.model_fields), "retrieval.replay"
        elif self.local:
            useless = tuple(ServiceConfig.model_fields)
        elif str(self.index).startswith("import:"):
            useless = tuple(ServiceConfig.model_fields.keys() - {"concurrency", "deadline"})
        elif str(self.index).startswith("web:"):
            useless = ("token_env",)
        else:
            useless = ("language", "country", "pages")
        self.service._without_effect(when, *useless, table="service.")
        return self
