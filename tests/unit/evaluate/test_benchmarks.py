"""Benchmark suites, question files and samples."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from sleuth.corpus import questions
from sleuth.errors import InputError
from sleuth.evaluate.benchmarks import SUITES, by_data_set, draw, load_benchmark
from sleuth.records import Question

SIZES = {"nq": 50, "popqa": 30, "bamboogle": 4}


def some(source: str, count: int) -> list[Question]:
    return [Question(f"{number}", f"{source} {number}?", ("x",), source) for number in range(count)]


@pytest.fixture
def pool() -> list[Question]:
    return [question for source, count in SIZES.items() for question in some(source, count)]


def test_a_sample_is_divided_evenly_over_the_data_sets(pool: list[Question]) -> None:
    found = draw(pool, 34, seed=0)
    assert Counter(question.data_source for question in found) == {"nq": 15, "popqa": 15, "bamboogle": 4}
    assert found == [question for question in pool if question in found]


def test_a_sample_depends_on_its_seed_and_is_part_of_a_larger_one(pool: list[Question]) -> None:
    assert draw(pool, 30, 1) == draw(pool, 30, 1) != draw(pool, 30, 2)
    assert set(draw(pool, 30, 1)) < set(draw(pool, 60, 1))


def test_a_limit_below_the_number_of_sets_raises(pool: list[Question]) -> None:
    with pytest.raises(InputError, match=r"--limit 2 .*\(3\)"):
        draw(pool, 2, 0)


def test_a_suite_keeps_the_order_of_the_protocol(tmp_path: Path) -> None:
    for name in reversed(SUITES["search-r1"]):
        questions.write(tmp_path / f"{name}.test.jsonl{'.gz' if name == 'nq' else ''}", some(name, 3))
    found = load_benchmark(["search-r1"], tmp_path)
    assert list(by_data_set(found.questions)) == list(SUITES["search-r1"])
    assert found.sample is None
    assert found.notes[0] == "nq has 3 questions; the protocol of search-r1 has 3,610."
    limited = load_benchmark(["search-r1"], tmp_path, limit=7, seed=3)
    assert len(limited.questions) == 7
    assert limited.sample is not None
    assert limited.sample.sentence().startswith("Sample: 7 of 21 questions")


def test_golden_answers_without_words_are_noted(tmp_path: Path) -> None:
    questions.write(tmp_path / "mine.jsonl", [Question("q1", "Which sign?", ("*", "the symbol ×", "---"), "mine")])
    found = load_benchmark([str(tmp_path / "mine.jsonl")], tmp_path)
    assert found.notes == ("2 gold answers consist of articles and punctuation only, and must be matched as written.",)


def test_sizes_match_the_protocol() -> None:
    assert sum(SUITES["search-r1"].values()) == 51_713


def test_sets_may_be_in_one_file_in_any_order(tmp_path: Path) -> None:
    names = list(SUITES["search-r1"])
    everything = [question for name in reversed(names[1:]) for question in some(name, 2)]
    questions.write(tmp_path / "questions.jsonl", [replace(each, id=f"{n}") for n, each in enumerate(everything)])
    questions.write(tmp_path / "nq" / "questions.jsonl", some("nq", 2))
    assert list(by_data_set(load_benchmark(["search-r1"], tmp_path).questions)) == names


def test_missing_sets_are_named_with_the_command_that_prepares_them(tmp_path: Path) -> None:
    for name in list(SUITES["search-r1"])[:5]:
        questions.write(tmp_path / f"{name}.test.jsonl", some(name, 1))
    with pytest.raises(InputError, match=r"2 of the 7 .* of search-r1: musique, bamboogle; .*sleuth data prepare NAME"):
        load_benchmark(["search-r1"], tmp_path)
    with pytest.raises(InputError, match=r"sleuth data prepare nq .* bamboogle --split test --out .*nowhere"):
        load_benchmark(["search-r1"], tmp_path / "nowhere")


def test_unknown_suite_raises(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--suite natural .* expected search-r1"):
        load_benchmark(["natural"], tmp_path)


def test_a_question_without_an_answer_raises(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"id": "1", "question": "Who?", "golden_answers": []}\n')
    with pytest.raises(InputError, match="answer"):
        load_benchmark([str(tmp_path / "bad.jsonl")], tmp_path)


def test_ids_may_repeat_between_sets_but_not_within_one(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    questions.write(first, some("nq", 2))
    questions.write(second, some("popqa", 2))
    assert len(load_benchmark([str(first), str(second)], tmp_path).questions) == 4
    with pytest.raises(InputError, match="question '0' of data set 'nq'"):
        load_benchmark([str(first), str(first)], tmp_path)
