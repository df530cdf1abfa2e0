"""Folders of the format torch_dist: the right iteration is found, and damaged or foreign ones are refused."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from sleuth.errors import InputError
from sleuth.model.torch_dist import TRACKER, TorchDistCheckpoint, find_iteration, iteration_name, write_checkpoint


@pytest.fixture
def written(tmp_path: Path) -> Path:
    folder = tmp_path / "iter_0000003"
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
    write_checkpoint(folder, tensors, {"c._extra_state/shard_0_1": [None]}, {"iteration": 3})
    return folder


def test_what_was_written_is_read(written: Path) -> None:
    checkpoint = TorchDistCheckpoint.open(written)
    assert {name: checkpoint.shape(name) for name in checkpoint.tensors} == {"a": (2, 3), "b": (4,)}
    assert checkpoint.objects == {"c._extra_state/shard_0_1"}
    assert torch.equal(checkpoint.read("a"), torch.arange(6.0).view(2, 3))
    assert checkpoint.read("b").dtype is torch.bfloat16
    assert torch.load(written / "common.pt") == {"iteration": 3}
    assert json.loads((written / "metadata.json").read_text())["sharded_backend"] == "torch_dist"


def test_iteration_is_the_folder_itself_the_latest_or_the_only_one(written: Path) -> None:
    root = written.parent
    assert find_iteration(written) == find_iteration(root) == written
    (root / "release").mkdir()
    (root / TRACKER).write_text("3\n")
    assert find_iteration(root) == written
    (root / TRACKER).write_text("release")
    assert find_iteration(root) == root / "release"
    assert [iteration_name(iteration) for iteration in (0, 3, 12345678)] == ["release", "iter_0000003", "iter_12345678"]


def test_several_iterations_need_a_choice(written: Path) -> None:
    (written.parent / "iter_0000005").mkdir()
    with pytest.raises(InputError, match=r"iter_0000003, iter_0000005.*latest_checkpointed_iteration"):
        find_iteration(written.parent)


@pytest.mark.parametrize("latest", ["4", "", "../iter_0000003", "x" * 200])
def test_tracker_of_a_missing_iteration_is_refused(written: Path, latest: str) -> None:
    (written.parent / TRACKER).write_text(latest)
    with pytest.raises(InputError, match=r"iter_0000003") as caught:
        find_iteration(written.parent)
    assert len(str(caught.value)) < 400


def test_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a Megatron checkpoint"):
        find_iteration(tmp_path)
    with pytest.raises(InputError, match="nowhere is not a Megatron checkpoint"):
        find_iteration(tmp_path / "nowhere")


def test_other_formats_are_refused(written: Path, tmp_path: Path) -> None:
    (written / "metadata.json").write_text('{"sharded_backend": "zarr"}')
    with pytest.raises(InputError, match=r"format zarr.*torch_dist"):
        TorchDistCheckpoint.open(written)
    (written / "metadata.json").unlink()
    with pytest.raises(InputError, match=r"no metadata\.json.*torch_dist"):
        TorchDistCheckpoint.open(written)
    (written / "mp_rank_00").mkdir()
    with pytest.raises(InputError, match=r"the format torch .*torch_dist"):
        TorchDistCheckpoint.open(written)


@pytest.mark.parametrize("content", [b"", b"garbage", pickle.dumps(3)])
def test_damaged_metadata_is_refused(written: Path, content: bytes) -> None:
    (written / ".metadata").write_bytes(content)
    with pytest.raises(InputError, match=r"iter_0000003 cannot be read"):
        TorchDistCheckpoint.open(written)


def test_missing_and_truncated_files_are_refused(written: Path) -> None:
    [data] = written.glob("*.distcp")
    whole = data.read_bytes()
    data.write_bytes(whole[:100])
    checkpoint = TorchDistCheckpoint.open(written)
    with pytest.raises(InputError, match=r"iter_0000003 cannot be read"):
        checkpoint.read("a")
    data.unlink()
    with pytest.raises(InputError, match=r"iter_0000003 cannot be read .*distcp"):
        checkpoint.read("b")


def test_missing_shards_are_refused(written: Path) -> None:
    metadata = FileSystemReader(written).read_metadata()
    entry = metadata.state_dict_metadata["a"]
    assert isinstance(entry, TensorStorageMetadata)
    entry.size = torch.Size([3, 3])
    (written / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(InputError, match="lacks shards of a"):
        TorchDistCheckpoint.open(written).read("a")


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_metadata_runs_no_code(written: Path, tmp_path: Path) -> None:
    (written / ".metadata").write_bytes(pickle.dumps(Touch(tmp_path / "touched")))
    with pytest.raises(InputError, match="describes no tensor"):
        TorchDistCheckpoint.open(written)
    assert not (tmp_path / "touched").exists()


def test_classes_of_megatron_in_metadata_are_not_needed(written: Path) -> None:
    """As megatron-core 0.14 writes: its own class, with the fields of torch's."""
    written_by_torch = pickle.dumps(FileSystemReader(written).read_metadata(), protocol=2)
    own = written_by_torch.replace(
        b"ctorch.distributed.checkpoint.metadata\nMetadata\n",
        b"cmegatron.core.dist_checkpointing.strategies.torch\nMCoreMetadata\n",
    )
    assert own != written_by_torch
    (written / ".metadata").write_bytes(own)
    checkpoint = TorchDistCheckpoint.open(written)
    assert torch.equal(checkpoint.read("a"), torch.arange(6.0).view(2, 3))
