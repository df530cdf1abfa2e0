"""Exclusions: generated questions leave evaluation sets alone."""

import json
from pathlib import Path

import pytest

from sleuth.errors import InputError
from sleuth.records import Passage
from sleuth.synthesis.cloze.exclusion import Exclusions, read_exclusions
from sleuth.synthesis.cloze.generator import GeneratorConfig, generate

FILM = (
    "Night Harbour",
    "Night Harbour is a 1961 British crime film directed by Anna Pell and starring Tom Reed and Ida Moss. "
    "It was released on 4 May 1961. The film won the Silver Anchor Award in 1962.",
)
DIRECTOR = (
    "Anna Pell",
    "Anna Pell (12 March 1920 – 3 June 1988) was a British film director. She was born in Dover, Kent. "
    "She studied at the University of Leeds. Pell made 14 films.",
)


def passage(page: tuple[str, str], name: str = "p1") -> Passage:
    return Passage(name, f'"{page[0]}"\n{page[1]}')


def test_passages_and_questions_are_excluded(tmp_path: Path) -> None:
    file = tmp_path / "test.jsonl"
    rows = [
        {"id": "a", "question": "Who?", "golden_answers": ["x"], "supporting_ids": ["p1"], "weak_ids": ["p2"]},
        {"id": "b", "question": "who directed night harbour", "golden_answers": ["x"], "related_ids": ["p3"]},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    exclusions = read_exclusions([file])
    assert exclusions.passages == {"p1", "p2", "p3"}
    made = generate([passage(FILM)], GeneratorConfig(50, per_passage=50), Exclusions(questions=exclusions.questions))
    texts = {question.question.lower().rstrip("?") for question in made.questions}
    assert "who is the director of night harbour" in texts
    assert "who directed night harbour" not in texts


def exclusions_of(tmp_path: Path, **row: object) -> Exclusions:
    """The exclusions of a question file with one row."""
    file = tmp_path / "evaluation.jsonl"
    file.write_text(json.dumps({"id": "a", "question": "Who?", "golden_answers": ["x"], **row}) + "\n")
    return read_exclusions([file])


def test_other_passages_of_a_page_are_excluded(tmp_path: Path) -> None:
    """Passages belong to a page by title, in any case and with a section."""
    siblings = ["Night Harbour", "night harbour", "Night Harbour - Reception"]
    corpus = [passage((title, FILM[1]), f"p{place}") for place, title in enumerate(siblings)]
    corpus.append(passage(DIRECTOR, "director"))
    exclusions = exclusions_of(tmp_path, supporting_ids=["p0", "nowhere"]).with_titles(
        {each.id: each for each in corpus}.get
    )
    made = generate(corpus, GeneratorConfig(50, per_passage=50), exclusions)
    assert {name for question in made.questions for name in question.supporting_ids} == {"director"}
    assert made.excluded == 3


def test_question_without_passage_ids_excludes_pages_it_names(tmp_path: Path) -> None:
    corpus = [passage(FILM, "film"), passage(DIRECTOR, "director")]
    made = generate(corpus, GeneratorConfig(50), exclusions_of(tmp_path, question="Who made the film night harbour?"))
    assert {name for question in made.questions for name in question.supporting_ids} == {"director"}
    named = exclusions_of(tmp_path, question="Who made the film night harbour?", supporting_ids=["elsewhere"])
    assert ("film",) in {question.supporting_ids for question in generate(corpus, GeneratorConfig(50), named).questions}


def test_answers_are_excluded_unless_common(tmp_path: Path) -> None:
    films = [
        (
            f"Harbour {name}",
            f"Harbour {name} is a 1961 British crime film directed by Anna Pell{name} and starring Tom Reed.",
        )
        for name in ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven")
    ]
    corpus = [passage(each, each[0]) for each in films]
    exclusions = exclusions_of(tmp_path, golden_answers=["the anna pelltwo!", "Tom Reed"], supporting_ids=["elsewhere"])
    config = GeneratorConfig(500, per_passage=50, hops_share=0.0)
    answers = {each for question in generate(corpus, config, exclusions).questions for each in question.golden_answers}
    assert "Anna Pelltwo" not in answers
    assert {"Anna Pellone", "Tom Reed"} <= answers
    few = generate(corpus[:9], config, exclusions)
    assert not {"Anna Pelltwo", "Tom Reed"} & {each for question in few.questions for each in question.golden_answers}
    assert few.rejected > 0


def test_repeated_exclusion_file_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "test.jsonl"
    file.write_text('{"id": "a", "question": "Who?", "golden_answers": ["x"]}\n')
    with pytest.raises(InputError, match=r"test\.jsonl"):
        read_exclusions([file, file])
