"""Rejection sampling: selection, counts and resumption."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sleuth.agent.episode import Agent
from sleuth.agent.tags import Tags
from sleuth.agent.task import Task
from sleuth.agent.tools import Toolbox
from sleuth.config.agent import AgentConfig
from sleuth.config.reward import RewardConfig
from sleuth.engines.scripted import ScriptedEngine
from sleuth.errors import EngineFailure, InputError
from sleuth.model.tokens import Tokens
from sleuth.records import Answer, Malformed, Outcome, Question, Score, Segment, StopReason, ToolCall, Trajectory, Turn
from sleuth.retrieval.retriever import Retriever
from sleuth.reward.rubric import Rubric
from sleuth.sft.conversation import ConversationEncoder
from sleuth.sft.rejection import (
    Preference,
    SampledTraces,
    SamplingJournal,
    ScoredTrajectory,
    SelectionConfig,
    is_writable,
    message_row,
    sample,
)

ASKED = Question("q", "Who?", ("Ada",), "library")


def episode(number: int, searches: int, tokens: int, em: float = 1.0, reward: float = 0.0) -> ScoredTrajectory:
    turns = (Turn("", ToolCall.search("x"), Outcome.FOUND, 1),) * searches + (
        Turn("", Answer("Ada"), Outcome.ANSWERED, 1),
    )
    ids = (number, *range(tokens))
    sampled = (False, *(True,) * tokens)
    logprobs, versions = (0.0,) * tokens, (0,) * tokens
    found = Trajectory(ASKED, 0, number, 0, (Segment(ids, sampled, logprobs, versions),), turns, StopReason.ANSWERED)
    return found, Score(reward, {"em": em})


EPISODES = [episode(0, 2, 9), episode(1, 3, 5), episode(2, 1, 8, em=0.0, reward=0.7), episode(3, 2, 7)]


@pytest.mark.parametrize(("prefer", "kept"), [("first", [0, 1, 3]), ("searches", [3, 0, 1]), ("tokens", [1, 3, 0])])
def test_selection_by_preference(prefer: Preference, kept: list[int]) -> None:
    for count in (1, 2, 9):
        selection = SelectionConfig(samples=4, per_question=count, prefer=prefer)
        assert [each.sample for each, _ in selection.select(EPISODES)] == kept[:count]


def test_selection_by_reward() -> None:
    assert [each.sample for each, _ in SelectionConfig(4, min_reward=0.5).select(EPISODES)] == [2]


def test_selection_drops_duplicates() -> None:
    assert len(SelectionConfig(2, per_question=2).select([EPISODES[0], EPISODES[0]])) == 1


def test_counts_by_data_source(tokens: Tokens, library: Retriever) -> None:
    questions = [Question(f"q{n}", f"Who wrote book {n}?", ("Ada",), f"set {n % 2}") for n in range(5)]

    def script(ids: Sequence[int]) -> Sequence[int]:
        asked = tokens.decode(ids)
        if "book 3" in asked:
            raise EngineFailure("out of order")
        return tokens.encode("<answer> Ada </answer>" if "book 2" not in asked else "<answer> Oslo </answer>")

    config = AgentConfig(prompt="brief", context_tokens=200)
    agent = Agent(ScriptedEngine(script), tokens, Tags(), Toolbox(library, 1), config)
    finished: list[Trajectory] = []
    result = asyncio.run(sample(agent, questions, Rubric(RewardConfig()), SelectionConfig(2), 1, finished.append))
    assert len(finished) == 10
    assert result.counts["asked"] == {"set 0": 3, "set 1": 2}
    assert result.counts["solved"] == result.counts["kept"] == {"set 0": 2, "set 1": 1}
    assert result.counts["unusable"] == {"set 0": 0, "set 1": 2}
    assert [row["question_id"] for row in result.rows] == ["q0", "q1", "q4"]
    assert result.rows[0]["score"]["total"] == 1.0


def test_failed_batch_stops_sampling_and_is_retried(tokens: Tokens, library: Retriever, tmp_path: Path) -> None:
    questions = [Question(f"q{n}", f"Who wrote book {n}?", ("Ada",), "library") for n in range(12)]
    down = True

    def script(ids: Sequence[int]) -> Sequence[int]:
        if down and any(f"book {n}?" in tokens.decode(ids) for n in (4, 5, 6, 7)):
            raise EngineFailure("the server is down")
        return tokens.encode("<answer> Ada </answer>")

    agent = Agent(ScriptedEngine(script), tokens, Tags(), Toolbox(library, 1), AgentConfig(prompt="brief"))

    def sampled() -> SampledTraces:
        with SamplingJournal.open(tmp_path / "own.jsonl", {}) as journal:
            return asyncio.run(sample(agent, questions, Rubric(RewardConfig()), SelectionConfig(2), 1, None, journal))

    with pytest.raises(InputError, match=r"8 episodes of 4 questions .*server is down"):
        sampled()
    down = False
    result = sampled()
    assert [row["question_id"] for row in result.rows] == [f"q{n}" for n in range(12)]
    assert not result.counts["unusable"].total()


def test_interrupted_sampling_resumes_without_repeats(tokens: Tokens, library: Retriever, tmp_path: Path) -> None:
    questions = [Question(f"q{n}", f"Who wrote book {n}?", ("Ada",), "library") for n in range(12)]
    asked: list[str] = []

    def agent(broken: str) -> Agent:
        def script(ids: Sequence[int]) -> Sequence[int]:
            text = tokens.decode(ids)
            if broken in text:
                raise KeyboardInterrupt
            asked.append(text.partition("book ")[2].partition("?")[0])
            return tokens.encode("<answer> Ada </answer>")

        return Agent(ScriptedEngine(script), tokens, Tags(), Toolbox(library, 1), AgentConfig(prompt="brief"))

    def sampled(broken: str, seed: int = 0) -> SampledTraces:
        with SamplingJournal.open(tmp_path / "own.jsonl", {"seed": seed}) as journal:
            return asyncio.run(
                sample(agent(broken), questions, Rubric(RewardConfig()), SelectionConfig(2), 1, None, journal)
            )

    with pytest.raises(KeyboardInterrupt):
        sampled("book 9")
    (left,) = tmp_path.iterdir()
    with left.open("a") as file:
        file.write('{"rows": [')  # incomplete line of a killed process
    with pytest.raises(InputError, match=r"own\.jsonl"):
        sampled("nothing", seed=1)
    result = sampled("nothing")
    assert [row["question_id"] for row in result.rows] == [f"q{n}" for n in range(12)]
    assert result.counts["asked"] == result.counts["solved"] == {"library": 12}
    assert sorted(asked.count(str(n)) for n in range(8)) == [2] * 8  # two samples each despite the interruption
    assert list(tmp_path.iterdir()) == []


def test_messages_encode_to_the_tokens_of_the_episode(tokens: Tokens, library: Retriever) -> None:
    script = ("<think> a </think> <search> book 1 </search>", "<think> b </think> <answer> Ada </answer>")
    engine = ScriptedEngine.playing(*(tokens.encode(text) for text in script))
    config = AgentConfig(abstain=True)
    agent = Agent(engine, tokens, Tags(), Toolbox(library, 2), config)
    played = asyncio.run(agent.run(Task(ASKED)))
    row = message_row(agent, played)
    assert row["question_id"] == "q"
    ids = [token for piece in ConversationEncoder(tokens, Tags(), 500).encode(row["messages"]) for token in piece.ids]
    assert tuple(ids[: len(played.ids)]) == played.ids
    assert "I don't know" in row["messages"][0]["content"]


@pytest.mark.parametrize(
    "turn",
    [
        Turn("", Malformed("no tag"), Outcome.CORRECTED, 1),
        Turn("<information> I see", ToolCall.search("x"), Outcome.FOUND, 1),
    ],
)
def test_episodes_that_messages_cannot_represent(turn: Turn, tokens: Tokens, library: Retriever) -> None:
    agent = Agent(ScriptedEngine.playing(), tokens, Tags(), Toolbox(library, 2), AgentConfig())
    trajectory, _ = EPISODES[0]
    assert is_writable(agent, trajectory)
    assert not is_writable(agent, replace(trajectory, turns=(turn, *trajectory.turns)))


def test_episodes_of_a_server_differ_by_their_text() -> None:
    def said(text: str) -> ScoredTrajectory:
        turn = Turn(text, Answer("Ada"), Outcome.ANSWERED, 1)
        return replace(EPISODES[0][0], segments=(), turns=(turn,)), EPISODES[0][1]

    kept = SelectionConfig(3, per_question=3, messages=True).select([said("a"), said("b"), said("a")])
    assert len(kept) == 2
