"""sleuth index: documents made searchable, and looked at."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sleuth.cli.bounds import MANY, MAX_INT, PROCESSES, TOKENS
from sleuth.cli.meter import Meter
from sleuth.cli.printed import printed, say
from sleuth.errors import ConfigError, InputError
from sleuth.runs.atomic import require_new

if TYPE_CHECKING:
    from sleuth.retrieval.manifest import Manifest
    from sleuth.retrieval.settings import EncoderSettings, Plan

app = typer.Typer(no_args_is_help=True, help="Build search indexes, and look at them.")

NAMED = 10
OF_WORDS = ("k1", "b", "stemmer")
OF_VECTORS = ("encoder", "query_prefix", "passage_prefix", "pooling", "normalise", "query_tokens", "passage_tokens")
OF_ANN = ("method", "links", "effort", "lists", "bytes")
Kinds = Literal["bm25", "dense", "ann", "hybrid"]
Given = dict[str, Any]

# What is encoded, and how; known for e5, bge, gte, MiniLM and contriever, else to be stated.
EncoderName = Annotated[str | None, typer.Option(help="minilm, a model folder, or a name on the hub")]
QueryPrefix = Annotated[str | None, typer.Option(help="put before each query; default: as the encoder's family wants")]
PassagePrefix = Annotated[str | None, typer.Option(help="put before each passage; default: likewise")]
Pooling = Annotated[Literal["mean", "cls", "last"] | None, typer.Option(help="of token vectors; default: likewise")]
Normalise = Annotated[bool | None, typer.Option("--normalise/--raw", help="vectors of length one, or as they are")]
QueryTokens = Annotated[int | None, typer.Option(min=1, max=TOKENS, help="tokens of a query at most; default: 256")]
PassageTokens = Annotated[int | None, typer.Option(min=1, max=TOKENS, help="tokens of a passage at most; default: 256")]


@app.command()
def build(
    source: Annotated[
        Path,
        typer.Argument(
            help="JSONL with id and contents (plain, .gz, part_* pieces, a folder of them), parquet, "
            "or a folder of text, Markdown, HTML and PDF"
        ),
    ],
    out: Annotated[Path, typer.Option(help="the folder to write; it must not exist")],
    kind: Annotated[
        Kinds,
        typer.Option(help="bm25: words; dense: vectors, exact; ann: vectors, approximate; hybrid: bm25 and dense"),
    ] = "bm25",
    k1: Annotated[float | None, typer.Option(min=0.0, help="BM25 term saturation; default: 0.9")] = None,
    b: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="BM25 length normalisation; default: 0.4")] = None,
    stemmer: Annotated[str | None, typer.Option(help="BM25 language of stems, or none; default: english")] = None,
    encoder: EncoderName = None,
    query_prefix: QueryPrefix = None,
    passage_prefix: PassagePrefix = None,
    pooling: Pooling = None,
    normalise: Normalise = None,
    query_tokens: QueryTokens = None,
    passage_tokens: PassageTokens = None,
    method: Annotated[Literal["hnsw", "ivfpq"] | None, typer.Option(help="of ann; default: hnsw")] = None,
    links: Annotated[int | None, typer.Option(min=2, max=MANY, help="hnsw: neighbours of a node; default: 64")] = None,
    effort: Annotated[
        int | None, typer.Option(min=1, max=MANY, help="hnsw: candidates kept; ivfpq: lists looked at; default: 128")
    ] = None,
    lists: Annotated[
        int | None, typer.Option(min=0, max=MAX_INT, help="ivfpq: inverted lists; default: by size")
    ] = None,
    bytes_: Annotated[
        int | None, typer.Option("--bytes", min=1, max=MANY, help="ivfpq: bytes of a vector; default: 64")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=PROCESSES, help="processes that read words; default: one a core")
    ] = None,
    device: Annotated[str | None, typer.Option(help="of the encoder: auto, cpu, cuda, cuda:0; default: auto")] = None,
) -> None:
    """Index documents for search. Killed and started again with the same settings, it goes on where it was."""
    from sleuth.retrieval import index

    words = _given(locals(), OF_WORDS)
    vectors = _given(locals(), OF_VECTORS)
    approximate = _given({**locals(), "bytes": bytes_}, OF_ANN)
    _refuse_useless(
        kind, _given(locals(), (*OF_WORDS, "workers")), _given(locals(), (*OF_VECTORS, "device")), approximate
    )
    plan = _plan(kind, words, vectors, approximate)
    with Meter() as meter:
        manifest = index.build(source, out, plan, progress=meter, workers=workers or 0, device=device or "auto")
    _warn(manifest.skipped)
    say(f"{out}: {_summary(manifest)}")


@app.command("import")
def adopt(
    faiss: Annotated[Path, typer.Option(help="a FAISS file, a folder of part_* pieces, or one piece of them")],
    corpus: Annotated[Path, typer.Option(help="the corpus whose rows the vectors are, in their order")],
    out: Annotated[Path, typer.Option(help="the folder to write; it must not exist")],
    encoder: Annotated[str, typer.Option(help="the encoder of the vectors: a model folder, or a name on the hub")] = (
        "intfloat/e5-base-v2"
    ),
    query_prefix: QueryPrefix = None,
    passage_prefix: PassagePrefix = None,
    pooling: Pooling = None,
    normalise: Normalise = None,
    query_tokens: QueryTokens = None,
    passage_tokens: PassageTokens = None,
) -> None:
    """Take over a published FAISS index: a flat one as fp16 vectors, half its size; any other as it is, where it is."""
    from sleuth.retrieval import adoption

    vectors = _given(locals(), OF_VECTORS)
    with Meter() as meter:
        manifest = adoption.adopt(faiss, corpus, out, _encoder(vectors), progress=meter)
    _warn(manifest.skipped)
    say(f"{out}: {_summary(manifest)}")


@app.command("info")
def describe(folder: Annotated[Path, typer.Argument(help="an index folder")]) -> None:
    """Print what an index was built from, how and by which versions."""
    from sleuth.retrieval.manifest import fingerprint, read

    manifest = read(folder)
    parts = (manifest.bm25, manifest.encoder, manifest.ann)
    settings = {name: value for part in parts if part is not None for name, value in part}
    rows: dict[str, object] = {
        "kind": manifest.kind,
        "passages": f"{manifest.passages:,}",
        **({"skipped": f"{len(manifest.skipped):,}"} if manifest.skipped else {}),
        **{name: f"{count:,}" for name, count in manifest.counts.items()},
        **settings,
        **({"dimensions": manifest.dimensions} if manifest.dimensions else {}),
        "corpus": f"{manifest.corpus.path} ({manifest.corpus.bytes:,} bytes)",
        "sha256": manifest.corpus.sha256,
        "fingerprint": fingerprint(folder),
        "on disk": f"{sum(file.stat().st_size for file in folder.rglob('*') if file.is_file()):,} bytes",
        "built by": ", ".join(f"{name} {version}" for name, version in manifest.libraries.items()),
    }
    for name, value in rows.items():
        say(f"{name:<{max(map(len, rows))}}  {value if value != '' else '(empty)'}")


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="an index folder")],
    questions: Annotated[list[Path], typer.Option(help="a questions file; give the option again for more")],
    out: Annotated[Path | None, typer.Option(help="a new folder for check.json and report.html")] = None,
    device: Annotated[str, typer.Option(help="where vectors are searched: auto, cpu, cuda, cuda:0")] = "auto",
) -> None:
    """Measure an index: are the answers in the corpus, does the search find them, what is empty or repeated?"""
    if out is not None:
        require_new(out)
    from sleuth.corpus import questions as question_files
    from sleuth.corpus.passages import stream
    from sleuth.evaluate import corpus_check, index_check, index_report
    from sleuth.retrieval.index import load
    from sleuth.retrieval.manifest import matching_corpus, read

    asked = [question for path in questions for question in question_files.load(path)]
    counts = Counter((question.data_source, question.id) for question in asked)
    if twice := [f"{source} {name}" for (source, name), count in counts.items() if count > 1]:
        raise InputError(f"{len(twice):,} questions come twice, {twice[0]} first; give each questions file once")
    manifest = read(folder)
    corpus = matching_corpus(folder, manifest.corpus, verify=False)
    retriever = load(folder, verify=True, device=device)
    with Meter() as meter:
        looked = corpus_check.check(stream(corpus), asked, manifest.passages, meter)
        found = asyncio.run(index_check.check(retriever, asked, looked, meter))
    text = index_report.markdown(found, f"{folder}: {manifest.kind}, {manifest.passages:,} passages")
    printed(text)
    if out is not None:
        index_report.write(found, out, str(folder), manifest.model_dump(mode="json", exclude={"files"}))


def _given(options: Given, names: Sequence[str]) -> Given:
    """Those of the named options that were given."""
    return {name: options[name] for name in names if options[name] is not None}


def _refuse_useless(kind: Kinds, words: Given, vectors: Given, approximate: Given) -> None:
    """An option that the kind, or the method, has no use for is refused."""
    hnsw = approximate.get("method", "hnsw") == "hnsw"
    useless = {
        f"--kind {kind}": {
            *(words if kind in ("dense", "ann") else ()),
            *(vectors if kind == "bm25" else ()),
            *(approximate if kind != "ann" else ()),
        },
        f"--method {'hnsw' if hnsw else 'ivfpq'}": {"lists", "bytes"} if hnsw else {"links"},
    }
    for when, names in useless.items():
        for name in [name for name in words | vectors | approximate if name in names]:
            raise ConfigError(f"--{name.replace('_', '-')} has no effect with {when}; remove it")


def _plan(kind: Kinds, words: Given, vectors: Given, approximate: Given) -> "Plan":
    from pydantic import ValidationError

    from sleuth.retrieval.settings import AnnSettings, BM25Settings, Plan

    encoder = None if kind == "bm25" else _encoder({"encoder": "minilm", **vectors})
    try:
        return Plan.of(kind, BM25Settings(**words), encoder, AnnSettings(**approximate))
    except ValidationError as error:
        wrong = error.errors()[0]
        raise ConfigError(f"--{wrong['loc'][0]} is {wrong['input']}: {wrong['msg']}") from error


def _encoder(vectors: Given) -> "EncoderSettings":
    from sleuth.retrieval.vectors.families import settings_for

    stated = dict(vectors)
    return settings_for(stated.pop("encoder"), **stated)


def _warn(skipped: Sequence[str]) -> None:
    """Names the documents that are not in the index."""
    for name in skipped[:NAMED]:
        say(f"not indexed: {name}", err=True)
    if len(skipped) > NAMED:
        say(f"not indexed: {len(skipped) - NAMED:,} more, named in manifest.json", err=True)


def _summary(manifest: "Manifest") -> str:
    counts = [f"{count:,} {name}" for name, count in manifest.counts.items()]
    size = [f"{manifest.dimensions} dimensions"] if manifest.dimensions else []
    return ", ".join([manifest.kind, f"{manifest.passages:,} passages", *counts, *size])
