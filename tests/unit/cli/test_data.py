"""sleuth data prepare: files in, a folder of ours and of Search-R1's out."""

import json
import math
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from sleuth.cli.main import app, main
from sleuth.corpus import questions
from sleuth.corpus.datasets.prepare import QuestionSource, prepare
from sleuth.errors import InputError

REAL = Path(__file__).parents[3].parent / "shared" / "data"
TEXT = pyarrow.string()
# As written by the library `datasets`: names of list items, a column of nothing, and metadata of its own.
SEARCH_R1 = pyarrow.schema(
    [
        ("id", TEXT),
        ("question", TEXT),
        ("golden_answers", pyarrow.list_(pyarrow.field("item", TEXT))),
        ("data_source", TEXT),
        ("prompt", pyarrow.list_(pyarrow.field("item", pyarrow.struct([("content", TEXT), ("role", TEXT)])))),
        ("ability", TEXT),
        (
            "reward_model",
            pyarrow.struct([("ground_truth", pyarrow.struct([("target", pyarrow.list_(TEXT))])), ("style", TEXT)]),
        ),
        ("extra_info", pyarrow.struct([("index", pyarrow.int32()), ("split", TEXT)])),
        ("metadata", pyarrow.null()),
    ],
    metadata={"huggingface": '{"info": {}}'},
)
VERL = pyarrow.schema(
    [
        ("data_source", pyarrow.large_string()),
        ("prompt", pyarrow.large_list(pyarrow.struct([("role", TEXT), ("content", TEXT), ("name", TEXT)]))),
        ("ability", pyarrow.dictionary(pyarrow.int32(), TEXT)),
        (
            "reward_model",
            pyarrow.struct([("style", TEXT), ("ground_truth", pyarrow.struct([("target", pyarrow.list_(TEXT))]))]),
        ),
        (
            "extra_info",
            pyarrow.struct(
                [
                    ("index", pyarrow.int64()),
                    ("need_tools_kwargs", pyarrow.bool_()),
                    ("question", TEXT),
                    ("split", TEXT),
                    (
                        "tools_kwargs",
                        pyarrow.struct(
                            [("search", pyarrow.struct([("create_kwargs", pyarrow.struct([("question", TEXT)]))]))]
                        ),
                    ),
                ]
            ),
        ),
        ("score", pyarrow.float32()),
    ]
)


def run(*words: str | Path) -> str:
    outcome = CliRunner().invoke(app, ["data", *(str(word) for word in words)])
    if outcome.exception is not None and not isinstance(outcome.exception, SystemExit):
        raise outcome.exception
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout


def search_r1_row(number: int, source: str = "nq") -> dict[str, Any]:
    asked = f"Who is number {number} of {source}?"
    return {
        "id": f"train_{number}",
        "question": asked,
        "golden_answers": [f"N{number}", ""],
        "data_source": source,
        "prompt": [{"role": "user", "content": f"Answer it. Question: {asked}\n"}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": [f"N{number}", ""]}},
        "extra_info": {"split": "train", "index": number},
        "metadata": None,
    }


def verl_row(number: int) -> dict[str, Any]:
    asked = f"Where is number {number}"
    return {
        "data_source": "searchR1_hotpotqa",
        "prompt": [
            {"role": "system", "content": "You search.", "name": None},
            {"role": "user", "content": f"Question: {asked}?", "name": None},
        ],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": ["Oslo", "Kristiania"]}},
        "extra_info": {
            "index": number,
            "need_tools_kwargs": True,
            "question": asked,
            "split": "train",
            "tools_kwargs": {"search": {"create_kwargs": {"question": asked}}},
        },
        "score": 0.5,
    }


def written(path: Path, schema: Any, rows: list[dict[str, Any]]) -> Path:
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), path)
    return path


def jsonl(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def ours(name: str, asked: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "question": asked, "golden_answers": ["A"], "data_source": "mine", **more}


FILES: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "search-r1": (SEARCH_R1, [search_r1_row(n, source) for n in range(20) for source in ("nq", "hotpotqa")]),
    "verl": (VERL, [verl_row(n) for n in range(20)]),
}


@pytest.mark.parametrize("name", FILES)
def test_parquet_to_ours_to_parquet_is_the_same(tmp_path: Path, name: str) -> None:
    before = written(tmp_path / "train.parquet", *FILES[name])
    run("prepare", before, "--out", tmp_path / "ours")
    run("prepare", tmp_path / "ours" / "questions.jsonl", "--out", tmp_path / "again")
    (tmp_path / "ours" / "manifest.json").unlink()
    run("prepare", tmp_path / "ours" / "questions.jsonl", "--out", tmp_path / "alone")
    first = parquet.read_table(before)
    for folder in ("ours", "again"):
        after = parquet.read_table(tmp_path / folder / "questions.parquet")
        assert after.schema.equals(first.schema, check_metadata=True)
        assert after.equals(first)
    alone = parquet.read_table(tmp_path / "alone" / "questions.parquet")
    assert alone.column_names == first.column_names
    assert alone.to_pylist() == first.to_pylist()


def test_answers_changed_in_ours_are_changed_everywhere(tmp_path: Path) -> None:
    run("prepare", written(tmp_path / "t.parquet", *FILES["verl"]), "--out", tmp_path / "ours")
    lines = (tmp_path / "ours" / "questions.jsonl").read_text().splitlines()
    first = {**json.loads(lines[0]), "golden_answers": ["Bergen"]}
    changed = jsonl(tmp_path / "changed.jsonl", first)
    run("prepare", changed, "--out", tmp_path / "again")
    [row] = parquet.read_table(tmp_path / "again" / "questions.parquet").to_pylist()
    assert row["reward_model"]["ground_truth"]["target"] == ["Bergen"]


def test_maps_and_numbers_that_are_none_come_back(tmp_path: Path) -> None:
    kind = pyarrow.map_(TEXT, pyarrow.int64())
    schema = VERL.append(pyarrow.field("counts", kind)).append(pyarrow.field("deep", pyarrow.list_(kind)))
    more = {"counts": [("a", 1), ("b", None)], "deep": [[("a", 1)], None, []]}
    scores = (math.nan, math.inf, -math.inf, 0.5, None)
    before = written(
        tmp_path / "t.parquet", schema, [{**verl_row(n), **more, "score": score} for n, score in enumerate(scores)]
    )
    run("prepare", before, "--out", tmp_path / "ours")
    run("prepare", tmp_path / "ours" / "questions.jsonl", "--out", tmp_path / "again")
    for folder in ("ours", "again"):
        after = parquet.read_table(tmp_path / folder / "questions.parquet")
        assert after.schema.equals(parquet.read_schema(before), check_metadata=True)
        assert repr(after.to_pylist()) == repr(parquet.read_table(before).to_pylist())
        for line in (tmp_path / folder / "questions.jsonl").read_text().splitlines():
            json.loads(line, parse_constant=pytest.fail)


def test_numbers_that_are_none_among_keys_of_ones_own_are_marked(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "q.jsonl", ours("a", "Who?", score=math.nan, more=[{"x": -math.inf}]))
    run("prepare", path, "--out", tmp_path / "one")
    run("prepare", tmp_path / "one" / "questions.jsonl", "--out", tmp_path / "two")
    for folder in ("one", "two"):
        row = json.loads((tmp_path / folder / "questions.jsonl").read_text())
        assert (row["score"], row["more"]) == ({"$": "NaN"}, [{"x": {"$": "-Infinity"}}])


def test_half_a_surrogate_pair_is_a_question_mark_everywhere(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "q.jsonl", ours("a", "Who \ud800?", **{"k\udc00": ["\ud800"]}), ours("b", "WHO \ud800"))
    run("prepare", path, "--out", tmp_path / "out")
    [line] = (tmp_path / "out" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line) == ours("a", "Who ??", **{"k?": ["?"]})
    assert "WHO ?" in (tmp_path / "out" / "dropped.jsonl").read_text(encoding="utf-8")
    assert parquet.read_table(tmp_path / "out" / "questions.parquet").to_pylist()[0]["question"] == "Who ??"


def test_a_set_keeps_to_its_cell_of_the_table(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "q.jsonl", {**ours("a", "Who?"), "data_source": "a|b\nc"})
    assert run("prepare", path, "--out", tmp_path / "out").splitlines()[2] == "| a\\|b c | 1 | 1 |"


def test_two_that_prepare_one_folder_at_the_same_time(tmp_path: Path) -> None:
    """The second to finish says so, and leaves the folder of the first."""
    path = jsonl(tmp_path / "q.jsonl", ours("a", "Who?"))

    def ask(question: object) -> list[dict[str, str]]:
        run("prepare", path, "--out", tmp_path / "out", "--prompt", "brief")
        return [{"role": "user", "content": "Too late?"}]

    with pytest.raises(InputError, match=r"another process wrote .*out meanwhile"):
        prepare([QuestionSource("mine", path)], tmp_path / "out", ask)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out", "q.jsonl"]
    [row] = parquet.read_table(tmp_path / "out" / "questions.parquet").to_pylist()
    assert row["prompt"] == [{"role": "user", "content": "Question: Who?\n"}]


def test_questions_without_a_prompt_get_one_in_the_parquet_only(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path / "q.jsonl", ours("a", "who is it"), ours("b", "Where?", prompt=[{"role": "user", "content": "x"}])
    )
    run("prepare", path, "--out", tmp_path / "out", "--prompt", "brief")
    first, second = parquet.read_table(tmp_path / "out" / "questions.parquet").to_pylist()
    assert first == {
        "id": "a",
        "question": "who is it",
        "golden_answers": ["A"],
        "data_source": "mine",
        "prompt": [{"role": "user", "content": "Question: who is it?\n"}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": ["A"]}},
        "extra_info": {"split": "train", "index": 0},
    }
    assert second["prompt"] == [{"role": "user", "content": "x"}]
    assert second["extra_info"]["index"] == 1
    assert questions.load(tmp_path / "out" / "questions.jsonl") == questions.load(path)


def test_files_of_different_kinds_are_merged_and_what_is_dropped_is_said(tmp_path: Path) -> None:
    table = written(tmp_path / "verl.parquet", *FILES["verl"])
    mine = jsonl(
        tmp_path / "mine.jsonl",
        *(ours("a", "WHERE is number 3?"), ours("b", "Is it tested?"), ours("c", "Kept?")),
        ours("d", "Gone?", answerable=False),
    )
    test = jsonl(tmp_path / "test.jsonl", ours("t1", "is it tested"))
    said = run("prepare", table, mine, "--test", test, "--answerable", "--out", tmp_path / "out")
    assert said.splitlines() == [
        "| set | read | not answerable | in a test set | twice | kept |",
        "|---|---:|---:|---:|---:|---:|",
        "| hotpotqa | 20 | 0 | 0 | 0 | 20 |",
        "| mine | 4 | 1 | 1 | 1 | 1 |",
        "| all | 24 | 1 | 1 | 1 | 21 |",
        f"       21  {tmp_path / 'out' / 'questions.jsonl'}",
        f"       21  {tmp_path / 'out' / 'questions.parquet'}",
        "1 gold answer consists of articles and punctuation only, and must be matched as written.",
    ]
    dropped = [json.loads(line) for line in (tmp_path / "out" / "dropped.jsonl").read_text().splitlines()]
    assert [(each["id"], each["reason"], each.get("same_as")) for each in dropped] == [
        ("a", "twice", "hotpotqa_train_3"),
        ("b", "in a test set", "t1"),
        ("d", "not answerable", None),
    ]
    rows = parquet.read_table(tmp_path / "out" / "questions.parquet").to_pylist()
    assert {row["data_source"] for row in rows} == {"searchR1_hotpotqa", "mine"}
    assert [row["extra_info"]["index"] for row in rows] == [*range(20), 0]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["sets"]["mine"]["kept"] == 1
    assert manifest["tests"][0]["file"] == "test.jsonl"


def test_a_set_that_is_measured_on_is_kept_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "data" / "RUC-NLPIR" / "FlashRAG_datasets" / "hotpotqa"
    home.mkdir(parents=True)
    row = {"question": "Who?", "golden_answers": ["A"]}
    jsonl(home / "dev.jsonl", {"id": "dev_0", **row}, {"id": "dev_1", **row})
    jsonl(home / "train.jsonl", {"id": "train_0", **row}, {"id": "train_1", **row, "question": "Where?"})
    monkeypatch.chdir(tmp_path)
    run("prepare", "hotpotqa", "--split", "test", "--out", "test")
    assert [each.id for each in questions.load(Path("test/questions.jsonl"))] == ["hotpotqa_dev_0", "hotpotqa_dev_1"]
    assert parquet.read_table("test/questions.parquet").to_pylist()[0]["extra_info"]["split"] == "test"
    run("prepare", "hotpotqa", "--split", "test", "--duplicates", "drop", "--out", "once")
    assert len(questions.load(Path("once/questions.jsonl"))) == 1
    run("prepare", "hotpotqa", "--test", "hotpotqa", "--out", "train")
    assert [each.id for each in questions.load(Path("train/questions.jsonl"))] == ["hotpotqa_train_1"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["squid"], "squid"),
        (["q.jsonl", "--test", "squid"], "squid"),
        (["q.jsonl", "--split", "dev"], "--split dev has no effect on files"),
        (["q.jsonl", "--answerable"], "no question says whether it is answerable"),
        (["q.jsonl", "--test", "q.jsonl"], "1 in a test set"),
        (["q.jsonl", "--prompt", "none"], "expected one of instruct"),
        (["empty.jsonl"], "empty.jsonl holds no questions"),
        (["q.jsonl", "--test", "empty.jsonl"], "empty.jsonl holds no questions"),
        (["damaged.parquet"], "damaged.parquet cannot be read"),
        (["unanswered.jsonl"], "unanswered.jsonl, line 1: the question has no answer"),
        (["dated.parquet"], "the row of the question 'nq_train_0' cannot be written as JSON"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    jsonl(Path("q.jsonl"), ours("a", "Who?"))
    Path("empty.jsonl").write_text("")
    Path("damaged.parquet").write_bytes(b"PAR1 and no more")
    jsonl(Path("unanswered.jsonl"), ours("a", "Who?", golden_answers=[]))
    dated = {**search_r1_row(0), "when": b"raw"}
    written(Path("dated.parquet"), SEARCH_R1.append(pyarrow.field("when", pyarrow.binary())), [dated])
    before = sorted(Path().iterdir())
    monkeypatch.setattr("sys.argv", ["sleuth", "data", "prepare", *words, "--out", "out"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    [said] = capsys.readouterr().err.splitlines()
    assert complaint in said
    assert sorted(Path().iterdir()) == before


def test_a_folder_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "q.jsonl", ours("a", "Who?"))
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="already exists"):
        run("prepare", path, "--out", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.shared
def test_real_sets_are_merged_without_their_test_parts(tmp_path: Path) -> None:
    names = ("nq", "hotpotqa", "popqa", "squad")
    train = [REAL / f"{name}.questions.train.jsonl.gz" for name in names]
    tests = [word for name in names for word in ("--test", REAL / f"{name}.questions.test.jsonl.gz")]
    said = run("prepare", *train, *tests, "--answerable", "--seed", "7", "--limit", "2000", "--out", tmp_path / "out")
    assert "| popqa | 656 | 254 |" in said
    kept = questions.load(tmp_path / "out" / "questions.jsonl")
    assert len(kept) == 2000
    assert all(question.answerable for question in kept)
    run("prepare", tmp_path / "out" / "questions.parquet", "--out", tmp_path / "again")
    again = questions.load(tmp_path / "again" / "questions.jsonl")
    assert [(each.id, each.golden_answers) for each in again] == [(each.id, each.golden_answers) for each in kept]
    assert parquet.read_table(tmp_path / "again" / "questions.parquet").equals(
        parquet.read_table(tmp_path / "out" / "questions.parquet")
    )


def test_gold_answers_without_a_word_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"id": "q1", "question": "Which blood?", "golden_answers": ["A"], "data_source": "mine"}\n')
    done = CliRunner().invoke(app, ["data", "prepare", str(path), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "1 gold answer consists of articles and punctuation" in done.output
