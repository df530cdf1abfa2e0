"""Shapes have the published numbers of parameters."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from sleuth.errors import InputError
from sleuth.model.load import unsupported_reason
from sleuth.model.shapes import SHAPES, published_shape, shape_of_folder

PARAMETERS = {
    "tiny": 205_120,
    "smollm2-135m": 134_515_008,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
}


@pytest.mark.parametrize("name", SHAPES)
def test_parameters(name: str) -> None:
    shape = published_shape(name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]
    assert shape.architectures == [type(model).__name__]
    assert unsupported_reason(shape.to_dict()) is None


def test_unknown_shape_is_refused_with_those_known() -> None:
    with pytest.raises(InputError, match=r"'gpt-5'.*qwen2\.5-3b.*--model"):
        published_shape("gpt-5")


def test_folder_gives_its_shape(tmp_path: Path) -> None:
    published_shape("qwen3-0.6b").save_pretrained(tmp_path)
    assert shape_of_folder(tmp_path).to_diff_dict() == published_shape("qwen3-0.6b").to_diff_dict() | {
        "transformers_version": shape_of_folder(tmp_path).transformers_version
    }


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (None, "no config.json"),
        ({"model_type": "nobody-knows"}, "cannot be read"),
        ({"model_type": "mistral", "sliding_window": 4096}, "4096"),
    ],
)
def test_folder_that_cannot_be_served(tmp_path: Path, settings: dict[str, object] | None, reason: str) -> None:
    if settings is not None:
        (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match=reason):
        shape_of_folder(tmp_path)
