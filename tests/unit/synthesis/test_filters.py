"""Each filter accepts good questions and catches planted bad ones: at least 40 of 50."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from sleuth.records import Passage
from sleuth.synthesis.candidate import Candidate, Evidence, with_difficulty
from sleuth.synthesis.filters import (
    FILTERS,
    NearDuplicates,
    answer_not_in_question,
    failed_filter,
    locate_quote,
    names_subject,
)
from sleuth.synthesis.vocabulary import Vocabulary, is_code, stem

Plant = Callable[[Candidate, int], Candidate]
POINTING = (
    "Who is the maintainer of this tool?",
    "Who is its maintainer?",
    "According to the passage, who is the maintainer?",
    "Who is the maintainer mentioned in the text?",
    "Who is the maintainer described above?",
    "Which person is named in this document?",
    "What is the name of the maintainer?",
    "Who maintains it and where is the journal stored?",
    "Who is the maintainer of the given program?",
    "What is the default value of the option?",
)


@pytest.fixture(scope="module")
def vocabulary(manual: list[Passage]) -> Vocabulary:
    return Vocabulary.from_passages(manual)


def misquoted(candidate: Candidate, number: int) -> Candidate:
    """A quote with a changed, an added or a missing part."""
    (evidence,) = candidate.evidence
    words = evidence.quote.split()
    changed = (
        evidence.quote.replace("maintainer", "owner"),
        f"As we know, {evidence.quote}",
        " ".join(reversed(words)),
        evidence.quote.replace("Person", "Human"),
        "",
    )
    return replace(candidate, evidence=(Evidence(evidence.passage, changed[number % 5]),))


def misanswered(candidate: Candidate, number: int) -> Candidate:
    """An answer that is not in the quote, or no answer at all."""
    answers = (f"Person{number + 1}", "unknown", "the default depot", f"/var/lib/{number}", "")
    return replace(candidate, answers=(answers[number % 5],))


def clausal(candidate: Candidate, number: int) -> Candidate:
    """An answer that is a sentence, or a placeholder."""
    answers = (f"it is {candidate.answer}", f"{candidate.answer} is the maintainer", "<name>", "because of Quill", "no")
    return replace(candidate, answers=(answers[number % 5],))


def invented(candidate: Candidate, number: int) -> Candidate:
    """A question about things of which the passage says nothing."""
    tool = candidate.question.removesuffix("?").rpartition(" ")[2]
    questions = (
        f"Who pays the annual licence fee for {tool} in Portugal?",
        f"Which university department originally designed {tool}?",
        f"Who won the award for documentation quality with {tool}?",
        f"Which lawyer registered the trademark {tool} in Lisbon?",
        f"Who uploads the nightly builds of {tool} to the mirror?",
    )
    return replace(candidate, question=questions[number % 5])


def leaked(candidate: Candidate, number: int) -> Candidate:
    """A question that contains its answer, or its words in another order."""
    first, last = candidate.answer.split()
    tool = candidate.question.removesuffix("?").rpartition(" ")[2]
    questions = (
        f"Is {candidate.answer} the maintainer of {tool}?",
        f"Which {last} {first} maintains {tool}?",
        f"Who, {candidate.answer.upper()} or another, maintains {tool}?",
        f"Does {tool}'s maintainer {first} have the name {last}?",
        f"What does {candidate.answer}, the maintainer, do with {tool}?",
    )
    return replace(candidate, question=questions[number % 5])


def nameless(candidate: Candidate, number: int) -> Candidate:
    return replace(candidate, question=POINTING[number % len(POINTING)])


def unasked(candidate: Candidate, number: int) -> Candidate:
    questions = (candidate.question.removesuffix("?"), "Who?", f"{candidate.question} Why?", "", "Tell me the name.")
    return replace(candidate, question=questions[number % 5])


def opened(candidate: Candidate, number: int) -> Candidate:
    """A question for a purpose, a reason or a manner."""
    tool = candidate.question.removesuffix("?").rpartition(" ")[2]
    questions = (
        f"Why does {tool} keep a journal?",
        f"In {tool}(1), how does the batch of rows get sent?",
        f"What is the main purpose of the journal of {tool}?",
        f"What happens if {tool} has no depot?",
        f"What does the manual of {tool} say about depots?",
    )
    return replace(candidate, question=questions[number % 5])


PLANTED: dict[str, Plant] = {
    "not a question": unasked,
    "open question": opened,
    "quote not in passage": misquoted,
    "answer not in evidence": misanswered,
    "answer not a phrase": clausal,
    "answer in question": leaked,
    "words not in evidence": invented,
    "subject not named": nameless,
}


def test_good_questions_pass_every_filter(good: list[Candidate], vocabulary: Vocabulary) -> None:
    assert len(good) == 50
    assert [failed_filter(candidate, vocabulary) for candidate in good] == [None] * 50


def test_every_filter_has_planted_questions() -> None:
    assert list(PLANTED) == list(FILTERS)


@pytest.mark.parametrize("name", PLANTED)
def test_planted_questions_are_caught(name: str, good: list[Candidate], vocabulary: Vocabulary) -> None:
    planted = [PLANTED[name](candidate, number) for number, candidate in enumerate(good)]
    caught = sum(not FILTERS[name](candidate, vocabulary) for candidate in planted)
    assert caught >= 48, f"{caught} of 50"


def test_planted_duplicates_are_caught(good: list[Candidate]) -> None:
    duplicates = NearDuplicates()
    assert all(duplicates.accept(each.question, each.answers) for each in good)
    wordings = (
        "So, {}",
        "{} And who else",
        "WHO IS THE MAINTAINER of {tool}",
        "who is the maintainers of {tool}",
        "{}",
    )
    caught = 0
    for number, each in enumerate(good):
        tool = each.question.removesuffix("?").rpartition(" ")[2]
        question = wordings[number % 5].format(each.question, tool=tool)
        caught += not duplicates.accept(question, (each.answer.lower(),))
    assert caught >= 48, f"{caught} of 50"


def test_excluded_questions_are_not_accepted() -> None:
    duplicates = NearDuplicates(frozenset({"who wrote emma"}))
    assert not duplicates.accept("Who wrote Emma?", ("Jane Austen",))
    assert duplicates.accept("Who wrote Ivanhoe?", ("Walter Scott",))


@pytest.mark.parametrize(
    ("question", "answer", "passes"),
    [
        ("Which option of git-add(1) shows files?", "-n", True),
        ("Which option of tar lists --list?", "--list", False),
        ("What does --no-verify skip?", "verify", True),
        ("Who founded the Oslo office of Norland?", "Oslo", False),
    ],
)
def test_answers_in_questions(question: str, answer: str, passes: bool) -> None:
    candidate = Candidate(question, (answer,), (), "test")
    assert answer_not_in_question(candidate, Vocabulary()) is passes


@pytest.mark.parametrize(
    ("question", "passes"),
    [
        ("What does HTTP2 do with its frames?", True),
        ("What does it do with HTTP2?", False),
        ("Which chapter of the Debian Policy Manual covers shared libraries?", True),
        ("In the section, what is said about Debian?", False),
        ("What is the maximum number of items?", False),
    ],
)
def test_subjects(question: str, passes: bool, vocabulary: Vocabulary) -> None:
    assert names_subject(Candidate(question, ("x",), (), "test"), vocabulary) is passes


def test_quotes_are_located() -> None:
    text = "The default is “all”.\nWarnings of that kind are suppressed if the keyword starts with no-."
    assert locate_quote('The default is "all".', text) == 'The default is "all'
    near = "Warnings of that kind are suppressed if a keyword starts with no-."
    assert locate_quote(near, text) == "Warnings of that kind are suppressed if the keyword starts with no-."
    assert locate_quote("Warnings are never suppressed.", text) is None
    assert locate_quote("", text) is None


@pytest.mark.parametrize("word", ["--all", "/etc/passwd", "os.path", "max_size", "HTTP", "getItem", "f()", "v2"])
def test_code(word: str) -> None:
    assert is_code(word)


def test_words() -> None:
    assert [stem(word) for word in ("queries", "classes", "bus", "tests", "is", "Ada's")] == [
        "query",
        "classe",
        "bus",
        "test",
        "is",
        "Ada",
    ]
    assert not is_code("high-level")


def test_difficulty_is_an_extra_entry(good: list[Candidate]) -> None:
    row = with_difficulty(good[0].row("set", 3), 0.25)
    assert (row.question.id, row.extra["difficulty"]) == ("set_3", 0.75)
    assert row.extra["evidence"][0]["id"] == row.question.supporting_ids[0]
