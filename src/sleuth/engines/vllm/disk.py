"""Weights through a folder that servers read too, under the same name."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import save_file

from sleuth.engines.vllm.push import Load, Post

if TYPE_CHECKING:
    from torch import Tensor


class Disk:
    """Writes weights below a folder; those before the newest stay until the next ones, by when these are loaded."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: list[Path] = []

    def ready(self, weights: "Mapping[str, Tensor]", version: int) -> Load:
        folder = self._folder / f"weights-{version}"
        # A call means that the servers have loaded the weights of the one before: all older ones can go.
        for outdated in [each for each in self._written[:-1] if each != folder]:
            shutil.rmtree(outdated)
            self._written.remove(outdated)
        folder.mkdir(parents=True, exist_ok=True)
        save_file(_apart(weights), folder / "model.safetensors", metadata={"format": "pt"})
        self._written = [*(each for each in self._written if each != folder), folder]
        return reading(folder)

    def close(self) -> None:
        for each in self._written:
            shutil.rmtree(each, ignore_errors=True)
        self._written = []


def reading(folder: Path) -> Load:
    """Has a server read the weights of a folder, which may be any model folder."""

    def load(post: Post) -> None:
        post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder.resolve())}})

    return load


def _apart(weights: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """Tensors on the CPU, none of which shares memory with another: tied ones are written twice."""
    seen: set[int] = set()
    apart: dict[str, Tensor] = {}
    for name, weight in weights.items():
        tensor = weight.detach().cpu().contiguous()
        apart[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return apart
