"""The command plan: recipes, folders and shapes, its JSON, how it exits, and train's refusal."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sleuth.config import recipe
from sleuth.model.shapes import SHAPES, published_shape

Ended = tuple[int | str | None, str, str]
Run = Callable[..., Ended]


def planned(sleuth: Run, *words: str) -> dict[str, Any]:
    code, out, _ = sleuth("plan", *words, "--json")
    found: dict[str, Any] = json.loads(out)
    assert code == (0 if found["fits"] else 1)
    return found


def test_shape_recipe_and_hub_name_are_the_same_model(sleuth: Run) -> None:
    names = ("qwen2.5-3b", "search-r1-grpo-qwen2.5-3b", "Qwen/Qwen2.5-3B-Instruct")
    found = [planned(sleuth, name, "--gpu", "h200") for name in names]
    assert [each["parameters"] for each in found] == [3_085_938_688] * 3
    assert found[1]["parts"]["reference model"] > 0  # the recipe has a KL penalty


def test_folder_without_weights_or_tokenizer(sleuth: Run) -> None:
    published_shape("smollm2-135m").save_pretrained("model")
    found = planned(sleuth, "model", "--gpu", "4090", "--set", "model.lora.rank=8")
    assert (found["parameters"], found["fits"]) == (134_515_008, True)
    assert found["trained"] < 0.03 * found["parameters"]


def test_this_machine_is_the_default(sleuth: Run) -> None:
    code, out, _ = sleuth("plan", "quickstart")
    assert code == 0
    assert "**fits**" in out


def test_what_does_not_fit_exits_with_1(sleuth: Run) -> None:
    code, out, _ = sleuth("plan", "qwen2.5-7b", "--gpu", "a100-40")
    assert code == 1
    assert "| model.lora.rank=32" in out


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["tiny", "--gpu", "gtx"], ["'gtx'", "h200"]),
        (["nowhere.toml"], ["nowhere.toml"]),
        (["no-such-model"], ["no-such-model"]),
        (["tiny", "--set", "train.pack=3"], ["unknown setting train.pack"]),
        (["http://127.0.0.1:1/v1"], ["http://127.0.0.1:1/v1"]),
    ],
    ids=["gpu", "recipe", "model", "setting", "address"],
)
def test_bad_input_is_one_line(sleuth: Run, words: list[str], facts: list[str]) -> None:
    code, out, err = sleuth("plan", *words)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert all(fact in err for fact in facts)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"model_type": "t5"}', '{"model_type": "llama", "hidden_size": "x"}'])
def test_damaged_config_is_one_line(sleuth: Run, text: str) -> None:
    Path("model").mkdir()
    Path("model/config.json").write_text(text)
    code, out, err = sleuth("plan", "model", "--gpu", "h200")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "model" in err


def test_train_refuses_before_it_loads_weights(sleuth: Run) -> None:
    """The folder has no weights: loading would fail with another error."""
    Path("model").mkdir()
    huge = {**SHAPES["qwen2.5-3b"], "hidden_size": 65_536, "num_hidden_layers": 200, "intermediate_size": 131_072}
    Path("model/config.json").write_text(json.dumps(huge))
    tokenizer = recipe.resolve_policy("quickstart") / "tokenizer.json"
    Path("model/tokenizer.json").write_bytes(tokenizer.read_bytes())
    code, _, err = sleuth("train", "quickstart", "--set", "model.policy=model", "--out", "run")
    assert code == 2
    assert "GiB are free" in err.splitlines()[-1]
    assert not Path("run").exists()
