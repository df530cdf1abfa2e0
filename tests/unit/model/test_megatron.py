"""Conversion between Hugging Face and Megatron: exact in both directions, in every layout that Megatron writes."""

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from sleuth.errors import InputError
from sleuth.model import megatron
from sleuth.model.torch_dist import TorchDistCheckpoint, write_checkpoint

LAYERS = "decoder.layers."
SIZES: dict[str, Any] = {
    "num_hidden_layers": 3,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 10,
    "max_position_embeddings": 64,
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen2.5, tied": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2.5, one group": {"model_type": "qwen2", "tie_word_embeddings": False, "num_key_value_heads": 1},
    "qwen3, tied, wide heads": {"model_type": "qwen3", "tie_word_embeddings": True, "head_dim": 6},
    "qwen3": {"model_type": "qwen3", "tie_word_embeddings": False, "head_dim": 2},
    "llama, tied": {"model_type": "llama", "tie_word_embeddings": True},
    "llama, plain heads": {"model_type": "llama", "tie_word_embeddings": False, "num_key_value_heads": 4},
    "llama, biases": {"model_type": "llama", "tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
}

State = dict[str, Tensor]


def config_of(name: str = "qwen2.5, tied", **changes: Any) -> PretrainedConfig:
    config: PretrainedConfig = AutoConfig.for_model(**SIZES | MODELS[name] | changes)
    return config


def weights_of(config: PretrainedConfig, dtype: torch.dtype = torch.float32) -> State:
    model = AutoModelForCausalLM.from_config(config)
    return {name: torch.randn(each.shape).to(dtype) for name, each in model.named_parameters()}


def exported(config: PretrainedConfig, weights: State, folder: Path) -> State:
    """The tensors of an export, which is also left in `folder`."""
    megatron.export_checkpoint(config, weights.__getitem__, folder, 3)
    checkpoint = TorchDistCheckpoint.open(folder / "iter_0000003")
    return {name: checkpoint.read(name) for name in checkpoint.tensors}


def imported(config: PretrainedConfig, folder: Path, out: Path) -> State:
    config.save_pretrained(out.parent / "like")
    megatron.import_checkpoint(folder, out.parent / "like", out)
    found: State = load_file(out / "model.safetensors")
    return found


def same(first: State, second: State) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_round_trip_is_exact(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    config = config_of(name)
    weights = weights_of(config, dtype)
    tensors = exported(config, weights, tmp_path / "megatron")
    assert ("output_layer.weight" in tensors) is not config.tie_word_embeddings
    assert (f"{LAYERS}self_attention.linear_qkv.bias" in tensors) is any("q_proj.bias" in each for each in weights)
    read = imported(config, tmp_path / "megatron", tmp_path / "out")
    assert same(read, weights)
    assert {each.dtype for each in read.values()} == {dtype}
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert model.dtype is dtype


def test_queries_keys_and_values_are_fused_group_by_group(tmp_path: Path) -> None:
    """Four query heads of width 2 in two groups: heads 0 and 1, key 0, value 0, then heads 2 and 3, key 1, value 1."""
    config = config_of()
    weights = weights_of(config)
    tensors = exported(config, weights, tmp_path / "megatron")
    layer = "model.layers.1.self_attn."
    for kind in ("weight", "bias"):
        query, key, value = (weights[f"{layer}{each}_proj.{kind}"] for each in "qkv")
        expected = torch.cat([query[:4], key[:2], value[:2], query[4:], key[2:], value[2:]])
        assert torch.equal(tensors[f"{LAYERS}self_attention.linear_qkv.{kind}"][1], expected)
    gate, up = (weights[f"model.layers.2.mlp.{each}_proj.weight"] for each in ("gate", "up"))
    assert torch.equal(tensors[f"{LAYERS}mlp.linear_fc1.weight"][2], torch.cat([gate, up]))


def test_folder_is_laid_out_as_megatron_expects(tmp_path: Path) -> None:
    config = config_of("qwen3")
    exported(config, weights_of(config), tmp_path / "megatron")
    folder = tmp_path / "megatron" / "iter_0000003"
    assert (tmp_path / "megatron" / "latest_checkpointed_iteration.txt").read_text() == "3"
    common = torch.load(folder / "common.pt", weights_only=False)
    assert common["iteration"] == 3
    assert common["checkpoint_version"] == 3.0
    assert common["content_metadata"] == {"singleton_local_shards": False}
    arguments = vars(common["args"])
    assert arguments["num_layers"] == 3
    assert arguments["qk_layernorm"]
    assert arguments["no_save_optim"]
    assert not arguments["add_qkv_bias"]
    objects = TorchDistCheckpoint.open(folder).objects
    modules = ("linear_qkv", "linear_proj", "core_attention", "q_layernorm", "k_layernorm")
    states = {f"{LAYERS}self_attention.{each}._extra_state/shard_{layer}_3" for each in modules for layer in range(3)}
    states |= {
        f"{LAYERS}mlp.{each}._extra_state/shard_{layer}_3"
        for each in ("linear_fc1", "linear_fc2")
        for layer in range(3)
    }
    assert objects == states | {"decoder.final_layernorm._extra_state/shard_0_1"}


def test_weights_of_no_iteration_are_a_release(tmp_path: Path) -> None:
    config = config_of()
    megatron.export_checkpoint(config, weights_of(config).__getitem__, tmp_path / "megatron", 0)
    assert {each.name for each in (tmp_path / "megatron").iterdir()} == {"release", "latest_checkpointed_iteration.txt"}
    assert (tmp_path / "megatron" / "latest_checkpointed_iteration.txt").read_text() == "release"


def per_layer(tensors: State) -> State:
    """Each layer under a name of its own."""
    found = {name: each for name, each in tensors.items() if not name.startswith(LAYERS)}
    for name, stacked in tensors.items():
        if name.startswith(LAYERS):
            found |= {name.replace(LAYERS, f"{LAYERS}{layer}."): each.clone() for layer, each in enumerate(stacked)}
    return found


def halved(tensors: State) -> State:
    """Each layer, and gate and up, under names of their own."""
    found = per_layer(tensors)
    for name in [each for each in found if "linear_fc1.weight" in each]:
        found |= dict(zip((f"{name}_w", f"{name}_v"), found.pop(name).chunk(2), strict=True))
    return found


def local(tensors: State) -> State:
    """Norms under the names of layers without Transformer Engine."""
    names = {
        "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
        "mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight",
    }
    return {
        next((name.replace(old, new) for old, new in names.items() if old in name), name): each
        for name, each in tensors.items()
    }


def padded(tensors: State) -> State:
    words = "embedding.word_embeddings.weight"
    return {**tensors, words: torch.cat([tensors[words], torch.full((6, 8), torch.nan)])}


LAYOUTS: dict[str, Callable[[State], State]] = {
    "per layer": per_layer,
    "gate and up apart": halved,
    "local names": local,
    "local names per layer": lambda tensors: per_layer(local(tensors)),
    "padded vocabulary": padded,
    "with moments": lambda tensors: {
        **tensors,
        "optimizer.state.exp_avg.embedding.word_embeddings.weight": torch.ones(3),
        "chained_0.optimizer.state.fp32_param.x": torch.ones(3),
    },
}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_other_layouts_are_read(kind: str, tmp_path: Path) -> None:
    config = config_of()
    weights = weights_of(config)
    tensors = LAYOUTS[kind](exported(config, weights, tmp_path / "megatron"))
    write_checkpoint(tmp_path / "other", tensors, {}, {})
    assert same(imported(config, tmp_path / "other", tmp_path / "out"), weights)


def test_what_is_not_a_weight_is_counted(tmp_path: Path) -> None:
    config = config_of()
    tensors = LAYOUTS["with moments"](exported(config, weights_of(config), tmp_path / "megatron"))
    objects = {"rng_state/shard_0_1": [1], f"{LAYERS}mlp.linear_fc1._extra_state/shard_0_3": [None]}
    write_checkpoint(tmp_path / "other", tensors, objects, {})
    config.save_pretrained(tmp_path / "like")
    read = megatron.import_checkpoint(tmp_path / "other", tmp_path / "like", tmp_path / "out")
    assert read.ignored == {"optimiser tensors": 2, "extra states": 1, "other objects": 1}
    assert (read.weights, read.dtype) == (3 * 12 + 2, "float32")


def test_config_and_tokenizer_come_from_the_other_folder(tmp_path: Path) -> None:
    config = config_of()
    exported(config, weights_of(config, torch.bfloat16), tmp_path / "megatron")
    like = tmp_path / "like"
    config.save_pretrained(like)
    settings = json.loads((like / "config.json").read_text())
    (like / "config.json").write_text(json.dumps({**settings, "torch_dtype": "float32", "mark": 7}))
    (like / "trainer").mkdir()
    kept, dropped = ("tokenizer.json", "chat_template.jinja", "merges.txt"), ("model.safetensors", "a.bin", "code.py")
    for name in (*kept, *dropped, "model.safetensors.index.json"):
        (like / name).write_text("{}")
    megatron.import_checkpoint(tmp_path / "megatron", like, tmp_path / "out")
    found = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (found["mark"], found["dtype"], "torch_dtype" in found) == (7, "bfloat16", False)
    names = {each.name for each in (tmp_path / "out").iterdir()}
    assert names - {"generation_config.json"} == {"config.json", "model.safetensors", *kept}


def test_rest_of_a_checkpoint_is_never_dropped_in_silence(tmp_path: Path) -> None:
    config = config_of()
    tensors = exported(config, weights_of(config), tmp_path / "megatron")
    write_checkpoint(tmp_path / "other", {**tensors, f"{LAYERS}mlp.router.weight": torch.ones(3, 2)}, {}, {})
    with pytest.raises(InputError, match=r"1 weights .*mlp\.router\.weight"):
        imported(config, tmp_path / "other", tmp_path / "out")
    untied = config_of(tie_word_embeddings=False)
    exported(untied, weights_of(untied), tmp_path / "untied")
    with pytest.raises(InputError, match=r"output_layer\.weight"):
        imported(config, tmp_path / "untied", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"tie_word_embeddings": False}, r"lacks 1 weights, including output_layer\.weight"),
        ({"num_hidden_layers": 4}, r"\(3, 16, 8\), expected \(4, 16, 8\)"),
        ({"num_hidden_layers": 2}, r"\(3, 16, 8\), expected \(2, 16, 8\)"),
        ({"num_key_value_heads": 1}, r"linear_qkv\.weight of shape \(3, 16, 8\), expected \(3, 12, 8\)"),
        ({"intermediate_size": 16}, r"linear_fc1\.weight of shape \(3, 24, 8\), expected \(3, 32, 8\)"),
        ({"vocab_size": 11}, r"word_embeddings\.weight of shape \(10, 8\), expected \(11, 8\)"),
        ({"model_type": "qwen3", "head_dim": 2}, r"lacks 2 weights, including .*layernorm"),
        ({"model_type": "llama"}, r"1 weights that --like does not have, including .*linear_qkv\.bias"),
        ({"model_type": "gpt2"}, r"type gpt2 .*llama, qwen2, qwen3"),
    ],
)
def test_other_models_are_refused(changes: dict[str, Any], facts: str, tmp_path: Path) -> None:
    config = config_of()
    exported(config, weights_of(config), tmp_path / "megatron")
    with pytest.raises(InputError, match=facts):
        imported(config_of(**changes), tmp_path / "megatron", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_missing_layer_is_named(tmp_path: Path) -> None:
    config = config_of()
    tensors = halved(exported(config, weights_of(config), tmp_path / "megatron"))
    del tensors[f"{LAYERS}1.mlp.linear_fc1.weight_v"], tensors[f"{LAYERS}2.mlp.linear_fc2.weight"]
    write_checkpoint(tmp_path / "other", tensors, {}, {})
    with pytest.raises(InputError, match=r"lacks 2 weights, including decoder\.layers\.1\.mlp\.linear_fc1\.weight_v"):
        imported(config, tmp_path / "other", tmp_path / "out")


def test_damaged_weights_leave_nothing_behind(tmp_path: Path) -> None:
    config = config_of()
    exported(config, weights_of(config), tmp_path / "megatron")
    for data in (tmp_path / "megatron" / "iter_0000003").glob("*.distcp"):
        data.unlink()
    with pytest.raises(InputError, match=r"iter_0000003 cannot be read"):
        imported(config, tmp_path / "megatron", tmp_path / "out")
    assert {each.name for each in tmp_path.iterdir()} == {"megatron", "like"}


def test_existing_folder_is_left_as_it_is(tmp_path: Path) -> None:
    config = config_of()
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="already exists"):
        exported(config, weights_of(config), tmp_path / "out")
    with pytest.raises(InputError, match="already exists"):
        imported(config, tmp_path / "megatron", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    config = config_of()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(InputError, match=r"megatron cannot be written: .*file size limit"):
            exported(config, weights_of(config), tmp_path / "megatron")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_weights_of_another_shape_are_not_exported(tmp_path: Path) -> None:
    config = config_of()
    weights = weights_of(config)
    weights["model.layers.2.mlp.up_proj.weight"] = torch.ones(5, 8)
    with pytest.raises(InputError, match=r"layers\.2\.mlp\.up_proj\.weight has shape \(5, 8\).*\(12, 8\)"):
        exported(config, weights, tmp_path / "megatron")
    assert not (tmp_path / "megatron").exists()
