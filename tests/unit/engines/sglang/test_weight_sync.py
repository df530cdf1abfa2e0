"""Weights as pickled tensors, and by broadcast to a process that joins as SGLang's servers do."""

import base64
import io
import json
import pickle
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

from sleuth.engines.servers.weights import sync_weights
from sleuth.engines.sglang.dialect import Sglang
from sleuth.engines.sglang.weight_sync import CollectiveTransport, TensorTransport, send_tensors, serialize_tensors
from sleuth.errors import ConfigError, EngineFailure

ACCEPTED = ("builtins", "collections", "torch")  # roots of modules that SGLang unpickles
TIMEOUT = timedelta(seconds=30)


class Unpickler(pickle.Unpickler):
    """Refuses what a server refuses."""

    def find_class(self, module: str, name: str) -> Any:
        assert module.split(".")[0] in ACCEPTED
        return super().find_class(module, name)


def unpickled(payload: str) -> dict[str, Tensor]:
    return dict(Unpickler(io.BytesIO(base64.b64decode(payload))).load())


class Receiver(ThreadingHTTPServer):
    """A server with two processes, which joins groups and receives what is announced, as SGLang 0.5.17 does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.groups: dict[tuple[str, int], Any] = {}
        self.received: list[dict[str, Tensor]] = []
        self.paths: list[str] = []
        self.refuses = False

    def act(self, path: str, body: Any) -> None:
        self.paths.append(path.partition("?")[0])
        match self.paths[-1]:
            case "/init_weights_update_group":
                self.both(self.join, body)
            case "/update_weights_from_distributed":
                self.both(self.receive, body)
            case "/update_weights_from_tensor":
                self.received += [unpickled(payload) for payload in body["serialized_named_tensors"]]

    def both(self, act: Any, body: Any) -> None:
        threads = [threading.Thread(target=act, args=(body, rank)) for rank in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def join(self, body: Any, rank: int) -> None:
        name, world = body["group_name"], body["world_size"]
        store = TCPStore(body["master_address"], body["master_port"], world, is_master=False, timeout=TIMEOUT)
        # The prefixes that torch gives the store of a group, and SGLang's own first.
        inner = PrefixStore("cpu/", PrefixStore(f"{name}/", PrefixStore(name, store)))
        self.groups[name, rank] = ProcessGroupGloo(inner, body["rank_offset"] + rank, world, TIMEOUT)

    def receive(self, body: Any, rank: int) -> None:
        found = {}
        for name, dtype, shape in zip(body["names"], body["dtypes"], body["shapes"], strict=True):
            found[name] = torch.empty(shape, dtype=getattr(torch, dtype))
            self.groups[body["group_name"], rank].broadcast(found[name], 0).wait()
        self.received.append(found)


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_GET(self) -> None:
        self.answer({"tp_size": 2})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"null")
        if self.server.refuses and "init" in self.path:
            self.answer({"success": False, "message": "no group here"}, 400)
            return
        self.server.act(self.path, body)
        self.answer({"success": True})

    def answer(self, content: Any, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def weights(start: float) -> dict[str, Tensor]:
    return {"embed": torch.arange(start, start + 6).view(2, 3), "norm": torch.full((4,), start, dtype=torch.bfloat16)}


def equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    same = list(found) == list(expected)
    return (
        same
        and all(found[name].dtype == expected[name].dtype for name in found)
        and all(torch.equal(found[name], expected[name]) for name in found)
    )


def test_tensors_are_pickled_with_their_names_in_a_form_that_servers_accept() -> None:
    assert equal(unpickled(serialize_tensors(weights(1))), weights(1))


def test_weights_on_a_cpu_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine\.weights = device.*head"):
        TensorTransport().prepare({"head": torch.ones(2)}, 1)


def test_every_process_of_a_server_gets_tensors_of_its_own(receiver: Receiver) -> None:
    sync_weights(receiver.address, Sglang(), lambda control: send_tensors(control, weights(2)), "abort", "w-2")
    assert [equal(found, weights(2)) for found in receiver.received] == [True, True]
    assert receiver.paths == [
        "/pause_generation",
        "/update_weights_from_tensor",
        "/update_weight_version",
        "/flush_cache",
        "/continue_generation",
    ]


def test_weights_are_broadcast_again_in_a_group_that_is_formed_once(receiver: Receiver) -> None:
    transport = CollectiveTransport()
    for version in (1, 2):
        load = transport.prepare(weights(version), version)
        sync_weights(receiver.address, Sglang(), load, "finish", f"w-{version}")
    transport.close()
    assert [equal(found, weights(start)) for found, start in zip(receiver.received, (1, 1, 2, 2), strict=True)] == [
        True
    ] * 4
    update = ["/update_weights_from_distributed", "/update_weight_version", "/flush_cache"]
    assert receiver.paths == ["/init_weights_update_group", *update, *update]


def test_a_server_that_refuses_the_group_is_an_engine_failure(receiver: Receiver) -> None:
    receiver.refuses = True
    with pytest.raises(EngineFailure, match="no group here"):
        sync_weights(receiver.address, Sglang(), CollectiveTransport().prepare(weights(1), 1), "finish", "w-1")
