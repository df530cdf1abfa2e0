"""Proposals: replies of the teacher read as question candidates, leniently, and prompts that ask for them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sleuth.records import THINK_CLOSE, Passage
from sleuth.synthesis.candidate import Candidate, Evidence
from sleuth.synthesis.filters import EDGES, covers, locate_quote, text_sentences
from sleuth.synthesis.vocabulary import content_words

# "**Question 1:** ...", "Q: ...", "2. Answer - ...", with any markup before the word.
LABEL = re.compile(
    r"^[\s#>*_\d.)(-]{0,12}(?P<label>q|question|a|answer|e|evidence|quote|source)(?P<rest>[\s\d*_]{0,6})[:.)-]",
    re.IGNORECASE,
)
FIELDS = {"q": "question", "question": "question", "a": "answer", "answer": "answer"}
LEAD = re.compile(r"^(?:the answer is|it is|answer:)\s", re.IGNORECASE)
MARKUP = re.compile(r"\*\*|__|`")
SINGLE, LINKED = "single passage", "linked passages"


@dataclass(frozen=True, slots=True)
class Proposal:
    """A question as the teacher wrote it; the parts may be empty."""

    question: str
    answer: str
    quotes: tuple[str, ...]


def parse_proposals(reply: str) -> list[Proposal]:
    """Read the questions of a reply; never fails. Text before the first question and unlabelled lines are ignored."""
    blocks: list[tuple[list[str], list[str], list[str]]] = []
    target: list[str] | None = None
    for line in reply.rpartition(THINK_CLOSE)[2].splitlines():
        label = LABEL.match(line)
        if label is None:
            # A value may stand on the line below its label.
            if target is not None and not target and line.strip():
                target.append(line.strip())
            continue
        name = FIELDS.get(label["label"].lower(), "evidence")
        if name == "question":
            blocks.append(([], [], []))
        if not blocks:
            continue
        target = blocks[-1][("question", "answer", "evidence").index(name)]
        if text := line[label.end() :].strip(" *_\t"):
            target.append(text)
    return [
        Proposal(_clean(" ".join(question)), _clean_answer(" ".join(answer[:1])), tuple(map(_clean, quotes)))
        for question, answer, quotes in blocks
    ]


def single_candidates(reply: str, passage: Passage) -> Iterator[Candidate]:
    """Yield the candidates of a reply about one passage, each with a quote that has the answer if there is one."""
    for proposal in parse_proposals(reply):
        quote = _find_quote(proposal, proposal.quotes[:1], passage, proposal.answer)
        yield Candidate(_as_question(proposal.question), (proposal.answer,), (Evidence(passage, quote),), SINGLE)


def linked_candidates(reply: str, first: Passage, second: Passage, name: str) -> Iterator[Candidate]:
    """Yield the candidates of a reply about two passages: the first mentions `name`, the second has the answer."""
    for proposal in parse_proposals(reply)[:1]:
        lead = _find_quote(proposal, proposal.quotes[:1], first, name)
        end = _find_quote(proposal, proposal.quotes[1:2], second, proposal.answer)
        evidence = (Evidence(first, lead), Evidence(second, end))
        yield Candidate(_as_question(proposal.question), (proposal.answer,), evidence, LINKED)


def _find_quote(proposal: Proposal, quotes: Sequence[str], passage: Passage, wanted: str) -> str:
    """Return the teacher's quote as it stands in the passage, if it contains what is wanted.

    Small models often copy another line. Then the quote is the sentence with what is wanted that shares most words with
    the question; without such a sentence it is what the teacher wrote, which a filter rejects.
    """
    located = locate_quote(quotes[0], passage.text) if quotes else None
    if located is not None and covers(located, wanted):
        return located
    asked = set(content_words(proposal.question))
    holding = [each for each in text_sentences(passage.text) if covers(each, wanted)]
    best = max(holding, key=lambda each: len(asked & set(content_words(each))), default="")
    return best or (quotes[0] if quotes else "")


def _as_question(text: str) -> str:
    return text if not text or text.endswith("?") else f"{text.rstrip('.')}?"


def _clean(text: str) -> str:
    return " ".join(MARKUP.sub("", text).split()).strip("\"'“” ")


def _clean_answer(text: str) -> str:
    return LEAD.sub("", _clean(text)).rstrip(EDGES)
