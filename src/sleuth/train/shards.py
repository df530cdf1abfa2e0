"""Named tensors in a folder, each rank writing its shards, which any number of ranks reads again."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

# Said to everyone who is alone, and nothing is wrong with that.
ALONE = "torch.distributed is disabled, unavailable or uninitialized"


def write(folder: Path, tensors: Mapping[str, Tensor], group: ProcessGroup | None) -> None:
    """Writes this rank's part; every rank of the group calls it, and all fail where one does."""
    writer = FileSystemWriter(folder, sync_files=False)  # whoever gives the folder its name syncs it whole
    _settled(save, dict(tensors), storage_writer=writer, process_group=group, no_dist=group is None)


def sizes(folder: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """What a folder holds, by name: whole shapes, however many ranks wrote them."""
    known = FileSystemReader(folder).read_metadata().state_dict_metadata
    return {
        name: (entry.size, entry.properties.dtype)
        for name, entry in known.items()
        if isinstance(entry, TensorStorageMetadata)
    }


def read(folder: Path, into: dict[str, Tensor]) -> None:
    """Fills tensors with what the folder holds under their names, those that are sharded with their part of it."""
    _settled(load, into, storage_reader=FileSystemReader(folder), no_dist=True)


def _settled(call: Any, tensors: dict[str, Tensor], **settings: Any) -> None:
    """Calls; a failure is the one error behind it, on whichever rank it happened."""
    warnings.filterwarnings("ignore", message=ALONE)
    try:
        call(tensors, **settings)
    except CheckpointException as error:
        cause, _ = next(iter(error.failures.values()))
        raise cause from error
