"""Checkpoints of megatron-core itself: read by us with the same logits, and ours read by it.

The recordings are folders that tests/contract/megatron_program.py wrote with megatron-core 0.16.1 and torch 2.13:
`python megatron_program.py config.json OUT` with the options of RECORDINGS, zipped without `store`.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from sleuth.model import megatron

HERE = Path(__file__).parent
PROGRAM = HERE / "megatron_program.py"
RECORDED = HERE / "recordings" / "megatron-core"
TOKENS = 12
TOLERANCE = 1e-4  # of logits up to 10 in fp32

SIZES: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 60,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "tie_word_embeddings": False, "head_dim": 8},
    "llama": {"model_type": "llama", "tie_word_embeddings": False},
}
RECORDINGS: dict[str, tuple[str, ...]] = {
    "qwen2": ("--vocabulary", "64", "--optimiser"),
    "qwen3": ("--per-layer",),
    "llama": (),
}
IGNORED = {"qwen2": {"optimiser tensors": 1, "extra states": 8, "other objects": 1}}


def config_of(name: str) -> PretrainedConfig:
    config: PretrainedConfig = AutoConfig.for_model(**SIZES, **MODELS[name])
    return config


def computed(folder: Path) -> Tensor:
    """Logits of stock transformers for the tokens that the program takes."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    with torch.no_grad():
        logits: Tensor = model(torch.arange(1, TOKENS + 1)[None]).logits[0]
    return logits


def run(config: Path, out: Path, *options: str | Path, ranks: Sequence[int] = (0,)) -> Path:
    """Run the program with megatron-core, in as many processes as there are ranks, and return its checkpoint."""
    command = [os.environ["SLEUTH_MEGATRON"], PROGRAM, config, out, *options]
    started = [subprocess.Popen([*command, "--rank", str(rank)], stderr=subprocess.PIPE, text=True) for rank in ranks]
    for process in started:
        _, said = process.communicate(timeout=240)
        assert process.returncode == 0, said[-2000:]
    return out / "checkpoint"


def weights(folder: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = load_file(folder / "model.safetensors")
    return found


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("name", RECORDINGS)
def test_recorded_checkpoint_gives_the_logits_of_megatron(name: str, tmp_path: Path) -> None:
    shutil.unpack_archive(RECORDED / f"{name}.zip", tmp_path / "recorded")
    imported = megatron.import_checkpoint(tmp_path / "recorded" / "checkpoint", tmp_path / "recorded", tmp_path / "out")
    assert imported.ignored == IGNORED.get(name, {"extra states": 8})
    expected = load_file(tmp_path / "recorded" / "logits.safetensors")["logits"]
    assert float((computed(tmp_path / "out") - expected).abs().max()) < TOLERANCE
    assert float(expected.abs().max()) > 1


@pytest.mark.megatron
@pytest.mark.parametrize("name", MODELS)
def test_checkpoints_of_megatron_and_ours_are_interchangeable(name: str, tmp_path: Path) -> None:
    config = config_of(name)
    config.save_pretrained(tmp_path)
    theirs = run(tmp_path / "config.json", tmp_path / "theirs", *RECORDINGS[name])
    megatron.import_checkpoint(theirs, tmp_path, tmp_path / "imported")
    expected = load_file(tmp_path / "theirs" / "logits.safetensors")["logits"]
    assert float((computed(tmp_path / "imported") - expected).abs().max()) < TOLERANCE
    read = weights(tmp_path / "imported")
    megatron.export_checkpoint(config, read.__getitem__, tmp_path / "ours", 7)
    loads = ("--load", tmp_path / "ours" / "iter_0000007", "--seed", "1", "--vocabulary", "64")
    run(tmp_path / "config.json", tmp_path / "loaded", *loads)
    assert same(load_file(tmp_path / "loaded" / "logits.safetensors"), {"logits": expected})


@pytest.mark.megatron
@pytest.mark.parametrize("split", ["--tensor", "--pipeline"])
def test_shards_of_several_ranks_are_put_together(split: str, tmp_path: Path) -> None:
    config = config_of("qwen2")
    config.save_pretrained(tmp_path)
    made = {name: torch.randn(each.shape) for name, each in AutoModelForCausalLM.from_config(config).named_parameters()}
    megatron.export_checkpoint(config, made.__getitem__, tmp_path / "ours", 0)
    loads = ("--load", tmp_path / "ours" / "release", "--vocabulary", "64", split, "2")
    theirs = run(tmp_path / "config.json", tmp_path / "theirs", *loads, ranks=(0, 1))
    assert len(list(theirs.glob("__1_*.distcp"))) > 0
    megatron.import_checkpoint(theirs, tmp_path, tmp_path / "imported")
    assert same(weights(tmp_path / "imported"), made)
