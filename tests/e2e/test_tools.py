"""Training with a calculator from one file and with a real MCP server; both appear under their names."""

import copy
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import PreTrainedModel

from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens
from sleuth.page.transcript import transcript
from sleuth.runs.json_files import read_rows

pytestmark = pytest.mark.e2e

Bench = Any
CALCULATOR = Path(__file__).parents[2] / "examples" / "tools" / "calculator.py"
STEPS = ("--set", "train.steps=3", "--set", "evaluate.questions=4", "--set", "agent.turn_tokens=16")
SERVER = """
import sys
from mcp.server.mcpserver import MCPServer

server = MCPServer("numbers", log_level="ERROR")

@server.tool()
def double(number: int) -> int:
    "Doubles a number."
    return 2 * number

server.run("streamable-http", port=int(sys.argv[1]))
"""


def save_model(folder: Path, tokens: Tokens, reciter: Callable[..., PreTrainedModel], tool: str, argument: str) -> None:
    """A policy that calls a tool and then answers Lisbon, most of the time."""
    tokenizer = copy.deepcopy(tokens.tokenizer)
    tokenizer.add_tokens([f"<{tool}>", f"</{tool}>", argument])
    known = Tokens(tokenizer)
    spoken = {"?\n": f"<{tool}>{argument}</{tool}>", ">\n\n": "<answer> Lisbon </answer>"}
    lines = [[known.encode(heard)[-1], *known.encode(said)] for heard, said in spoken.items()]
    model = reciter(known, [tokenizer.convert_ids_to_tokens(line) for line in lines])
    with torch.no_grad():
        model.get_parameter("model.norm.weight").mul_(0.06)
    Policy(model, known).save(folder)


def check_run(bench: Bench, run: str, tool: str, result: str) -> None:
    rows = [row for step in (1, 2, 3) for row in read_rows(bench.run(run).trajectories(step))]
    calls = [(row, turn) for row in rows for turn in row["turns"] if turn["action"] == "tool"]
    assert {turn["name"] for _, turn in calls} == {tool}
    assert result in {turn.get("result") for _, turn in calls}
    metrics = bench.run(run).metrics()
    assert sum(step.get(f"tool/{tool}/calls", 0) for step in metrics) >= len(calls) > 0
    assert all(step[f"tool/{tool}/failures"] == 0 for step in metrics if f"tool/{tool}/failures" in step)
    row, _ = next(each for each in calls if each[1].get("result") == result)
    page = str(transcript(row))
    assert f">{tool}<" in page
    assert f">{result}<" in page


@contextmanager
def viewer(folder: Path) -> Iterator[Callable[..., Any]]:
    """Sends requests to `sleuth view` in its own process."""
    command = [sys.executable, "-c", "from sleuth.cli.main import main; main()", "view", str(folder / "doubled")]
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    with subprocess.Popen(
        [*command, "--port", "0", "--no-open"], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout
        address = re.search(r"http://[\d.:]+", process.stdout.readline())
        assert address
        yield lambda name, **wanted: httpx.get(f"{address[0]}/api/{name}", params=wanted, timeout=60).json()
        process.kill()


def test_training_with_a_calculator(bench: Bench, tokens: Tokens, reciter: Callable[..., PreTrainedModel]) -> None:
    (bench.path / "calculator.py").write_bytes(CALCULATOR.read_bytes())
    save_model(bench.path / "counts", tokens, reciter, "calculator", "6*7")
    tools = 'agent.tools=["search", "import:calculator.calculator"]'
    words = ("--set", "model.policy=counts", "--set", tools, "--set", "agent.tool_limits.calculator.calls=2")
    ended = bench.sleuth("train", "small.toml", "--out", "counted", *STEPS, *words)
    assert ended.returncode == 0, ended.stderr
    assert "lockstep on" in ended.stderr
    check_run(bench, "counted", "calculator", "42")
    asked = bench.sleuth("ask", "counted", "What is six times seven?")
    assert asked.returncode == 0, asked.stderr
    refused = bench.sleuth("train", "small.toml", "--out", "none", "--set", 'agent.tools=["import:calculator.nothing"]')
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "import:calculator.nothing" in refused.stderr


@pytest.fixture
def mcp_server(tmp_path: Path) -> Iterator[str]:
    """A server of the official SDK in its own process."""
    (tmp_path / "numbers_server.py").write_text(SERVER)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([sys.executable, "numbers_server.py", str(port)], cwd=tmp_path) as process:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
        process.terminate()


def test_training_with_an_mcp_server(
    bench: Bench, tokens: Tokens, reciter: Callable[..., PreTrainedModel], mcp_server: str
) -> None:
    save_model(bench.path / "doubles", tokens, reciter, "double", "21")
    words = ("--set", "model.policy=doubles", "--set", f'agent.tools=["search", "mcp:{mcp_server}"]')
    ended = bench.sleuth("train", "small.toml", "--out", "doubled", *STEPS, *words)
    assert ended.returncode == 0, ended.stderr
    assert f"lockstep off (tools run outside this process: mcp:{mcp_server})" in ended.stderr
    check_run(bench, "doubled", "double", "42")
    with viewer(bench.path) as get:
        listed = get("trajectories", run="doubled")["rows"]
        shown = [get("trajectory", run="doubled", at=each["at"]) for each in listed]
    assert {("double", "42")} <= {(turn["tool"], turn["result"]) for each in shown for turn in each["turns"]}
