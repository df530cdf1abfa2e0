"""sleuth evaluate and sleuth compare: evaluate an agent on benchmarks, and compare two evaluations."""

import asyncio
import json
import re
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from typer import Argument, Option

from sleuth.api.progress import TrainingProgress
from sleuth.cli import options
from sleuth.cli.terminal import print_markdown, silence_transformers, stderr_console
from sleuth.errors import ConfigError, InputError, Interrupted, UserError
from sleuth.runs.interruption import INTERRUPTION, run_interruptible

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sleuth.agent.loading import AgentSpec, RemoteAgentSpec
    from sleuth.evaluate.benchmarks import Benchmark
    from sleuth.evaluate.folder import EvaluationFolder
    from sleuth.evaluate.judge import Judge
    from sleuth.evaluate.results import QuestionResult
    from sleuth.records import Question

    Spec = AgentSpec | RemoteAgentSpec

EVALUATIONS = Path("evaluations")
PREPARED = Path("data/search-r1/test")
KEY_ENV = "OPENAI_API_KEY"
DEFAULT_SHOTS = 4
SUITE_HELP = "search-r1 (seven sets) or a question file; repeatable. Default: the run's held-out questions."


def evaluate(
    model: Annotated[str | None, Argument(metavar="RUN|MODEL|URL", help="Run, model, hub name or server.")] = None,
    suite: Annotated[list[str] | None, Option("--suite", "--questions", metavar="NAME|FILE", help=SUITE_HELP)] = None,
    data: Annotated[Path, Option(help="Folder of the search-r1 sets, from sleuth data prepare.")] = PREPARED,
    index: options.AgentIndex = None,
    method: options.Method = None,
    shots: Annotated[
        str | None, Option(metavar="FILE|FILE:N|N", help="Few-shot examples for direct, cot and rag; default N: 4.")
    ] = None,
    limit: Annotated[int | None, Option(min=1, max=options.MAX_INT, help="Maximum questions, equal per set.")] = None,
    temperature: options.Temperature = 0.0,
    seed: Annotated[int, Option(min=0, max=options.MAX_SEED, help="Seed of sampling, --limit and --shots.")] = 0,
    before: options.Before = False,
    settings: options.AgentSettings = None,
    out: Annotated[Path | None, Option(help="New folder, one to resume, or FILE.json for figures only.")] = None,
    served: options.ModelName = None,
    key_env: options.KeyEnv = None,
    timeout: options.Timeout = None,
    judge: Annotated[str | None, Option(metavar="URL", help="Judge server, as http://host/v1.")] = None,
    judge_model: Annotated[str | None, Option(help="Model that judges.")] = None,
    judge_key_env: Annotated[str, Option(help="Environment variable of the judge's API key.")] = KEY_ENV,
    rescore: Annotated[Path | None, Option(metavar="FOLDER", help="Score an existing evaluation again.")] = None,
) -> None:
    """Answer every question once and score the answers, with 95% intervals. Run the same command again to resume."""
    from sleuth.evaluate.folder import EvaluationFolder

    figures_only = out is not None and out.suffix == ".json"
    if out is not None and figures_only:
        _require_writable(out)
    if (model is None) == (rescore is None):
        raise InputError("give either a run or model to evaluate, or --rescore FOLDER")
    console = stderr_console()
    chosen_judge = _judge(judge, judge_model, judge_key_env)
    if rescore is not None:
        given = (suite, index, method, shots, limit, before, settings, out, temperature, seed, served, key_env, timeout)
        if any(given) or data != PREPARED:
            raise ConfigError("--rescore runs no model: only the --judge options have an effect; remove the others")
        folder = EvaluationFolder.open(rescore)
        with folder.lock():
            _report(folder, chosen_judge, console)
        console.print(f"figures      {folder.path / 'results.json'}", soft_wrap=True)
        return
    from sleuth.agent.loading import AgentOptions, describe_agent, describe_remote_agent
    from sleuth.evaluate.benchmarks import SUITES, load_benchmark
    from sleuth.runs.atomic import atomic_write

    if data != PREPARED and not SUITES.keys() & set(suite or ()):
        raise ConfigError(f"--data has no effect without a named suite ({', '.join(SUITES)}); remove it")
    if seed and not (temperature or limit or shots):
        raise ConfigError("--seed has no effect without --temperature, --limit or --shots; remove it")
    silence_transformers()
    agent_options = AgentOptions(tuple(settings or ()), index, method, before)
    endpoint = options.parse_endpoint(str(model), served, key_env, timeout)
    questions = Path(suite[0]) if suite else None
    spec: Spec
    if endpoint is None:
        spec = describe_agent(str(model), agent_options, questions)
    else:
        spec = describe_remote_agent(endpoint, agent_options, questions)
    for note in spec.notes:
        console.print(note, soft_wrap=True)
    benchmark = load_benchmark(suite or [str(path) for path in spec.questions], data, limit, seed)
    examples = _load_examples(shots, spec, benchmark, seed)
    with ExitStack() as stack:
        stamp = _stamp(spec, benchmark, examples, temperature, seed)
        path = Path(stack.enter_context(TemporaryDirectory())) / "evaluation" if figures_only else out
        folder = _open_folder(path, spec, benchmark, stamp, console)
        stack.enter_context(folder.lock())
        known = _answer_questions(folder, spec, examples, temperature, seed, console)
        _report(folder, chosen_judge, console, known)
        if out is not None and figures_only:
            with atomic_write(out) as temporary:
                temporary.write_bytes((folder.path / "results.json").read_bytes())
        console.print(f"figures      {out if figures_only else folder.path / 'results.json'}", soft_wrap=True)
        if not figures_only:
            console.print(f"report       {folder.path / 'results.html'}", soft_wrap=True)


def compare(
    first: Annotated[Path, Argument(metavar="A", help="An evaluation folder, or its results.json.")],
    second: Annotated[Path, Argument(metavar="B", help="Another evaluation of the same questions.")],
    measure: Annotated[str, Option(help="Measure to compare: em, f1, cover_em, judge, format, tokens...")] = "em",
    common: Annotated[bool, Option("--common", help="Compare only questions in both evaluations.")] = False,
    show: Annotated[int, Option(min=0, max=options.MAX_INT, help="Changed questions to print, won and lost.")] = 10,
    json_file: options.JsonFile = None,
) -> None:
    """Compare B with A: paired differences with 95% intervals, per set and overall, and the changed questions."""
    options.require_new_file(json_file)
    from sleuth.evaluate import comparison
    from sleuth.evaluate.results import MEASURES, read_results

    if measure not in MEASURES:
        raise ConfigError(f"--measure {measure} is unknown; expected one of {', '.join(MEASURES)}")
    found = comparison.compare(read_results(first), read_results(second), common=common)
    if found.overall(measure) is None:
        raise ConfigError(f"--measure {measure} was not measured in both evaluations; choose another")
    names = [(path if path.is_dir() else path.parent).resolve().name for path in (first, second)]
    print_markdown(comparison.markdown(found, (names[0], names[1]), measure, show))
    if json_file is not None:
        figures = {"first": str(first), "second": str(second), **comparison.as_json(found, measure)}
        json_file.write_text(json.dumps(figures, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _require_writable(out: Path) -> None:
    options.require_new_file(out)
    try:
        with TemporaryFile(dir=out.parent):
            return
    except OSError as error:
        raise InputError(f"cannot write {out} ({error.strerror}); choose another folder") from error


def _judge(url: str | None, model: str | None, key_env: str) -> "Judge | None":
    """Build the judge from the options, or return None without a judge; raises ConfigError for a malformed address."""
    if (url is None) != (model is None):
        raise ConfigError("--judge and --judge-model belong together; give both, or neither")
    if url is None or model is None:
        if key_env != KEY_ENV:
            raise ConfigError("--judge-key-env has no effect without --judge; remove it")
        return None
    from sleuth.evaluate.judge import Judge

    return Judge(url, model, key_env)


def _load_examples(shots: str | None, spec: "Spec", benchmark: "Benchmark", seed: int) -> "tuple[Question, ...]":
    """Load few-shot examples, excluding every question of the benchmark, sampled or not, in any spelling."""
    from sleuth.agent import methods
    from sleuth.corpus.datasets.merge import question_key
    from sleuth.corpus.questions import load

    if shots is None:
        methods.make_method(spec.config.agent)
        return ()
    name, _, number = shots.rpartition(":")
    file, count = (name, int(number)) if number.isdigit() else (shots, DEFAULT_SHOTS)
    if not count:
        raise ConfigError(f"--shots {shots} adds no examples; give at least 1, or remove it")
    if not file and not spec.training:
        raise InputError(f"--shots {shots} names no file, and a model has no training questions; give FILE:{count}")
    excluded = {question_key(question.question) for question in benchmark.whole}
    files = (Path(file),) if file else spec.training
    pool = [each for path in files for each in load(path) if question_key(each.question) not in excluded]
    chosen = methods.draw_shots(pool, count, seed)
    methods.make_method(spec.config.agent, chosen)
    return chosen


def _stamp(
    spec: "Spec", benchmark: "Benchmark", examples: "tuple[Question, ...]", temperature: float, seed: int
) -> dict[str, Any]:
    """Stamp everything that the results depend on."""
    from sleuth.evaluate.folder import hash_questions
    from sleuth.runs.checksums import code_version

    return {
        **spec.stamp(),
        "shots": {"count": len(examples), "sha256": hash_questions(examples)} if examples else None,
        "decoding": {"temperature": temperature, "seed": seed if temperature else None},
        "questions": {"count": len(benchmark.questions), "sha256": hash_questions(benchmark.questions)},
        "code": code_version(),
    }


def _open_folder(
    out: Path | None, spec: "Spec", benchmark: "Benchmark", stamp: dict[str, Any], console: Console
) -> "EvaluationFolder":
    """Create or resume the evaluation folder; without --out, its name contains a hash of the stamp."""
    from sleuth.evaluate.folder import EvaluationFolder, find_other_version, short_hash

    method, sample = spec.config.agent.method, benchmark.sample
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
            f"{other.path} is the same evaluation with code version {other.manifest()['stamp']['code']} "
            f"(now {stamp['code']}); starting a new one in {path}",
            soft_wrap=True,
        )
    return EvaluationFolder.create_or_resume(path, manifest, benchmark.questions)


def _answer_questions(
    folder: "EvaluationFolder",
    spec: "Spec",
    examples: "tuple[Question, ...]",
    temperature: float,
    seed: int,
    console: Console,
) -> "Mapping[int, QuestionResult]":
    """Answer the questions without an answer and return their results; the model is loaded only if there are any."""
    from sleuth.agent import methods
    from sleuth.agent.episode import Agent
    from sleuth.agent.loading import AgentSpec
    from sleuth.evaluate.runner import evaluate_folder
    from sleuth.gateway.outside import OutsideAgent, load_runner, running

    total, done = len(folder.questions()), sum(place.usable for place in folder.locations().values())
    if done:
        console.print(f"{done:,} of {total:,} questions are already answered in {folder.path}", soft_wrap=True)
    if done == total:
        return {}
    try:
        agent = load_runner(spec, examples) if isinstance(spec, AgentSpec) else spec.load(examples)
        if not isinstance(agent, OutsideAgent):
            methods.require_prompts(agent, folder.questions())
        if isinstance(agent, Agent) and (note := methods.describe_overlong(agent, folder.questions(), "questions")):
            console.print(note, soft_wrap=True)
    except UserError:
        folder.remove_if_empty()
        raise
    try:
        with running(agent), TrainingProgress(console) as live, INTERRUPTION.handle_signals():
            live.begin(f"asking {total - done:,} questions", total - done)
            evaluation = evaluate_folder(
                agent, folder, temperature=temperature, seed=seed, concurrent=spec.concurrency,
                on_result=lambda _: live.advance(),
            )  # fmt: skip
            asked = run_interruptible(evaluation)
    except Interrupted:
        console.print(f"interrupted; the same command resumes {folder.path}", soft_wrap=True)
        raise
    count, seconds = len(asked.results), asked.seconds
    console.print(f"{count:,} questions in {seconds:.1f} s, {count / seconds:.1f} per second")
    return asked.results


def _report(
    folder: "EvaluationFolder",
    judge: "Judge | None",
    console: Console,
    known: "Mapping[int, QuestionResult] | None" = None,
) -> None:
    from sleuth.evaluate.judge import judge_results
    from sleuth.evaluate.report import check_failures, load_results, markdown, write_report

    results = load_results(folder, known)
    if judge is not None:
        with TrainingProgress(console) as live:
            live.begin(f"judging with {judge.model}", sum(bool(result.answer) for result in results))
            results = asyncio.run(judge_results(folder, results, judge, live.advance))
    warning = check_failures(folder, results)
    print_markdown(markdown(write_report(folder, results)))
    if warning is not None:
        console.print(warning, soft_wrap=True)
