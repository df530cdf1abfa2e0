"""Questions made of sentences: each rule on a passage written for it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sleuth.errors import InputError
from sleuth.records import Passage
from sleuth.synthesis.cloze.drafts import Draft, good
from sleuth.synthesis.cloze.excluded import Excluded, excluded
from sleuth.synthesis.cloze.lexicon import Lexicon, plain
from sleuth.synthesis.cloze.making import Terms, make
from sleuth.synthesis.cloze.nouns import Kind
from sleuth.synthesis.cloze.pages import read
from sleuth.synthesis.cloze.verbs import active, supported

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
TOWN = ("Dover", "Dover is a port town in Kent. Dover has a population of 31,022.")
BAND = ("The Larks (band)", "The Larks are an English folk band. They were formed in York in 1974 by Joe Hart.")


def passage(page: tuple[str, str], name: str = "p1") -> Passage:
    return Passage(name, f'"{page[0]}"\n{page[1]}')


def asked(title: str, text: str) -> dict[str, Draft]:
    """The drafts of a passage by their wordings, in a corpus of the pages above and that one."""
    mine = passage((title, text), "mine")
    known = [passage(each, f"p{place}") for place, each in enumerate((FILM, DIRECTOR, TOWN, BAND))]
    lexicon = Lexicon.learned(enumerate([*known, mine]))
    page = read(mine, lexicon)
    return {each: draft for draft in (page.drafts if page else ()) for each in (draft.text, *_worded(draft))}


def _worded(draft: Draft) -> list[str]:
    return [text.replace("{x}", draft.name) for text in draft.asks]


@pytest.mark.parametrize(
    ("page", "question", "answer"),
    [
        (FILM, "Who directed Night Harbour?", "Anna Pell"),
        (FILM, "Who is the director of Night Harbour?", "Anna Pell"),
        (FILM, "Night Harbour is a 1961 British crime film directed by whom?", "Anna Pell"),
        (FILM, "When was Night Harbour released?", "4 May 1961"),
        (FILM, "Night Harbour was released on what date?", "4 May 1961"),
        (FILM, "Which award did Night Harbour win in 1962?", "Silver Anchor Award"),
        (FILM, "In what year did Night Harbour win the Silver Anchor Award?", "1962"),
        (FILM, "What genre is Night Harbour?", "crime"),
        (FILM, "Who stars in Night Harbour?", "Tom Reed"),
        (FILM, "Who stars alongside Ida Moss in Night Harbour?", "Tom Reed"),
        (DIRECTOR, "When was Anna Pell born?", "12 March 1920"),
        (DIRECTOR, "When did Anna Pell die?", "3 June 1988"),
        (DIRECTOR, "Where was Anna Pell born?", "Dover, Kent"),
        (DIRECTOR, "Which university did Anna Pell study at?", "University of Leeds"),
        (DIRECTOR, "How many films did Anna Pell make?", "14"),
        (DIRECTOR, "What is Anna Pell's occupation?", "film director"),
        (DIRECTOR, "What is the nationality of Anna Pell?", "British"),
        (TOWN, "What is the population of Dover?", "31,022"),
        (BAND, "In what year were the band The Larks formed in York by Joe Hart?", "1974"),
        (BAND, "Which country is the band The Larks from?", "English"),
        (TOWN, "Where is Dover located?", "Kent"),
        (BAND, "The band The Larks were formed in York in 1974 by whom?", "Joe Hart"),
    ],
)
def test_rule_asks(page: tuple[str, str], question: str, answer: str) -> None:
    found = asked(*page)
    assert question in found, sorted(found)
    assert found[question].answer == answer


@pytest.mark.parametrize(
    ("text", "never"),
    [
        # two makers, of which either alone would be half an answer
        ("Low Tide is a 1970 film directed by Ann Poe and Ben Roe.", "Who directed Low Tide?"),
        # whoever wrote the novel did not write the film
        ("Low Tide is a 1970 film based on the novel written by Ann Poe.", "Who wrote Low Tide?"),
        # what was done to it is not what it did
        ("Low Tide is a 1970 film. Low Tide, directed in Dover by Ann Poe, won a cup.", "Who did Low Tide direct by?"),
        # the fragment of a sentence that was cut
        ("a fine thing. Low Tide won the Silver Cup in", "In what year did Low Tide win the Silver Cup?"),
    ],
)
def test_rule_keeps_silent(text: str, never: str) -> None:
    assert never not in asked("Low Tide", text)


def test_pronoun_of_someone_else_is_left_alone() -> None:
    text = "Low Tide is a 1970 film. Ann Poe wrote the music. She was born in Dover, Kent."
    assert not [question for question in asked("Low Tide", text) if "born" in question]


def test_brackets_of_a_list_are_no_life() -> None:
    assert not [
        question
        for question in asked("Hart", "Hart is a surname. Notable people include Joe Hart (born 1950), singer.")
        if "born" in question
    ]


@pytest.mark.parametrize("title", ["List of lakes", "Low Tide (disambiguation)"])
def test_pages_without_a_subject_are_not_asked_about(title: str) -> None:
    assert not asked(title, f"{title} is a 1970 film directed by Ann Poe. {title} was released on 4 May 1970.")


def test_title_before_the_first_sentence_is_taken_off() -> None:
    doubled = asked("Night Harbour", f"Night Harbour {FILM[1]}")
    assert "Who directed Night Harbour?" in doubled


def test_dates_count_in_both_orders_and_numbers_with_their_unit() -> None:
    assert asked(*DIRECTOR)["When was Anna Pell born?"].answers == ("12 March 1920", "March 12, 1920")
    assert asked(*DIRECTOR)["How many films did Anna Pell make?"].answers == ("14", "14 films")
    assert asked(*DIRECTOR)["Where was Anna Pell born?"].answers == ("Dover, Kent", "Dover")


@pytest.mark.parametrize(
    ("title", "name"), [("Olkusz - History", "Olkusz"), ("Ed Wood (film)", "Ed Wood"), ("X-1", "X-1")]
)
def test_plain_title(title: str, name: str) -> None:
    assert plain(title) == name


@pytest.mark.parametrize(
    ("verb", "plain_form"),
    [
        ("won", ("did", "win")),
        ("founded", ("did", "found")),
        ("found", ("did", "find")),
        ("starred", ("did", "star")),
        ("married", ("did", "marry")),
        ("plays", ("does", "play")),
        ("quickly", None),
    ],
)
def test_verbs(verb: str, plain_form: tuple[str, str] | None) -> None:
    assert supported(verb) == plain_form


@pytest.mark.parametrize(("participle", "past"), [("written", "wrote"), ("directed", "directed"), ("film", None)])
def test_participles(participle: str, past: str | None) -> None:
    assert active(participle) == past


SOUND = Draft("Who directed Night Harbour?", "Anna Pell", Kind.PERSON, "defined", "Night Harbour")


@pytest.mark.parametrize(
    "draft",
    [
        replace(SOUND, text="Who directed Night Harbour with anna pell?"),
        replace(SOUND, aliases=("Night Harbour",)),
        replace(SOUND, aliases=("The Night Harbour",)),
        replace(SOUND, text='Who directed "Night Harbour?'),
        replace(SOUND, text="Who was he?"),
        replace(SOUND, text="Who directed the who of Night Harbour?"),
        replace(SOUND, answer="?!"),
        replace(SOUND, text="Who directed Night Harbour and?"),
    ],
)
def test_bad_drafts_are_dropped(draft: Draft) -> None:
    assert good(SOUND)
    assert not good(draft)


def test_passages_and_questions_of_measured_sets_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "test.jsonl"
    rows = [
        {"id": "a", "question": "Who?", "golden_answers": ["x"], "supporting_ids": ["p1"], "weak_ids": ["p2"]},
        {"id": "b", "question": "who directed night harbour", "golden_answers": ["x"], "related_ids": ["p3"]},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    left_out = excluded([file])
    assert left_out.passages == {"p1", "p2", "p3"}
    made = make([passage(FILM)], Terms(50, per_passage=50), Excluded(questions=left_out.questions))
    texts = {question.question.lower().rstrip("?") for question in made.questions}
    assert "who is the director of night harbour" in texts
    assert "who directed night harbour" not in texts


def measured(tmp_path: Path, **row: object) -> Excluded:
    """What a question file of one row leaves out."""
    file = tmp_path / "measured.jsonl"
    file.write_text(json.dumps({"id": "a", "question": "Who?", "golden_answers": ["x"], **row}) + "\n")
    return excluded([file])


def test_other_passages_of_a_measured_page_are_left_out(tmp_path: Path) -> None:
    """A sibling passage tells of the same thing: its title, in any spelling and with a section, is the page's."""
    siblings = ["Night Harbour", "night harbour", "Night Harbour - Reception"]
    corpus = [passage((title, FILM[1]), f"p{place}") for place, title in enumerate(siblings)]
    corpus.append(passage(DIRECTOR, "director"))
    left_out = measured(tmp_path, supporting_ids=["p0", "nowhere"]).with_titles({each.id: each for each in corpus}.get)
    made = make(corpus, Terms(50, per_passage=50), left_out)
    assert {name for question in made.questions for name in question.supporting_ids} == {"director"}
    assert made.excluded == 3


def test_pages_that_a_measured_question_names_are_left_out_where_it_names_no_passage(tmp_path: Path) -> None:
    corpus = [passage(FILM, "film"), passage(DIRECTOR, "director")]
    made = make(corpus, Terms(50), measured(tmp_path, question="Who made the film night harbour?"))
    assert {name for question in made.questions for name in question.supporting_ids} == {"director"}
    named = measured(tmp_path, question="Who made the film night harbour?", supporting_ids=["elsewhere"])
    assert ("film",) in {question.supporting_ids for question in make(corpus, Terms(50), named).questions}


def test_measured_answers_are_not_asked_for_unless_many_pages_give_them(tmp_path: Path) -> None:
    films = [
        (
            f"Harbour {name}",
            f"Harbour {name} is a 1961 British crime film directed by Anna Pell{name} and starring Tom Reed.",
        )
        for name in ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven")
    ]
    corpus = [passage(each, each[0]) for each in films]
    without = measured(tmp_path, golden_answers=["the anna pelltwo!", "Tom Reed"], supporting_ids=["elsewhere"])
    terms = Terms(500, per_passage=50, hops_share=0.0)
    answers = {each for question in make(corpus, terms, without).questions for each in question.golden_answers}
    assert "Anna Pelltwo" not in answers
    assert {"Anna Pellone", "Tom Reed"} <= answers
    few = make(corpus[:9], terms, without)
    assert not {"Anna Pelltwo", "Tom Reed"} & {each for question in few.questions for each in question.golden_answers}
    assert few.refused > 0


def test_file_left_out_twice_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "test.jsonl"
    file.write_text('{"id": "a", "question": "Who?", "golden_answers": ["x"]}\n')
    with pytest.raises(InputError, match="no effect"):
        excluded([file, file])
