"""The commands sft and traces: what they refuse before any work, and how they close."""

import json
from pathlib import Path

import pytest

from sleuth.cli.sft import describe_result, sft
from sleuth.cli.traces import gold, sample
from sleuth.errors import ConfigError, InputError, UserError
from sleuth.runs.run import Run
from sleuth.sft.loop import HeldOutLoss, History, Update
from sleuth.sft.run import SFTResult

TALK = {"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ada"}]}


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    (tmp_path / "traces.jsonl").write_text(json.dumps(TALK) + "\n")
    return tmp_path / "traces.jsonl"


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    asked = {"id": "q1", "question": "Who?", "golden_answers": ["Ada"], "supporting_ids": ["p1"]}
    (tmp_path / "questions.jsonl").write_text(json.dumps(asked) + "\n")
    return tmp_path / "questions.jsonl"


def test_cold_start_needs_a_model_traces_and_a_place(traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(InputError, match="--traces"):
        sft("quickstart", out=out)
    with pytest.raises(InputError, match="--out"):
        sft("quickstart", traces=[traces])
    with pytest.raises(ConfigError, match="--model"):
        sft(traces=[traces], out=out)
    with pytest.raises(InputError, match="none"):
        sft(model=str(tmp_path / "none"), traces=[traces], out=out)
    with pytest.raises(ConfigError, match="quickstrat"):
        sft("quickstrat", traces=[traces], out=out)
    assert not out.exists()


def test_cold_start_refuses_what_it_cannot_do(traces: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="already exists"):
        sft("quickstart", traces=[traces], out=tmp_path)
    with pytest.raises(ConfigError, match="--epochs has no effect with --steps"):
        sft("quickstart", traces=[traces], out=tmp_path / "out", epochs=1, steps=1)
    with pytest.raises(ConfigError, match="1024"):
        sft(model="quickstart", traces=[traces], out=tmp_path / "out", row_tokens=5000)
    with pytest.raises(InputError, match="one question"):
        sft("quickstart", traces=[traces], out=tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["traces.jsonl"]


def test_closing_line_tells_what_was_kept() -> None:
    updates = [Update(1, 2.5, 0.1, 1.0), Update(20, 0.5, 0.1, 1.0)]
    history = History(20, updates, [HeldOutLoss(0, 2.0), HeldOutLoss(10, 1.0)], kept=10)
    assert describe_result(SFTResult(history, 1000, 50), 61.4) == (
        "20 updates on 1,000 traces, loss 2.500 -> 0.500, held out (50) 2.000 -> 1.000 at step 10, kept, 61 s"
    )
    history.kept = 20
    assert describe_result(SFTResult(history, 1000, 50), 61.4).endswith("2.000 -> 1.000 at step 10, kept step 20, 61 s")
    history.held_out.clear()
    assert describe_result(SFTResult(history, 1000, 0), 61.4) == "20 updates on 1,000 traces, loss 2.500 -> 0.500, 61 s"


def test_gold_traces_need_somewhere_to_look(questions: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with pytest.raises(InputError, match=r"--index.*--corpus"):
        gold(questions, out)
    with pytest.raises(ConfigError, match="--k has no effect without --index"):
        gold(questions, out, corpus=tmp_path / "corpus.jsonl", k=2)
    with pytest.raises(ConfigError, match="--guesses has no effect without --index"):
        gold(questions, out, corpus=tmp_path / "corpus.jsonl", guesses=True)
    for prompt in ("direct", "rag", "rag-cot"):
        with pytest.raises(ConfigError, match=f"--prompt {prompt} "):
            gold(questions, out, corpus=tmp_path / "corpus.jsonl", prompt=prompt)
    with pytest.raises(InputError, match="already exists"):
        gold(questions, questions, corpus=tmp_path / "corpus.jsonl")
    with pytest.raises(UserError, match=r"agent\.prompt is 'long'"):
        gold(questions, out, corpus=tmp_path / "corpus.jsonl", prompt="long")
    assert not out.exists()


def test_gold_traces_that_are_none_are_told(questions: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"id": "p2", "contents": '"Ada"\nAda.'}) + "\n")
    with pytest.raises(InputError, match=r"questions\.jsonl.*: 1 "):
        gold(questions, tmp_path / "out.jsonl", corpus=tmp_path / "corpus.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_gold_traces_are_written(questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"id": "p1", "contents": '"Ada"\nAda wrote it.'}) + "\n")
    gold(questions, tmp_path / "out.jsonl", corpus=tmp_path / "corpus.jsonl")
    (row,) = (json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines())
    assert row["messages"][-1]["content"].endswith("<answer> Ada </answer>")
    assert "1 demonstrations with 1 searches" in capsys.readouterr().err


def test_sampling_refuses_what_it_cannot_do(questions: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run = str(Run.create(tmp_path / "run", {}).path)
    with pytest.raises(InputError, match="already exists"):
        sample("quickstart", questions, questions)
    with pytest.raises(ConfigError, match=r"--prefer .*short"):
        sample("quickstart", questions, out, prefer="short")
    with pytest.raises(ConfigError, match="run"):
        sample(run, questions, out, index="index")
    with pytest.raises(ConfigError, match="--index"):
        sample("quickstart", questions, out)
    with pytest.raises(ConfigError, match=r"train\.steps=1"):
        sample("quickstart", questions, out, index="index", settings=["train.steps=1"])
    with pytest.raises(InputError, match="none"):
        sample(str(tmp_path / "none"), questions, out, index="index")
    assert not out.exists()


def test_function_calls_are_written_for_a_model(questions: Path, tmp_path: Path) -> None:
    out, corpus = tmp_path / "out.jsonl", tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps({"id": "p1", "contents": '"Ada"\nAda wrote it.'}) + "\n")
    with pytest.raises(ConfigError, match="--model"):
        gold(questions, out, corpus=corpus, protocol="tools")
    with pytest.raises(ConfigError, match="chat template"):
        gold(questions, out, corpus=corpus, protocol="tools", model="quickstart")
    with pytest.raises(ConfigError, match="--model has no effect with --protocol tags"):
        gold(questions, out, corpus=corpus, model="quickstart")
    assert not out.exists()
