"""sleuth data make, split and review: questions made from a corpus, by rules or by a language model."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from sleuth.api.progress import StageProgress
from sleuth.cli.options import (
    MAX_HITS,
    MAX_INT,
    MAX_ITEMS,
    MAX_SEED,
    KeyEnv,
    ModelName,
    Port,
    Timeout,
    parse_endpoint,
    require_finite,
)
from sleuth.cli.terminal import echo, print_markdown, silence_transformers
from sleuth.cli.view import open_browser
from sleuth.errors import ConfigError, InputError, NothingMade
from sleuth.runs.atomic import require_new

if TYPE_CHECKING:
    from sleuth.corpus.passages import PassageStore
    from sleuth.corpus.questions import QuestionRow
    from sleuth.records import Passage, Question
    from sleuth.synthesis.cloze.exclusion import Exclusions
    from sleuth.synthesis.cloze.generator import GeneratedQuestions
    from sleuth.synthesis.rules.generator import RulesResult
    from sleuth.synthesis.teacher.teacher import TeacherSource

EXAMPLES = 10  # generated questions that are printed
DETECTED = 2_000  # passages that are read to choose the rules
MAX_PASSAGES = 20_000  # passages given to a teacher or to the rules for documents, all held in memory
ENOUGH = 200  # fewer questions than this are reported as few
Rules = Literal["auto", "encyclopedia", "documents"]

Source = Annotated[Path, Argument(metavar="CORPUS|INDEX", help="Index folder, or any source of an index.")]
Seed = Annotated[int, Option(min=0, max=MAX_SEED, help="Seed; the same seed gives the same file.")]
Corpus = Annotated[Path | None, Option("--corpus", "--index", help="Index folder or corpus of the questions.")]


@dataclass(frozen=True, slots=True)
class _Request:
    """The options of `make` that every way to make questions has; None where each has its own default."""

    source: Path
    out: Path
    questions: int
    seed: int
    per_passage: int | None
    hops_share: float | None
    name: str | None


def make(
    source: Source,
    out: Annotated[Path, Option(help="Output question file (.jsonl or .jsonl.gz); it must not exist.")],
    questions: Annotated[int, Option(min=1, max=MAX_INT, help="Maximum number of questions.")] = 10_000,
    seed: Seed = 0,
    without: Annotated[
        list[Path] | None,
        Option(help="Test or validation file; its pages, questions and answers are excluded. Repeatable."),
    ] = None,
    not_in: Annotated[
        list[Path] | None, Option(help="Question file; its questions are not made again, its pages are. Repeatable.")
    ] = None,
    rules: Annotated[
        Rules, Option(help="Without --teacher: rules for encyclopedias or for other documents. Default: by content.")
    ] = "auto",
    teacher: Annotated[
        str | None, Option(metavar="URL|FOLDER", help="Language model that writes the questions: a server or a model.")
    ] = None,
    prompts: Annotated[Path | None, Option(help="With --teacher: TOML file that replaces its prompts.")] = None,
    found_within: Annotated[
        int | None, Option(min=1, max=MAX_HITS, help="With --teacher and an index: drop what search does not find.")
    ] = None,
    passages: Annotated[
        int, Option(min=1, max=MAX_ITEMS, help="Maximum passages to read, drawn by seed; not for encyclopedias.")
    ] = MAX_PASSAGES,
    per_passage: Annotated[
        int | None, Option(min=1, max=MAX_ITEMS, help="Maximum single-hop questions per passage. Default: 1, 2 or 3.")
    ] = None,
    hops_share: Annotated[
        float | None, Option(min=0.0, max=1.0, callback=require_finite, help="Fraction of multi-hop questions.")
    ] = None,
    unanswerable: Annotated[
        float, Option(min=0.0, max=0.9, callback=require_finite, help="Fraction of questions to make unanswerable.")
    ] = 0.0,
    corpus_out: Annotated[
        Path | None, Option(help="With --unanswerable: the corpus without the held-out documents, to be indexed.")
    ] = None,
    name: Annotated[str | None, Option(help="Name of the set, used as data_source and id prefix.")] = None,
    served: ModelName = None,
    key_env: KeyEnv = None,
    timeout: Timeout = None,
    concurrency: Annotated[int | None, Option(min=1, max=MAX_ITEMS, help="With --teacher: requests in flight.")] = None,
    settings: Annotated[
        list[str] | None, Option("--set", metavar="KEY=VALUE", help="With a model folder: a setting of engine.")
    ] = None,
) -> None:
    """Make questions about a corpus, with answers and evidence: by rules, or with a language model (--teacher)."""
    if name is not None and not name.strip():
        raise InputError("--name is empty; give the set a name, such as cloze")
    if bool(unanswerable) != (corpus_out is not None):
        raise ConfigError("--unanswerable and --corpus-out belong together; give both, or neither")
    if corpus_out is not None:
        require_new(corpus_out)
    given: dict[str, object] = {"--prompts": prompts, "--found-within": found_within, "--model": served}
    given |= {"--key-env": key_env, "--timeout": timeout, "--concurrency": concurrency, "--set": settings}
    if teacher is None:
        if unused := [option for option, value in given.items() if value]:
            raise ConfigError(f"{unused[0]} has no effect without --teacher; remove it")
        require_new(out)
    elif rules != "auto":
        raise ConfigError(f"--rules {rules} has no effect with --teacher; remove one of the two")
    from sleuth.synthesis.cloze.exclusion import read_exclusions

    request = _Request(source, out, questions, seed, per_passage, hops_share, name)
    exclusions = read_exclusions(without or (), not_in or ())
    if teacher is not None:
        from sleuth.synthesis.teacher.question_file import require_unfinished
        from sleuth.synthesis.teacher.teacher import TeacherSource

        require_unfinished(out)
        endpoint = parse_endpoint(teacher, served, key_env, timeout)
        model = TeacherSource(teacher, endpoint, tuple(settings or ()), concurrency)
        with StageProgress() as progress, _open_passages(source, progress) as store:
            read = _read_passages(store, passages, seed, exclusions)
            _ask_teacher(request, read, model, prompts, found_within, exclusions.questions, progress)
    else:
        _follow_rules(request, rules, passages, exclusions)
    if corpus_out is not None:
        with StageProgress() as progress, _open_passages(source, progress) as store:
            _hold_out(out, store, unanswerable, seed, corpus_out)


def split(
    file: Annotated[Path, Argument(metavar="QUESTIONS", help="Question file with supporting_ids.")],
    corpus: Annotated[Path, Option("--corpus", "--index", help="Index folder or corpus of the questions.")],
    out: Annotated[Path, Option(help="Output folder for NAME.jsonl of each part; it must not exist.")],
    parts: Annotated[str, Option(help="Names and fractions of the parts.")] = "train=0.8,validation=0.1,test=0.1",
    seed: Seed = 0,
) -> None:
    """Split questions so that no document contributes to two parts; linked documents stay together."""
    require_new(out)
    from sleuth.corpus.questions import read_rows, write_rows
    from sleuth.runs.atomic import atomic_write
    from sleuth.synthesis.splits import split_by_document

    fractions = _parse_fractions(parts)
    rows = list(read_rows(file))
    with StageProgress() as progress, _open_passages(corpus, progress) as store:
        found = split_by_document(rows, store, fractions, seed)
    with atomic_write(out) as folder:
        folder.mkdir()
        for part, chosen in found.items():
            write_rows(folder / f"{part}.jsonl", chosen)
    for part, chosen in found.items():
        echo(f"{len(chosen):>9,}  {out / part}.jsonl")


def _follow_rules(request: _Request, rules: Rules, passages: int, exclusions: "Exclusions") -> None:
    """Make questions by the rules for encyclopedias or for other documents, and report them.

    Manuals whose pages begin with "NAME is a ..." look like an encyclopedia too: if its rules make fewer questions than
    wanted, those for documents are tried, and the larger set is kept.
    """
    with StageProgress() as progress, _open_passages(request.source, progress) as store:
        generated = made = None
        if rules == "encyclopedia" or (rules == "auto" and _is_encyclopedic(store)):
            generated = _generate_cloze(request, store, exclusions, progress)
        few = generated is not None and len(generated.questions) < request.questions and request.hops_share is None
        if generated is None or (rules == "auto" and few):
            read = _read_passages(store, passages, request.seed, exclusions)
            made = _apply_rules(request, read, exclusions.questions, progress)
    if generated is not None and (made is None or len(generated.questions) >= len(made.rows)):
        _write_generated(request, generated)
    elif made is not None:
        _write_made(request, made)


def _parse_fractions(parts: str) -> dict[str, float]:
    pairs = [part.partition("=") for part in parts.split(",")]
    try:
        return {name.strip(): float(share) for name, mark, share in pairs if name.strip() and mark}
    except ValueError:
        raise ConfigError(
            f"--parts {parts} is invalid; expected names and fractions, as in train=0.8,test=0.2"
        ) from None


def _read_passages(store: "PassageStore", limit: int, seed: int, exclusions: "Exclusions") -> "list[Passage]":
    """Draw passages by seed, in the order of the corpus, without the documents of the excluded passages."""
    from sleuth.synthesis.documents import document_of

    rows = range(len(store))
    chosen = rows if len(rows) <= limit else sorted(Random(seed).sample(rows, limit))
    excluded = {document_of(each) for each in map(store.find, sorted(exclusions.passages)) if each is not None}
    found = (store[row] for row in chosen)
    return [each for each in found if document_of(each) not in excluded and not exclusions.excludes(each)]


def _is_encyclopedic(store: "PassageStore") -> bool:
    from sleuth.synthesis.documents import is_encyclopedic

    rows = range(len(store))
    return is_encyclopedic(store[row] for row in Random(0).sample(rows, min(DETECTED, len(rows))))


def _generate_cloze(
    request: _Request, store: "PassageStore", exclusions: "Exclusions", progress: StageProgress
) -> "GeneratedQuestions":
    from sleuth.synthesis.cloze.generator import GeneratorConfig, generate

    share = 0.4 if request.hops_share is None else request.hops_share
    config = GeneratorConfig(request.questions, request.seed, request.per_passage or 1, request.name or "cloze", share)
    return generate(store, config, exclusions.with_titles(store.find), progress)


def _write_generated(request: _Request, made: "GeneratedQuestions") -> None:
    from sleuth.corpus.questions import write

    if not made.questions:
        raise NothingMade(
            f"no passage of {request.source} gives a question: the rules for encyclopedias need English prose in "
            f"passages with titles; --without excluded {made.excluded:,} of {made.passages:,} passages; for other "
            "documents use --rules documents, or a language model with --teacher"
        )
    write(request.out, made.questions)
    _report_generated(request.out, made, request.questions, Random(request.seed))


def _apply_rules(
    request: _Request, passages: "Sequence[Passage]", excluded: frozenset[str], progress: StageProgress
) -> "RulesResult":
    from sleuth.synthesis.rules.generator import RulesConfig, make_questions

    if request.hops_share:
        raise ConfigError("--hops-share has no effect with the rules for documents, which need one passage; remove it")
    config = RulesConfig(request.questions, request.seed, request.per_passage or 2, request.name or "rules")
    return make_questions(passages, config, progress, excluded)


def _write_made(request: _Request, made: "RulesResult") -> None:
    from sleuth.corpus.questions import write_rows

    if not made.rows:
        raise NothingMade(
            f"no passage of {request.source} gives a question: the rules need definitions, entries with descriptions, "
            f"values, key-value lines or tables in English, and {made.passages:,} passages have none; use a language "
            "model with --teacher"
        )
    write_rows(request.out, made.rows)
    _report_rows(request.out, made.rows, made.removed, request.seed)
    if len(made.rows) < min(ENOUGH, request.questions):
        echo(
            f"{len(made.rows):,} questions from {made.passages:,} passages are few; a language model finds more: "
            "sleuth data make ... --teacher URL|FOLDER"
        )


def _ask_teacher(
    request: _Request,
    passages: "Sequence[Passage]",
    model: "TeacherSource",
    prompts: Path | None,
    found_within: int | None,
    excluded: frozenset[str],
    progress: StageProgress,
) -> None:
    from sleuth.retrieval import manifest
    from sleuth.retrieval.backends import open_backend
    from sleuth.runs.interruption import INTERRUPTION, run_interruptible
    from sleuth.synthesis.teacher.pipeline import TeacherConfig
    from sleuth.synthesis.teacher.question_file import describe_report, make_question_file, report_path

    is_index = (request.source / manifest.NAME).is_file()
    if found_within is not None and not is_index:
        raise ConfigError(f"--found-within needs an index to search, and {request.source} is a corpus; build one first")
    silence_transformers()
    config = TeacherConfig(
        request.questions,
        request.seed,
        request.name or "teacher",
        request.per_passage or 3,
        0.2 if request.hops_share is None else request.hops_share,
        found_within=found_within,
    )
    retriever = open_backend(str(request.source)) if is_index else None
    with INTERRUPTION.handle_signals():
        result = run_interruptible(
            make_question_file(
                passages,
                model,
                request.out,
                config,
                prompts=prompts,
                retriever=retriever,
                progress=progress,
                excluded=excluded,
            )
        )
    print_markdown(describe_report(report_path(request.out)))
    if result.rows:
        _report_rows(request.out, result.rows, {}, request.seed)
    echo(f"           {report_path(request.out)}")
    if result.waiting:
        raise InputError(
            f"{result.waiting:,} candidates wait for calls that failed; run the same command again to continue, which "
            "makes only the missing calls"
        )
    if not result.rows:
        raise NothingMade(f"no candidate passed the filters; see {report_path(request.out)}, or use a stronger teacher")


def _hold_out(out: Path, store: "PassageStore", share: float, seed: int, corpus_out: Path) -> None:
    """Mark questions as unanswerable, and write the corpus without their documents."""
    from sleuth.corpus.questions import read_rows, write_rows
    from sleuth.synthesis.unanswerable import hold_out_documents, write_remaining

    passages = [store[row] for row in range(len(store))]
    held = hold_out_documents(list(read_rows(out)), passages, share, seed)
    count = write_remaining(passages, held.documents, corpus_out)
    write_rows(out, held.rows)
    marked = sum(row.question.answerable is False for row in held.rows)
    echo(f"{marked:>9,}  questions are unanswerable: {len(held.documents):,} documents are held out")
    if held.dropped:
        echo(f"{held.dropped:>9,}  questions were dropped, because other documents seem to answer them")
    echo(f"{count:>9,}  passages remain in {corpus_out}; build the index from it")


def _open_passages(source: Path, progress: StageProgress) -> "AbstractContextManager[PassageStore]":
    """Open the passages of an index folder, or of any other corpus source."""
    from sleuth.retrieval import manifest
    from sleuth.retrieval.index import open_passages
    from sleuth.synthesis.cloze.generator import open_corpus

    if (source / manifest.NAME).is_file():
        return nullcontext(open_passages(source))
    return open_corpus(source, progress)


def _report_rows(out: Path, rows: "Sequence[QuestionRow]", removed: Mapping[str, int], seed: int) -> None:
    _print_types(Counter(str(row.question.type) for row in rows))
    _print_examples([row.question for row in rows], Random(seed))
    for reason, count in removed.items():
        echo(f"{count:>9,}  drafts dropped: {reason}")
    echo(f"{len(rows):>9,}  {out}")


def _report_generated(out: Path, made: "GeneratedQuestions", wanted: int, random: Random) -> None:
    _print_types(made.type_counts)
    _print_examples(made.questions, random)
    hops = ", ".join(f"{count:,} questions need {hops}" for hops, count in sorted(made.hop_counts.items()))
    echo(f"{made.passages:,} passages: {made.excluded:,} excluded by --without, {made.passages_used:,} used; {hops}")
    if made.rejected:
        echo(f"{made.rejected:,} drafts were dropped because --without contains their answer")
    if len(made.questions) < wanted:
        echo(f"fewer than {wanted:,}: the passages do not suffice; raise --per-passage for more")
    echo(f"{len(made.questions):>9,}  {out}")


def _print_types(counts: Counter[str]) -> None:
    lines = ["| answer type, or relation between passages | questions |", "|---|---:|"]
    lines += [f"| {kind} | {count:,} |" for kind, count in counts.most_common()]
    print_markdown("\n".join(lines) + "\n")


def _print_examples(questions: "Sequence[Question]", random: Random) -> None:
    for question in random.sample(questions, min(EXAMPLES, len(questions))):
        echo(f"  {question.question}  [{' | '.join(question.golden_answers)}]")


def review(
    file: Annotated[Path, Argument(metavar="QUESTIONS", help="Question file to review.")],
    corpus: Corpus = None,
    apply: Annotated[Path | None, Option(help="Write the reviewed questions to this new file, and exit.")] = None,
    port: Port = 8091,
    open_page: Annotated[bool, Option("--open/--no-open", help="Open the page in a browser.")] = True,
) -> None:
    """Review questions in a browser: keep, edit or drop each one, with its evidence beside it.

    Each decision is written to NAME.review.jsonl at once. The server listens on this machine only. Stop it with
    Ctrl-C, and write the result with --apply OUT.
    """
    from sleuth.view.review import Review, application, apply_decisions, decisions_path

    if apply is not None:
        require_new(apply)
        counts = apply_decisions(file, apply)
        kept = sum(counts.values()) - counts["drop"]
        edits = f"{counts['edit']:,} edited, {counts['undecided']:,} without a decision"
        echo(f"{kept:>9,}  {apply} ({edits}; {counts['drop']:,} dropped)")
        return
    from sleuth.http.middleware import server_names
    from sleuth.http.server import authority, bind, serve

    with StageProgress() as progress:
        opened: AbstractContextManager[PassageStore | None]
        opened = nullcontext(None) if corpus is None else _open_passages(corpus, progress)
        with opened as store, Review.open(file, None if store is None else store.find) as session:
            listener = bind("127.0.0.1", port)
            served = application(session, names=server_names("127.0.0.1"))

            def ready() -> None:
                address = f"http://{authority('127.0.0.1', listener.getsockname()[1])}/"
                echo(f"reviewing {len(session.rows):,} questions at {address}; stop with Ctrl-C")
                echo(f"decisions: {decisions_path(file)}")
                if open_page:
                    open_browser(address)

            with listener:
                serve(served, listener, ready, shutdown_seconds=2)
