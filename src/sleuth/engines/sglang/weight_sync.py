"""Weights to SGLang servers without a folder: as CUDA IPC handles on one GPU, or broadcast in a process group."""

import base64
import io
import pickle
import socket
from collections.abc import Mapping, Sequence
from datetime import timedelta
from secrets import token_hex
from types import MappingProxyType
from typing import Any

import httpx
import torch
from torch import Tensor, distributed
from torch.distributed import TCPStore, distributed_c10d  # type: ignore[attr-defined]
from torch.multiprocessing import reductions

from sleuth.engines.servers.weights import Control, Load, describe_weights, require_cuda, run_during

DEVICE_ARGUMENT = 6  # of rebuild_cuda_tensor: the device, which SGLang accepts as a UUID too
GROUP_TIMEOUT = timedelta(minutes=10)
NO_ENVIRONMENT: Mapping[str, str] = MappingProxyType({})


class TensorTransport:
    """Sends CUDA IPC handles of the trainer's weights; servers on the same machine copy the weights."""

    options: Sequence[str] = ()
    environment = NO_ENVIRONMENT

    def prepare(self, weights: Mapping[str, Tensor], version: int) -> Load:  # noqa: ARG002  nothing is kept by version
        require_cuda(weights, "device")
        held = {name: weight.detach().contiguous() for name, weight in weights.items()}

        def load(control: Control) -> None:
            # The server copies what is in memory at this point.
            torch.cuda.synchronize()
            send_tensors(control, held)
            torch.cuda.ipc_collect()

        return load

    def close(self) -> None:
        """No-op: nothing to free."""


def send_tensors(control: Control, weights: Mapping[str, Tensor]) -> None:
    """Make a server load tensors: those on a GPU through its memory, others as part of the request."""
    # Each process of the server opens its own handles.
    payloads = [serialize_tensors(weights) for _ in range(_tensor_parallelism(control))]
    control.post("/update_weights_from_tensor", {"serialized_named_tensors": payloads, "flush_cache": False})


def serialize_tensors(weights: Mapping[str, Tensor]) -> str:
    """Pickle names and tensors for one process of a server, in base64."""
    buffer = io.BytesIO()
    TensorPickler(buffer).dump([(name, weight.detach()) for name, weight in weights.items()])
    return base64.b64encode(buffer.getvalue()).decode()


class TensorPickler(pickle.Pickler):
    """Pickles CUDA tensors as IPC handles whose GPU is named by its UUID, which is the same in every process."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.device.type != "cuda":
            return NotImplemented
        rebuild, arguments = reductions.reduce_tensor(value)
        uuid = str(torch.cuda.get_device_properties(value.device).uuid)
        return rebuild, (*arguments[:DEVICE_ARGUMENT], uuid, *arguments[DEVICE_ARGUMENT + 1 :])


class CollectiveTransport:
    """Broadcasts weights from this process, in one process group with each server: NCCL on a GPU, gloo on a CPU."""

    options: Sequence[str] = ()
    environment = NO_ENVIRONMENT

    def __init__(self) -> None:
        self._groups: dict[str, tuple[str, distributed.ProcessGroup]] = {}

    def prepare(self, weights: Mapping[str, Tensor], version: int) -> Load:  # noqa: ARG002  nothing is kept by version
        held = {name: weight.detach().contiguous() for name, weight in weights.items()}

        def load(control: Control) -> None:
            device = next(iter(held.values())).device
            if control.address not in self._groups:
                self._groups[control.address] = _join(control, "nccl" if device.type == "cuda" else "gloo")
            name, group = self._groups[control.address]
            body = {**describe_weights(held, "dtypes"), "group_name": name, "flush_cache": False}

            def broadcast() -> None:
                for weight in held.values():
                    group.broadcast(weight, 0).wait()
                if device.type == "cuda":
                    torch.cuda.synchronize(device)

            run_during(broadcast, lambda: control.post("/update_weights_from_distributed", body))

        return load

    def close(self) -> None:
        while self._groups:
            distributed.destroy_process_group(self._groups.popitem()[1][1])


def _join(control: Control, backend: str) -> tuple[str, distributed.ProcessGroup]:
    """Form a process group with every process of a server; return its name and the group, whose rank 0 is here."""
    world, name, host = 1 + _tensor_parallelism(control), f"sleuth-{token_hex(4)}", _own_address(control.address)
    store = TCPStore(host, 0, world, is_master=True, wait_for_workers=False, timeout=GROUP_TIMEOUT)
    body: dict[str, Any] = {"master_address": host, "master_port": store.port, "rank_offset": 1, "world_size": world}

    def form() -> distributed.ProcessGroup:
        # The way in which SGLang makes its side: a public function would need a default group of all processes.
        group: distributed.ProcessGroup
        group, _ = distributed_c10d._new_process_group_helper(
            world,
            0,
            [],
            distributed.Backend(backend),
            distributed_c10d.PrefixStore(name, store),
            group_name=name,  # type: ignore[arg-type]
            timeout=GROUP_TIMEOUT,
        )
        distributed_c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(world)}
        return group

    body |= {"group_name": name, "backend": backend}
    return name, run_during(form, lambda: control.post("/init_weights_update_group", body))


def _own_address(server: str) -> str:
    """The address of this machine as a server sees it."""
    url = httpx.URL(server)
    with socket.create_connection((url.host, url.port or 80), timeout=5.0) as connection:
        host: str = connection.getsockname()[0]
        return host


def _tensor_parallelism(control: Control) -> int:
    return int(control.get("/server_info")["tp_size"])
