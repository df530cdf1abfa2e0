"""Rejection sampling: what was right is kept, once, the shortest first where that is asked for."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from sleuth.agent.episode import Agent
from sleuth.agent.tags import Tags
from sleuth.agent.tools import Toolbox
from sleuth.config.agent import AgentConfig
from sleuth.config.reward import RewardConfig
from sleuth.engines.scripted import ScriptedEngine
from sleuth.errors import EngineFailure, InputError
from sleuth.model.tokens import Tokens
from sleuth.records import Answer, Outcome, Question, Score, StopReason, ToolCall, Trajectory, Turn
from sleuth.retrieval.retriever import Retriever
from sleuth.reward.rubric import Rubric
from sleuth.sft.rejection import Harvest, Journal, Preference, Scored, Terms, sample

ASKED = Question("q", "Who?", ("Ada",), "library")


def episode(number: int, searches: int, tokens: int, em: float = 1.0, reward: float = 0.0) -> Scored:
    turns = (Turn("", ToolCall.search("x"), Outcome.FOUND, 1),) * searches + (
        Turn("", Answer("Ada"), Outcome.ANSWERED, 1),
    )
    ids = (number, *range(tokens))
    sampled = (False, *(True,) * tokens)
    logprobs, versions = (0.0,) * tokens, (0,) * tokens
    found = Trajectory(ASKED, 0, number, 0, ids, sampled, logprobs, versions, turns, StopReason.ANSWERED)
    return found, Score(reward, {"em": em})


EPISODES = [episode(0, 2, 9), episode(1, 3, 5), episode(2, 1, 8, em=0.0, reward=0.7), episode(3, 2, 7)]


@pytest.mark.parametrize(("prefer", "kept"), [("first", [0, 1, 3]), ("searches", [3, 0, 1]), ("tokens", [1, 3, 0])])
def test_right_ones_are_kept_by_preference(prefer: Preference, kept: list[int]) -> None:
    for count in (1, 2, 9):
        terms = Terms(samples=4, per_question=count, prefer=prefer)
        assert [each.sample for each, _ in terms.kept(EPISODES)] == kept[:count]


def test_reward_may_be_what_counts() -> None:
    assert [each.sample for each, _ in Terms(4, min_reward=0.5).kept(EPISODES)] == [2]


def test_same_tokens_are_kept_once() -> None:
    assert len(Terms(2, per_question=2).kept([EPISODES[0], EPISODES[0]])) == 1


def test_sampled_episodes_are_counted_by_set(tokens: Tokens, library: Retriever) -> None:
    questions = [Question(f"q{n}", f"Who wrote book {n}?", ("Ada",), f"set {n % 2}") for n in range(5)]

    def script(ids: Sequence[int]) -> Sequence[int]:
        asked = tokens.decode(ids)
        if "book 3" in asked:
            raise EngineFailure("out of order")
        return tokens.encode("<answer> Ada </answer>" if "book 2" not in asked else "<answer> Oslo </answer>")

    config = AgentConfig(prompt="brief", context_tokens=200)
    agent = Agent(ScriptedEngine(script), tokens, Tags(), Toolbox(library, 1), config)
    heard: list[Trajectory] = []
    harvest = asyncio.run(sample(agent, questions, Rubric(RewardConfig()), Terms(2), 1, heard.append))
    assert len(heard) == 10
    assert harvest.asked == {"set 0": 3, "set 1": 2}
    assert harvest.solved == harvest.kept == {"set 0": 2, "set 1": 1}
    assert harvest.unusable == {"set 0": 0, "set 1": 2}
    assert [row["question_id"] for row in harvest.rows] == ["q0", "q1", "q4"]
    assert harvest.rows[0]["score"]["total"] == 1.0


def test_batch_that_is_lost_whole_ends_the_sampling_and_is_asked_again(
    tokens: Tokens, library: Retriever, tmp_path: Path
) -> None:
    questions = [Question(f"q{n}", f"Who wrote book {n}?", ("Ada",), "library") for n in range(12)]
    down = True

    def script(ids: Sequence[int]) -> Sequence[int]:
        if down and any(f"book {n}?" in tokens.decode(ids) for n in (4, 5, 6, 7)):
            raise EngineFailure("the server is down")
        return tokens.encode("<answer> Ada </answer>")

    agent = Agent(ScriptedEngine(script), tokens, Tags(), Toolbox(library, 1), AgentConfig(prompt="brief"))

    def sampled() -> Harvest:
        with Journal.held(tmp_path / "own.jsonl", {}) as journal:
            return asyncio.run(sample(agent, questions, Rubric(RewardConfig()), Terms(2), 1, None, journal))

    with pytest.raises(
        InputError, match=r"all 8 episodes of 4 questions were lost \(.*server is down.*; fix the cause"
    ):
        sampled()
    down = False
    harvest = sampled()
    assert [row["question_id"] for row in harvest.rows] == [f"q{n}" for n in range(12)]
    assert not harvest.unusable.total()


def test_interrupted_sampling_goes_on_and_asks_nothing_twice(
    tokens: Tokens, library: Retriever, tmp_path: Path
) -> None:
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

    def sampled(broken: str, seed: int = 0) -> Harvest:
        with Journal.held(tmp_path / "own.jsonl", {"seed": seed}) as journal:
            return asyncio.run(sample(agent(broken), questions, Rubric(RewardConfig()), Terms(2), 1, None, journal))

    with pytest.raises(KeyboardInterrupt):
        sampled("book 9")
    (left,) = tmp_path.iterdir()
    with left.open("a") as file:
        file.write('{"rows": [')  # half a line, as a kill leaves it
    with pytest.raises(InputError, match="with other settings"):
        sampled("nothing", seed=1)
    harvest = sampled("nothing")
    assert [row["question_id"] for row in harvest.rows] == [f"q{n}" for n in range(12)]
    assert harvest.asked == harvest.solved == {"library": 12}
    assert sorted(asked.count(str(n)) for n in range(8)) == [2] * 8  # two samples of each, whatever the interruption
    assert list(tmp_path.iterdir()) == []
