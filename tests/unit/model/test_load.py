"""Loading refuses what would be computed wrongly, and says why."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, PreTrainedModel

from sleuth.errors import InputError
from sleuth.model.attention import NAME
from sleuth.model.load import load, unsupported_reason

Tiny = Callable[..., PreTrainedModel]
CPU = torch.device("cpu")


@pytest.fixture
def folder(tiny: Tiny, tmp_path: Path) -> Path:
    tiny().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_the_weights_as_saved_with_our_attention(folder: Path, tiny: Tiny, family: str) -> None:
    saved = tiny(family)
    saved.save_pretrained(folder)
    loaded = load(folder, CPU, torch.float32)
    assert loaded.config._attn_implementation == NAME
    assert not loaded.training
    for mine, theirs in zip(loaded.parameters(), saved.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_the_type_asked_for(folder: Path) -> None:
    assert {parameter.dtype for parameter in load(folder, CPU, torch.bfloat16).parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"sliding_window": 4096}, "slides a window of 4096 tokens"),
        ({"sliding_window": 64, "use_sliding_window": True}, "slides a window of 64 tokens"),
        ({"attn_logit_softcapping": 50.0}, "caps its logits (attn_logit_softcapping)"),
        ({"final_logit_softcapping": 30.0}, "caps its logits (final_logit_softcapping)"),
        ({"logits_scaling": 8.0}, "scales its logits (logits_scaling)"),
        ({"logit_scale": 0.0625}, "scales its logits (logit_scale)"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layers of linear_attention"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "positions (dynamic) depend on the longest"),
        ({"rope_parameters": {"full_attention": {"rope_type": "longrope"}}}, "positions (longrope) depend on"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "positions (dynamic) depend on the longest sequence"),
        ({"rope_scaling": {"type": "su"}}, "positions (su) depend on the longest sequence"),
    ],
)
def test_models_of_another_meaning_are_refused(folder: Path, settings: dict[str, object], reason: str) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    with pytest.raises(InputError) as refused:
        load(folder, CPU, torch.float32)
    assert reason in str(refused.value)
    assert str(folder) in str(refused.value)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"sliding_window": None},
        {"sliding_window": 4096, "use_sliding_window": False},
        {"layer_types": ["full_attention"] * 2},
        {"final_logit_softcapping": None, "logits_scaling": 1.0},
        {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}, "rope_scaling": None},
        {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
    ],
)
def test_models_of_plain_meaning_are_served(settings: dict[str, object]) -> None:
    assert unsupported_reason(settings) is None


@pytest.mark.parametrize("kind", ["mistral", "gemma2", "gemma3_text", "cohere", "granite", "gpt_oss"])
def test_families_known_to_differ_are_refused_by_their_own_settings(kind: str) -> None:
    settings = AutoConfig.for_model(kind).to_dict()
    if kind == "granite":
        settings["logits_scaling"] = 16.0
    assert unsupported_reason(settings)


def test_no_model_folder(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match=r"no model folder: it has no config\.json"):
            load(folder, CPU, torch.float32)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
def test_settings_that_are_none(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json (is no JSON|holds no JSON object)"):
        load(folder, CPU, torch.float32)


def test_a_model_nobody_knows(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "no such"}')
    with pytest.raises(InputError, match="no causal model can be loaded"):
        load(folder, CPU, torch.float32)


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="no causal model can be loaded"):
        load(folder, CPU, torch.float32)


def test_weights_cut_short(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(InputError, match="no causal model can be loaded"):
        load(folder, CPU, torch.float32)


def test_weights_of_another_shape(folder: Path, tiny: Tiny) -> None:
    tiny("qwen3").save_pretrained(folder, state_dict=tiny("llama").state_dict())
    with pytest.raises(InputError):
        load(folder, CPU, torch.float32)


def test_absent_weights_are_never_drawn_at_random(folder: Path, tiny: Tiny) -> None:
    weights = tiny().state_dict()
    del weights["model.layers.1.mlp.up_proj.weight"]
    tiny().save_pretrained(folder, state_dict=weights)
    with pytest.raises(InputError, match=r"lacks 1 weights, model\.layers\.1\.mlp\.up_proj\.weight among them"):
        load(folder, CPU, torch.float32)
