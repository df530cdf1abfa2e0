"""A program that knows only its environment, through the whole gateway: its calls, its reward, and its failures."""

import asyncio
import shlex
import sys
from pathlib import Path

import pytest

from sleuth.agent.task import Task
from sleuth.agent.tools import Toolbox
from sleuth.config.agent import AgentConfig
from sleuth.engines.scripted import ScriptedEngine
from sleuth.gateway.command import CommandLauncher
from sleuth.gateway.outside import OutsideAgent
from sleuth.gateway.server import Gateway
from sleuth.model.tokens import Tokens
from sleuth.records import Question, Score, StopReason, Trajectory

QUESTION = Question("q", "Where?", ("Oslo",), "test")

PROGRAM = """
import json, os, sys, time, urllib.request

def post(url, body):
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as reply:
        return json.load(reply)

question = sys.stdin.readline().strip()
messages = [{"role": "user", "content": question}]
body = {"model": os.environ["OPENAI_MODEL"], "messages": messages}
answer = post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)["choices"][0]["message"]["content"]
match sys.argv[1]:
    case "reward":
        golden = json.loads(os.environ["SLEUTH_TASK"])["golden_answers"]
        post(os.environ["SLEUTH_REWARD_URL"], {"reward": float(answer in golden)})
    case "fail":
        sys.exit("the tool broke")
    case "block":
        time.sleep(600)
"""


@pytest.mark.parametrize(
    ("what", "stop", "reward", "failure"),
    [
        ("reward", StopReason.ANSWERED, Score(1.0), None),
        ("nothing", StopReason.ANSWERED, None, None),
        ("fail", StopReason.FUNCTION_FAILED, None, "the tool broke"),
        ("block", StopReason.FUNCTION_FAILED, None, "5 s"),
    ],
)
def test_program(
    chat_tokens: Tokens,
    tools: Toolbox,
    tmp_path: Path,
    what: str,
    stop: StopReason,
    reward: object,
    failure: str | None,
) -> None:
    (tmp_path / "agent.py").write_text(PROGRAM)
    config = AgentConfig(command=shlex.join([sys.executable, str(tmp_path / "agent.py"), what]), deadline=5.0)
    engine = ScriptedEngine(lambda _: chat_tokens.encode_trusted("Oslo<|im_end|>"))
    launcher = CommandLauncher(str(config.command), 4)

    async def play(outside: OutsideAgent) -> Trajectory:
        return await outside.run(Task(QUESTION))

    with OutsideAgent(engine, chat_tokens, tools, config, Gateway(tools=tools), launcher) as outside:
        trajectory = asyncio.run(play(outside))
    assert (trajectory.stop, trajectory.reward) == (stop, reward)
    assert len(trajectory.segments) == 1
    assert trajectory.failure is None if failure is None else failure in str(trajectory.failure)
