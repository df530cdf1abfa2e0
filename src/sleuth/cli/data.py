"""sleuth data and sleuth world: prepare, generate and download question sets and corpora."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.progress import Progress
from typer import Argument, Option

from sleuth.api.progress import StageProgress
from sleuth.cli import data_difficulty, data_questions
from sleuth.cli.options import MAX_INT, MAX_ITEMS, MAX_SEED
from sleuth.cli.terminal import Terminal, echo, print_markdown
from sleuth.corpus.datasets.public import FOLDER, FOLDER_VARIABLE
from sleuth.errors import InputError
from sleuth.runs.atomic import require_new
from sleuth.synthesis.world.schema import MAX_PASSAGES, MIN_PASSAGES
from sleuth.synthesis.world.world import World, write_world

if TYPE_CHECKING:
    from sleuth.corpus.datasets.prepare import QuestionSource

UPDATE_EVERY = 1000  # rows per update of the bar, which costs more than a row

app = typer.Typer(no_args_is_help=True, help="Prepare, generate and download question sets and corpora.")
world_app = typer.Typer(no_args_is_help=True, help="Generate an encyclopedia of fictional entities with questions.")

app.command()(data_questions.make)
app.command()(data_questions.split)
app.command()(data_difficulty.difficulty)
app.command()(data_questions.review)

Folder = Annotated[
    Path,
    Option(
        envvar=FOLDER_VARIABLE,
        help="Folder of public files, each under its hub id. Files that are already there are used, the others are "
        "downloaded into it.",
    ),
]
Duplicates = Literal["drop", "keep"]
Split = Literal["train", "dev", "test"]

SOURCES_HELP = (
    "nq, triviaqa, popqa, hotpotqa, 2wikimultihopqa, musique, bamboogle, searchr1-train; or files: Parquet of "
    "Search-R1 and verl, JSONL of FlashRAG, RLinf, ASearcher and Sleuth, plain or .gz."
)

COLLECTIONS_HELP = (
    "wiki18, wiki18-e5, wiki18-hnsw, wiki18-bm25, asearcher, asearcher-e5, searchr1-train, rlinf, flashrag, or one of "
    "its sets (nq, ...)."
)


@app.command()
def prepare(
    sources: Annotated[list[str], Argument(help=SOURCES_HELP)],
    out: Annotated[Path, Option(help="Output folder; it must not exist.")],
    test: Annotated[list[str] | None, Option(help="Test set or file to remove questions of; repeatable.")] = None,
    split: Annotated[Split | None, Option(help="Split of the named sets: train (default), dev or test.")] = None,
    seed: Annotated[int | None, Option(min=0, max=MAX_SEED, help="Shuffle by this seed. Default: file order.")] = None,
    limit: Annotated[int | None, Option(min=1, max=MAX_INT, help="Maximum number of questions, drawn by seed.")] = None,
    answerable: Annotated[bool, Option(help="Drop questions that are marked as unanswerable.")] = False,
    duplicates: Annotated[Duplicates | None, Option(help="Repeated questions. Default: drop from train only.")] = None,
    prompt: Annotated[str, Option(help="Prompt of Parquet rows without one: name or FILE.toml:NAME.")] = "instruct",
    folder: Folder = FOLDER,
) -> None:
    """Write questions.jsonl, the same questions as Parquet for Search-R1 and verl, and dropped.jsonl."""
    from sleuth.corpus.datasets.merge import MergeRules
    from sleuth.corpus.datasets.prepare import prepare as prepare_folder
    from sleuth.corpus.datasets.public import SETS
    from sleuth.corpus.questions import stream
    from sleuth.reward.answers import warn_wordless

    require_new(out)
    if split is not None and not any(source in SETS for source in sources):
        raise InputError(f"--split {split} has no effect on files, which are read whole; remove it, or name a set")

    def make_prompt(question: Any) -> Sequence[dict[str, str]]:
        from sleuth.agent import prompts, protocol  # heavy, and only needed for rows without a prompt

        return prompts.messages(question, prompt, protocol.make_protocol("tags"))

    with StageProgress() as progress:
        training = [_question_source(source, split or "train", folder, progress) for source in sources]
        tests = [_question_source(source, "test", folder, progress) for source in test or ()]
    drop_duplicates = duplicates == "drop" if duplicates else split in (None, "train")
    rules = MergeRules(drop_duplicates, answerable, limit, seed)
    manifest = prepare_folder(training, out, make_prompt, tests=tests, rules=rules, split=split or "train")
    _report_sets(out, manifest)
    if warning := warn_wordless(stream(out / "questions.jsonl")):
        echo(warning)


@app.command()
def download(
    names: Annotated[list[str], Argument(help=COLLECTIONS_HELP)],
    folder: Folder = FOLDER,
) -> None:
    """Download public files; interrupted downloads are resumed, and complete files are verified."""
    from sleuth.corpus.datasets import public
    from sleuth.corpus.datasets.public import find_collection

    for collection in [find_collection(name) for name in names]:
        with StageProgress() as progress:
            paths = public.download(collection, folder, progress)
        for path in paths:
            echo(f"{path.stat().st_size:>16,}  {path}")


def _question_source(name: str, split: Split, folder: Path, progress: StageProgress) -> "QuestionSource":
    """Return a public set by name, or a question file."""
    from sleuth.corpus.datasets import public
    from sleuth.corpus.datasets.prepare import QuestionSource
    from sleuth.corpus.datasets.public import SETS

    if name in SETS:
        return QuestionSource(name, public.question_file(name, split, folder, progress))
    if not Path(name).is_file():
        raise InputError(f"{name} is neither a file nor a known question set; known sets: {', '.join(SETS)}")
    return QuestionSource(name, Path(name))


def _report_sets(out: Path, manifest: dict[str, Any]) -> None:
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


@world_app.callback()
def world() -> None:
    """Generate an encyclopedia of fictional entities with questions."""


@world_app.command("make")
def make_world(
    out: Annotated[Path, Option(help="Output folder; it must not exist.")],
    passages: Annotated[int, Option(min=MIN_PASSAGES, max=MAX_PASSAGES, help="Number of passages.")] = 2000,
    seed: Annotated[int, Option(min=0, max=MAX_SEED, help="Seed of the world.")] = 0,
    train: Annotated[int, Option(min=1, max=MAX_ITEMS, help="Number of training questions.")] = 4000,
    test: Annotated[int, Option(min=1, max=MAX_ITEMS, help="Number of questions about held-out entities.")] = 500,
) -> None:
    """Write corpus.jsonl, questions.train.jsonl, questions.test.jsonl and manifest.json."""
    with _row_progress(passages + train + test) as advance:
        manifest = write_world(World(passages, seed), out, train, test, advance)
    for name, file in manifest["files"].items():
        echo(f"{file['rows']:>9,}  {out / name}")
    echo(f"           {out / 'manifest.json'}")


@contextmanager
def _row_progress(total: int) -> Iterator[Callable[[], None]]:
    console = Terminal(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("writing", total=total)
        rows = count(1)

        def advance() -> None:
            if next(rows) % UPDATE_EVERY == 0:
                progress.advance(task, UPDATE_EVERY)

        yield advance
