"""sleuth data: question sets made ready for training and measuring, public files fetched."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sleuth.cli.options import MAX_INT, MAX_SEED
from sleuth.cli.progress import StageProgress
from sleuth.cli.sets_make import make
from sleuth.cli.terminal import echo, print_markdown
from sleuth.errors import InputError
from sleuth.runs.atomic import require_new

if TYPE_CHECKING:
    from sleuth.corpus.datasets.prepare import MakePrompt, QuestionSource

app = typer.Typer(
    no_args_is_help=True, help="Prepare question sets, make new ones; download corpora, indexes and sets."
)
app.command()(make)

Folder = Annotated[
    Path,
    typer.Option(
        envvar="SLEUTH_DATA",
        help="where public files lie, each under its hub id: what is there, brought by hand too, is used; the rest is "
        "fetched into it",
    ),
]
Split = Literal["train", "dev", "test"]


@app.callback()
def sets() -> None:
    """Prepare question sets, make new ones; download corpora, indexes and sets."""


@app.command()
def prepare(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="nq, triviaqa, popqa, hotpotqa, 2wikimultihopqa, musique, bamboogle, searchr1-train; or files: "
            "Parquet of Search-R1 and verl, JSONL of FlashRAG, RLinf, ASearcher and ours, plain or .gz"
        ),
    ],
    out: Annotated[Path, typer.Option(help="the folder to write; it must not exist")],
    test: Annotated[
        list[str] | None,
        typer.Option(help="a set or file that is measured on: its questions are dropped; can be given several times"),
    ] = None,
    split: Annotated[
        Split | None,
        typer.Option(help="the part of the sets named: train (default), dev, or test, which is what is measured on"),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=MAX_SEED, help="shuffle by this seed (default: the files' order)")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, max=MAX_INT, help="keep so many at most, drawn by seed")] = None,
    answerable: Annotated[bool, typer.Option(help="drop questions that are marked as not answerable")] = False,
    duplicates: Annotated[
        Literal["drop", "keep"] | None,
        typer.Option(help="questions that come twice: drop (default), or keep (default with --split dev and test)"),
    ] = None,
    prompt: Annotated[
        str, typer.Option(help="the prompt in the Parquet file of rows without one: a name, or FILE.toml:NAME")
    ] = "instruct",
    folder: Folder = Path("data"),
) -> None:
    """Write questions.jsonl, the same as Parquet for Search-R1 and verl, and dropped.jsonl; say what was dropped."""
    from sleuth.corpus.datasets.merge import MergeRules
    from sleuth.corpus.datasets.prepare import prepare as prepare_folder
    from sleuth.corpus.questions import stream
    from sleuth.reward.answers import warn_wordless

    require_new(out)
    _require_effect(sources, split)
    with StageProgress() as meter:
        learned = [_source(each, split or "train", folder, meter) for each in sources]
        tests = [_source(each, "test", folder, meter) for each in test or ()]
    repeated = duplicates == "drop" if duplicates else split in (None, "train")
    manifest = prepare_folder(
        learned,
        out,
        _asking(prompt),
        tests=tests,
        rules=MergeRules(repeated, answerable, limit, seed),
        split=split or "train",
    )
    _report(out, manifest)
    if told := warn_wordless(stream(out / "questions.jsonl")):
        echo(told)


@app.command()
def download(
    names: Annotated[
        list[str],
        typer.Argument(
            help="wiki18, wiki18-e5, wiki18-hnsw, wiki18-bm25, asearcher, asearcher-e5, searchr1-train, rlinf, "
            "flashrag, or one set of it (nq, ...)"
        ),
    ],
    folder: Folder = Path("data"),
) -> None:
    """Fetch public files, from where it broke off the last time; they are checked before they get their names."""
    from sleuth.corpus.datasets import public
    from sleuth.corpus.datasets.public import find_collection

    for wanted in [find_collection(name) for name in names]:
        with StageProgress() as meter:
            paths = public.download(wanted, folder, meter)
        for path in paths:
            echo(f"{path.stat().st_size:>16,}  {path}")


def _source(given: str, split: Split, folder: Path, meter: StageProgress) -> "QuestionSource":
    """A set by name, or a file."""
    from sleuth.corpus.datasets import public
    from sleuth.corpus.datasets.prepare import QuestionSource
    from sleuth.corpus.datasets.public import SETS

    if given in SETS:
        return QuestionSource(given, public.question_file(given, split, folder, meter))
    if not Path(given).is_file():
        raise InputError(f"{given} is neither a file nor a known set of questions; known are {', '.join(SETS)}")
    return QuestionSource(given, Path(given))


def _require_effect(sources: Sequence[str], split: Split | None) -> None:
    from sleuth.corpus.datasets.public import SETS

    if split is not None and not any(each in SETS for each in sources):
        raise InputError(f"--split {split} has no effect on files, which are read whole; leave it out, or name a set")


def _asking(template: str) -> "MakePrompt":
    """The prompt of a question that brings none; what that needs is loaded when there is one."""

    def ask(question: Any) -> Sequence[dict[str, str]]:
        from sleuth.agent import prompts, protocol

        return prompts.messages(question, template, protocol.make_protocol("tags"))

    return ask


def _report(out: Path, manifest: dict[str, Any]) -> None:
    sets: dict[str, dict[str, int]] = manifest["sets"]
    total = {name: sum(counts[name] for counts in sets.values()) for name in next(iter(sets.values()))}
    names = [name for name in total if total[name] or name == "read"]
    lines = ["| set | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for label, counts in (*sets.items(), *([("all", total)] if len(sets) > 1 else [])):
        cell = " ".join(label.split()).replace("|", "\\|")
        lines.append(f"| {cell} | " + " | ".join(f"{counts[name]:,}" for name in names) + " |")
    print_markdown("\n".join(lines) + "\n")
    for name, file in manifest["files"].items():
        echo(f"{file['rows']:>9,}  {out / name}")
