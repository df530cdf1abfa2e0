"""Episodes in the records of the house."""

from collections.abc import Callable

import pytest

from sleuth.records import Answer, Hit, Outcome, Passage, Question, Search, StopReason, Trajectory, Turn

Play = Callable[..., Trajectory]


@pytest.fixture
def question() -> Question:
    return Question("q1", "Is Oslo or Bergen the capital of Norway?", ("Oslo",), "test")


@pytest.fixture
def play(question: Question) -> Play:
    def episode(*turns: Turn, stop: StopReason = StopReason.ANSWERED) -> Trajectory:
        return Trajectory(question, 0, 0, 0, (1, 2), (False, True), (-0.5,), (0,), turns, stop)

    return episode


@pytest.fixture
def searched() -> Callable[..., Turn]:
    def turn(*contents: str, text: str = "<think>look</think><search>capital</search>") -> Turn:
        hits = tuple(Hit(Passage(str(place), content), 1.0) for place, content in enumerate(contents))
        return Turn(text, Search("capital"), Outcome.FOUND, 5, hits)

    return turn


@pytest.fixture
def answered() -> Callable[..., Turn]:
    def turn(answer: str, text: str | None = None) -> Turn:
        return Turn(text or f"<think>so</think><answer>{answer}</answer>", Answer(answer), Outcome.ANSWERED, 5)

    return turn
