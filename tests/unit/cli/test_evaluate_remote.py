"""evaluate, ask and train with the URL of a model server."""

import json
from pathlib import Path
from typing import Any

import pytest

from sleuth.cli.ask import ask
from sleuth.cli.evaluate import compare, evaluate
from sleuth.cli.train import train
from sleuth.errors import ConfigError, InputError, UserError

Stage = Any


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def results(folder: str) -> Any:
    return json.loads((Path(folder) / "results.json").read_text())


def test_evaluated_saved_scored_again_and_compared(
    stage: Stage, asked: Path, library: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.play = stage.searching
    evaluate(stage.url, suite=[str(asked)], index=str(library), served="wise", out=Path("searched"))
    found = results("searched")
    assert (found["questions"], found["unusable"], found["em"]["value"], found["searches"]["value"]) == (6, 0, 1.0, 1.0)
    assert (found["format"]["value"], found["retrieval_hit"]["value"], found["tokens"]["value"]) == (1.0, 1.0, 10.0)
    assert "tokens_all" not in found
    assert found["stamp"]["model"] == {"url": stage.url, "name": "wise", "served": {"owned_by": "us"}}
    before = (Path("searched") / "results.json").read_bytes()
    evaluate(rescore=Path("searched"))
    assert (Path("searched") / "results.json").read_bytes() == before
    stage.play = lambda _: stage.said("<answer> Rome")
    evaluate(stage.url, suite=[str(asked)], method="direct", served="wise", out=Path("direct"))
    compare(Path("searched"), Path("direct"))
    assert "-1.000" in capsys.readouterr().out


def test_rag_and_a_folder_found_again_by_its_stamp(stage: Stage, asked: Path, library: Path) -> None:
    for _ in range(2):
        evaluate(stage.url, suite=[str(asked)], index=str(library), served="wise", method="rag")
    (folder,) = Path("evaluations").iterdir()
    assert folder.name.startswith("wise-rag-")
    assert (results(str(folder))["retrieval_hit"]["value"], len(stage.heard)) == (1.0, 6)


def test_lost_questions_are_unusable_and_asked_again(
    stage: Stage, asked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def play(body: dict[str, Any]) -> Any:
        odd = "3?" in body["messages"][0]["content"]
        return stage.scene({"error": "odd"}, 422) if odd else stage.said("<answer> Oslo")

    stage.play = play
    options: dict[str, Any] = {"suite": [str(asked)], "method": "direct", "served": "wise", "out": Path("e")}
    evaluate(stage.url, **options)
    assert (results("e")["unusable"], results("e")["em"]["value"]) == (1, 1.0)
    assert "1 of 6 questions" in capsys.readouterr().err.replace("\n", " ")
    stage.play, stage.heard = (lambda _: stage.said("<answer> Rome")), []
    evaluate(stage.url, **options)
    assert (results("e")["unusable"], len(stage.heard)) == (0, 1)


def test_what_a_server_does_not_count_is_not_measured(stage: Stage, asked: Path) -> None:
    stage.play = lambda _: stage.scene({"choices": [{"message": {"content": "<answer> Oslo"}}]})
    evaluate(stage.url, suite=[str(asked)], method="direct", served="wise", out=Path("e"))
    assert results("e")["em"]["value"] == 1.0
    assert "tokens" not in results("e")
    assert "The prompt did not fit" not in (Path("e") / "results.md").read_text()


def test_prompts_that_fit_nowhere_are_an_error(stage: Stage, asked: Path) -> None:
    with pytest.raises(ConfigError, match=r"agent.context_tokens"):
        evaluate(
            stage.url, suite=[str(asked)], method="direct", served="wise", settings=["agent.context_tokens=9"],
            out=Path("e"),
        )  # fmt: skip
    assert stage.heard == []


def test_no_more_are_asked_where_all_fail(stage: Stage, tmp_path: Path) -> None:
    rows = ({"id": str(n), "question": f"Where is {n}?", "golden_answers": ["Oslo"]} for n in range(200))
    (tmp_path / "many.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stage.play = lambda _: stage.scene({"error": "out of credit"}, 402)
    with pytest.raises(InputError, match=r"50 questions.*out of credit"):
        evaluate(
            stage.url, suite=["many.jsonl"], method="direct", served="wise", settings=["engine.slots=4"], out=Path("e")
        )
    assert len(stage.heard) < 60


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "--suite"),
        ({"suite": ["x.jsonl"]}, "--index"),
        ({"suite": ["x.jsonl"], "method": "direct", "before": True}, "--before.*address"),
        ({"suite": ["x.jsonl"], "method": "direct", "served": "unwise"}, "'unwise'.*--model.*wise"),
        ({"suite": ["x.jsonl"], "method": "direct"}, "--model.*wise"),
        ({"suite": ["x.jsonl"], "method": "direct", "settings": ["engine.memory=0.5"]}, "engine.memory=0.5"),
        ({"suite": ["x.jsonl"], "method": "direct", "settings": ["model.dtype=float32"]}, "model.dtype=float32"),
        ({"suite": ["x.jsonl"], "method": "direct", "key_env": "NOT_SET"}, "NOT_SET.*--key-env"),
    ],
)
def test_invalid_options_are_user_errors(stage: Stage, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        evaluate(stage.url, **options)


def test_context_longer_than_the_servers_is_refused(stage: Stage, asked: Path) -> None:
    stage.models = stage.scene({"data": [{"id": "wise", "max_model_len": 2048}]})
    with pytest.raises(ConfigError, match=r"4096.*wise.*agent\.context_tokens=2048"):
        evaluate(stage.url, suite=[str(asked)], method="direct", served="wise")


def test_unreachable_server_is_an_input_error(asked: Path) -> None:
    with pytest.raises(InputError, match=r"127\.0\.0\.1:9/v1"):
        evaluate("http://127.0.0.1:9/v1", suite=[str(asked)], method="direct", served="wise")


@pytest.mark.parametrize("option", ["served", "key_env", "timeout"])
def test_options_of_an_address_are_for_an_address(option: str) -> None:
    value: Any = 3.0 if option == "timeout" else "x"
    given: dict[str, Any] = {option: value}
    with pytest.raises(ConfigError, match="has no effect without an address"):
        evaluate("quickstart", **given)
    with pytest.raises(ConfigError, match="has no effect without an address"):
        ask("run", "Who?", **given)
    with pytest.raises(InputError, match="no model folder at run"):
        ask("run", "Who?", index="x")


def test_asking_shows_the_whole_conversation(stage: Stage, library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stage.play = stage.searching
    ask(stage.url, "Where?", index=str(library), served="wise")
    printed = capsys.readouterr().out
    assert "<search> Norway</search>" in printed
    assert "Oslo is its capital." in printed
    assert printed.endswith("Answer: Oslo (1 search)\n")


def test_ask_with_a_failing_server(stage: Stage) -> None:
    stage.play = lambda _: stage.scene({"error": "out of credit"}, 402)
    with pytest.raises(InputError, match=r"402 .*out of credit"):
        ask(stage.url, "Where?", method="direct", served="wise")


def test_training_with_an_address_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="http://host/v1"):
        train("quickstart", settings=["model.policy=http://host/v1"], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
