"""`sleuth serve mcp` as a process, asked by the SDK's own client: over stdin and stdout, and over HTTP."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpx2 import AsyncClient
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from sleuth.retrieval.index import build

pytestmark = pytest.mark.e2e

COMMAND = "from sleuth.cli.main import main; main()"
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
ACCEPT = {"Accept": "application/json, text/event-stream"}

# A search engine that prints where messages of the protocol belong, while it loads and while it searches.
CHATTY = """
import os
print("loading")

def search(queries, k):
    print("searching")
    os.write(1, b"searching still\\n")
    return [[{"id": query, "contents": query}] for query in queries]
"""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("mcp")
    rows = [{"id": str(n), "contents": f'"Town {n}"\nTown {n} has {n} bridges.'} for n in range(20)]
    (home / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build(home / "corpus.jsonl", home / "index")
    return home / "index"


async def found(client: Client, query: str | list[str]) -> list[str]:
    """The ids of what is found."""
    fields = (await client.call_tool("search", {"query": query, "k": 1})).structured_content
    return [result["id"] for result in fields["results"]]


def over_stdio(*words: str, **environment: str) -> Any:
    command = StdioServerParameters(command=sys.executable, args=["-c", COMMAND, *words], env=environment)
    return stdio_client(command)


def test_an_index_is_searched_and_read_over_stdio(index: Path) -> None:
    async def ask() -> None:
        async with Client(over_stdio("serve", "mcp", str(index))) as client:
            assert await found(client, ["town 7", "town 8"]) == ["7", "8"]
            opened = await client.call_tool("fetch", {"id": "7"})
            assert opened.structured_content["text"] == "Town 7 has 7 bridges."
            assert (await client.call_tool("fetch", {"id": "99"})).is_error

    asyncio.run(ask())


def test_what_is_printed_does_not_disturb_the_protocol(tmp_path: Path) -> None:
    (tmp_path / "chatty.py").write_text(CHATTY)
    asked = [
        {
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "t", "version": "1"},
            },
        },
        {"method": "tools/call", "params": {"name": "search", "arguments": {"query": "north"}}},
    ]
    lines = [json.dumps({"jsonrpc": "2.0", "id": number, **each}) for number, each in enumerate(asked)]
    lines.insert(1, json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}))
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "serve", "mcp", "import:chatty.search"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    print(*lines, sep="\n", file=process.stdin, flush=True)
    answers = [json.loads(process.stdout.readline()) for _ in asked]
    rest, printed = process.communicate(timeout=20)
    assert [answer["id"] for answer in answers] == [0, 1]
    assert answers[1]["result"]["structuredContent"]["results"][0]["id"] == "north"
    assert rest == ""
    assert sorted(printed.splitlines()) == ["loading", "searching", "searching still"]
    assert process.returncode == 0


@contextmanager
def serving(*words: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server over HTTP in a process of its own, and the address it printed."""
    command = [sys.executable, "-c", COMMAND, "serve", "mcp", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=os.environ | environment) as process:
        try:
            assert process.stdout
            line = process.stdout.readline()
            address = re.search(r"http://[\d.:]+/mcp", line)
            assert address, line + process.communicate()[1]
            yield process, address.group()
        finally:
            process.kill()


def test_an_index_is_served_over_http_to_those_who_know_the_token(index: Path) -> None:
    words = (str(index), "--http", "0", "--token-env", "THE_TOKEN", "--allow-host", "search.example")
    with serving(*words, THE_TOKEN="secret") as (process, address):
        allowed = {"Authorization": "Bearer secret"}

        async def ask(mode: str) -> list[str]:
            async with (
                AsyncClient(headers=allowed) as http,
                Client(streamable_http_client(address, http_client=http), mode=mode) as client,
            ):
                several = [found(client, f"town {number}") for number in range(10)]
                return [name for names in await asyncio.gather(*several) for name in names]

        for mode in ("legacy", "auto"):
            assert asyncio.run(ask(mode)) == [str(number) for number in range(10)]

        def status(**headers: str) -> int:
            return httpx.post(address, json=PING, headers=ACCEPT | allowed | headers).status_code

        assert httpx.post(address, json=PING, headers=ACCEPT).status_code == 401
        assert status(Authorization="Bearer wrong") == 401
        assert status() == 200
        assert status(Host="search.example") == 200
        assert status(Host="elsewhere.example") == 421
        assert status(Origin="http://localhost:6274") == 200
        assert status(Origin="https://elsewhere.example") == 403
        assert httpx.get(address, headers=allowed).status_code == 405
        assert httpx.get(address.replace("/mcp", "/healthz")).json() == {"status": "ok"}

        process.send_signal(signal.SIGTERM)
        assert "Error" not in process.communicate(timeout=20)[1]
        assert process.returncode == 0


def test_without_the_library_the_extra_is_named(index: Path) -> None:
    hidden = f"import sys; sys.modules['mcp'] = None; {COMMAND}"
    command = [sys.executable, "-c", hidden, "serve", "mcp", str(index)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "sleuth: mcp is not installed; install it with: pip install 'sleuth[mcp]'\n"
