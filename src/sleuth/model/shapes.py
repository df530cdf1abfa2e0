"""Configs of models without their weights: published shapes by name, and the config.json of a folder."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig, PretrainedConfig

from sleuth.errors import InputError
from sleuth.model.load import unsupported_reason


def _rope(theta: float, **scaling: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **scaling}}


def _sizes(hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, vocabulary: int) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
        "vocab_size": vocabulary,
    }


SMOLLM2: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    **_rope(1e5),
}
LLAMA32: dict[str, Any] = {
    **SMOLLM2,
    "max_position_embeddings": 131_072,
    **_rope(
        5e5,
        rope_type="llama3",
        factor=32.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    ),
}
QWEN25: dict[str, Any] = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    **_rope(1e6),
}
QWEN3: dict[str, Any] = {
    **QWEN25,
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "max_position_embeddings": 40_960,
    "head_dim": 128,
}

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {**SMOLLM2, **_sizes(64, 2, 4, 2, 128, 2048)},  # not a published model: to try a command without a GPU
    "smollm2-135m": {**SMOLLM2, **_sizes(576, 30, 9, 3, 1536, 49_152)},
    "qwen2.5-0.5b": {**QWEN25, **_sizes(896, 24, 14, 2, 4864, 151_936)},
    "qwen2.5-1.5b": {**QWEN25, **_sizes(1536, 28, 12, 2, 8960, 151_936)},
    "qwen2.5-3b": {**QWEN25, **_sizes(2048, 36, 16, 2, 11_008, 151_936)},
    "qwen2.5-7b": {**QWEN25, **_sizes(3584, 28, 28, 4, 18_944, 152_064), "tie_word_embeddings": False},
    "llama-3.2-1b": {**LLAMA32, **_sizes(2048, 16, 32, 8, 8192, 128_256), "head_dim": 64},
    "llama-3.2-3b": {**LLAMA32, **_sizes(3072, 28, 24, 8, 8192, 128_256), "head_dim": 128},
    "qwen3-0.6b": {**QWEN3, **_sizes(1024, 28, 16, 8, 3072, 151_936)},
    "qwen3-1.7b": {**QWEN3, **_sizes(2048, 28, 16, 8, 6144, 151_936)},
    "qwen3-4b": {**QWEN3, **_sizes(2560, 36, 32, 8, 9728, 151_936)},
    "qwen3-8b": {**QWEN3, **_sizes(4096, 36, 32, 8, 12_288, 151_936), "tie_word_embeddings": False},
}


def published_shape(name: str) -> PretrainedConfig:
    if name not in SHAPES:
        raise InputError(f"unknown shape {name!r}; choose one of {', '.join(SHAPES)}, or give --model FOLDER")
    config: PretrainedConfig = AutoConfig.for_model(**SHAPES[name])
    return config


def shape_of_folder(folder: Path) -> PretrainedConfig:
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} is not a model folder: it has no config.json; give a Hugging Face model folder")
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # a damaged config may raise anything
        raise InputError(f"{folder}/config.json cannot be read ({error}); save the model again") from error
    if reason := unsupported_reason(config.to_dict()):
        raise InputError(f"{folder} cannot be served exactly: {reason}; choose a model with plain causal attention")
    return config
