"""How an index is made: the settings of each of its parts, as they stand in its manifest."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Kind = Literal["bm25", "dense", "ann", "hybrid"]
Pooling = Literal["mean", "cls", "last"]


class Section(BaseModel):
    """A part of the manifest: types are exact, unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class BM25Settings(Section):
    """Lucene's BM25; `stemmer` is a language of Snowball's, or none."""

    k1: Annotated[float, Field(ge=0)] = 0.9
    b: Annotated[float, Field(ge=0, le=1)] = 0.4
    stemmer: str = "english"


class EncoderSettings(Section):
    """A sentence encoder and how texts are put to it; `model` is minilm, a folder, or a name on the hub."""

    model: str = "minilm"
    query_prefix: str = ""
    passage_prefix: str = ""
    pooling: Pooling = "mean"
    normalise: bool = True
    query_tokens: Annotated[int, Field(gt=0)] = 256
    passage_tokens: Annotated[int, Field(gt=0)] = 256


class AnnSettings(Section):
    """An approximate index of FAISS: a graph (hnsw), or inverted lists of compressed vectors (ivfpq)."""

    method: Literal["hnsw", "ivfpq"] = "hnsw"
    # Of one link FAISS makes no graph: it dies or hangs.
    links: Annotated[int, Field(ge=2, description="hnsw: neighbours of a node")] = 64
    effort: Annotated[int, Field(gt=0, description="hnsw: candidates kept while searching; ivfpq: lists looked at")] = (
        128
    )
    lists: Annotated[int, Field(ge=0, description="ivfpq: inverted lists; 0 chooses by the number of passages")] = 0
    bytes: Annotated[int, Field(gt=0, description="ivfpq: bytes a vector is compressed to")] = 64


class Plan(Section):
    """An index to be built: its kind, and the settings of the parts that kind has."""

    kind: Kind
    bm25: BM25Settings | None = None
    encoder: EncoderSettings | None = None
    ann: AnnSettings | None = None

    @classmethod
    def of(
        cls,
        kind: Kind,
        bm25: BM25Settings | None = None,
        encoder: EncoderSettings | None = None,
        ann: AnnSettings | None = None,
    ) -> "Plan":
        """The plan of a kind: defaults for what is not given, and nothing for parts that the kind has not."""
        return cls(
            kind=kind,
            bm25=(bm25 or BM25Settings()) if kind in ("bm25", "hybrid") else None,
            encoder=(encoder or EncoderSettings()) if kind != "bm25" else None,
            ann=(ann or AnnSettings()) if kind == "ann" else None,
        )
