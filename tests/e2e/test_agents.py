"""Agents of examples/agents train through the real command; those of other frameworks in environments of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sleuth.http.server import bind

ROOT = Path(__file__).parents[2]
AGENTS = ROOT / "examples" / "agents"
SMALL = (
    "train.steps=2",
    "train.questions=2",
    "train.samples=4",
    "train.threads=1",
    "evaluate.questions=2",
    "algorithm.correction.level=token",  # measures the logprobs of the trainer beside the engine's
)
K3 = 1e-10
FRAMEWORKS = ("langgraph_agent", "openai_agents_sdk", "pydantic_ai_agent")
RECIPE = """
name = "environment"
model.policy = "quickstart-tools"
data = { train = "tasks.jsonl", test = "tasks.jsonl" }
agent = { run = "worker", turns = 5, turn_tokens = 64, context_tokens = 512 }
"""
ENVIRONMENT = """
[env.taskset]
id = "sleuth-search"
questions = "questions.jsonl"
tools = { index = "import:lookup.passages", k = 1 }
"""
LOOKUP = """
def passages(queries, k):
    return [[{"id": "1", "contents": f'"{query}"\\nThe mentor of {query} is Bo Li.'}] for query in queries]
"""

Rows = list[dict[str, Any]]


def train(recipe: str, out: Path, *settings: str, folder: Path = AGENTS, token: str = "") -> Rows:
    """Train and return the metrics of the steps."""
    world = () if recipe.endswith(".toml") else ("world.passages=200",)
    options = [word for setting in (*SMALL, *world, *settings) for word in ("--set", setting)]
    command = [sys.executable, "-c", "from sleuth.cli.main import main; main()", "train", recipe, "--out", str(out)]
    done = subprocess.run(
        [*command, *options],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "SLEUTH_GATEWAY_TOKEN": token},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [row for row in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()) if "episode/em" in row]


def trajectories(run: Path) -> dict[tuple[int, int, int], dict[str, Any]]:
    rows = [
        json.loads(line) for file in run.glob("trajectories/step-?.jsonl") for line in file.read_text().splitlines()
    ]
    return {(row["step"], row["group"], row["sample"]): row for row in rows}


def assert_one_segment_each(rows: Rows) -> None:
    """Each attempt was one conversation, and no token was tokenised again."""
    assert len(rows) == 2
    for row in rows:
        assert row["gateway/attempts"] == row["gateway/segments"] == 8
        assert row["gateway/calls"] >= 8
        assert row["gateway/failures"] == row["gateway/forks"] == 0
        assert row["correction/k3"] <= K3


@contextmanager
def worker(environment: str, agent: str, folder: Path, token: str) -> Iterator[str]:
    """Run a worker in an environment of its own and yield the port at which it expects the gateway."""
    with bind("127.0.0.1", 0) as listener:
        port = str(listener.getsockname()[1])
    python = Path(os.environ["SLEUTH_FRAMEWORKS"]) / environment / "bin" / "python"
    paths = os.pathsep.join(map(str, (ROOT / "src", folder)))
    command = [str(python), "-m", "sleuth.gateway.worker", "--gateway", f"http://127.0.0.1:{port}", "--agent", agent]
    variables = {**os.environ, "PYTHONPATH": paths, "SLEUTH_GATEWAY_TOKEN": token}
    with subprocess.Popen(command, cwd=folder, env=variables, stderr=subprocess.DEVNULL) as process:
        try:
            yield port
        finally:
            process.terminate()


@pytest.mark.e2e
def test_the_tag_agent_in_plain_openai_samples_the_tokens_of_the_built_in_agent(tmp_path: Path) -> None:
    size = ("train.steps=1", "train.questions=4", "train.samples=8")
    train("quickstart", tmp_path / "own", *size)
    (row,) = train("quickstart", tmp_path / "outside", *size, "agent.run=import:openai_tags.run")
    own, outside = trajectories(tmp_path / "own"), trajectories(tmp_path / "outside")
    assert len(own) == 32
    assert own.keys() == outside.keys()
    # Batches differ, and so may the last digits of a sum: on some CPUs a sample or two take another token.
    alike = [name for name, each in own.items() if [each["ids"]] == [part["ids"] for part in outside[name]["segments"]]]
    assert len(alike) >= 30
    assert all(own[name]["score"]["total"] == outside[name]["score"]["total"] for name in alike)
    assert row["correction/k3"] <= K3


@pytest.mark.e2e
@pytest.mark.frameworks
@pytest.mark.parametrize("agent", FRAMEWORKS)
def test_an_agent_of_a_framework_trains(agent: str, tmp_path: Path) -> None:
    with worker(agent, f"import:{agent}.run", AGENTS, "secret") as port:
        settings = ("agent.run=worker", f"gateway.port={port}", "agent.turns=5")
        rows = train("quickstart-tools", tmp_path / "run", *settings, token="secret")
    assert_one_segment_each(rows)
    assert sum(row["gateway/rewritten"] for row in rows) == 0 or agent == "pydantic_ai_agent"


@pytest.mark.e2e
@pytest.mark.frameworks
def test_a_program_in_javascript_trains(tmp_path: Path) -> None:
    rows = train("quickstart-tools", tmp_path / "run", "agent.command=node agent.mjs", "agent.turns=5")
    assert_one_segment_each(rows)


@pytest.mark.e2e
@pytest.mark.frameworks
def test_a_verifiers_environment_trains(tmp_path: Path) -> None:
    """Its tasks are the questions, its tools are its own, and its rewards are those of the attempts."""
    (tmp_path / "env.toml").write_text(ENVIRONMENT)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "lookup.py").write_text(LOOKUP)
    names = ("Ada Byron", "Cy Fox", "Dee Gray", "Ed Hill")
    questions = [
        {"id": name, "question": f"Who is the mentor of {name}?", "golden_answers": ["Bo Li"]} for name in names
    ]
    (tmp_path / "questions.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in questions))
    python = Path(os.environ["SLEUTH_FRAMEWORKS"]) / "verifiers" / "bin" / "python"
    export = [str(python), "-m", "sleuth.gateway.verifiers_env", "env.toml", "--out", "tasks.jsonl"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run(export, cwd=tmp_path, env=variables, check=True, timeout=60)
    with worker("verifiers", "verifiers:env.toml", tmp_path, "secret") as port:
        rows = train("recipe.toml", tmp_path / "run", f"gateway.port={port}", folder=tmp_path, token="secret")
    assert_one_segment_each(rows)
    scores = [row["score"] for row in trajectories(tmp_path / "run").values()]
    assert len(scores) == 16
    assert [score["total"] for score in scores] == [score["parts"]["exact_match"] for score in scores]
