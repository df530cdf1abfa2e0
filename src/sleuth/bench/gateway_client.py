"""A scripted search agent over plain HTTP, which the workers of `sleuth bench gateway` run; imports nothing heavy."""

import json
import os
from functools import cache
from http.client import HTTPConnection
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit
from zlib import crc32

from sleuth.agent.task import Task
from sleuth.gateway.endpoint import Endpoint
from sleuth.records import Score

SCRIPT_ENV = "SLEUTH_BENCH_SCRIPT"  # file with {"searches": 2, "observations": ["...", ...]}
SECONDS = "call_seconds"  # part of the reward: the time of all calls as the client saw it
TIMEOUT = 600.0


@cache
def _read_script(path: str) -> dict[str, Any]:
    script: dict[str, Any] = json.loads(Path(path).read_bytes())
    return script


def search_agent(task: Task, llm: Endpoint) -> Score:
    """Alternate calls and observations over one connection; the model's text has no effect."""
    script, address = _read_script(os.environ[SCRIPT_ENV]), urlsplit(llm.base_url)
    messages = list(task.question.prompt or ())
    seconds = 0.0
    connection = HTTPConnection(address.hostname or "", address.port, timeout=TIMEOUT)
    try:
        for turn in range(script["searches"] + 1):
            start = perf_counter()
            reply = _complete(connection, f"{address.path}/chat/completions", llm, messages)
            seconds += perf_counter() - start
            messages.append({"role": "assistant", "content": reply})
            choice = crc32(f"{task.question.id} {task.sample} {turn}".encode()) % len(script["observations"])
            messages.append({"role": "user", "content": script["observations"][choice]})
    finally:
        connection.close()
    return Score(0.0, {SECONDS: seconds})


def _complete(connection: HTTPConnection, path: str, llm: Endpoint, messages: list[dict[str, str]]) -> str:
    headers = {"Authorization": f"Bearer {llm.api_key}", "Content-Type": "application/json"}
    connection.request("POST", path, json.dumps({"model": llm.model, "messages": messages}), headers)
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise RuntimeError(f"the gateway answered with status {response.status}: {content.decode(errors='replace')}")
    text: str = json.loads(content)["choices"][0]["message"]["content"]
    return text
