"""sleuth data make: a corpus in, a question file out."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sleuth.cli.main import app
from sleuth.corpus import questions
from sleuth.errors import InputError
from sleuth.synthesis.world.world import World

FILM = {"id": "film", "contents": '"Night Harbour"\nNight Harbour is a 1961 film directed by Anna Pell.'}
PERSON = {"id": "person", "contents": '"Anna Pell"\nAnna Pell (born 12 March 1920) is a British film director.'}


def corpus(folder: Path, *rows: dict[str, str]) -> Path:
    path = folder / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def made(*arguments: object) -> str:
    ended = CliRunner().invoke(app, ["data", "make", *map(str, arguments)], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return ended.output


def refused(*arguments: object) -> str:
    with pytest.raises(InputError) as error:
        CliRunner().invoke(app, ["data", "make", *map(str, arguments)], catch_exceptions=False)
    return str(error.value)


def test_corpus_becomes_questions(tmp_path: Path) -> None:
    out = tmp_path / "made.jsonl.gz"
    said = made(corpus(tmp_path, FILM, PERSON), "--out", out, "--questions", 2, "--name", "mine", "--hops-share", 0)
    written = questions.load(out)
    assert {question.supporting_ids[-1] for question in written} == {"film", "person"}
    assert {question.id for question in written} == {"mine_0", "mine_1"}
    assert all(question.data_source == "mine" and question.type and question.hops for question in written)
    assert re.search("2 passages: 0 .*--without, 2 .*; 2 questions .* 1\n", said)
    assert written[0].question in said


def test_share_that_takes_several_passages(tmp_path: Path) -> None:
    out = tmp_path / "made.jsonl"
    said = made(corpus(tmp_path, FILM, PERSON), "--out", out, "--questions", 4, "--per-passage", 3, "--hops-share", 0.5)
    joined = [question for question in questions.load(out) if question.hops == 2]
    assert [question.supporting_ids for question in joined] == [("film", "person")] * 2
    assert re.search("2 questions .* 1, 2 questions .* 2\n", said)
    assert "| bridge | 2 |" in said


def test_same_seed_same_file_from_corpus_and_index(tmp_path: Path) -> None:
    rows = [{"id": passage.id, "contents": passage.contents} for passage in World(300, 1).passages()]
    source = corpus(tmp_path, *rows)
    built = CliRunner().invoke(
        app, ["index", "build", str(tmp_path / "corpus.jsonl"), "--out", str(tmp_path / "index")]
    )
    assert built.exit_code == 0, built.output
    for name, given, seed in (("a", source, 3), ("b", source, 3), ("c", tmp_path / "index", 3), ("d", source, 4)):
        made(given, "--out", tmp_path / f"{name}.jsonl", "--questions", 50, "--seed", seed)
    files = [(tmp_path / f"{name}.jsonl").read_text() for name in "abcd"]
    assert files[0] == files[1] == files[2]
    assert files[0] != files[3]


def test_passages_of_a_test_set_are_not_used(tmp_path: Path) -> None:
    test = tmp_path / "test.jsonl"
    test.write_text('{"id": "t", "question": "Who?", "golden_answers": ["x"], "supporting_ids": ["film"]}\n')
    said = made(corpus(tmp_path, FILM, PERSON), "--out", tmp_path / "made.jsonl", "--without", test)
    assert {question.supporting_ids for question in questions.load(tmp_path / "made.jsonl")} == {("person",)}
    assert re.search("1 .*--without", said)
    assert "fewer than 10,000" in said


def test_known_questions_are_not_made_again_although_their_pages_are_read(tmp_path: Path) -> None:
    source, known = corpus(tmp_path, FILM, PERSON), tmp_path / "known.jsonl"
    made(source, "--out", tmp_path / "all.jsonl", "--per-passage", 2)
    first, *others = questions.load(tmp_path / "all.jsonl")
    assert any(each.supporting_ids == first.supporting_ids for each in others)
    known.write_text((tmp_path / "all.jsonl").read_text().splitlines()[0] + "\n")
    made(source, "--out", tmp_path / "new.jsonl", "--per-passage", 2, "--not-in", known)
    found = questions.load(tmp_path / "new.jsonl")
    assert first.question not in {each.question for each in found}
    assert any(each.supporting_ids == first.supporting_ids for each in found)


def test_other_passages_of_a_page_of_a_test_set_are_not_used(tmp_path: Path) -> None:
    test = tmp_path / "validation.jsonl"
    test.write_text('{"id": "t", "question": "Who?", "golden_answers": ["x"], "supporting_ids": ["film"]}\n')
    sibling = {**FILM, "id": "sibling"}
    made(corpus(tmp_path, FILM, sibling, PERSON), "--out", tmp_path / "made.jsonl", "--without", test)
    assert {question.supporting_ids for question in questions.load(tmp_path / "made.jsonl")} == {("person",)}


def test_existing_file_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "made.jsonl"
    out.write_text("mine")
    assert "already exists" in refused(corpus(tmp_path, FILM), "--out", out)
    assert out.read_text() == "mine"


@pytest.mark.parametrize(
    ("row", "options", "complaint"),
    [
        ({"id": "p", "contents": '"Nothing"\nnot much here'}, (), "gives a question"),
        ({"id": "p"}, (), '"contents" is missing'),
        (FILM, ("--name", " "), "--name is empty"),
        (FILM, ("--without", "absent.jsonl"), "absent.jsonl does not exist"),
    ],
)
def test_bad_input_is_told(tmp_path: Path, row: dict[str, str], options: tuple[str, ...], complaint: str) -> None:
    assert complaint in refused(corpus(tmp_path, row), "--out", tmp_path / "made.jsonl", *options)
    assert not (tmp_path / "made.jsonl").exists()


def test_corpus_that_is_not_there(tmp_path: Path) -> None:
    assert "does not exist" in refused(tmp_path / "absent.jsonl", "--out", tmp_path / "made.jsonl")
