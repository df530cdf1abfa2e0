"""Weights through the memory of a GPU that trainer and servers share: servers copy from where the trainer has them.

What is sent are handles of CUDA's inter-process communication, in the form of vLLM's weight transfer backend `ipc`.
"""

import base64
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from sleuth.engines.vllm.push import Load, Post
from sleuth.errors import ConfigError, EngineFailure

# What a server that takes such handles is started with: it unpickles them.
OPTIONS = ("--weight-transfer-config", '{"backend": "ipc"}')
ENVIRONMENT = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}

# By the id of the GPU that holds the tensor: what rebuilds it in another process.
Handle = Mapping[str, tuple[Any, ...]]


class Device:
    """Shows servers where the weights are; nothing is copied here."""

    def ready(self, weights: Mapping[str, Tensor], version: int) -> Load:  # noqa: ARG002  nothing is kept by version
        elsewhere = next((name for name, weight in weights.items() if weight.device.type != "cuda"), None)
        if elsewhere is not None:
            raise ConfigError(
                f"engine.weights = device needs the trainer on a GPU, and {elsewhere} is not there; choose disk"
            )
        held = {name: weight.detach().contiguous() for name, weight in weights.items()}

        def load(post: Post) -> None:
            # A reader copies what is there by then, and each reader counts on handles of its own.
            torch.cuda.synchronize()
            handles = [_handle(weight) for weight in held.values()]
            _begin(post)
            post("/update_weights", update(held, handles))
            post("/finish_weight_update", None)
            torch.cuda.ipc_collect()

        return load

    def close(self) -> None:
        """Nothing is held."""


def update(weights: Mapping[str, Tensor], handles: Sequence[Handle]) -> dict[str, Any]:
    """The message that tells a server of every weight: its name, kind and shape, and where it is."""
    return {
        "update_info": {
            "names": list(weights),
            "dtype_names": [str(weight.dtype).removeprefix("torch.") for weight in weights.values()],
            "shapes": [list(weight.shape) for weight in weights.values()],
            "ipc_handles_pickled": base64.b64encode(pickle.dumps([dict(handle) for handle in handles])).decode(),
        }
    }


def _begin(post: Post) -> None:
    try:
        post("/init_weight_transfer_engine", {"init_info": {}})
        post("/start_weight_update", None)
    except EngineFailure as failure:
        raise EngineFailure(
            f"{failure}; start vLLM with {OPTIONS[0]} '{OPTIONS[1]}' and VLLM_ALLOW_INSECURE_SERIALIZATION=1, or "
            "choose engine.weights = disk"
        ) from failure


def _handle(weight: Tensor) -> Handle:
    _, arguments = reduce_tensor(weight)
    return {str(torch.cuda.get_device_properties(weight.device).uuid): arguments}
