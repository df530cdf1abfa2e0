import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleuth.corpus import questions
from sleuth.errors import InputError
from sleuth.records import Question

GOOD = {"id": "q1", "question": "Who wrote it?", "golden_answers": ["Mira"], "data_source": "mine"}
FULL = Question(
    id="q2",
    question="Who is “she”?",
    golden_answers=("Ysolde", "Y."),
    data_source="mine",
    supporting_ids=("7", "9"),
    type="bridge",
    hops=2,
    answerable=True,
    prompt=({"role": "user", "content": "Answer."},),
)


def rows(path: Path, *values: object) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    return path


def test_written_questions_are_read_back(tmp_path: Path) -> None:
    written = [FULL, Question("q1", "Who?", ("Mira",), "mine")]
    for name in ("q.jsonl", "q.jsonl.gz"):
        assert questions.write(tmp_path / name, written) == 2
        assert questions.load(tmp_path / name) == written
    with gzip.open(tmp_path / "q.jsonl.gz", "rt", encoding="utf-8") as file:
        assert file.read() == (tmp_path / "q.jsonl").read_text(encoding="utf-8")


def test_unknown_keys_blank_lines_and_blank_answers_are_ignored(tmp_path: Path) -> None:
    path = rows(tmp_path / "q.jsonl", {**GOOD, "weak_ids": ["p1"], "golden_answers": [" ", "Mira"]})
    path.write_text("\n" + path.read_text() + "  \n")
    assert questions.load(path) == [Question("q1", "Who wrote it?", ("Mira",), "mine")]


def test_missing_data_source_is_the_file_name(tmp_path: Path) -> None:
    row = {key: value for key, value in GOOD.items() if key != "data_source"}
    assert questions.load(rows(tmp_path / "nq.questions.jsonl", row))[0].data_source == "nq"


def test_stream_stops_at_the_first_bad_line(tmp_path: Path) -> None:
    stream = questions.stream(rows(tmp_path / "q.jsonl", GOOD, {"id": "q2"}))
    assert next(stream).id == "q1"
    with pytest.raises(InputError, match=r"line 2: question .*missing"):
        next(stream)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({**GOOD, "question": " "}, "question .*' '"),
        ({**GOOD, "question": 3}, "question .* 3"),
        ({**GOOD, "id": ""}, "id .*string"),
        ({**GOOD, "id": 7}, "id .* 7"),
        ({**GOOD, "golden_answers": []}, r"golden_answers is \[\]"),
        ({**GOOD, "golden_answers": ["", " "]}, "has no answer"),
        ({**GOOD, "golden_answers": None}, "has no answer"),
        ({"id": "q1", "question": "Who?"}, "golden_answers is missing"),
        ({**GOOD, "golden_answers": "Mira"}, "golden_answers .*'Mira'"),
        ({**GOOD, "golden_answers": [1843]}, r"golden_answers .*\[1843\]"),
        ({**GOOD, "data_source": ""}, "data_source .*string"),
        ({**GOOD, "supporting_ids": [1]}, r"supporting_ids .*\[1\]"),
        ({**GOOD, "type": 2}, "type .*str.* 2"),
        ({**GOOD, "hops": "2"}, "hops .*int.*'2'"),
        ({**GOOD, "hops": True}, "hops .*int.* True"),
        ({**GOOD, "answerable": 1}, "answerable .*bool.* 1"),
        ({**GOOD, "prompt": "Answer."}, "prompt must be a list of messages"),
        ({**GOOD, "prompt": [{"role": "user"}]}, "prompt must be a list of messages"),
        ([GOOD], "JSON object"),
    ],
)
def test_bad_line_is_reported_with_the_problem(tmp_path: Path, row: object, complaint: str) -> None:
    with pytest.raises(InputError, match=rf"q\.jsonl, line 1: .*{complaint}.*; a line looks like "):
        questions.load(rows(tmp_path / "q.jsonl", row))


def test_line_that_is_not_json(tmp_path: Path) -> None:
    path = rows(tmp_path / "q.jsonl", GOOD)
    path.write_text(path.read_text() + "{oops\n")
    with pytest.raises(InputError, match=r"line 2: not JSON: '\{oops'"):
        questions.load(path)


def test_repeated_id_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 2: the id 'q1'"):
        questions.load(rows(tmp_path / "q.jsonl", GOOD, GOOD))


def test_empty_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no questions"):
        questions.load(rows(tmp_path / "q.jsonl"))
    with pytest.raises(InputError, match=r"none\.jsonl does not exist"):
        questions.load(tmp_path / "none.jsonl")


def test_half_a_surrogate_pair_becomes_a_question_mark(tmp_path: Path) -> None:
    halved = Question("q\ud800", "Who is \udc00 \U0001f9ed?", ("Mira\ud83e",), "mine\ud800")
    clean = Question("q?", "Who is ? \U0001f9ed?", ("Mira?",), "mine?")
    row = {"id": halved.id, "question": halved.question, "golden_answers": list(halved.golden_answers)}
    path = rows(tmp_path / "read.jsonl", {**row, "data_source": halved.data_source})
    assert questions.load(path) == [clean]
    questions.write(tmp_path / "written.jsonl", [halved])
    assert questions.load(tmp_path / "written.jsonl") == [clean]


@pytest.mark.parametrize("name", ["q.jsonl", "q.jsonl.gz"])
def test_byte_order_mark_is_skipped(tmp_path: Path, name: str) -> None:
    content = b"\xef\xbb\xbf" + json.dumps(GOOD).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert [question.id for question in questions.load(tmp_path / name)] == ["q1"]


@pytest.mark.parametrize(("name", "content"), [("q.jsonl.gz", b"not gzip"), ("q.jsonl", b"\xff\xfe{}")])
def test_unreadable_file_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match="cannot be read"):
        questions.load(tmp_path / name)


def test_question_without_answer_leaves_no_file(tmp_path: Path) -> None:
    def some() -> Iterator[Question]:
        yield FULL
        yield Question("q3", "Who?", (), "mine")

    with pytest.raises(InputError, match="'q3' has no answer"):
        questions.write(tmp_path / "q.jsonl", some())
    assert list(tmp_path.iterdir()) == []


def test_an_unanswerable_question_needs_no_answer(tmp_path: Path) -> None:
    written = [Question("q1", "Who?", (), "mine", answerable=False), Question("q2", "Who?", ("A",), "mine")]
    questions.write(tmp_path / "q.jsonl", written)
    assert questions.load(tmp_path / "q.jsonl") == written
    with pytest.raises(InputError, match="no answer"):
        questions.load(rows(tmp_path / "bad.jsonl", {**GOOD, "golden_answers": [], "answerable": True}))
