"""Conversations: what the model is shown of earlier questions, and when questions stand alone."""

from collections.abc import Callable, Iterator, Sequence

import pytest

import sleuth
from sleuth.agent.episode import Agent
from sleuth.agent.methods import METHODS
from sleuth.agent.tags import Tags
from sleuth.agent.tools import Toolbox
from sleuth.api.agent import AgentAnswer
from sleuth.api.dialogue import MAX_EXCHANGES
from sleuth.config.agent import AgentConfig
from sleuth.engines.scripted import ScriptedEngine
from sleuth.errors import InputError
from sleuth.model.tokens import Tokens
from sleuth.retrieval.retriever import NullRetriever


class Stage:
    """An agent that answers from a script, and the prompts that it saw."""

    def __init__(self, tokens: Tokens, answers: Sequence[str | None], config: AgentConfig) -> None:
        self.prompts: list[str] = []
        lines = iter(answers)

        def script(ids: Sequence[int]) -> list[int]:
            self.prompts.append(str(tokens.tokenizer.decode(list(ids))))
            said = next(lines)
            return tokens.encode("hmm" if said is None else f"<answer>{said}</answer>")

        runner = Agent(
            ScriptedEngine(script), tokens, Tags(), Toolbox(NullRetriever(), 3), config, METHODS[config.method]
        )
        self.agent = sleuth.Agent(runner, 1)


Play = Callable[..., Stage]


@pytest.fixture
def play(speaker: Callable[..., Tokens]) -> Iterator[Play]:
    stages: list[Stage] = []

    def make(*answers: str | None, template: str | None = None, **limits: object) -> Stage:
        settings = {"searches": 0, "context_tokens": 4096, **limits}
        if limits.get("method"):
            del settings["searches"]
        stages.append(Stage(speaker("hermes", template), answers, AgentConfig(**settings)))  # type: ignore[arg-type]
        return stages[-1]

    yield make
    for stage in stages:
        stage.agent.close()


def test_earlier_questions_and_answers_are_shown(play: Play) -> None:
    stage = play("Kellan Whitlock", "1931", "Oslo")
    dialogue = stage.agent.dialogue()
    assert dialogue.obstacle is None
    assert dialogue.ask("Who founded it?").text == "Kellan Whitlock"
    assert dialogue.ask(" When did he? ").text == "1931"
    first, second = stage.prompts
    assert "<|im_start|>user\nWho founded it?<|im_end|>" in second
    assert "<|im_start|>assistant\nKellan Whitlock<|im_end|>" in second
    assert second.index("Kellan Whitlock") < second.index("Question: When did he?")
    assert second.count("Work out the answer") == first.count("Work out the answer") == 1
    assert dialogue.exchanges == [("Who founded it?", "Kellan Whitlock"), ("When did he?", "1931")]
    dialogue.clear()
    dialogue.ask("Where?")
    assert "Kellan" not in stage.prompts[-1]


def test_the_last_event_is_the_answer(play: Play) -> None:
    *_, last = play("yes").agent.dialogue().stream("Is it?")
    assert isinstance(last, AgentAnswer)


def test_questions_without_an_answer_are_forgotten(play: Play) -> None:
    dialogue = play(None, "Oslo").agent.dialogue()
    assert dialogue.ask("What?").text is None
    assert dialogue.exchanges == []


def test_old_exchanges_are_forgotten(play: Play) -> None:
    stage = play(*["x"] * (MAX_EXCHANGES + 2))
    dialogue = stage.agent.dialogue()
    for number in range(MAX_EXCHANGES + 2):
        dialogue.ask(f"Q{number}?")
    assert "user\nQ0?" not in stage.prompts[-1]
    assert "user\nQ1?" in stage.prompts[-1]


def test_a_long_conversation_leaves_half_of_the_context(play: Play) -> None:
    stage = play("a" * 400, "b" * 400, "c", "d", context_tokens=2400)
    dialogue = stage.agent.dialogue()
    for text in ("First?", "Second?", "Third?"):
        dialogue.ask(text)
    assert "a" * 400 not in stage.prompts[-1]
    assert "b" * 400 in stage.prompts[-1]


@pytest.mark.parametrize(("limits", "fact"), [({"template": ""}, "chat template"), ({"method": "direct"}, "direct")])
def test_questions_that_stand_alone(play: Play, limits: dict[str, str], fact: str) -> None:
    stage = play("Oslo", "Bergen", **limits)
    dialogue = stage.agent.dialogue()
    assert fact in (dialogue.obstacle or "")
    dialogue.ask("First?")
    dialogue.ask("Second?")
    assert "First" not in stage.prompts[-1]


def test_empty_question(play: Play) -> None:
    with pytest.raises(InputError, match="empty"):
        play().agent.dialogue().ask("  ")
