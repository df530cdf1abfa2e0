"""Weights as CUDA IPC handles to vLLM servers on the same GPU (vLLM's weight transfer backend `ipc`)."""

import base64
import pickle
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from sleuth.engines.servers.weights import Control, Load, require_cuda
from sleuth.errors import EngineFailure

IpcHandle = Mapping[str, tuple[Any, ...]]  # GPU id to the arguments that rebuild the tensor in another process


class CudaIpcTransport:
    """Sends CUDA IPC handles of the trainer's weights; servers on the same GPU copy the weights."""

    options: Sequence[str] = ("--weight-transfer-config", '{"backend": "ipc"}')
    environment: Mapping[str, str] = MappingProxyType({"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"})  # it unpickles them

    def prepare(self, weights: Mapping[str, Tensor], version: int) -> Load:  # noqa: ARG002  nothing is kept by version
        require_cuda(weights)
        held = {name: weight.detach().contiguous() for name, weight in weights.items()}

        def load(control: Control) -> None:
            # The server copies what is in memory at this point; each server needs its own handles.
            torch.cuda.synchronize()
            handles = [
                {str(torch.cuda.get_device_properties(weight.device).uuid): reduce_tensor(weight)[1]}
                for weight in held.values()
            ]
            try:
                control.post("/init_weight_transfer_engine", {"init_info": {}})
                control.post("/start_weight_update")
            except EngineFailure as failure:
                raise EngineFailure(
                    f"{failure}; start vLLM with {self.options[0]} '{self.options[1]}' and "
                    "VLLM_ALLOW_INSECURE_SERIALIZATION=1, or use engine.weights = disk"
                ) from failure
            control.post("/update_weights", ipc_update(held, handles))
            control.post("/finish_weight_update")
            torch.cuda.ipc_collect()

        return load

    def close(self) -> None:
        """No-op: nothing to free."""


def ipc_update(weights: Mapping[str, Tensor], handles: Sequence[IpcHandle]) -> dict[str, Any]:
    """Build the message with every weight's name, dtype, shape and IPC handle."""
    return {
        "update_info": {
            "names": list(weights),
            "dtype_names": [str(weight.dtype).removeprefix("torch.") for weight in weights.values()],
            "shapes": [list(weight.shape) for weight in weights.values()],
            "ipc_handles_pickled": base64.b64encode(pickle.dumps([dict(handle) for handle in handles])).decode(),
        }
    }
