"""The conversation on a pipe and on a terminal: commands, events, and what ends it."""

import sys
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from typing import Any

import pytest

import sleuth
from sleuth.agent.episode import Agent
from sleuth.agent.methods import UserMethod
from sleuth.agent.tags import Tags
from sleuth.agent.task import Task
from sleuth.agent.tools import Toolbox
from sleuth.api.agent import AgentAnswer, AgentEvent, Thought, ToolOutput
from sleuth.api.dialogue import Dialogue
from sleuth.cli.prompt_loop import EventPrinter, converse
from sleuth.cli.terminal import Terminal
from sleuth.config.agent import AgentConfig
from sleuth.engines.scripted import ScriptedEngine
from sleuth.errors import InputError
from sleuth.model.tokens import Tokens
from sleuth.records import Answer, Hit, Malformed, Outcome, Passage, Question, StopReason, ToolCall, Trajectory, Turn
from sleuth.retrieval.retriever import NullRetriever


def answer(text: str) -> AgentAnswer:
    turn = Turn(text, Answer(text), Outcome.ANSWERED, 1)
    return AgentAnswer(Trajectory(Question("q", "?", (), "asked"), 0, 0, 0, (), (turn,), StopReason.ANSWERED))


class Interrupted(Terminal):
    """A terminal on which Ctrl-C is pressed while the first thought is printed."""

    pressed = False

    def print(self, *objects: Any, **options: Any) -> None:
        if "Let me see" in str(objects[:1]) and not self.pressed:
            self.pressed = True
            raise KeyboardInterrupt
        super().print(*objects, **options)


async def refuse(agent: Agent, task: Task, session: object, on_text: object) -> Trajectory:
    if task.question.question == "refuse":
        raise InputError("no such search was recorded")
    turn = Turn("x", Answer("fine"), Outcome.ANSWERED, 1)
    return Trajectory(task.question, task.group, task.sample, task.step, (), (turn,), StopReason.ANSWERED)


@pytest.fixture
def dialogue(speaker: Callable[..., Tokens]) -> Iterator[Dialogue]:
    """With an agent that answers with the question."""
    tokens = speaker()

    def script(ids: Sequence[int]) -> list[int]:
        asked = tokens.decode(ids).rpartition("Question: ")[2].partition("\n")[0].strip()
        return tokens.encode(f"<think> Let me see </think> <answer> {asked} </answer>")

    runner = Agent(ScriptedEngine(script), tokens, Tags(), Toolbox(NullRetriever(), 3), AgentConfig(searches=0))
    with sleuth.Agent(runner, 1) as agent:
        yield agent.dialogue()


def spoken(
    lines: str, dialogue: Dialogue, monkeypatch: pytest.MonkeyPatch, terminal: type[Terminal] = Terminal
) -> tuple[int, list[str]]:
    file = StringIO()
    monkeypatch.setattr(sys, "stdin", StringIO(lines))
    count = converse(dialogue, terminal(file=file, width=60, highlight=False), 0.0, 0)
    return count, file.getvalue().splitlines()


def test_one_question_per_line_of_a_pipe(dialogue: Dialogue, monkeypatch: pytest.MonkeyPatch) -> None:
    count, printed = spoken("Who?\n\n  Where? \nWhen?", dialogue, monkeypatch)
    assert count == 3
    assert [line for line in printed if line.startswith(">")] == ["> Who?", "> Where?", "> When?"]
    assert [line.strip() for line in printed[:3]] == ["> Who?", "Let me see", "Answer: Who? (0 searches)"]
    assert [question for question, _ in dialogue.exchanges] == ["Who?", "Where?", "When?"]


def test_commands(dialogue: Dialogue, monkeypatch: pytest.MonkeyPatch) -> None:
    count, printed = spoken("Who?\n/new\n/help\n/nothing\nWhere?\n/quit\nnever", dialogue, monkeypatch)
    assert count == 2
    assert [question for question, _ in dialogue.exchanges] == ["Where?"]
    assert any("unknown command /nothing" in line for line in printed)
    assert sum("/quit or Ctrl-D" in line for line in printed) == 2


def test_the_conversation_goes_on_after_an_interrupt(dialogue: Dialogue, monkeypatch: pytest.MonkeyPatch) -> None:
    count, printed = spoken("Who?\nWhere?\n", dialogue, monkeypatch, Interrupted)
    assert count == 2
    assert "interrupted" in printed
    assert [question for question, _ in dialogue.exchanges] == ["Where?"]


def test_the_conversation_goes_on_after_an_error(
    speaker: Callable[..., Tokens], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = (ScriptedEngine.playing(), speaker(), Tags(), Toolbox(NullRetriever(), 3), AgentConfig())
    with sleuth.Agent(Agent(*parts, UserMethod("import:mine.refuse", refuse)), 1) as agent:
        count, printed = spoken("refuse\nWho?\n", agent.dialogue(), monkeypatch)
    assert count == 2
    assert printed == ["> refuse", "no such search was recorded", "> Who?", "Answer: fine (0 searches)"]


def test_nothing_is_asked(dialogue: Dialogue, monkeypatch: pytest.MonkeyPatch) -> None:
    assert spoken("", dialogue, monkeypatch) == (0, [])
    assert spoken("\n \n", dialogue, monkeypatch) == (0, [])


def test_events() -> None:
    file = StringIO()
    printer = EventPrinter(Terminal(file=file, width=60, highlight=False))
    hit = Hit(Passage("p1", '"Oslo [bold]"\nA city.'), 1.0)
    call = ToolCall.search("capital", "Norway")
    events: list[AgentEvent] = [
        Thought("I need "), Thought("it.\x1b[2J"), call, ToolOutput(call, hits=(hit,)),
        ToolOutput(call, failure="offline"),
        ToolCall("add", {"a": 1}), ToolOutput(call, text="2"), Malformed("no action"), answer("Oslo"),
    ]  # fmt: skip
    for event in events:
        printer.write(event)
    printed = file.getvalue()
    assert "\x1b" not in printed
    assert printed.splitlines()[1:] == [
        "[search] capital; Norway",
        "  1. Oslo [bold]",
        "  failed: offline",
        "[add] {'a': 1}",
        "  2",
        "[neither a call nor an answer] no action",
        "Answer: Oslo (0 searches)",
    ]
