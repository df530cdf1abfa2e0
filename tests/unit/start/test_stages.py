"""The stages of `sleuth start` as commands, and when they are done."""

from pathlib import Path

import pytest

from sleuth.pipeline.stage import Stage
from sleuth.start.sizes import choose_sizes
from sleuth.start.stages import StartOptions, plan_stages


def stages(folder: Path, **options: str) -> dict[str, Stage]:
    chosen = StartOptions("docs", "quickstart", **options)  # type: ignore[arg-type]
    return {stage.name: stage for stage in plan_stages(chosen, folder, choose_sizes("quickstart"))}


def test_every_output_is_in_the_folder_and_made_once(tmp_path: Path) -> None:
    outputs = [output for stage in stages(tmp_path).values() for output in stage.outputs]
    assert all(output.is_relative_to(tmp_path) for output in outputs)
    assert len(set(outputs)) == len(outputs)


def test_every_input_is_an_earlier_output(tmp_path: Path) -> None:
    made: set[Path] = set()
    for stage in stages(tmp_path).values():
        given = {Path(word) for word in stage.words if word.startswith(str(tmp_path))} - set(stage.outputs)
        folders = {output.parent for output in stage.outputs}
        assert all(path in folders or any(path.is_relative_to(each) for each in made) for path in given), stage.name
        made |= {*stage.outputs, *(folders - {tmp_path})}


def test_a_stage_is_done_when_all_its_outputs_exist(tmp_path: Path) -> None:
    stage = stages(tmp_path)["questions"]
    assert not stage.is_done
    stage.outputs[0].write_text("")
    assert not stage.is_done
    stage.outputs[1].write_text("")
    assert stage.is_done


def test_an_interrupted_training_is_resumed(tmp_path: Path) -> None:
    stage = stages(tmp_path)["training"]
    assert stage.command[:2] == ("train", str(tmp_path / "recipe.toml"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text("{}")
    assert stage.command == ("train", "--resume", str(tmp_path / "run"))


@pytest.mark.parametrize("teacher", ["http://127.0.0.1:8000/v1", "folder"])
def test_the_teacher_writes_the_questions(teacher: str, tmp_path: Path) -> None:
    words = stages(tmp_path, teacher=teacher, teacher_model="wise")["questions"].words
    assert words[words.index("--teacher") + 1] == teacher
    assert words[words.index("--model") + 1] == "wise"
    assert "--teacher" not in stages(tmp_path)["questions"].words


def test_rules_give_practice_and_a_teacher_demonstrates(tmp_path: Path) -> None:
    found = stages(tmp_path, teacher="folder")
    practice = found["practice"].words
    assert practice[practice.index("--not-in") + 1] == str(tmp_path / "parts" / "train.jsonl")
    words = found["demonstrations by the teacher"].words
    assert words[:3] == ("traces", "sample", "folder")
    assert "--messages" in words
    assert {"practice", "demonstrations of search (practice)"} <= stages(tmp_path).keys() <= found.keys()
    traces = [word for word in found["cold start"].words if word.endswith(".jsonl")]
    assert len(traces) == 5


def test_the_cold_start_leaves_out_empty_files(tmp_path: Path) -> None:
    (tmp_path / "traces-teacher-search.jsonl").touch()
    words = stages(tmp_path, teacher="folder")["cold start"].words
    assert str(tmp_path / "traces-practice-search.jsonl") in words
    assert str(tmp_path / "traces-teacher-search.jsonl") not in words


def test_without_unanswerable_questions_nothing_abstains(tmp_path: Path) -> None:
    options = StartOptions("docs", "quickstart", teacher="folder", unanswerable=0.0)
    words = [word for stage in plan_stages(options, tmp_path, choose_sizes("quickstart")) for word in stage.words]
    assert not [word for word in words if "abstain" in word or "withhold" in word]


def test_demonstrations_also_show_questions_without_their_evidence(tmp_path: Path) -> None:
    for name in ("search", "reading"):
        words = stages(tmp_path)[f"demonstrations of {name} (train)"].words
        assert float(words[words.index("--withhold") + 1]) > 0
