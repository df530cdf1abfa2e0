"""Weight synchronisation: pause a server, load new weights, drop its prefix cache, resume.

Weights travel through a shared folder, or as CUDA IPC handles on a shared GPU (vLLM weight transfer backend `ipc`).
"""

import base64
import pickle
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import httpx
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from sleuth.errors import ConfigError, EngineFailure

InFlight = Literal["finish", "pause", "abort"]
# vLLM's pause modes. Our own requests resume on the new weights, unless they finish on the old ones.
PAUSE_MODES: dict[InFlight, str] = {"finish": "wait", "pause": "keep", "abort": "abort"}
TIMEOUT = 1800.0  # seconds to finish requests and to load weights
IPC_OPTIONS = ("--weight-transfer-config", '{"backend": "ipc"}')
IPC_ENVIRONMENT = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}  # the server unpickles the handles

Post = Callable[[str, Mapping[str, Any] | None], Any]
Load = Callable[[Post], None]  # makes one server load the prepared weights
IpcHandle = Mapping[str, tuple[Any, ...]]  # GPU id to the arguments that rebuild the tensor in another process


class WeightTransport(Protocol):
    """Carries weights from the trainer to the servers."""

    def prepare(self, weights: Mapping[str, Tensor], version: int) -> Load:
        """Make weights available, and return a function to call once per server to load them."""
        ...

    def close(self) -> None:
        """Free the resources held for the servers."""
        ...


def sync_weights(address: str, load: Load, in_flight: InFlight) -> None:
    """Switch a server to new weights; raises EngineFailure if that fails."""
    with httpx.Client(base_url=address, timeout=httpx.Timeout(TIMEOUT, connect=5.0), trust_env=False) as client:

        def post(path: str, body: Mapping[str, Any] | None) -> Any:
            response = client.post(path, json=body)
            if response.status_code == httpx.codes.NOT_FOUND:
                raise EngineFailure(
                    f"{address} has no {path}, so it cannot receive weights; start vLLM with VLLM_SERVER_DEV_MODE=1"
                )
            if response.status_code != httpx.codes.OK:
                raise EngineFailure(f"{address}{path} returned {response.status_code}: {response.text[:200]}")
            return response.json() if response.content else None

        post(f"/pause?mode={PAUSE_MODES[in_flight]}", None)
        try:
            load(post)
            # Paused requests lose their keys and values too, and recompute them with the new weights.
            answer = post("/reset_prefix_cache?reset_running_requests=true", None)
            if isinstance(answer, dict) and answer.get("success") is False:
                raise EngineFailure(f"{address} did not drop the prefix cache of its old weights; restart it")
        finally:
            post("/resume", None)


class DiskTransport:
    """Writes weights to a folder that the servers read at the same path."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: list[Path] = []

    def prepare(self, weights: Mapping[str, Tensor], version: int) -> Load:
        folder = self._folder / f"weights-{version}"
        # The servers have loaded the previous weights by now, so everything older can go.
        for outdated in [each for each in self._written[:-1] if each != folder]:
            shutil.rmtree(outdated)
            self._written.remove(outdated)
        folder.mkdir(parents=True, exist_ok=True)
        # safetensors refuses tensors that share memory, so tied weights are written twice.
        seen: set[int] = set()
        copies: dict[str, Tensor] = {}
        for name, weight in weights.items():
            tensor = weight.detach().cpu().contiguous()
            copies[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
            seen.add(tensor.data_ptr())
        save_file(copies, folder / "model.safetensors", metadata={"format": "pt"})
        self._written = [*(each for each in self._written if each != folder), folder]
        return load_from_folder(folder)

    def close(self) -> None:
        for each in self._written:
            shutil.rmtree(each, ignore_errors=True)
        self._written = []


def load_from_folder(folder: Path) -> Load:
    """Make a server load the weights of a model folder."""

    def load(post: Post) -> None:
        post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder.resolve())}})

    return load


class CudaIpcTransport:
    """Sends CUDA IPC handles of the trainer's weights; servers on the same GPU copy the weights."""

    def prepare(self, weights: Mapping[str, Tensor], version: int) -> Load:  # noqa: ARG002  nothing is kept by version
        if misplaced := [name for name, weight in weights.items() if weight.device.type != "cuda"]:
            raise ConfigError(
                f"engine.weights = device needs the trainer on a GPU, but {misplaced[0]} is not on one; use disk"
            )
        held = {name: weight.detach().contiguous() for name, weight in weights.items()}

        def load(post: Post) -> None:
            # The server copies what is in memory at this point; each server needs its own handles.
            torch.cuda.synchronize()
            handles = [
                {str(torch.cuda.get_device_properties(weight.device).uuid): reduce_tensor(weight)[1]}
                for weight in held.values()
            ]
            try:
                post("/init_weight_transfer_engine", {"init_info": {}})
                post("/start_weight_update", None)
            except EngineFailure as failure:
                raise EngineFailure(
                    f"{failure}; start vLLM with {IPC_OPTIONS[0]} '{IPC_OPTIONS[1]}' and "
                    "VLLM_ALLOW_INSECURE_SERIALIZATION=1, or use engine.weights = disk"
                ) from failure
            post("/update_weights", ipc_update(held, handles))
            post("/finish_weight_update", None)
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
