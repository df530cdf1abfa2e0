"""sleuth evaluate: a run or a model asked every question of a suite, and figures that can be had again."""

import asyncio
import re
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from sleuth.cli.options import (
    KEY_ENV,
    MAX_INT,
    MAX_SEED,
    MODEL,
    TIMEOUT,
    parse_endpoint,
    require_finite,
    require_new_file,
)
from sleuth.cli.progress import TrainingProgress
from sleuth.cli.shots import SHOTS, examples_of
from sleuth.cli.terminal import Terminal, print_markdown
from sleuth.errors import ConfigError, InputError, Interrupted, UserError
from sleuth.runs.interruption import INTERRUPTION, run_interruptible

if TYPE_CHECKING:
    from sleuth.agent.loading import AgentSpec, RemoteAgentSpec
    from sleuth.evaluate.benchmarks import Benchmark
    from sleuth.evaluate.folder import EvaluationFolder
    from sleuth.evaluate.judge import Judge
    from sleuth.evaluate.results import QuestionResult
    from sleuth.records import Question

EVALUATIONS = Path("evaluations")
PREPARED = Path("data/search-r1/test")
KEY = "OPENAI_API_KEY"


def evaluate(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN|MODEL|URL", help="the folder of a run, or a model: a folder, a hub name, or an address"
        ),
    ] = None,
    suite: Annotated[
        list[str] | None,
        typer.Option(
            "--suite",
            "--questions",
            metavar="NAME|FILE",
            help="search-r1 (its seven sets) or a questions file, may be repeated; default: the run's held-out ones",
        ),
    ] = None,
    data: Annotated[Path, typer.Option(help="where sleuth data prepare wrote the sets of search-r1")] = PREPARED,
    index: Annotated[
        str | None,
        typer.Option("--index", "--retriever", help="what is searched: an index folder, an address or web:PROVIDER"),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="search, direct, cot or rag; default: that of the run, search for a model")
    ] = None,
    shots: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|FILE:N|N", help=f"examples in the prompt of direct, cot and rag; FILE alone gives {SHOTS}"
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_INT, help="ask so many questions only, as many of each set, drawn by seed"),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, callback=require_finite, help="0 is greedy")] = 0.0,
    seed: Annotated[
        int, typer.Option(min=0, max=MAX_SEED, help="of --limit, --shots and, with a temperature, of sampling")
    ] = 0,
    before: Annotated[bool, typer.Option("--before", help="the policy of a run as it was before training")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="a setting of agent, retrieval or engine, or model.dtype"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="the folder to write, or to go on in; FILE.json: the figures alone; default evaluations/NAME"
        ),
    ] = None,
    served: Annotated[str | None, MODEL] = None,
    key_env: Annotated[str | None, KEY_ENV] = None,
    timeout: Annotated[float | None, TIMEOUT] = None,
    judge: Annotated[
        str | None, typer.Option(metavar="URL", help="an OpenAI-compatible endpoint that judges answers, as host/v1")
    ] = None,
    judge_model: Annotated[str | None, typer.Option(help="the model that judges")] = None,
    judge_key_env: Annotated[str, typer.Option(help="environment variable with its key")] = KEY,
    rescore: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="score the trajectories of an evaluation again, asking nothing"),
    ] = None,
) -> None:
    """Ask every question once and score the answers, by set and kind, with 95% intervals; killed, it goes on."""
    alone = out is not None and out.suffix == ".json"
    if alone and out is not None:
        _require_place(out)
    if (judge is None) != (judge_model is None):
        raise ConfigError("--judge and --judge-model belong together; give both, or neither")
    if judge is None and judge_key_env != KEY:
        raise ConfigError("--judge-key-env has no effect without --judge; leave it out")
    if (model is None) == (rescore is None):
        raise InputError("give the folder of a run or a model to evaluate, or --rescore FOLDER; one of the two")
    console = Terminal(stderr=True, markup=False, highlight=False)
    wanted = None if judge is None else _judge(judge, str(judge_model), judge_key_env)
    if rescore is not None:
        chosen = (suite, index, method, shots, limit, before, settings, out, temperature, seed)
        asks = any((*chosen, served, key_env, timeout))
        if asks or data != PREPARED:
            raise ConfigError("--rescore asks nothing, so that only --judge has an effect with it; leave out the rest")
        _rescored(rescore, wanted, console)
        return
    from sleuth.agent.loading import AgentOptions, describe_agent, describe_remote_agent
    from sleuth.cli.terminal import silence_transformers
    from sleuth.evaluate import benchmarks
    from sleuth.evaluate.benchmarks import SUITES
    from sleuth.runs.atomic import atomic_write

    if data != PREPARED and not SUITES.keys() & set(suite or ()):
        raise ConfigError(f"--data has no effect without a suite by name ({', '.join(SUITES)}); leave it out")
    if seed and not (temperature or limit or shots):
        raise ConfigError("--seed has no effect without --temperature, --limit or --shots; leave it out")
    silence_transformers()
    options = AgentOptions(tuple(settings or ()), index, method, before)
    endpoint = parse_endpoint(str(model), served, key_env, timeout)
    questions = Path(suite[0]) if suite else None
    spec: AgentSpec | RemoteAgentSpec
    if endpoint is None:
        spec = describe_agent(str(model), options, questions)
    else:
        spec = describe_remote_agent(endpoint, options, questions)
    for note in spec.notes:
        console.print(note, soft_wrap=True)
    benchmark = benchmarks.load_benchmark(suite or [str(path) for path in spec.questions], data, limit, seed)
    examples = examples_of(shots, spec, benchmark, seed)
    with ExitStack() as stack:
        stamp = _stamp(spec, benchmark, examples, temperature, seed)
        home = Path(stack.enter_context(TemporaryDirectory())) / "evaluation" if alone else out
        folder = _begun(home, spec, benchmark, stamp, console)
        stack.enter_context(folder.lock())
        _ask(folder, spec, examples, temperature, seed, console)
        _finished(folder, wanted, console)
        if alone and out is not None:
            with atomic_write(out) as temporary:
                temporary.write_bytes((folder.path / "results.json").read_bytes())
        console.print(f"figures      {out if alone else folder.path / 'results.json'}", soft_wrap=True)
        if not alone:
            console.print(f"report       {folder.path / 'results.html'}", soft_wrap=True)


def _stamp(
    spec: "AgentSpec | RemoteAgentSpec",
    benchmark: "Benchmark",
    examples: "tuple[Question, ...]",
    temperature: float,
    seed: int,
) -> dict[str, Any]:
    """All that the figures depend on."""
    from sleuth.evaluate.folder import hash_questions
    from sleuth.runs.checksums import code_version

    return {
        **spec.stamp(),
        "shots": {"count": len(examples), "sha256": hash_questions(examples)} if examples else None,
        "decoding": {"temperature": temperature, "seed": seed if temperature else None},
        "questions": {"count": len(benchmark.questions), "sha256": hash_questions(benchmark.questions)},
        "code": code_version(),
    }


def _require_place(out: Path) -> None:
    """Refuses a file that is there or cannot be written, before hours of work would end in nothing."""
    require_new_file(out)
    try:
        with TemporaryFile(dir=out.parent):
            return
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror}); choose another folder") from error


def _begun(
    out: Path | None,
    spec: "AgentSpec | RemoteAgentSpec",
    benchmark: "Benchmark",
    stamp: dict[str, Any],
    console: Console,
) -> "EvaluationFolder":
    """The folder of this evaluation; one without a name is found again by its stamp."""
    from dataclasses import asdict

    from sleuth.evaluate.folder import EvaluationFolder, find_other_version, short_hash

    method = spec.config.agent.method
    sample = benchmark.sample
    manifest = {
        "title": f"{spec.name}, {method}, {len(benchmark.questions):,} questions",
        "name": spec.name,
        "stamp": stamp,
        "sample": None if sample is None else {**asdict(sample), "sentence": sample.sentence()},
        "notes": [*benchmark.notes, *spec.notes],
    }
    slug = re.sub(r"[^\w.-]+", "-", f"{spec.name}-{method}").strip("-.")
    path = out or EVALUATIONS / f"{slug}-{short_hash(stamp)}"
    if out is None and not path.exists() and (other := find_other_version(EVALUATIONS, slug, stamp)):
        console.print(
            f"{other.path} is the same evaluation by another version of the code ({other.manifest()['stamp']['code']}, "
            f"now {stamp['code']}); a new one is begun in {path}",
            soft_wrap=True,
        )
    return EvaluationFolder.create_or_resume(path, manifest, benchmark.questions)


def _ask(
    folder: "EvaluationFolder",
    spec: "AgentSpec | RemoteAgentSpec",
    examples: "tuple[Question, ...]",
    temperature: float,
    seed: int,
    console: Console,
) -> None:
    """Asks what is missing, if anything is; a model that has nothing to do is not loaded."""
    from sleuth.agent import methods
    from sleuth.agent.episode import Agent
    from sleuth.evaluate.runner import evaluate_folder

    total, there = len(folder.questions()), sum(place.usable for place in folder.locations().values())
    if there:
        console.print(f"{there:,} of {total:,} questions are answered already in {folder.path}", soft_wrap=True)
    if there == total:
        return
    try:
        agent, concurrent = spec.load(examples), spec.concurrency
        methods.require_prompts(agent, folder.questions())
        if isinstance(agent, Agent) and (told := methods.describe_overlong(agent, folder.questions(), "questions")):
            console.print(told, soft_wrap=True)
    except UserError:
        folder.remove_if_empty()
        raise
    try:
        with TrainingProgress(console) as live, INTERRUPTION.handle_signals():
            live.begin(f"asking {total - there:,} questions", total - there)
            asking = evaluate_folder(
                agent, folder, temperature=temperature, seed=seed, concurrent=concurrent,
                on_result=lambda _: live.advance(),
            )  # fmt: skip
            spent = run_interruptible(asking)
    except Interrupted:
        console.print(f"interrupted; the same command goes on in {folder.path}", soft_wrap=True)
        raise
    console.print(f"{total - there:,} questions in {spent:.1f} s, {(total - there) / spent:.1f} a second")


def _judge(url: str, model: str, key_env: str) -> "Judge":
    """Who judges; an address that is none is refused before hours of asking."""
    from sleuth.evaluate.judge import Judge

    return Judge(url, model, key_env)


def _finished(folder: "EvaluationFolder", judge: "Judge | None", console: Console) -> None:
    from sleuth.evaluate.report import check_failures, load_results, markdown, write_report

    results = load_results(folder)
    if judge is not None:
        results = _judged(folder, results, judge, console)
    lost = check_failures(folder, results)
    print_markdown(markdown(write_report(folder, results)))
    if lost is not None:
        console.print(lost, soft_wrap=True)


def _judged(
    folder: "EvaluationFolder", results: "list[QuestionResult]", judge: "Judge", console: Console
) -> "list[QuestionResult]":
    from sleuth.evaluate.judge import judge_results

    with TrainingProgress(console) as live:
        live.begin(f"judging with {judge.model}", sum(bool(result.answer) for result in results))
        return asyncio.run(judge_results(folder, results, judge, live.advance))


def _rescored(path: Path, judge: "Judge | None", console: Console) -> None:
    """The figures of trajectories that are there, made again."""
    from sleuth.evaluate.folder import EvaluationFolder

    folder = EvaluationFolder.open(path)
    with folder.lock():
        _finished(folder, judge, console)
    console.print(f"figures      {folder.path / 'results.json'}", soft_wrap=True)
