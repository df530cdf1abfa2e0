"""What a reproduction does differently from the published experiment."""

import json
from pathlib import Path

import pytest

from sleuth.evaluate.benchmarks import SUITES
from sleuth.reproduce.departures import find_departures, measured_departures, recipe_differences
from sleuth.reproduce.published import PUBLISHED, SETS, SUITE, find_published
from sleuth.reproduce.stages import ReproduceOptions, Stages

RECIPE = "search-r1-grpo-qwen2.5-3b"


def departures(options: ReproduceOptions) -> list[str]:
    stages = Stages(options, Path("out"))
    return find_departures(stages, find_published(options.recipe, stages.config().model.policy))


def test_the_recipe_as_it_is_departs_in_nothing() -> None:
    assert departures(ReproduceOptions(RECIPE)) == []


def test_another_published_model_is_no_departure_and_any_other_is() -> None:
    assert departures(ReproduceOptions(RECIPE, ("model.policy=Qwen/Qwen2.5-3B-Instruct",))) == []
    (line,) = departures(ReproduceOptions(RECIPE, ("model.policy=my/model",)))
    assert line == "model: my/model instead of Qwen/Qwen2.5-3B"


def test_every_changed_setting_is_listed() -> None:
    settings = ("train.steps=20", "model.lora.rank=32", "train.questions=512", "algorithm.kl.coefficient=0.01")
    found = departures(ReproduceOptions(RECIPE, settings))
    for line in ("train.steps: 20 instead of 500", "model.lora.rank: 32 instead of 0"):
        assert line in found
    assert "algorithm.kl.coefficient: 0.01 instead of 0.001" in found
    assert not [line for line in found if line.startswith("train.questions")]


def test_local_data_is_listed() -> None:
    local = ReproduceOptions(RECIPE, train=("/a",), test=("/b",), corpus="/c")
    assert [line.partition(":")[0] for line in departures(local)] == ["training questions", "test questions", "search"]
    (line,) = departures(ReproduceOptions(RECIPE, index="http://host:8000"))
    assert "http://host:8000" in line


def test_other_numbers_of_questions_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEUTH_DATA", str(tmp_path))
    stages = Stages(ReproduceOptions(RECIPE), tmp_path / "out")
    sets = {name: {"questions": SUITES[SUITE][name]} for name in SETS}
    assert measured_departures(stages, {"sets": sets, "unusable": 0}) == []
    (tmp_path / "search-r1" / "train").mkdir(parents=True)
    manifest = {"files": {"questions.jsonl": {"rows": 169_000}}}
    (tmp_path / "search-r1" / "train" / "manifest.json").write_text(json.dumps(manifest))
    del sets["musique"]
    found = measured_departures(stages, {"sets": {**sets, "nq": {"questions": 10}}, "unusable": 2})
    assert found == [
        "test set nq: 10 questions instead of 3,610",
        "not evaluated: musique",
        "training questions: 169,000 instead of 169,615",
        "2 test questions failed and are left out",
    ]


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_recipe_says_how_it_differs_from_the_published_code(name: str) -> None:
    found = recipe_differences(name)
    assert len(found) > 100
    assert "#" not in found
    assert "--set" not in found
