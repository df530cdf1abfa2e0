"""CUDA IPC messages, as far as they can be tested without a GPU."""

import base64
import pickle

import pytest
import torch

from sleuth.engines.vllm.weight_sync import CudaIpcTransport, ipc_update
from sleuth.errors import ConfigError


def test_an_ipc_update_lists_name_dtype_shape_and_handle_of_every_weight() -> None:
    weights = {"embed": torch.ones(2, 3), "norm": torch.ones(4, dtype=torch.bfloat16)}
    told = ipc_update(weights, [{"GPU-1": (1, "a")}, {"GPU-1": (2, "b")}])["update_info"]
    assert (told["names"], told["dtype_names"]) == (["embed", "norm"], ["float32", "bfloat16"])
    assert told["shapes"] == [[2, 3], [4]]
    found = pickle.loads(base64.b64decode(told["ipc_handles_pickled"]))  # noqa: S301  our own
    assert found == [{"GPU-1": (1, "a")}, {"GPU-1": (2, "b")}]


def test_weights_on_a_cpu_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine\.weights = device.*head"):
        CudaIpcTransport().prepare({"head": torch.ones(2)}, 1)
