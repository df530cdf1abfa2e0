"""Verdicts and remedies for the environment."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sleuth.doctor.environment import (
    OPTIONAL,
    SUPPORTED,
    Finding,
    Gpu,
    Kernels,
    Machine,
    Verdict,
    findings,
    inspect_machine,
    parse_driver_version,
)

GIB = 1 << 30
H200 = Gpu("NVIDIA H200", (9, 0), 140 * GIB, 139 * GIB)
SOUND = Machine(
    python="3.12.4",
    platform="Linux",
    torch="2.13.0+cu130",
    transformers="5.22.2",
    cuda_build="13.0",
    driver="580.65.06",
    gpus=(H200,),
    triton="3.9.0",
    kernels=Kernels.RIGHT,
    kernel_fault="",
    cores=16,
    memory=128 * GIB,
    memory_free=100 * GIB,
    disk=Path("/work"),
    disk_free=64 * GIB,
    optional={"peft": "0.21.2", "vllm": None},
)
PLAIN: dict[str, Any] = {"cuda_build": None, "driver": None, "gpus": (), "kernels": Kernels.IDLE}


def unsound(machine: Machine) -> list[Finding]:
    return [each for each in findings(machine) if each.verdict is not Verdict.OK]


@pytest.mark.parametrize(
    "found",
    [
        {},
        PLAIN,
        {**PLAIN, "kernels": Kernels.ABSENT, "triton": None},
        {**PLAIN, "kernels": Kernels.INTERPRETED},
        {"torch": "2.11.0a0+git1234"},
        {"driver": None},
    ],
    ids=str,
)
def test_healthy_machine_has_no_remedies(found: dict[str, Any]) -> None:
    rows = findings(replace(SOUND, **found))
    assert unsound(replace(SOUND, **found)) == []
    assert all(row.found and not row.remedy for row in rows)


FAULTS: dict[str, tuple[dict[str, Any], str, Verdict, str]] = {
    "old Python": ({"python": "3.10.9"}, "Python", Verdict.BAD, "3.11 or newer is supported"),
    "old torch": ({"torch": "2.9.1+cu128"}, "torch", Verdict.BAD, "pip install 'torch>=2.11,<2.14'"),
    "new torch": ({"torch": "2.14.0"}, "torch", Verdict.BAD, "pip install 'torch>=2.11,<2.14'"),
    "nameless torch": ({"torch": "unknown"}, "torch", Verdict.BAD, "2.11 or newer, below 2.14 is supported"),
    "new transformers": ({"transformers": "6.0.0"}, "transformers", Verdict.BAD, "below 6 is supported"),
    "driver too old": ({"gpus": ()}, "CUDA", Verdict.BAD, "update the driver to one for CUDA 13.0"),
    "no driver": ({"gpus": (), "driver": None}, "CUDA", Verdict.WARN, "install the driver"),
    "torch without CUDA": ({"gpus": (), "cuda_build": None}, "CUDA", Verdict.WARN, "a build of torch for CUDA"),
    "old GPU": ({"gpus": (H200, replace(H200, capability=(7, 5)))}, "GPU 1", Verdict.WARN, "8.0 or more"),
    "full GPU": ({"gpus": (replace(H200, free=9 * GIB),)}, "GPU 0", Verdict.WARN, "stop other processes"),
    "no compiler": (
        {"kernels": Kernels.FAILED, "kernel_fault": "RuntimeError: no gcc"},
        "Triton",
        Verdict.BAD,
        "Triton needs a C compiler",
    ),
    "wrong kernel": ({"kernels": Kernels.WRONG, "kernel_fault": "by 3"}, "Triton", Verdict.BAD, "the Triton that came"),
    "no Triton": ({"kernels": Kernels.ABSENT, "triton": None}, "Triton", Verdict.BAD, "pip install triton"),
    "interpreter": ({"kernels": Kernels.INTERPRETED}, "Triton", Verdict.WARN, "unset TRITON_INTERPRET"),
    "little memory": ({"memory_free": GIB}, "memory", Verdict.WARN, "stop other processes"),
    "little disk": ({"disk_free": 5 * GIB}, "disk", Verdict.WARN, "enough for small models only"),
    "no disk": ({"disk_free": GIB // 2}, "disk", Verdict.BAD, "free some space"),
}


@pytest.mark.parametrize(("found", "what", "verdict", "remedy"), FAULTS.values(), ids=FAULTS)
def test_fault_is_one_row_with_its_remedy(found: dict[str, Any], what: str, verdict: Verdict, remedy: str) -> None:
    (row,) = unsound(replace(SOUND, **found))
    assert (row.what, row.verdict) == (what, verdict)
    assert remedy in row.remedy


def test_rows_show_facts() -> None:
    told = {row.what: row.found for row in findings(replace(SOUND, kernels=Kernels.FAILED, kernel_fault="no gcc"))}
    assert told["GPU 0"] == "NVIDIA H200, compute capability 9.0, 139.0 of 140.0 GiB free"
    assert told["CUDA"] == "torch for CUDA 13.0, driver 580.65.06"
    assert told["Triton"] == "3.9.0 does not compile or run (no gcc)"
    assert told["optional libraries"] == "peft 0.21.2; not installed: vllm"


def test_versions_are_those_the_package_asks_for() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    needs = {**{need.partition(">=")[0]: need for need in project["dependencies"]}}
    for name, (first, beyond) in SUPPORTED.items():
        wanted = f">={first}" if beyond is None else f"{name}>={first},<{beyond}"
        assert (project["requires-python"] if name == "Python" else needs[name]) == wanted


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19\nGCC version: gcc 12", "535.129.03"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build", "580.65.06"),
        ("something else", None),
    ],
)
def test_driver_is_read_from_what_it_says(text: str, version: str | None) -> None:
    assert parse_driver_version(text) == version


def test_inspects_this_machine(tmp_path: Path) -> None:
    found = inspect_machine(tmp_path)
    assert 0 < found.memory_free <= found.memory
    assert found.disk_free > 0
    assert found.cores > 0
    assert list(found.optional) == list(OPTIONAL)
    assert found.kernels in (Kernels.RIGHT, Kernels.INTERPRETED)
    assert found.kernel_fault == ""
    assert {row.what for row in findings(found) if row.verdict is Verdict.BAD} <= {"disk"}
