"""Shapes of published models, whose speed does not depend on what their weights are."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig, PretrainedConfig

from sleuth.errors import InputError
from sleuth.model.load import unsupported_reason


def _rotary(theta: float, **scaling: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **scaling}}


def _sized(wide: int, layers: int, heads: int, key_heads: int, between: int, vocabulary: int) -> dict[str, Any]:
    return {
        "hidden_size": wide,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "intermediate_size": between,
        "vocab_size": vocabulary,
    }


SMOLLM2: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    **_rotary(1e5),
}
LLAMA32: dict[str, Any] = {
    **SMOLLM2,
    "max_position_embeddings": 131_072,
    **_rotary(
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
    **_rotary(1e6),
}
QWEN3: dict[str, Any] = {
    **QWEN25,
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "max_position_embeddings": 40_960,
    "head_dim": 128,
}

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {**SMOLLM2, **_sized(64, 2, 4, 2, 128, 2048)},  # nobody's: for a look at a command without a GPU
    "smollm2-135m": {**SMOLLM2, **_sized(576, 30, 9, 3, 1536, 49_152)},
    "qwen2.5-0.5b": {**QWEN25, **_sized(896, 24, 14, 2, 4864, 151_936)},
    "qwen2.5-1.5b": {**QWEN25, **_sized(1536, 28, 12, 2, 8960, 151_936)},
    "qwen2.5-3b": {**QWEN25, **_sized(2048, 36, 16, 2, 11_008, 151_936)},
    "qwen2.5-7b": {**QWEN25, **_sized(3584, 28, 28, 4, 18_944, 152_064), "tie_word_embeddings": False},
    "llama-3.2-1b": {**LLAMA32, **_sized(2048, 16, 32, 8, 8192, 128_256), "head_dim": 64},
    "llama-3.2-3b": {**LLAMA32, **_sized(3072, 28, 24, 8, 8192, 128_256), "head_dim": 128},
    "qwen3-0.6b": {**QWEN3, **_sized(1024, 28, 16, 8, 3072, 151_936)},
    "qwen3-1.7b": {**QWEN3, **_sized(2048, 28, 16, 8, 6144, 151_936)},
    "qwen3-4b": {**QWEN3, **_sized(2560, 36, 32, 8, 9728, 151_936)},
    "qwen3-8b": {**QWEN3, **_sized(4096, 36, 32, 8, 12_288, 151_936), "tie_word_embeddings": False},
}


def named(shape: str) -> PretrainedConfig:
    """The settings of a shape by its name."""
    if shape not in SHAPES:
        raise InputError(f"{shape!r} is no shape that is known; known are {', '.join(SHAPES)}, or give --model FOLDER")
    settings: PretrainedConfig = AutoConfig.for_model(**SHAPES[shape])
    return settings


def one(shape: str | None, folder: Path | None, default: str) -> tuple[str, PretrainedConfig]:
    """The shape that is named, or that of a folder, or the default, with what it is called."""
    if shape is not None and folder is not None:
        raise InputError(f"--shape {shape} and --model {folder} are two shapes; give one of them")
    if folder is not None:
        return folder.resolve().name, of_folder(folder)
    return shape or default, named(shape or default)


def of_folder(folder: Path) -> PretrainedConfig:
    """The settings of a model folder, whose weights are not read."""
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} is no model folder: it has no config.json; give a Hugging Face model folder")
    try:
        settings: PretrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}/config.json cannot be read ({error}); save the model again") from error
    if reason := unsupported_reason(settings.to_dict()):
        raise InputError(f"{folder} cannot be served exactly: {reason}; choose a model with plain causal attention")
    return settings
