"""Difficulty: the share of wrong answers of an agent."""

import asyncio
from collections.abc import Sequence

import pytest

from sleuth.agent.episode import Agent
from sleuth.agent.tags import Tags
from sleuth.agent.tools import Toolbox
from sleuth.config.agent import AgentConfig
from sleuth.corpus.questions import QuestionRow
from sleuth.engines.scripted import ScriptedEngine
from sleuth.errors import EngineFailure, InputError
from sleuth.model.tokens import Tokens
from sleuth.records import Question
from sleuth.retrieval.retriever import NullRetriever
from sleuth.synthesis.difficulty import measure_difficulty


def rows(*questions: Question) -> list[QuestionRow]:
    return [QuestionRow(question, {"kept": 1}) for question in questions]


def measure(tokens: Tokens, asked: Sequence[QuestionRow], replies: Sequence[str]) -> list[object]:
    left = list(replies)

    def script(_: Sequence[int]) -> Sequence[int]:
        reply = left.pop(0)
        if not reply:
            raise EngineFailure("out of order")
        return tokens.encode(f"<answer> {reply} </answer>")

    agent = Agent(ScriptedEngine(script), tokens, Tags(), Toolbox(NullRetriever(), 1), AgentConfig(prompt="brief"))
    measured = asyncio.run(measure_difficulty(agent, asked, samples=2, concurrency=1))
    assert all(row.extra["kept"] == 1 for row in measured)
    return [row.extra["difficulty"] for row in measured]


ADA = Question("q0", "Who?", ("Ada",), "set")
HOPELESS = Question("q1", "Where?", ("Oslo",), "set", answerable=False)


def test_share_of_wrong_answers(tokens: Tokens) -> None:
    asked = rows(ADA, ADA, HOPELESS, HOPELESS)
    replies = ["Ada", "Ada", "Bob", "Ada", "Oslo", "I don't know", "I don't know", "I don't know"]
    assert measure(tokens, asked, replies) == [0.0, 0.5, 0.5, 0.0]


def test_unusable_attempts_do_not_count(tokens: Tokens) -> None:
    assert measure(tokens, rows(ADA), ["", "Bob"]) == [1.0]


def test_a_question_without_usable_attempts_is_an_error(tokens: Tokens) -> None:
    with pytest.raises(InputError, match=r"q0 failed: .*out of order"):
        measure(tokens, rows(ADA), ["", ""])
