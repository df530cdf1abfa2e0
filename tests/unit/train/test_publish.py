"""Publishing: weights are sent to servers once per version, and failures are reported in one sentence."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sleuth.config.tree import Config
from sleuth.engines.build import load_engine
from sleuth.engines.servers.weights import DiskTransport
from sleuth.engines.vllm.engine import VllmEngine
from sleuth.errors import InputError, TrainingStopped
from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens
from sleuth.train.publish import SentWeights, build_engine

NOWHERE = "http://127.0.0.1:9"


class Far(ThreadingHTTPServer):
    """A server that takes weights as vLLM does, or breaks."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.loaded: list[str] = []
        self.breaks = False


class Handler(BaseHTTPRequestHandler):
    server: Far

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"null")
        if self.path == "/collective_rpc":
            self.server.loaded.append(Path(body["kwargs"]["weights_path"]).name)
        self.send_response(500 if self.server.breaks else 200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def far() -> Iterator[Callable[[], Far]]:
    with ExitStack() as stack:

        def opened() -> Far:
            server = stack.enter_context(Far())
            stack.callback(server.shutdown)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            return server

        yield opened


@dataclass(frozen=True, slots=True)
class Threads:
    """Ranks as threads of this process."""

    rank: int
    world: int
    meeting: threading.Barrier
    given: list[Any]

    def gather(self, mine: Sequence[Any], operation: str) -> list[list[Any]]:
        self.given[self.rank] = (operation, list(mine))
        self.meeting.wait(30)
        found = [*self.given]
        self.meeting.wait(30)
        assert {name for name, _ in found} == {operation}
        return [items for _, items in found]

    def barrier(self, operation: str) -> None:
        self.gather([], operation)

    def for_thread(self) -> "Threads":
        return self

    def close(self) -> None:
        """No-op."""


def head() -> dict[str, Tensor]:
    return {"head": torch.ones(2)}


def test_weights_go_to_servers_once_for_each_version(far: Callable[[], Far], tokens: Tokens, tmp_path: Path) -> None:
    servers = [far(), far()]
    engine = VllmEngine([each.address for each in servers], tokens, context=8, transport=DiskTransport(tmp_path))
    publisher = SentWeights(engine, head)
    for version in (0, 0, 1, 1, 2, 1):
        publisher.publish(version)
    assert [each.loaded for each in servers] == [["weights-0", "weights-1", "weights-2", "weights-1"]] * 2
    sent = publisher.totals.collect()
    assert sent["weights/bytes"] == 4 * 2 * 8
    assert sent["weights/seconds"] > 0
    assert publisher.totals.collect() == {"weights/seconds": 0.0, "weights/bytes": 0.0}


def test_weights_that_reach_no_server_end_the_run(far: Callable[[], Far], tokens: Tokens, tmp_path: Path) -> None:
    server = far()
    server.breaks = True
    publisher = SentWeights(VllmEngine([server.address], tokens, context=8, transport=DiskTransport(tmp_path)), head)
    with pytest.raises(TrainingStopped, match=r"no vLLM server is left: .*500.*resume the run"):
        publisher.publish(3)


def test_every_rank_leaves_out_the_server_that_one_of_them_lost(
    far: Callable[[], Far], tokens: Tokens, tmp_path: Path
) -> None:
    """Rank 1 loses one server while it samples, rank 0 another one while it sends; both then use the third."""
    servers, meeting, given = [far(), far(), far()], threading.Barrier(2), [None, None]
    servers[1].breaks = True
    addresses = [each.address for each in servers]
    engines = [VllmEngine(addresses, tokens, context=8, transport=DiskTransport(tmp_path)) for _ in range(2)]
    engines[1].remove({addresses[0]: "it died"})
    ranks = [Threads(rank, 2, meeting, given) for rank in range(2)]
    publishers = [SentWeights(engine, head, each) for engine, each in zip(engines, ranks, strict=True)]
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(publisher.publish, 1) for publisher in publishers]:
            done.result()
    assert [engine.addresses for engine in engines] == [(addresses[2],)] * 2
    assert [each.loaded for each in servers] == [[], [], ["weights-1"]]
    servers[2].breaks = True
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(publisher.publish, 2) for publisher in publishers]:
            with pytest.raises(TrainingStopped, match="no vLLM server is left"):
                done.result()


def config(**engine: Any) -> Config:
    return Config.model_validate({"world": {}, "engine": {"kind": "vllm"} | engine})


def test_an_address_where_nobody_answers_is_one_sentence(
    parts: Callable[..., Any], policy: Callable[..., Policy], tmp_path: Path
) -> None:
    policy().save(tmp_path / "model")
    with pytest.raises(InputError, match=NOWHERE):
        load_engine(config(url=NOWHERE), tmp_path / "model")
    learner = parts(tmp_path / "run").learner
    with pytest.raises(InputError, match=NOWHERE):
        build_engine(config(url=NOWHERE), learner, tmp_path)


def test_an_sglang_server_of_its_own_gets_the_settings(
    parts: Callable[..., Any], policy: Callable[..., Policy], tmp_path: Path
) -> None:
    policy().save(tmp_path / "model")
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho "$@"; exit 3\n')
    program.chmod(0o755)
    command = f"'{program}' -m sglang.launch_server --mine"
    settings = config(kind="sglang", command=command, memory=0.5, prefill_tokens=9, weights="collective", slots=3)
    with pytest.raises(TrainingStopped, match=r"python .*3.* resume"):
        build_engine(settings, parts(tmp_path / "run").learner, tmp_path)
    said = (tmp_path / "sglang.log").read_text()
    for words in ("--max-running-requests 3", "--mem-fraction-static 0.5", "--chunked-prefill-size 9"):
        assert words in said
    assert said.rstrip().endswith("--mine")


def test_a_server_of_its_own_that_does_not_start_leaves_a_run_to_resume(
    parts: Callable[..., Any], policy: Callable[..., Policy], tmp_path: Path
) -> None:
    policy().save(tmp_path / "model")
    program = tmp_path / "vllm"
    program.write_text('#!/bin/sh\necho "$@"; exit 3\n')
    program.chmod(0o755)
    settings = config(command=f"'{program}' serve --mine", memory=0.5, prefill_tokens=9, weights="device", slots=3)
    with pytest.raises(TrainingStopped, match=r"vllm .*3.* resume"):
        build_engine(settings, parts(tmp_path / "run").learner, tmp_path)
    said = (tmp_path / "vllm.log").read_text()
    for words in ("--max-num-seqs 3", "--gpu-memory-utilization 0.5", "--max-num-batched-tokens 9"):
        assert words in said
    assert '--weight-transfer-config {"backend": "ipc"}' in said
    assert said.rstrip().endswith("--mine")
    with pytest.raises(InputError, match=r"vllm .*3"):
        load_engine(settings, tmp_path / "model")
