"""Weights through the memory of a GPU, as far as it can be seen without one."""

import base64
import pickle

import pytest
import torch

from sleuth.engines.vllm.weight_sync import CudaIpcTransport, ipc_update
from sleuth.errors import ConfigError


def test_a_server_is_told_the_name_kind_shape_and_place_of_every_weight() -> None:
    weights = {"embed": torch.ones(2, 3), "norm": torch.ones(4, dtype=torch.bfloat16)}
    told = ipc_update(weights, [{"GPU-1": (1, "a")}, {"GPU-1": (2, "b")}])["update_info"]
    assert (told["names"], told["dtype_names"]) == (["embed", "norm"], ["float32", "bfloat16"])
    assert told["shapes"] == [[2, 3], [4]]
    found = pickle.loads(base64.b64decode(told["ipc_handles_pickled"]))  # noqa: S301  our own
    assert found == [{"GPU-1": (1, "a")}, {"GPU-1": (2, "b")}]


def test_weights_that_are_on_no_gpu_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine\.weights = device.*head"):
        CudaIpcTransport().prepare({"head": torch.ones(2)}, 1)
