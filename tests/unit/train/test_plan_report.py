"""A plan as text and as JSON."""

import json

from sleuth.config import recipe
from sleuth.model.shapes import published_shape
from sleuth.train.accelerators import find
from sleuth.train.footprint import ModelSize
from sleuth.train.plan import Models, Plan, make_plan
from sleuth.train.plan_report import markdown, record


def plan_of(gpu: str, *settings: str, shape: str = "qwen2.5-1.5b") -> Plan:
    config = recipe.compose({"model": {"policy": shape}, "world": {}}, settings)
    return make_plan(config, find(gpu), Models(ModelSize.of(published_shape(shape))))


def test_markdown_of_a_plan_that_fits() -> None:
    text = markdown(plan_of("h200", "train.offload=true"))
    assert "qwen2.5-1.5b: 1,543,714,304 parameters, all weights, packs of 16,384 tokens, on H200" in text
    assert "**fits**" in text
    assert "| in host memory: masters and moments | 17.25 |" in text
    assert "fp32 masters" not in text
    assert "fits with one of these" not in text
    assert "at commit b1b0a8e" in text


def test_markdown_of_a_plan_that_does_not_fit() -> None:
    text = markdown(plan_of("4090"))
    assert "**does not fit**" in text
    assert "model.lora.rank=32" in text
    assert "No setting makes it fit" in markdown(plan_of("t4", shape="qwen2.5-7b"))
    assert "LoRA of rank 8" in markdown(plan_of("4090", "model.lora.rank=8"))
    assert "Warning: t4 has no bfloat16" in markdown(plan_of("t4"))


def test_record_is_json_and_adds_up() -> None:
    plan = plan_of("4090")
    kept = json.loads(json.dumps(record(plan)))
    assert kept["needed"] == kept["peak"] + kept["overhead"]
    assert kept["peak"] == max(kept["phases"].values()) == sum(kept["parts"].values())
    assert (kept["fits"], kept["verdict"]) == (False, "does not fit")
    assert kept["options"][0]["needed"] <= kept["device"]["memory"]
    times = kept["seconds"]["typical"]
    assert times["total"] == sum(seconds for name, seconds in times.items() if name != "total")
    assert kept["seconds"]["longest"]["total"] > times["total"]
