"""Trains one policy with Sleuth and with TRL on the same machine, one after the other, and prints a Markdown table.

Both sides get the same model, questions, index, reward and settings, all from one recipe of Sleuth.
"""

import argparse
import ast
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sleuth.agent import prompts
from sleuth.agent.function_calls import FunctionCalls
from sleuth.config import recipe
from sleuth.config.tree import Config
from sleuth.corpus import questions
from sleuth.model.tokens import Tokens

HERE = Path(__file__).parent
SLEUTH = [sys.executable, "-c", "from sleuth.cli.main import main; main()"]
POLL = 0.05  # seconds between two looks at a side's log
AGENT = ("protocol", "prompt", "searches", "turn_tokens", "observation_tokens", "context_tokens")
PACKAGES = ("torch", "transformers", "trl", "vllm", "accelerate")


@dataclass(frozen=True, slots=True)
class Step:
    """A finished training step: seconds and CPU seconds since the side was started, and EM of its samples."""

    seconds: float
    cpu_seconds: float
    em: float


@dataclass(slots=True)
class Measurement:
    """What was seen of a side while it ran."""

    steps: list[Step] = field(default_factory=list)
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    host_gib: float = 0.0
    gpu_gib: float = 0.0


def sleuth_steps(folder: Path) -> Iterator[float]:
    """Yield the EM of each step that Sleuth's metrics record."""
    for row in map(json.loads, _complete_lines(folder / "metrics.jsonl")):
        if "episode/em" in row:
            yield row["episode/em"]


def trl_steps(log: Path) -> Iterator[float]:
    """Yield the EM of each step that TRL has printed."""
    for line in _complete_lines(log):
        if line.startswith("{'loss'"):
            yield float(ast.literal_eval(line)["rewards/reward_em/mean"])


def _complete_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []


def measure(name: str, command: Sequence[str], out: Path, log: Path, threads: int) -> Measurement:
    """Run a side to its end; raises RuntimeError if it fails."""
    threaded = {"OMP_NUM_THREADS": str(threads)} if threads else {}
    environment = {**os.environ, **threaded, "PYTHONUNBUFFERED": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    before, found, begun = gpu_memory(), Measurement(), time.perf_counter()
    with log.open("w") as output:
        side = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)  # noqa: S603
    watch = threading.Thread(target=_watch_gpu, args=(side, before, found), daemon=True)
    watch.start()
    while side.poll() is None:
        _read_steps(name, side.pid, out, log, found, begun)
        time.sleep(POLL)
    _read_steps(name, side.pid, out, log, found, begun)
    watch.join()
    found.seconds = time.perf_counter() - begun
    if side.returncode:
        raise RuntimeError(f"{name} exited with {side.returncode}; see {log}")
    return found


def _read_steps(name: str, pid: int, out: Path, log: Path, found: Measurement, begun: float) -> None:
    status = Path(f"/proc/{pid}/status")
    stat = Path(f"/proc/{pid}/stat")
    if (text := _read(status)) and "VmHWM" in text:
        found.host_gib = int(text.partition("VmHWM:")[2].split()[0]) / 2**20
        fields = _read(stat).rpartition(")")[2].split()
        found.cpu_seconds = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    ems = list(sleuth_steps(out) if name == "Sleuth" else trl_steps(log))
    for em in ems[len(found.steps) :]:
        found.steps.append(Step(time.perf_counter() - begun, found.cpu_seconds, em))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the process has ended
        return ""


def _watch_gpu(side: subprocess.Popen[bytes], before: float, found: Measurement) -> None:
    while shutil.which("nvidia-smi") and side.poll() is None:
        found.gpu_gib = max(found.gpu_gib, gpu_memory() - before)
        time.sleep(1)


def gpu_memory() -> float:
    """GiB in use on the GPUs, 0 without one."""
    if shutil.which("nvidia-smi") is None:
        return 0.0
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return sum(map(float, subprocess.check_output(query, text=True).split())) / 1024  # noqa: S603


def sleuth(*arguments: str | Path | int) -> None:
    """Run a command of Sleuth; what it prints goes to stderr, so that stdout holds the table alone."""
    subprocess.run([*SLEUTH, *map(str, arguments)], check=True, stdout=sys.stderr)  # noqa: S603


def prepare(options: argparse.Namespace, config: Config, out: Path) -> Path:
    """Write the index, the questions of the run for both sides, and TRL's settings; return the model folder."""
    data = Path(options.data) if options.data else out / "world"
    if not data.exists():
        sleuth("world", "make", "--out", data, "--test", options.test)
    if not (out / "index").exists():
        sleuth("index", "build", data / "corpus.jsonl", "--out", out / "index")
    asked = list(questions.load(data / "questions.train.jsonl"))[: config.train.steps * config.train.questions]
    if len(asked) < config.train.steps * config.train.questions:
        print(f"{len(asked)} training questions: fewer than the steps need, so they repeat", file=sys.stderr)
    lines = (data / "questions.train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (out / "train.jsonl").write_text("".join(lines[: len(asked)]), encoding="utf-8")
    model = recipe.resolve_policy(options.model or config.model.policy)
    tokens = Tokens.load(model)
    protocol = FunctionCalls(tokens)
    longest = 0
    with (out / "prompts.jsonl").open("w", encoding="utf-8") as file:
        for question in asked:
            prompt = prompts.messages(question, config.agent.template, protocol)
            longest = max(longest, len(prompts.encode(prompt, tokens, protocol.functions)))
            file.write(json.dumps({"prompt": prompt, "golden_answers": question.golden_answers}) + "\n")
    settings = {
        "model": str(model),
        "index": str(out / "index"),
        "questions": str(out / "prompts.jsonl"),
        "out": str(out / "trl"),
        "steps": config.train.steps,
        "samples": config.train.samples,
        "episodes": config.train.questions * config.train.samples,
        "rows": options.rows,
        "learning_rate": config.train.learning_rate,
        "k": config.retrieval.k,
        "searches": config.agent.searches,
        "turn_tokens": config.agent.turn_tokens,
        "observation_tokens": config.agent.observation_tokens,
        "completion_tokens": config.agent.context_tokens - longest,
        "context_tokens": config.agent.context_tokens,
        "seed": config.train.seed,
        "vllm": options.vllm,
    }
    (out / "trl.settings.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return model


def side_command(name: str, options: argparse.Namespace, model: Path, config: Config, out: Path) -> list[str]:
    if name == "TRL":
        return [options.trl_python, str(HERE / "train_trl.py"), str(out / "trl.settings.json")]
    given = {
        "model.policy": model,
        "data.train": out / "train.jsonl",
        "data.test": test_file(options, out),
        "retrieval.index": out / "index",
        "train.steps": config.train.steps,
        "train.save_every": config.train.steps,
        "train.threads": options.threads,
    }
    settings = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    return [*SLEUTH, "train", str(options.recipe), "--out", str(out / "sleuth"), *settings]


def test_file(options: argparse.Namespace, out: Path) -> Path:
    return (Path(options.data) if options.data else out / "world") / "questions.test.jsonl"


def evaluate(policy: Path, options: argparse.Namespace, config: Config, out: Path) -> Mapping[str, Any]:
    """Return EM of greedy answers to the test questions, with its interval."""
    given = {f"agent.{name}": getattr(config.agent, name) for name in AGENT}
    given |= {"retrieval.k": config.retrieval.k, "engine.slots": config.engine.slots}
    settings = [word for key, value in given.items() if value is not None for word in ("--set", f"{key}={value}")]
    if not out.exists():
        suite = ("--suite", test_file(options, out.parent), "--limit", options.test, "--seed", 0)
        sleuth("evaluate", policy, *suite, "--index", out.parent / "index", "--out", out, *settings)
    em: Mapping[str, Any] = json.loads(out.read_text())["mean"]["em"]
    return em


def user_lines(path: Path) -> int:
    """Number of lines that are neither blank nor a comment."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in lines)


def per_step(steps: Sequence[Step], warmup: int) -> tuple[float, float]:
    """Mean seconds and CPU seconds of the steps after the first `warmup`."""
    if len(steps) <= warmup:
        raise ValueError(f"{len(steps)} steps were finished; expected more than the {warmup} of the warm-up")
    first, last, count = steps[warmup - 1], steps[-1], len(steps) - warmup
    return (last.seconds - first.seconds) / count, (last.cpu_seconds - first.cpu_seconds) / count


def table(
    sides: Mapping[str, Measurement], ems: Mapping[str, Mapping[str, Any]], lines: Mapping[str, int], episodes: int
) -> str:
    """Return both tables as Markdown: the sides compared, and EM of the samples by step."""
    names = list(sides)
    rates = {name: per_step(side.steps, min(2, len(side.steps) - 1)) for name, side in sides.items()}
    rows: dict[str, list[str]] = {
        "seconds per step": [f"{rates[name][0]:.2f}" for name in names],
        "CPU seconds per step": [f"{rates[name][1]:.1f}" for name in names],
        "trajectories per second": [f"{episodes / rates[name][0]:.1f}" for name in names],
        "seconds, whole command": [f"{sides[name].seconds:.0f}" for name in names],
        "peak host memory, GiB": [f"{sides[name].host_gib:.2f}" for name in names],
        "peak GPU memory, GiB": [f"{sides[name].gpu_gib:.1f}" for name in names],
        "test EM after training": [f"{ems[n]['value']:.3f} [{ems[n]['low']:.3f}, {ems[n]['high']:.3f}]" for n in names],
        "lines the user writes": [str(lines[name]) for name in names],
    }
    head = ["| | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    body = [f"| {row} | " + " | ".join(cells) + " |" for row, cells in rows.items()]
    start = ems["before"]
    before = f"Test EM before training: {start['value']:.3f} [{start['low']:.3f}, {start['high']:.3f}]."
    curve = ["| step | " + " | ".join(f"{name}, EM | {name}, s" for name in names) + " |"]
    curve.append("|---:|" + "---:|" * 2 * len(names))
    for number, row in enumerate(zip(*(side.steps for side in sides.values()), strict=False), 1):
        curve.append(f"| {number} | " + " | ".join(f"{step.em:.3f} | {step.seconds:.0f}" for step in row) + " |")
    return "\n".join([*head, *body, "", before, "", *curve])


def versions(python: str) -> str:
    """Name the versions of the packages of the environment with TRL, which may be another than this one."""
    code = """
import importlib.metadata as metadata, importlib.util, sys
for name in sys.argv[1:]:
    if importlib.util.find_spec(name):
        print(name, metadata.version(name))
"""
    found = subprocess.check_output([python, "-c", code, *PACKAGES], text=True)  # noqa: S603
    return ", ".join([f"Python {platform.python_version()}", f"sleuth {version('sleuth')}", *found.splitlines()])


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="new folder")
    parser.add_argument("--recipe", type=Path, default=HERE / "sleuth.toml", help="settings of both sides")
    parser.add_argument("--model", help="model folder; default: that of the recipe")
    parser.add_argument("--data", help="folder of corpus.jsonl, questions.train.jsonl and questions.test.jsonl")
    parser.add_argument("--index", help="index folder, instead of indexing corpus.jsonl")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--questions", type=int, help="questions per step")
    parser.add_argument("--samples", type=int, help="samples per question")
    parser.add_argument("--test", type=int, default=200, help="test questions")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads of each side; default: PyTorch's")
    parser.add_argument("--rows", type=int, default=32, help="trajectories of TRL's forward passes")
    parser.add_argument("--vllm", type=float, help="TRL generates with vLLM, with this share of the GPU's memory")
    parser.add_argument("--trl-python", default=sys.executable, help="interpreter of the environment with TRL")
    parser.add_argument("--order", default="Sleuth,TRL", help="sides to run, in this order")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    given = {"steps": options.steps, "questions": options.questions, "samples": options.samples}
    changes = [f"train.{name}={value}" for name, value in given.items() if value is not None]
    config, out = recipe.load(str(options.recipe), changes), options.out.absolute()
    if config.train.steps < 2:
        sys.exit(f"{config.train.steps} step; expected at least 2, because the first is a warm-up")
    out.mkdir(parents=True)
    if options.index:
        (out / "index").symlink_to(Path(options.index).absolute())
    model = prepare(options, config, out)
    folders = {"Sleuth": out / "sleuth", "TRL": out / "trl"}
    sides: dict[str, Measurement] = {}
    for name in options.order.split(","):
        command = side_command(name, options, model, config, out)
        sides[name] = measure(name, command, folders[name], out / f"{name.lower()}.log", options.threads)
    policies = {"Sleuth": out / "sleuth" / "checkpoints" / f"step-{config.train.steps}", "TRL": out / "trl"}
    ems = {"before": evaluate(model, options, config, out / "before.evaluation.json")}
    ems |= {name: evaluate(policies[name], options, config, out / f"{name.lower()}.evaluation.json") for name in sides}
    lines = {"Sleuth": user_lines(options.recipe), "TRL": user_lines(HERE / "train_trl.py")}
    figures = {"sides": {name: asdict(side) for name, side in sides.items()}, "em": ems, "lines": lines}
    (out / "figures.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(versions(options.trl_python))
    print(table(sides, ems, lines, config.train.questions * config.train.samples))


if __name__ == "__main__":
    main()
