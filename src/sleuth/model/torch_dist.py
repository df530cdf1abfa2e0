"""Folders of Megatron's checkpoint format `torch_dist`, read and written with torch.distributed.checkpoint."""

import json
import math
import pickle
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from sleuth.errors import InputError
from sleuth.runs.json_files import read_json

FORMAT = "torch_dist"
FORMAT_FILE, COMMON_FILE, METADATA_FILE = "metadata.json", "common.pt", ".metadata"
TRACKER = "latest_checkpointed_iteration.txt"
RELEASE = "release"  # Megatron's name for weights that belong to no iteration
ITERATION = re.compile(r"iter_\d{7,}")
LEGACY_RANK = "mp_rank_*"

# What .metadata may refer to. It is a pickle: anything else could run code.
SAFE_GLOBALS: dict[str, frozenset[str]] = {
    "collections": frozenset({"OrderedDict"}),
    "pathlib": frozenset({"PosixPath", "PurePosixPath"}),
    "torch": frozenset({"Size"}),
    "torch.serialization": frozenset({"_get_layout"}),
    "torch.distributed._shard.sharded_tensor.metadata": frozenset({"MEM_FORMAT_ENCODING", "TensorProperties"}),
    "torch.distributed.checkpoint.filesystem": frozenset({"_StorageInfo", "_StoragePrefix"}),
    "torch.distributed.checkpoint.metadata": frozenset(
        {
            "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
            "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
        }
    ),
    "torch.distributed.checkpoint.planner": frozenset({"SavePlan", "TensorWriteData", "WriteItem", "WriteItemType"}),
}  # fmt: skip
READ_ERRORS = (
    AssertionError, AttributeError, EOFError, LookupError, OSError, RuntimeError, TypeError, ValueError,
    pickle.UnpicklingError,
)  # fmt: skip


def iteration_name(iteration: int) -> str:
    """Return Megatron's folder name of an iteration; older Megatron rejects 0, which is written as a release."""
    return f"iter_{iteration:07d}" if iteration else RELEASE


def find_iteration(folder: Path) -> Path:
    """Return the iteration folder of a checkpoint: `folder` itself, the one its tracker names, or its only one."""
    if (folder / FORMAT_FILE).is_file():
        return folder
    found = sorted(each for each in folder.glob("*") if ITERATION.fullmatch(each.name) or each.name == RELEASE)
    if not found:
        raise InputError(
            f"{folder} is not a Megatron checkpoint: it has no {FORMAT_FILE} and no iter_* folder; "
            "give the folder that Megatron saved to"
        )
    names, tracker = ", ".join(each.name for each in found), folder / TRACKER
    if tracker.is_file():
        latest = tracker.read_text(encoding="utf-8", errors="replace").strip()
        chosen = folder / (f"iter_{int(latest):07d}" if re.fullmatch(r"[0-9]{1,12}", latest) else latest)
        if chosen not in found:
            raise InputError(f"{tracker} names the iteration {latest[:40]!r}, but there are {names}; give one of them")
        return chosen
    if len(found) > 1:
        raise InputError(f"{folder} has several iterations ({names}) and no {TRACKER}; give one of them")
    return found[0]


class TorchDistCheckpoint:
    """A checkpoint opened for reading: the description of every tensor, and each tensor on request."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        self.folder = folder
        self.tensors = {
            name: entry
            for name, entry in metadata.state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata)
        }
        self.objects = metadata.state_dict_metadata.keys() - self.tensors.keys()
        self._reader = _Reader(folder, metadata)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open an iteration folder, as `find_iteration` returns it."""
        if not (folder / FORMAT_FILE).is_file():
            kind = "the format torch (mp_rank_* files)" if any(folder.glob(LEGACY_RANK)) else f"no {FORMAT_FILE}"
            raise InputError(f"{folder} has {kind}; expected {FORMAT}: save it with Megatron's --ckpt-format {FORMAT}")
        backend = read_json(folder / FORMAT_FILE).get("sharded_backend")
        if backend != FORMAT:
            raise InputError(f"{folder} has the format {backend}; save it with Megatron's --ckpt-format {FORMAT}")
        with _explain_read_errors(folder):
            return cls(folder, _read_metadata(folder / METADATA_FILE))

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].size)

    def read(self, name: str) -> Tensor:
        """Read one tensor, assembled from the shards of all ranks."""
        entry = self.tensors[name]
        # Torch leaves what no shard covers uninitialised.
        if sum(math.prod(chunk.sizes) for chunk in entry.chunks) != math.prod(entry.size):
            raise InputError(f"{self.folder} lacks shards of {name}; copy the whole checkpoint again")
        target = torch.empty(entry.size, dtype=entry.properties.dtype)
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        with _explain_read_errors(self.folder):
            load({name: target}, storage_reader=self._reader, planner=planner, no_dist=True)
        return target


def write_checkpoint(
    folder: Path, tensors: Mapping[str, Tensor], objects: Mapping[str, object], common: Mapping[str, object]
) -> None:
    """Write an iteration folder: tensors, objects under Megatron's shard names, and the state common to all ranks."""
    folder.mkdir(parents=True)
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    with unwrap_errors():
        save({**tensors, **objects}, storage_writer=FileSystemWriter(folder), planner=planner, no_dist=True)
    torch.save(dict(common), folder / COMMON_FILE)
    backends = {"sharded_backend": FORMAT, "sharded_backend_version": 1}
    backends |= {"common_backend": "torch", "common_backend_version": 1}
    (folder / FORMAT_FILE).write_text(json.dumps(backends), encoding="utf-8")


class _Reader(FileSystemReader):
    """A reader whose metadata was already read, without running code from the file."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        super().__init__(folder)
        self._metadata = metadata

    def read_metadata(self, *_args: Any, **_options: Any) -> Metadata:
        return self._metadata


class _Foreign:
    """Takes the place of Megatron's own classes, which hold nothing that the weights need."""

    def __new__(cls, *_args: object, **_options: object) -> Self:
        return super().__new__(cls)


class _MetadataUnpickler(pickle.Unpickler):
    """Builds descriptions of tensors and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "megatron":
            return _Foreign
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or name in SAFE_GLOBALS.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, which describes no tensor")


def _read_metadata(path: Path) -> Metadata:
    with path.open("rb") as file:
        read = _MetadataUnpickler(file).load()
    # Some versions of Megatron write a class of their own with the same fields.
    return Metadata(read.state_dict_metadata, storage_data=read.storage_data, storage_meta=StorageMeta())


@contextmanager
def unwrap_errors() -> Iterator[None]:
    """Replace torch's CheckpointException with the original error of the first failed rank."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
    try:
        yield
    except CheckpointException as error:
        cause, _ = next(iter(error.failures.values()))
        raise cause from error


@contextmanager
def _explain_read_errors(folder: Path) -> Iterator[None]:
    """Convert whatever a damaged checkpoint raises into a one-line InputError."""
    try:
        with unwrap_errors():
            yield
    except READ_ERRORS as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise InputError(f"{folder} cannot be read ({reason}); copy the whole checkpoint again") from error
