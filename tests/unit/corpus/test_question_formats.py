"""Question formats of other projects."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from sleuth.corpus import questions
from sleuth.corpus.questions import read_rows
from sleuth.errors import InputError
from sleuth.records import Question

ASK = "Answer the given question. Question: who got the first nobel prize in physics?\n"
SEARCH_R1 = {
    "data_source": "nq",
    "prompt": [{"role": "user", "content": ASK}],
    "ability": "fact-reasoning",
    "reward_model": {"style": "rule", "ground_truth": {"target": ["Wilhelm Conrad Röntgen"]}},
    "extra_info": {"split": "train", "index": 0},
}
VERL = {
    "data_source": "searchR1_hotpotqa",
    "prompt": [{"role": "system", "content": "You search."}, {"role": "user", "content": "Go. Question: Where is it?"}],
    "ability": "fact-reasoning",
    "reward_model": {"style": "rule", "ground_truth": {"target": ["Oslo", " "]}},
    "extra_info": {
        "index": 0,
        "need_tools_kwargs": True,
        "question": "Where is it",
        "split": "train",
        "tools_kwargs": {
            "search": {
                "create_kwargs": {
                    "ground_truth": {"target": ["Oslo", " "]},
                    "question": "Where is it",
                    "data_source": "searchR1_hotpotqa",
                }
            }
        },
    },
    "metadata": None,
}
FLASHRAG = {
    "id": "test_0",
    "question": "who?",
    "golden_answers": ["Ada"],
    "metadata": {"type": "bridge", "context": []},
}
ASEARCHER = {"qid": 17, "question": "Who?", "answer": "Ada", "aug_answer": ["Ada L.", "Ada"], "source": "hotpot"}


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.parent.mkdir(exist_ok=True)
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def table(path: Path, *rows: dict[str, Any]) -> Path:
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path


def test_search_r1_and_verl(tmp_path: Path) -> None:
    assert questions.load(table(tmp_path / "train.parquet", SEARCH_R1)) == [
        Question(
            id="nq_train_0",
            question="who got the first nobel prize in physics?",
            golden_answers=("Wilhelm Conrad Röntgen",),
            data_source="nq",
            prompt=({"role": "user", "content": ASK},),
        )
    ]
    [verl] = questions.load(table(tmp_path / "verl.parquet", VERL))
    assert (verl.id, verl.question, verl.data_source) == ("hotpotqa_train_0", "Where is it", "hotpotqa")
    assert verl.golden_answers == ("Oslo",)
    assert [message["role"] for message in verl.prompt or ()] == ["system", "user"]


def test_restarting_index_is_qualified_by_the_set(tmp_path: Path) -> None:
    other = {**SEARCH_R1, "data_source": "hotpotqa"}
    named = {**SEARCH_R1, "id": "train_7"}
    without = {key: value for key, value in SEARCH_R1.items() if key != "extra_info"}
    path = lines(tmp_path / "mixed.jsonl", SEARCH_R1, other, SEARCH_R1, named, without, {**SEARCH_R1, "id": "own"})
    ids = [question.id for question in questions.load(path)]
    assert ids[:4] == ["nq_train_0", "hotpotqa_train_0", "nq_train_0_2", "nq_train_7"]
    assert ids[4].startswith("nq_")
    assert ids[4] not in ids[:4]
    assert ids[5] == "own"


def test_flashrag(tmp_path: Path) -> None:
    [row] = read_rows(lines(tmp_path / "musique" / "dev.jsonl.gz", FLASHRAG))
    assert row.question == Question("musique_test_0", "who?", ("Ada",), "musique", type="bridge")
    assert row.extra == {}


def test_asearcher(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", ASEARCHER, {"qid": "x1", "question": "Where?", "answer": ["Oslo"]})
    assert questions.load(path) == [
        Question("hotpot_17", "Who?", ("Ada", "Ada L."), "hotpot"),
        Question("x1", "Where?", ("Oslo",), "a"),
    ]


def test_rlinf(tmp_path: Path) -> None:
    chat = "<|im_start|>system\nSearch.<|im_end|>\n<|im_start|>user\nQuestion: Who?<|im_end|>\n<|im_start|>assistant\n"
    path = lines(
        tmp_path / "searchr1.jsonl",
        {"prompt": chat, "solutions": ["Ada"]},
        {"prompt": "Question: Where?", "answer": "Oslo"},
    )
    first, second = questions.load(path)
    assert first.prompt == ({"role": "system", "content": "Search."}, {"role": "user", "content": "Question: Who?"})
    assert (first.question, first.golden_answers, first.data_source) == ("Who?", ("Ada",), "searchr1")
    assert second.prompt == ({"role": "user", "content": "Question: Where?"},)
    assert first.id != second.id


def test_extra_entries_are_kept(tmp_path: Path) -> None:
    ours = {"id": "q1", "question": "Who?", "golden_answers": ["Ada"], "data_source": "mine", "weak_ids": ["p1"]}
    [row] = read_rows(lines(tmp_path / "q.jsonl", ours))
    assert row.extra == {"weak_ids": ["p1"]}
    assert json.loads(questions.encode_line(row.question, row.extra)) == ours


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({**SEARCH_R1, "reward_model": {"style": "rule", "ground_truth": {"target": []}}}, "target is"),
        ({**SEARCH_R1, "reward_model": {"style": "rule", "ground_truth": {"target": [3]}}}, "target must be a list of"),
        ({**SEARCH_R1, "reward_model": {"style": "rule"}}, "golden_answers is missing"),
        ({**SEARCH_R1, "prompt": [{"role": "user", "content": "Who?"}]}, "no question"),
        ({**SEARCH_R1, "prompt": "Question: Who?"}, "prompt must be a list of messages"),
        ({**ASEARCHER, "answer": "", "aug_answer": None}, "answer is ''"),
        ({"prompt": "Question: Who?", "solutions": []}, "solutions is"),
        ({"prompt": "", "answer": "Ada"}, "prompt must be a list of messages"),
    ],
)
def test_bad_row_is_reported(tmp_path: Path, row: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=rf"q\.jsonl, line 1: .*{complaint}"):
        questions.load(lines(tmp_path / "q.jsonl", row))


def test_bad_parquet_row_is_reported(tmp_path: Path) -> None:
    bad = {**SEARCH_R1, "reward_model": {"style": "rule", "ground_truth": {"target": []}}}
    with pytest.raises(InputError, match=r"q\.parquet, row 2: .*target is .*; expected the columns"):
        questions.load(table(tmp_path / "q.parquet", SEARCH_R1, bad))


def test_unreadable_parquet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"other\.parquet has the columns a, b; expected data_source, prompt and"):
        questions.load(table(tmp_path / "other.parquet", {"a": 1, "b": 2}))
    whole = table(tmp_path / "q.parquet", SEARCH_R1).read_bytes()
    (tmp_path / "q.parquet").write_bytes(whole[:-20])
    with pytest.raises(InputError, match=r"q\.parquet cannot be read \(.*\)"):
        questions.load(tmp_path / "q.parquet")
    with pytest.raises(InputError, match=r"none\.parquet does not exist"):
        questions.load(tmp_path / "none.parquet")
    parquet.write_table(pyarrow.Table.from_pylist([SEARCH_R1]).slice(0, 0), tmp_path / "empty.parquet")
    with pytest.raises(InputError, match=r"empty\.parquet holds no questions"):
        questions.load(tmp_path / "empty.parquet")
