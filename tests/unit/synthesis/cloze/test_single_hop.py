"""Single-hop question rules, each on a passage written for it."""

from dataclasses import replace

import pytest

from sleuth.records import Passage
from sleuth.synthesis.cloze.english import Kind
from sleuth.synthesis.cloze.grammar import Draft, Form, is_valid
from sleuth.synthesis.cloze.lexicon import Lexicon, base_title
from sleuth.synthesis.cloze.single_hop import analyze

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


def drafts_of(title: str, text: str) -> dict[str, Draft]:
    """The drafts of a passage by wording, in a corpus with the pages above."""
    mine = passage((title, text), "mine")
    known = [passage(each, f"p{place}") for place, each in enumerate((FILM, DIRECTOR, TOWN, BAND))]
    lexicon = Lexicon.from_passages(enumerate([*known, mine]))
    page = analyze(mine, lexicon)
    return {each: draft for draft in (page.drafts if page else ()) for each in (draft.text, *_wordings(draft))}


def _wordings(draft: Draft) -> list[str]:
    return [text.replace("{x}", draft.name) for text in draft.templates]


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
def test_question_and_answer(page: tuple[str, str], question: str, answer: str) -> None:
    found = drafts_of(*page)
    assert question in found, sorted(found)
    assert found[question].answer == answer


@pytest.mark.parametrize(
    ("text", "never"),
    [
        # either of two makers would be half an answer
        ("Low Tide is a 1970 film directed by Ann Poe and Ben Roe.", "Who directed Low Tide?"),
        # the author of the novel did not write the film
        ("Low Tide is a 1970 film based on the novel written by Ann Poe.", "Who wrote Low Tide?"),
        # passive voice is not active voice
        ("Low Tide is a 1970 film. Low Tide, directed in Dover by Ann Poe, won a cup.", "Who did Low Tide direct by?"),
        # truncated sentence
        ("a fine thing. Low Tide won the Silver Cup in", "In what year did Low Tide win the Silver Cup?"),
    ],
)
def test_incorrect_question_is_not_asked(text: str, never: str) -> None:
    assert never not in drafts_of("Low Tide", text)


def test_pronoun_of_another_person_is_not_resolved() -> None:
    text = "Low Tide is a 1970 film. Ann Poe wrote the music. She was born in Dover, Kent."
    assert not [question for question in drafts_of("Low Tide", text) if "born" in question]


def test_dates_in_a_list_of_people_are_not_life_dates() -> None:
    assert not [
        question
        for question in drafts_of("Hart", "Hart is a surname. Notable people include Joe Hart (born 1950), singer.")
        if "born" in question
    ]


@pytest.mark.parametrize("title", ["List of lakes", "Low Tide (disambiguation)"])
def test_page_without_a_topic_has_no_questions(title: str) -> None:
    assert not drafts_of(title, f"{title} is a 1970 film directed by Ann Poe. {title} was released on 4 May 1970.")


def test_repeated_title_before_the_first_sentence_is_removed() -> None:
    doubled = drafts_of("Night Harbour", f"Night Harbour {FILM[1]}")
    assert "Who directed Night Harbour?" in doubled


def test_answer_aliases() -> None:
    assert drafts_of(*DIRECTOR)["When was Anna Pell born?"].answers == ("12 March 1920", "March 12, 1920")
    assert drafts_of(*DIRECTOR)["How many films did Anna Pell make?"].answers == ("14", "14 films")
    assert drafts_of(*DIRECTOR)["Where was Anna Pell born?"].answers == ("Dover, Kent", "Dover")


@pytest.mark.parametrize(
    ("title", "name"), [("Olkusz - History", "Olkusz"), ("Ed Wood (film)", "Ed Wood"), ("X-1", "X-1")]
)
def test_base_title(title: str, name: str) -> None:
    assert base_title(title) == name


VALID = Draft("Who directed Night Harbour?", "Anna Pell", Kind.PERSON, Form.DEFINITION, "Night Harbour")


@pytest.mark.parametrize(
    "draft",
    [
        replace(VALID, text="Who directed Night Harbour with anna pell?"),
        replace(VALID, aliases=("Night Harbour",)),
        replace(VALID, aliases=("The Night Harbour",)),
        replace(VALID, text='Who directed "Night Harbour?'),
        replace(VALID, text="Who was he?"),
        replace(VALID, text="Who directed the who of Night Harbour?"),
        replace(VALID, answer="?!"),
        replace(VALID, text="Who directed Night Harbour and?"),
    ],
)
def test_invalid_drafts(draft: Draft) -> None:
    assert is_valid(VALID)
    assert not is_valid(draft)
