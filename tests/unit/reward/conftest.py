"""Episodes in the records of the house."""

from collections.abc import Callable

import pytest

from sleuth.records import Answer, Hit, Outcome, Passage, Question, Segment, StopReason, ToolCall, Trajectory, Turn

Play = Callable[..., Trajectory]


@pytest.fixture
def question() -> Question:
    return Question("q1", "Is Oslo or Bergen the capital of Norway?", ("Oslo",), "test")


@pytest.fixture
def play(question: Question) -> Play:
    def episode(*turns: Turn, stop: StopReason = StopReason.ANSWERED) -> Trajectory:
        return Trajectory(question, 0, 0, 0, (Segment((1, 2), (False, True), (-0.5,), (0,)),), turns, stop)

    return episode


@pytest.fixture
def searched() -> Callable[..., Turn]:
    def turn(*contents: str, formed: bool = True) -> Turn:
        hits = tuple(Hit(Passage(str(place), content), 1.0) for place, content in enumerate(contents))
        text = "<think>look</think><search>capital</search>"
        return Turn(text, ToolCall.search("capital"), Outcome.FOUND, 5, hits, formed=formed)

    return turn


@pytest.fixture
def answered() -> Callable[..., Turn]:
    def turn(answer: str, text: str | None = None, *, formed: bool = True) -> Turn:
        said = text or f"<think>so</think><answer>{answer}</answer>"
        return Turn(said, Answer(answer), Outcome.ANSWERED, 5, formed=formed)

    return turn
