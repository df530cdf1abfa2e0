"""Replies of weak models are read leniently, and prompts come from a file that a user can replace."""

from pathlib import Path

import pytest

from sleuth.errors import ConfigError
from sleuth.records import Passage
from sleuth.synthesis.teacher.links import find_links
from sleuth.synthesis.teacher.prompts import load_prompts
from sleuth.synthesis.teacher.proposals import linked_candidates, parse_proposals, single_candidates

PASSAGE = Passage("p", '"tar(1)"\nFilter the archive through gzip. The default is all.')


@pytest.mark.parametrize(
    "reply",
    [
        "Question: Which program?\nAnswer: gzip\nEvidence: Filter the archive through gzip.",
        "**Question 1:** Which program?\n**Answer:** gzip.\n**Evidence:** Filter the archive through gzip.",
        'Sure!\n\n1. Question: Which program?\n   Answer: `gzip`\n   Quote: "Filter the archive through gzip."',
        "<think>Question: no</think>Q: Which program?\nA: The answer is gzip\nE: Filter the archive through gzip.",
        "### Question\nQuestion: Which program?\nAnswer:\ngzip\nEvidence:\nFilter the archive through gzip.",
        "Q1. Which program?\nA1. gzip\nE1. Filter the archive through gzip.",
    ],
)
def test_formats(reply: str) -> None:
    (proposal,) = parse_proposals(reply)
    assert (proposal.question, proposal.answer) == ("Which program?", "gzip")
    assert proposal.quotes[0].rstrip(".") == "Filter the archive through gzip"


@pytest.mark.parametrize("reply", ["", "I cannot.", "Answer: gzip", "\x00\n" * 50, "Question:", "Question: " * 999])
def test_any_text_can_be_read(reply: str) -> None:
    assert all(not each.answer for each in parse_proposals(reply))
    list(single_candidates(reply, PASSAGE))


def test_several_questions_and_a_missing_quote() -> None:
    reply = (
        "Question: Which program?\nAnswer: gzip\n\n"
        "Question: What is the default\nAnswer: all\nEvidence: The default is ALL."
    )
    first, second = single_candidates(reply, PASSAGE)
    assert first.evidence[0].quote == "Filter the archive through gzip."
    assert (second.question, second.answer) == ("What is the default?", "all")
    assert second.evidence[0].quote == "The default is ALL"


def test_quote_without_the_answer_is_replaced() -> None:
    reply = "Question: Through which program is it filtered?\nAnswer: gzip\nEvidence: The default is all."
    (candidate,) = single_candidates(reply, PASSAGE)
    assert candidate.evidence[0].quote == "Filter the archive through gzip."
    (missing,) = single_candidates(reply.replace("gzip", "bzip2"), PASSAGE)
    assert missing.evidence[0].quote == "The default is all."


def test_linked_candidates() -> None:
    other = Passage("o", '"pigz(1)"\npigz compresses with 8 threads.')
    reply = (
        "Question: How many?\nAnswer: 8\nEvidence 1: Filter the archive through gzip.\n"
        "Evidence 2: pigz compresses with 8 threads."
    )
    (candidate,) = linked_candidates(reply, PASSAGE, other, "gzip")
    assert [each.passage.id for each in candidate.evidence] == ["p", "o"]
    assert candidate.row("set", 0).question.hops == 2
    assert list(linked_candidates("Nothing.", PASSAGE, other, "gzip")) == []


def test_links_join_documents() -> None:
    first = Passage("a#0", '"tar(1)"\nIt passes the archive to pigz_fast here.', {"source": "a"})
    second = Passage("b#0", '"pigz_fast"\nUses threads.', {"source": "b"})
    same = Passage("a#1", '"tar(1)"\npigz_fast is mentioned.', {"source": "a"})
    (link,) = find_links([first, second, same], 10, 0)
    assert (link.name, link.second.id, link.first.extra["source"]) == ("pigz_fast", "b#0", "a")
    assert find_links([first, same], 10, 0) == []
    assert find_links([first, second], 0, 0) == []


def test_prompts_of_a_user_replace_the_shipped_ones(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[closed_book]\nuser = "Q: {question}"\nexamples = [["a", "b"]]')
    prompts = load_prompts(file)
    messages = prompts["closed_book"].messages(question="Why {passage}?")
    assert [each["content"] for each in messages] == ["a", "b", "Q: Why {passage}?"]
    assert [each["role"] for each in messages] == ["user", "assistant", "user"]
    assert prompts["single"] == load_prompts()["single"]
    filled = prompts["single"].messages(title="T", passage="P {count}", count="3")
    assert "up to 3 different" in filled[0]["content"]
    assert filled[-1]["content"].endswith("P {count}")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[other]\nuser = 'x'", "'other'"),
        ("[reader]\nuser = '{question}'", "{passage}"),
        ("[reader]\nsystem = 'x'", "a table with user"),
        ("[reader]\nuser = '{question} {passage}'\nexamples = [['one']]", "pairs of texts"),
        ("reader = 'x'", "a table with user"),
        ("[", "expected a TOML file"),
    ],
)
def test_invalid_prompts(content: str, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"mine\.toml") as error:
        load_prompts(file)
    assert complaint in str(error.value)
