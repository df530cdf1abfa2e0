"""New weights for servers, through a folder that they read too."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import httpx
from safetensors.torch import save_file

from sleuth.errors import EngineFailure

if TYPE_CHECKING:
    from torch import Tensor

InFlight = Literal["continue", "finish"]
# What the server does with calls in flight: ours are asked for anew after an abort.
PAUSES: dict[InFlight, str] = {"continue": "abort", "finish": "wait"}
# Seconds for a server to finish what is in flight, and to read its weights.
PATIENCE = 1800.0


class Push:
    """Writes weights to a folder and has servers read them; the newest stay there, older ones are removed."""

    def __init__(self, folder: Path, in_flight: InFlight) -> None:
        self._folder, self._in_flight = folder, in_flight
        self._written: Path | None = None

    def write(self, weights: "Mapping[str, Tensor]", version: int) -> Path:
        """A folder with the weights of this version."""
        folder = self._folder / f"weights-{version}"
        folder.mkdir(parents=True, exist_ok=True)
        save_file(_apart(weights), folder / "model.safetensors", metadata={"format": "pt"})
        if self._written is not None and self._written != folder:
            shutil.rmtree(self._written)
        self._written = folder
        return folder

    def load(self, address: str, folder: Path) -> None:
        """Has a server go on with these weights; its cached keys and values are of the old ones, and dropped."""
        with httpx.Client(base_url=address, timeout=httpx.Timeout(PATIENCE, connect=5.0), trust_env=False) as client:
            post = _poster(client, address)
            with _paused(post, PAUSES[self._in_flight]):
                post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder.resolve())}})
                post("/reset_prefix_cache", None)

    def close(self) -> None:
        """Removes what was written."""
        if self._written is not None:
            shutil.rmtree(self._written, ignore_errors=True)
            self._written = None


Post = Callable[[str, Mapping[str, Any] | None], None]


def _poster(client: httpx.Client, address: str) -> Post:
    def post(path: str, body: Mapping[str, Any] | None) -> None:
        response = client.post(path, json=body)
        if response.status_code == httpx.codes.NOT_FOUND:
            raise EngineFailure(
                f"{address} has no {path}, so weights cannot be sent there; start vLLM with VLLM_SERVER_DEV_MODE=1"
            )
        if response.status_code != httpx.codes.OK:
            raise EngineFailure(f"{address}{path} answered {response.status_code}: {response.text[:200]}")

    return post


@contextmanager
def _paused(post: Post, mode: str) -> Iterator[None]:
    post(f"/pause?mode={mode}", None)
    try:
        yield
    finally:
        post("/resume", None)


def _apart(weights: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """Tensors on the CPU, none of which shares memory with another: tied ones are written twice."""
    seen: set[int] = set()
    apart: dict[str, Tensor] = {}
    for name, weight in weights.items():
        tensor = weight.detach().cpu().contiguous()
        apart[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return apart
