"""sleuth index: build, update, import, describe and check search indexes."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from typer import Argument, Option

from sleuth.api.progress import StageProgress
from sleuth.cli.options import MAX_INT, MAX_ITEMS, MAX_PROCESSES, MAX_TOKENS
from sleuth.cli.terminal import echo, print_markdown
from sleuth.config.retrieval import IndexKind
from sleuth.errors import InputError
from sleuth.runs.atomic import require_new

if TYPE_CHECKING:
    from sleuth.retrieval.manifest import Manifest

app = typer.Typer(no_args_is_help=True, help="Build, update, import, describe and check search indexes.")

MAX_SHOWN = 10  # reasons for skipped files that are listed
# Encoder options: known for e5, bge, gte, MiniLM and contriever, required for other families.
EncoderName = Annotated[str | None, Option(help="minilm, a model folder, or a hub name.")]
QueryPrefix = Annotated[str | None, Option(help="Prefix of queries. Default: that of the encoder family.")]
PassagePrefix = Annotated[str | None, Option(help="Prefix of passages. Default: that of the encoder family.")]
Pooling = Annotated[
    Literal["mean", "cls", "last"] | None, Option(help="Pooling of token vectors. Default: that of the family.")
]
Normalise = Annotated[bool | None, Option("--normalise/--raw", help="Normalise vectors to unit length, or not.")]
QueryTokens = Annotated[int | None, Option(min=1, max=MAX_TOKENS, help="Maximum tokens per query. Default: 256.")]
PassageTokens = Annotated[int | None, Option(min=1, max=MAX_TOKENS, help="Maximum tokens per passage. Default: 256.")]

SOURCE_HELP = (
    "JSONL with id and contents (plain, .gz, part_* pieces, or a folder of them), Parquet, or a folder of documents: "
    "text, Markdown, HTML, PDF, Office files, source code."
)


@app.command()
def build(
    source: Annotated[Path, Argument(help=SOURCE_HELP)],
    out: Annotated[Path, Option(help="Output folder; it must not exist.")],
    kind: Annotated[IndexKind, Option(help="hybrid: bm25 and dense; dense is exact, ann approximate.")] = "bm25",
    k1: Annotated[float | None, Option(min=0.0, help="BM25 term saturation. Default: 0.9.")] = None,
    b: Annotated[float | None, Option(min=0.0, max=1.0, help="BM25 length normalisation. Default: 0.4.")] = None,
    stemmer: Annotated[
        str | None, Option(help="BM25 stemmer language, none, or auto: by passage. Default: auto.")
    ] = None,
    encoder: EncoderName = None,
    query_prefix: QueryPrefix = None,
    passage_prefix: PassagePrefix = None,
    pooling: Pooling = None,
    normalise: Normalise = None,
    query_tokens: QueryTokens = None,
    passage_tokens: PassageTokens = None,
    method: Annotated[Literal["hnsw", "ivfpq"] | None, Option(help="ANN method. Default: hnsw.")] = None,
    links: Annotated[int | None, Option(min=2, max=MAX_ITEMS, help="HNSW: neighbours per node. Default: 64.")] = None,
    effort: Annotated[
        int | None, Option(min=1, max=MAX_ITEMS, help="HNSW: candidates; IVF-PQ: probed lists. Default: 128.")
    ] = None,
    lists: Annotated[int | None, Option(min=0, max=MAX_INT, help="IVF-PQ: lists. Default: by corpus size.")] = None,
    bytes_: Annotated[
        int | None, Option("--bytes", min=1, max=MAX_ITEMS, help="IVF-PQ: bytes per vector. Default: 64.")
    ] = None,
    workers: Annotated[int | None, Option(min=1, max=MAX_PROCESSES, help="Processes. Default: one per core.")] = None,
    device: Annotated[str | None, Option(help="Encoder device: auto, cpu, cuda, cuda:0. Default: auto.")] = None,
    ray: Annotated[
        str | None, Option(metavar="ADDRESS", help="Encode on a Ray cluster: local, auto, or HOST:PORT.")
    ] = None,
    replicas: Annotated[
        int | None,
        Option(min=1, max=MAX_PROCESSES, help="With --ray: encoders. Default: one per GPU, or per CPU without GPUs."),
    ] = None,
) -> None:
    """Build an index. To resume an interrupted build, run the command again with the same settings."""
    from sleuth.api.index import Index, IndexSettings

    options = {**locals(), "bytes": bytes_}
    settings = cast(IndexSettings, _given(options, IndexSettings.__annotations__))
    with StageProgress() as progress:
        built = Index.build(source, out, kind, progress=progress, **settings)
    _report(out, built.manifest)


@app.command()
def update(
    folder: Annotated[Path, Argument(help="An index folder that was built from documents.")],
    documents: Annotated[Path, Argument(help="The folder of documents.")],
    workers: Annotated[int | None, Option(min=1, max=MAX_PROCESSES, help="Processes. Default: one per core.")] = None,
    device: Annotated[str, Option(help="Encoder device: auto, cpu, cuda, cuda:0.")] = "auto",
) -> None:
    """Add new documents to an index, update changed and remove deleted ones; unchanged ones are not read again."""
    from sleuth.api.index import Index

    with StageProgress() as progress:
        index = Index(str(folder), device=device)
        found = index.update(documents, progress=progress, workers=workers or 0)
    counts = {"added": found.added, "changed": found.changed, "removed": found.removed, "unchanged": found.unchanged}
    echo(", ".join(f"{count:,} {name}" for name, count in counts.items()))
    _report(folder, index.manifest)


@app.command("import")
def adopt(
    faiss: Annotated[Path, Option(help="A FAISS file, a folder of part_* pieces, or one of the pieces.")],
    corpus: Annotated[Path, Option(help="The corpus of the vectors, in the same order.")],
    out: Annotated[Path, Option(help="Output folder; it must not exist.")],
    encoder: Annotated[str, Option(help="Encoder of the vectors: a model folder, or a hub name.")] = (
        "intfloat/e5-base-v2"
    ),
    query_prefix: QueryPrefix = None,
    passage_prefix: PassagePrefix = None,
    pooling: Pooling = None,
    normalise: Normalise = None,
    query_tokens: QueryTokens = None,
    passage_tokens: PassageTokens = None,
) -> None:
    """Import a published FAISS index: a flat index is converted to fp16 vectors, any other is referenced."""
    from sleuth.api.index import COMPONENT_SETTINGS, encoder_plan
    from sleuth.retrieval.index import import_faiss

    settings = encoder_plan(_given(locals(), COMPONENT_SETTINGS["encoder"]))
    with StageProgress() as progress:
        manifest = import_faiss(faiss, corpus, out, settings, progress=progress)
    _report(out, manifest)


@app.command("info")
def describe(folder: Annotated[Path, Argument(help="An index folder.")]) -> None:
    """Print the corpus, settings and library versions of an index."""
    from sleuth.retrieval.manifest import fingerprint, read

    manifest = read(folder)
    parts = [part for part in (manifest.bm25, manifest.encoder, manifest.ann) if part is not None]
    rows: dict[str, object] = {
        "kind": manifest.kind,
        "passages": f"{manifest.passages:,}",
        **_describe_documents(manifest),
        **{name: f"{count:,}" for name, count in manifest.counts.items()},
        **{name: value for part in parts for name, value in part},
        **({"dimensions": manifest.dimensions} if manifest.dimensions else {}),
        "corpus": f"{manifest.corpus.path} ({manifest.corpus.bytes:,} bytes)",
        "sha256": manifest.corpus.sha256,
        "fingerprint": fingerprint(folder),
        "on disk": f"{sum(file.stat().st_size for file in folder.rglob('*') if file.is_file()):,} bytes",
        "built by": ", ".join(f"{name} {version}" for name, version in manifest.libraries.items()),
    }
    for name, value in rows.items():
        echo(f"{name:<{max(map(len, rows))}}  {value if value != '' else '(empty)'}")


@app.command()
def check(
    folder: Annotated[Path, Argument(help="An index folder.")],
    questions: Annotated[list[Path], Option(help="A questions file; repeatable.")],
    out: Annotated[Path | None, Option(help="A new folder for check.json and report.html.")] = None,
    device: Annotated[str, Option(help="Search device: auto, cpu, cuda, cuda:0.")] = "auto",
) -> None:
    """Check an index: are the answers in the corpus, are they found, which passages are empty or repeated?"""
    if out is not None:
        require_new(out)
    from sleuth.corpus import questions as question_files
    from sleuth.corpus.passages import stream
    from sleuth.evaluate import index_check
    from sleuth.retrieval.index import load
    from sleuth.retrieval.manifest import read, verified_corpus

    loaded = [question for path in questions for question in question_files.load(path)]
    counts = Counter((question.data_source, question.id) for question in loaded)
    if repeated := [f"{source} {name}" for (source, name), count in counts.items() if count > 1]:
        raise InputError(f"{len(repeated):,} questions are repeated, {repeated[0]} first; give each file once")
    manifest = read(folder)
    corpus = verified_corpus(folder, manifest.corpus, full=False)
    retriever = load(folder, verify=True, device=device)
    with StageProgress() as progress:
        corpus_check = index_check.check_corpus(stream(corpus), loaded, manifest.passages, progress)
        result = asyncio.run(index_check.check_index(retriever, loaded, corpus_check, progress))
    print_markdown(index_check.markdown(result, f"{folder}: {manifest.kind}, {manifest.passages:,} passages"))
    if out is not None:
        index_check.write_check(result, out, str(folder), manifest.model_dump(mode="json", exclude={"files"}))


def _describe_documents(manifest: "Manifest") -> dict[str, object]:
    found = manifest.documents
    if found is None:  # not built from documents, or by an older version
        return {"skipped": f"{len(manifest.skipped):,}"} if manifest.skipped else {}
    counts = {"kinds": found.kinds, "languages": found.languages}
    rows = {name: ", ".join(f"{count:,} {each}" for each, count in part.items()) for name, part in counts.items()}
    return {"documents": f"{found.files:,} ({found.bytes:,} bytes)", **rows, "skipped": f"{found.skipped:,}"}


def _given(options: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: options[name] for name in names if options[name] is not None}


def _report(out: Path, manifest: "Manifest") -> None:
    from sleuth.corpus.survey import SKIPPED, describe_survey, read_survey

    if (survey := read_survey(out)) is not None:
        documents, *skipped = describe_survey(survey)
        for line in (documents, *skipped[:MAX_SHOWN]):
            echo(line, err=True)
        if survey.skipped:
            echo(f"{len(survey.skipped):,} not indexed in all, named in {out / SKIPPED}", err=True)
    counts = [f"{count:,} {name}" for name, count in manifest.counts.items()]
    size = [f"{manifest.dimensions} dimensions"] if manifest.dimensions else []
    echo(f"{out}: {', '.join([manifest.kind, f'{manifest.passages:,} passages', *counts, *size])}")
