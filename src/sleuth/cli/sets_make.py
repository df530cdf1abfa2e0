"""sleuth data make: questions about a corpus of one's own, made by rules of form, without a language model."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated

import typer

from sleuth.cli.options import MAX_INT, MAX_ITEMS, MAX_SEED
from sleuth.cli.progress import StageProgress
from sleuth.cli.terminal import echo, print_markdown
from sleuth.errors import InputError
from sleuth.runs.atomic import require_new

if TYPE_CHECKING:
    from sleuth.corpus.passages import PassageStore
    from sleuth.records import Question
    from sleuth.synthesis.cloze.generator import GeneratedQuestions

EXAMPLES = 10


def make(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="CORPUS|INDEX", help="an index folder, or anything that an index is built of: JSONL, documents"
        ),
    ],
    out: Annotated[Path, typer.Option(help="the question file to write (.jsonl or .jsonl.gz); it must not exist")],
    questions: Annotated[
        int, typer.Option(min=1, max=MAX_INT, help="how many; fewer where the passages give no more")
    ] = 10_000,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="the same seed gives the same file")] = 0,
    without: Annotated[
        list[Path] | None,
        typer.Option(
            help="a question file that is measured on, test or validation: pages that it names are not used, nor are "
            "its questions asked, nor its answers asked for; can be given several times"
        ),
    ] = None,
    per_passage: Annotated[
        int,
        typer.Option(
            min=1, max=MAX_ITEMS, help="questions about a passage alone at most; joined with others it is more often"
        ),
    ] = 1,
    hops_share: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="share of questions that take several passages")
    ] = 0.4,
    name: Annotated[str, typer.Option(help="the name of the set, as data_source and before each id")] = "cloze",
) -> None:
    """Make questions about the passages of a corpus, each with its answer and the passage that holds it."""
    require_new(out)
    if not name.strip():
        raise InputError("--name is empty; give the set a name, such as cloze")
    from sleuth.corpus.questions import write
    from sleuth.synthesis.cloze.exclusion import read_exclusions
    from sleuth.synthesis.cloze.generator import GeneratorConfig, generate

    exclusions = read_exclusions(without or ())
    config = GeneratorConfig(questions, seed, per_passage, name, hops_share)
    with StageProgress() as meter, _passages(source, meter) as passages:
        made = generate(passages, config, exclusions.with_titles(passages.find), meter)
    if not made.questions:
        raise InputError(
            f"no passage of {source} gives a question: the rules read English prose whose passages have titles, as "
            f"Wikipedia's have; {made.excluded:,} of {made.passages:,} passages were left out by --without"
        )
    write(out, made.questions)
    _report(out, made, questions, Random(seed))


@contextmanager
def _passages(source: Path, meter: StageProgress) -> "Iterator[PassageStore]":
    """The passages of an index folder, which knows where its corpus lies, or of any other source."""
    from sleuth.retrieval import manifest
    from sleuth.retrieval.index import open_passages
    from sleuth.synthesis.cloze.generator import open_corpus

    if (source / manifest.NAME).is_file():
        yield open_passages(source)
        return
    with open_corpus(source, meter) as passages:
        yield passages


def _report(out: Path, made: "GeneratedQuestions", wanted: int, dice: Random) -> None:
    lines = ["| answer, or what joins passages | questions |", "|---|---:|"]
    lines += [f"| {kind} | {count:,} |" for kind, count in made.type_counts.most_common()]
    print_markdown("\n".join(lines) + "\n")
    some = dice.sample(made.questions, min(EXAMPLES, len(made.questions)))
    for question in some:
        echo(_example(question))
    echo(
        f"{made.passages:,} passages: {made.excluded:,} left out by --without, {made.passages_used:,} asked about; "
        + ", ".join(f"{count:,} questions take {hops}" for hops, count in sorted(made.hop_counts.items()))
    )
    if made.rejected:
        echo(f"{made.rejected:,} drafts were left out since --without has their answer")
    if len(made.questions) < wanted:
        echo(f"fewer than {wanted:,}: the passages give no more; a higher --per-passage may")
    echo(f"{len(made.questions):>9,}  {out}")


def _example(question: "Question") -> str:
    return f"  {question.question}  [{' | '.join(question.golden_answers)}]"
