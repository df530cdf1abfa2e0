"""Filters for the mistakes of language models: each removes what it is for, and keeps a sound question."""

import pytest

from sleuth.records import Passage
from sleuth.synthesis.candidate import Candidate, Evidence
from sleuth.synthesis.teacher.proposal_filters import PROPOSAL_FILTERS, failed_proposal_filter

QUOTE = "The option --depth limits the history to 50 commits."


def candidate(question: str, answer: str, quote: str = QUOTE, title: str = "pull(1)") -> Candidate:
    passage = Passage("p", f'"{title}"\n{quote} Norway is far away.')
    return Candidate(question, (answer,), (Evidence(passage, quote),), "single passage")


def test_a_sound_question_passes() -> None:
    assert failed_proposal_filter(candidate("To how many commits does --depth limit the history?", "50")) is None


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("page of an index", candidate("What limits the history?", "--depth", title="Index > D")),
        ("page of an index", candidate("What limits the history?", "--depth", title="Table of Contents")),
        ("quote not a statement", candidate("Which option limits the history?", "--depth", "--depth")),
        ("quote not a statement", candidate("Which flag of pull is short?", "x", "pull -x origin main")),
        ("quote too long", candidate("Which option limits the history?", "--depth", QUOTE * 4)),
        ("quote about something else", candidate("Which colour has the sidebar menu in dark mode?", "50")),
        ("negation left out", candidate("What does pull change?", "tags", "By itself, pull does not change tags.")),
        ("name not in passage", candidate("What must Norland ships limit with --depth history?", "commits")),
        ("default not stated", candidate("What is the default of --depth for the history?", "50")),
        ("condition left out", candidate("What does pull do?", "merge", "If branches differ, pull runs a merge.")),
        ("one of several", candidate("What are options that limit the history?", "--depth")),
        ("circular", candidate("Which commits does committing with --depth keep?", "committed")),
    ],
)
def test_each_filter_removes_its_mistake(name: str, bad: Candidate) -> None:
    assert not PROPOSAL_FILTERS[name](bad)


@pytest.mark.parametrize(
    ("name", "sound"),
    [
        ("negation left out", candidate("What does pull not change?", "tags", "By itself, pull does not change tags.")),
        ("default not stated", candidate("What is the default of --depth?", "50", "The default of --depth is 50.")),
        ("condition left out", candidate("If branches differ, what runs?", "merge", "If branches differ, merge runs.")),
        ("one of several", candidate("What are options of pull?", "--depth and --jobs")),
        ("name not in passage", candidate("Which country, besides Norway, is far?", "none")),
    ],
)
def test_sound_questions_of_that_kind_pass(name: str, sound: Candidate) -> None:
    assert PROPOSAL_FILTERS[name](sound)
