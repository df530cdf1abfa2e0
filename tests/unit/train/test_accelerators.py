"""Devices: names, the driver's labels, and what is unknown."""

import pytest
import torch

from sleuth.errors import ConfigError
from sleuth.model.memory import host_memory
from sleuth.train.accelerators import GIB, GPUS, find, identify, match


@pytest.mark.parametrize(
    ("label", "gib", "name"),
    [
        ("NVIDIA H200", 139, "h200"),
        ("NVIDIA H20", 95, "h20"),
        ("NVIDIA A100-SXM4-40GB", 39, "a100-40"),
        ("NVIDIA A100-SXM4-80GB", 79, "a100-80"),
        ("NVIDIA A10G", 22, "a10"),
        ("NVIDIA GeForce RTX 4090", 23, "4090"),
        ("Tesla T4", 14, "t4"),
    ],
)
def test_driver_names(label: str, gib: int, name: str) -> None:
    found = match(label, gib * GIB)
    assert found is not None
    assert (found.name, found.memory, found.label) == (name, gib * GIB, label)


def test_unknown_gpu() -> None:
    assert match("Graphcore IPU", GIB) is None
    with pytest.raises(ConfigError, match=r"'gtx'.*h200.*cpu"):
        find("gtx")


def test_names_ignore_case_and_cpu_is_this_machine() -> None:
    assert find("H200") is GPUS["h200"]
    cpu = find("cpu")
    assert cpu == identify(torch.device("cpu"))
    assert (cpu.memory, cpu.is_gpu) == (host_memory()[0], False)
    assert cpu.flops(half=False) == cpu.flops(half=True) > 0
