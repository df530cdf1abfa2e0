"""vLLM's weight transfer interface: CUDA IPC handles on one GPU (`ipc`), or NCCL broadcasts between GPUs (`nccl`).

Sleuth imports nothing from vLLM; the messages are those of vLLM's own trainer engines.
"""

import base64
import pickle
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.cuda import nccl
from torch.multiprocessing.reductions import reduce_tensor

from sleuth.engines.servers.weights import Control, Load, describe_weights, require_cuda, run_during
from sleuth.errors import EngineFailure

IpcHandle = Mapping[str, tuple[Any, ...]]  # GPU id to the arguments that rebuild the tensor in another process


class CudaIpcTransport:
    """Sends CUDA IPC handles of the trainer's weights; servers on the same GPU copy the weights."""

    options: Sequence[str] = ("--weight-transfer-config", '{"backend": "ipc"}')
    environment: Mapping[str, str] = MappingProxyType({"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"})  # it unpickles them

    def prepare(self, weights: Mapping[str, Tensor], version: int) -> Load:  # noqa: ARG002  nothing is kept by version
        require_cuda(weights, "device")
        held = {name: weight.detach().contiguous() for name, weight in weights.items()}

        def load(control: Control) -> None:
            # The server copies what is in memory at this point; each server needs its own handles.
            torch.cuda.synchronize()
            handles = [
                {str(torch.cuda.get_device_properties(weight.device).uuid): reduce_tensor(weight)[1]}
                for weight in held.values()
            ]
            _begin(
                control,
                lambda: control.post("/init_weight_transfer_engine", {"init_info": {}}),
                f"{self.options[0]} '{self.options[1]}' and VLLM_ALLOW_INSECURE_SERIALIZATION=1",
            )
            control.post("/update_weights", ipc_update(held, handles))
            control.post("/finish_weight_update")
            torch.cuda.ipc_collect()

        return load

    def close(self) -> None:
        """No-op: nothing to free."""


class NcclTransport:
    """Broadcasts weights by NCCL from this process, in one group with all processes of each server."""

    options: Sequence[str] = ("--weight-transfer-config", '{"backend": "nccl"}')
    environment: Mapping[str, str] = MappingProxyType({})

    def __init__(self) -> None:
        self._groups: dict[str, Any] = {}  # NCCL communicators, freed with their last reference

    def prepare(self, weights: Mapping[str, Tensor], version: int) -> Load:  # noqa: ARG002  nothing is kept by version
        require_cuda(weights, "collective")
        held = {name: weight.detach().contiguous() for name, weight in weights.items()}
        device = next(iter(held.values())).device

        def broadcast(group: Any) -> None:
            for weight in held.values():
                nccl.broadcast([weight], 0, None, [group])
            torch.cuda.synchronize(device)

        def load(control: Control) -> None:
            def join() -> None:
                if control.address not in self._groups:
                    self._groups[control.address] = _join(control, device)

            _begin(control, join, f"{self.options[0]} '{self.options[1]}', version 0.32")
            update = {"update_info": describe_weights(held, "dtype_names")}
            group = self._groups[control.address]
            run_during(lambda: broadcast(group), lambda: control.post("/update_weights", update))
            control.post("/finish_weight_update")

        return load

    def close(self) -> None:
        self._groups.clear()


def _begin(control: Control, join: Callable[[], object], needs: str) -> None:
    """Begin an update on a server that is connected by `join`; the error says how such a server is started."""
    try:
        join()
        control.post("/start_weight_update")
    except EngineFailure as failure:
        raise EngineFailure(f"{failure}; start vLLM with {needs}, or use engine.weights = disk") from failure


def _join(control: Control, device: torch.device) -> Any:
    """Form an NCCL group with every process of a server; this process is rank 0."""
    world, unique_id = 1 + int(control.get("/get_world_size")["world_size"]), nccl.unique_id()

    def form() -> Any:
        with torch.cuda.device(device):
            group = nccl.init_rank(world, unique_id, 0)
            nccl.all_reduce([torch.zeros(1, device=device)], comms=[group])  # with which vLLM tries a new group
            torch.cuda.synchronize(device)
            return group

    body = {"init_info": group_info(unique_id, world)}
    return run_during(form, lambda: control.post("/init_weight_transfer_engine", body))


def group_info(unique_id: bytes, world: int) -> dict[str, Any]:
    """Describe an NCCL group of `world` processes to a server, whose own come after rank 0."""
    return {"nccl_unique_id_b64": base64.b64encode(unique_id).decode(), "rank_offset": 1, "world_size": world}


def ipc_update(weights: Mapping[str, Tensor], handles: Sequence[IpcHandle]) -> dict[str, Any]:
    """Build the message with every weight's name, dtype, shape and IPC handle."""
    pickled = base64.b64encode(pickle.dumps([dict(handle) for handle in handles])).decode()
    return {"update_info": {**describe_weights(weights, "dtype_names"), "ipc_handles_pickled": pickled}}
