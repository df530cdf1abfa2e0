"""The six families of clients in the wild: what the code of each sent and read, recorded once, against our server."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from sleuth.config.retrieval import BM25Settings, IndexPlan
from sleuth.corpus.pages import PageStore
from sleuth.retrieval.index import build, load
from sleuth.retrieval.service.server import Facts, application

RECORDINGS = Path(__file__).parent / "recordings"
SETTINGS = BM25Settings(k1=0.9, b=0.4, stemmer="english")  # of the index that was served when they were made
FAMILIES = ("search_r1", "verl", "slime", "rlinf", "agent_lightning", "asearcher")

Answer = dict[str, Any]


def recording(name: str) -> dict[str, Any]:
    """A recording; its scores, the only fractions in it, are equal to any that differ by rounding."""
    text = (RECORDINGS / f"{name}.json").read_text(encoding="utf-8")
    read: dict[str, Any] = json.loads(text, parse_float=lambda score: pytest.approx(float(score), rel=1e-4))
    return read


FAMILY = {name: recording(name) for name in FAMILIES}
EXCHANGES = {f"{name}: {each['case']}": (name, each) for name in FAMILIES for each in FAMILY[name]["exchanges"]}


def numbered(template: str, contents: list[str]) -> str:
    """Documents under their numbers; the first line is the title."""
    parts = (each.partition("\n") for each in contents)
    return "".join(template.format(place, title, text) for place, (title, _, text) in enumerate(parts, 1))


def linked(rows: list[dict[str, str]]) -> str:
    return "\n\n".join(f"[Doc {place}]({row['url']}):\n{row['contents']}" for place, row in enumerate(rows, 1))


def scored_row(answer: Answer) -> list[list[str]]:
    return [[item["document"]["contents"] for item in items] for items in answer["result"]]


# What the client of each family takes out of an answer and hands to its caller: the fields that have to be there.
def search_r1(answer: Answer) -> list[str]:
    return [numbered("Doc {}(Title: {}) {}\n", contents) for contents in scored_row(answer)]


def verl(answer: Answer) -> dict[str, Any]:
    found = scored_row(answer)
    text = "\n---\n".join(numbered("Doc {} (Title: {})\n{}\n\n", contents).strip() for contents in found)
    metrics = {"query_count": len(found), "status": "success", "total_results": sum(map(len, found))}
    result = json.dumps({"result": text}, ensure_ascii=False)
    return {"text": result, "metrics": {**metrics, "api_request_error": None}}


def slime(answer: Answer) -> str:
    (rows,) = answer["result"]
    documents = numbered("Doc {}(Title: {}) {}\n", [row["contents"] for row in rows])
    return f"\n\n<information>{documents.strip()}</information>\n\n"


def agent_lightning(answer: Answer) -> str:
    (documents,) = search_r1(answer)
    return f"\n\n<information>{documents}</information>\n\n"


def rlinf_turn(answer: Answer) -> str:
    return f"\n\n<information>\n{rlinf_list(answer)}\n</information>\n<think>\n"


def rlinf_list(answer: Answer) -> str:
    (rows,) = answer["result"]
    return linked(rows)


def rlinf_page(answer: Answer) -> str:
    (page,) = answer["result"]
    contents: str = page["contents"]
    return contents


def browser_documents(answer: Answer) -> list[dict[str, Any]]:
    return [
        {
            "documents": [row["contents"] for row in rows],
            "urls": [row["url"] for row in rows],
            "server_type": "async-search-browser",
        }
        for rows in answer["result"]
    ]


def browser_pages(answer: Answer) -> list[dict[str, str]]:
    contents = ["" if page is None else page["contents"] for page in answer["result"]]
    return [{"page": each, "type": "access", "server_type": "async-search-browser"} for each in contents]


def asearcher_step(answer: Answer) -> dict[str, Any]:
    (found,) = browser_documents(answer)
    return {"documents": found["documents"], "urls": found["urls"], "type": "search"}


READERS: dict[tuple[str, str], Callable[[Answer], object]] = {
    ("search_r1", "texts"): search_r1,
    ("verl", "tool result"): verl,
    ("slime", "observation"): slime,
    ("agent_lightning", "observation"): agent_lightning,
    ("rlinf", "turn"): rlinf_turn,
    ("rlinf", "list"): rlinf_list,
    ("rlinf", "page"): rlinf_page,
    ("rlinf", "documents"): browser_documents,
    ("rlinf", "pages"): browser_pages,
    ("asearcher", "step"): asearcher_step,
    ("asearcher", "documents"): browser_documents,
    ("asearcher", "pages"): browser_pages,
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what was served while the recordings were made: an index and its pages."""
    home = tmp_path_factory.mktemp("clients")
    for name, rows in recording("corpus").items():
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (home / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    build(home / "passages.jsonl", home / "index", IndexPlan(kind="bm25", bm25=SETTINGS))
    return home


@pytest.fixture(scope="module")
def app(served: Path) -> FastAPI:
    facts = Facts(index="index", kind="bm25", passages=len(recording("corpus")["passages"]))
    return application(load(served / "index"), facts, pages=PageStore(served / "pages.jsonl"))


async def asked(app: FastAPI, request: dict[str, Any]) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8000") as client:
        body = request["body"].encode()
        return await client.request(request["method"], request["path"], headers=request["headers"], content=body)


@pytest.mark.parametrize("case", EXCHANGES)
def test_the_same_bytes_get_the_same_answer_and_the_client_reads_the_same(case: str, app: FastAPI) -> None:
    family, exchange = EXCHANGES[case]
    answer = asyncio.run(asked(app, exchange["request"]))
    assert answer.status_code == exchange["response"]["status"], answer.text
    # aiohttp, which three families use, refuses to read JSON under any other name.
    assert answer.headers["content-type"] == exchange["response"]["content_type"]
    assert answer.json() == exchange["response"]["body"]
    assert READERS[family, exchange["reads"]](answer.json()) == exchange["client_read"]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_recording_names_its_source_and_holds_requests_as_they_were_sent(name: str) -> None:
    source = FAMILY[name]
    versions = [source, *source.get("earlier", [])]
    assert source["repository"].startswith("https://github.com/")
    assert all(re.fullmatch("[0-9a-f]{40}", version["commit"]) for version in versions)
    for exchange in source["exchanges"]:
        assert any(exchange["file"] in version["files"] for version in versions)
        sent = exchange["request"]
        assert int(sent["headers"]["Content-Length"]) == len(sent["body"].encode())


def queries(name: str) -> Iterator[tuple[int, Any]]:
    """How many queries each search of a family held, and its topk."""
    for exchange in FAMILY[name]["exchanges"]:
        body = json.loads(exchange["request"]["body"])
        if "queries" in body:
            yield len(body["queries"]), body.get("topk", "absent")


def test_the_recordings_hold_the_requests_that_other_servers_fail_at() -> None:
    asked_for = {name: set(queries(name)) for name in FAMILIES}
    for name in ("search_r1", "verl", "rlinf", "asearcher"):
        assert (2, 3) in asked_for[name]
    for name in FAMILIES:
        assert {topk for _, topk in asked_for[name]} >= {3, 0, None}
    assert (0, 3) in asked_for["search_r1"]
    assert (3, "absent") in asked_for["rlinf"] & asked_for["asearcher"]


@pytest.fixture(scope="module")
def address_dir(served: Path) -> Iterator[Path]:
    """The folder into which a server in a process of its own has written its address."""
    folder = served / "addresses"
    words = [served / "index", "--port=0", f"--pages={served / 'pages.jsonl'}", f"--address-dir={folder}"]
    command = [sys.executable, "-c", "from sleuth.cli.main import main; main()", "serve", "retriever", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"}) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"serving")
            yield folder
        finally:
            process.terminate()
            assert process.wait(20) == 0


def discovered(folder: Path) -> str:
    """The address that ASearcher's client finds in RAG_SERVER_ADDR_DIR: a line, with all that is in it."""
    (file,) = folder.glob("Host*_IP*.txt")
    with file.open(encoding="utf-8") as lines:
        (address,) = lines.readlines()
    return address


@pytest.mark.e2e
def test_the_address_file_is_the_one_asearcher_found(address_dir: Path) -> None:
    found = FAMILY["asearcher"]["discovery"]
    ip, _, port = discovered(address_dir).partition(":")
    at_that_port = partial(re.sub, r"5005", port)
    assert [file.name for file in address_dir.iterdir()] == [at_that_port(found["name"])]
    assert f"{ip}:{port}" == at_that_port(found["contents"]) == at_that_port(found["client_read"])


@pytest.mark.e2e
@pytest.mark.parametrize("name", FAMILIES)
def test_over_a_socket_the_answers_are_the_same(name: str, address_dir: Path) -> None:
    with closing(HTTPConnection(discovered(address_dir), timeout=20)) as connection:
        for exchange in FAMILY[name]["exchanges"]:
            sent = exchange["request"]
            connection.putrequest(sent["method"], sent["path"], skip_accept_encoding=True)
            for header, value in sent["headers"].items():
                connection.putheader(header, value)
            connection.endheaders(sent["body"].encode())
            answer = connection.getresponse()
            assert answer.status == exchange["response"]["status"]
            assert json.loads(answer.read()) == exchange["response"]["body"]
