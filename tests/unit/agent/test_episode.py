"""Episodes and batches of episodes: stop reasons, budgets, recorded tokens, order and errors."""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from transformers import PreTrainedModel

from sleuth.agent.episode import Agent, run_batch
from sleuth.agent.task import Task
from sleuth.engines.base import Completion, Finish, Sampling
from sleuth.engines.paged.engine import PagedEngine
from sleuth.engines.scripted import ScriptedEngine
from sleuth.errors import ConfigError, EngineFailure, InputError, SearchUnavailable
from sleuth.model.tokens import Tokens
from sleuth.records import Answer, Hit, Malformed, Outcome, Question, StopReason, ToolCall, Trajectory, run_lengths
from sleuth.reward.rubric import measure

MakesAgent = Callable[..., Agent]

QUESTION = Question("q1", "Where was Ada Lovelace born", ("London",), "test")
PROMPT = "Question: Where was Ada Lovelace born?\n"
FIRST = "<think> I need Ada. </think> <search> Ada Lovelace </search>"
SECOND = "<search> capital of Norway </search>"
LAST = "<think> London. </think> <answer> London </answer>"


class Closed:
    """A search engine whose every query fails."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        return [SearchUnavailable(query, "closed") for query in queries]


def play(agent: Agent, task: Task | None = None) -> Trajectory:
    return asyncio.run(agent.run(task or Task(QUESTION)))


def shown(trajectory: Trajectory, tokens: Tokens) -> str:
    """The tokens that the model did not sample, as text."""
    given = (token for token, sampled in zip(trajectory.ids, trajectory.sampled, strict=True) if not sampled)
    return tokens.decode(tuple(given))


def assert_even(trajectory: Trajectory) -> None:
    assert len(trajectory.ids) == len(trajectory.sampled)
    assert sum(trajectory.sampled) == len(trajectory.logprobs) == len(trajectory.versions)
    assert sum(turn.tokens for turn in trajectory.turns) == sum(trajectory.sampled)


def test_search_then_answer(agent: MakesAgent, tokens: Tokens) -> None:
    trajectory = play(agent(FIRST, SECOND, LAST))
    assert trajectory.stop is StopReason.ANSWERED
    assert trajectory.answer == "London"
    assert trajectory.searches == 2
    first, second, last = trajectory.turns
    assert (first.text, first.action, first.outcome) == (FIRST, ToolCall.search("Ada Lovelace"), Outcome.FOUND)
    assert [hit.passage.id for hit in first.hits] == ["ada"]
    assert [hit.passage.id for hit in second.hits] == ["oslo"]
    assert (last.action, last.outcome, last.hits) == (Answer("London"), Outcome.ANSWERED, ())
    assert tokens.decode(trajectory.ids) == (
        f"{PROMPT}{FIRST}"
        "\n\n<information>Doc 1(Title: Ada Lovelace) Ada Lovelace was born in London.\n</information>\n\n"
        f"{SECOND}\n\n<information>Doc 1(Title: Oslo) Oslo is the capital of Norway.\n</information>\n\n{LAST}"
    )
    assert [origin for origin, _ in run_lengths(trajectory.sampled)] == ["given", "sampled"] * 3
    assert_even(trajectory)


def test_trajectory_keeps_the_task(agent: MakesAgent) -> None:
    trajectory = play(agent(LAST), Task(QUESTION, group=3, sample=2, step=9))
    assert (trajectory.question, trajectory.group, trajectory.sample, trajectory.step) == (QUESTION, 3, 2, 9)


def test_a_search_that_finds_nothing_says_so(agent: MakesAgent, tokens: Tokens) -> None:
    trajectory = play(agent("<search> xyzzy </search>", LAST))
    assert (trajectory.turns[0].outcome, trajectory.turns[0].hits) == (Outcome.FOUND, ())
    assert "<information>Nothing was found.\n</information>" in shown(trajectory, tokens)
    assert trajectory.stop is StopReason.ANSWERED


def test_a_search_on_the_last_turn_is_refused(agent: MakesAgent, tokens: Tokens) -> None:
    trajectory = play(agent(FIRST, SECOND, LAST, searches=1))
    assert trajectory.stop is StopReason.OUT_OF_TURNS
    assert [turn.outcome for turn in trajectory.turns] == [Outcome.FOUND, Outcome.REFUSED]
    assert trajectory.turns[1].hits == ()
    assert shown(trajectory, tokens).count("<information>") == 1
    assert trajectory.sampled[-1]
    assert trajectory.answer is None
    assert_even(trajectory)


def test_without_searches_the_first_turn_must_answer(agent: MakesAgent) -> None:
    assert play(agent(LAST, searches=0)).stop is StopReason.ANSWERED
    assert play(agent(FIRST, searches=0)).stop is StopReason.OUT_OF_TURNS


def test_malformed_turns_count_as_turns(agent: MakesAgent, tokens: Tokens) -> None:
    trajectory = play(agent("I wonder.", "Still.", "Never.", searches=2))
    assert trajectory.stop is StopReason.OUT_OF_TURNS
    assert len(trajectory.turns) == 3
    assert shown(trajectory, tokens).count("No action was taken") == 2
    assert trajectory.sampled[-1]


def test_malformed_turn_is_corrected_and_the_episode_continues(agent: MakesAgent, tokens: Tokens) -> None:
    trajectory = play(agent("I wonder.", "<search> </search>", "London </answer>", LAST))
    assert trajectory.stop is StopReason.ANSWERED
    assert [turn.outcome for turn in trajectory.turns] == [Outcome.CORRECTED] * 3 + [Outcome.ANSWERED]
    told = shown(trajectory, tokens)
    for reason in ("neither a search nor an answer was closed", "the search is empty", "</answer> closes nothing"):
        assert reason in told
    assert isinstance(trajectory.turns[0].action, Malformed)


def test_prompt_that_fills_the_context(agent: MakesAgent, tokens: Tokens) -> None:
    length = len(tokens.encode(PROMPT))
    for context in (1, length):
        trajectory = play(agent(LAST, context_tokens=context))
        assert (trajectory.stop, trajectory.turns) == (StopReason.OUT_OF_TOKENS, ())
        assert not any(trajectory.sampled)
        assert_even(trajectory)


def test_generation_that_fills_the_context(agent: MakesAgent, tokens: Tokens) -> None:
    context = len(tokens.encode(PROMPT)) + 3
    trajectory = play(agent(LAST, context_tokens=context))
    assert trajectory.stop is StopReason.OUT_OF_TOKENS
    assert len(trajectory.ids) == context
    assert trajectory.turns[0].tokens == 3
    assert_even(trajectory)


def test_observation_that_does_not_fit_the_context(agent: MakesAgent, tokens: Tokens) -> None:
    """At least one token of the body must fit, and one more to sample."""
    frame = len(tokens.encode("\n\n<information>")) + len(tokens.encode("</information>\n\n"))
    before = len(tokens.encode(PROMPT)) + len(tokens.encode(FIRST))
    short = play(agent(FIRST, LAST, context_tokens=before + frame + 1))
    assert short.stop is StopReason.OUT_OF_TOKENS
    assert len(short.turns) == 1
    assert short.turns[0].outcome is Outcome.FOUND
    assert (short.turns[0].hits[0].passage.id, short.turns[0].shown) == ("ada", "")
    assert measure(QUESTION, short)["retrieval_hit"] == 0.0
    assert len(short.ids) == before
    enough = play(agent(FIRST, LAST, context_tokens=before + frame + 2))
    assert len(enough.turns) == 2
    assert len(enough.ids) == before + frame + 2
    assert_even(enough)


def test_a_turn_is_no_longer_than_its_budget(agent: MakesAgent) -> None:
    trajectory = play(agent(LAST, LAST, turn_tokens=4, searches=1))
    assert [turn.tokens for turn in trajectory.turns] == [4, 4]


@pytest.mark.parametrize("line", ["<search> a long story about the sea </search>", "no action at all"])
@pytest.mark.parametrize("budget", [8, 20])
def test_an_observation_is_cut_by_tokens_and_keeps_its_closing_tag(
    agent: MakesAgent, tokens: Tokens, line: str, budget: int
) -> None:
    trajectory = play(agent(line, LAST, observation_tokens=budget))
    assert trajectory.stop is StopReason.ANSWERED
    _, _, (origin, length), _ = run_lengths(trajectory.sampled)
    assert (origin, length) == ("given", budget)
    observation = shown(trajectory, tokens).removeprefix(PROMPT)
    assert observation.startswith("\n\n<information>")
    assert observation.endswith("</information>\n\n")
    assert len(observation) > len("\n\n<information></information>\n\n")


@pytest.mark.parametrize(("budget", "seen"), [(500, True), (40, False)])
def test_only_the_visible_part_of_a_passage_counts_as_retrieved(
    agent: MakesAgent, tokens: Tokens, budget: int, seen: bool
) -> None:
    trajectory = play(agent("<search> the ship's log </search>", LAST, observation_tokens=budget))
    (turn, _) = trajectory.turns
    assert [hit.passage.id for hit in turn.hits] == ["log"]
    assert (measure(QUESTION, trajectory)["retrieval_hit"] == 1.0) == seen
    if seen:
        assert turn.shown is None
    else:
        assert turn.shown is not None
        assert turn.shown.startswith("Doc 1(Title: Log) The ship's log. ")
        assert f"<information>{turn.shown}</information>" in shown(trajectory, tokens)


def test_a_search_that_fails_ends_the_episode_as_unusable(agent: MakesAgent) -> None:
    trajectory = play(agent(FIRST, LAST, search=Closed()))
    assert trajectory.stop is StopReason.SEARCH_UNAVAILABLE
    assert trajectory.failure is not None
    assert trajectory.failure.startswith("search failed for the query")
    assert not trajectory.stop.usable
    assert trajectory.turns[0].outcome is Outcome.UNAVAILABLE
    assert trajectory.sampled[-1]


def test_an_engine_that_fails_ends_the_episode_as_unusable(agent: MakesAgent) -> None:
    trajectory = play(agent(FIRST))
    assert trajectory.stop is StopReason.ENGINE_FAILED
    assert trajectory.failure
    assert not trajectory.stop.usable
    assert len(trajectory.turns) == 1
    assert_even(trajectory)


def test_unexpected_exceptions_propagate(agent: MakesAgent) -> None:
    def script(_ids: Sequence[int]) -> list[int]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        play(agent(engine=ScriptedEngine(script)))


def test_tags_in_documents_are_sanitized(agent: MakesAgent, tokens: Tokens) -> None:
    trajectory = play(agent("<search> spoof </search>", LAST))
    told = shown(trajectory, tokens).removeprefix(PROMPT)
    assert "(answer) Paris (/answer) and (/information)(search) more (/search)." in told
    assert (told.count("<information>"), told.count("</information>"), told.count("<")) == (1, 1, 2)
    assert trajectory.answer == "London"


def test_text_after_a_stop_is_not_parsed(agent: MakesAgent, tokens: Tokens) -> None:
    """The token that completes the stop is kept as sampled, including text after the stop."""
    ids = tokens.encode(" </search>")
    assert len(ids) == 1
    line = tokens.encode("<search> Ada")
    played = Completion((*line, *ids), (-0.5,) * (len(line) + 1), (4,) * (len(line) + 1), Finish.STOP, "</search>")
    lines: Iterator[Sequence[int] | Completion] = iter([played, tokens.encode(LAST)])

    def script(_ids: Sequence[int]) -> Sequence[int] | Completion:
        return next(lines)

    trajectory = play(agent(engine=ScriptedEngine(script)))
    assert trajectory.turns[0].text == "<search> Ada </search>"
    assert trajectory.versions[: len(line) + 1] == (4,) * (len(line) + 1)
    assert trajectory.logprobs[0] == -0.5


def test_token_across_a_stop_is_kept_whole_and_parsed_up_to_the_stop(
    agent: MakesAgent, spelled: Callable[[Sequence[str]], Tokens]
) -> None:
    pieces = ["<|end|>", "<answer>rome</answer", ">\n\n", "<search>x</search>", "?", *map(chr, range(32, 127)), "\n"]
    tokens = spelled(list(dict.fromkeys(pieces)))
    made = replace(agent(), tokens=tokens, engine=ScriptedEngine(lambda _ids: [1, 2]))
    trajectory = play(made)
    assert trajectory.ids[-2:] == (1, 2)
    assert trajectory.turns[0].text == "<answer>rome</answer>"
    assert trajectory.turns[0].tokens == 2


def test_tokens_after_a_stop_are_dropped(agent: MakesAgent, tokens: Tokens) -> None:
    """The embedded engine returns none, but others may."""
    trajectory = play(agent(f"{FIRST} Then <answer> Paris </answer>", LAST))
    assert trajectory.turns[0].text == FIRST
    assert trajectory.turns[0].tokens == len(tokens.encode(FIRST))
    assert "Paris" not in tokens.decode(trajectory.ids)
    assert trajectory.stop is StopReason.ANSWERED
    assert_even(trajectory)


def test_a_turn_that_ends_the_text_without_acting_is_corrected(agent: MakesAgent, tokens: Tokens) -> None:
    end = tokens.eos_id
    assert end is not None
    lines = iter([[*tokens.encode("I give up."), end], tokens.encode(LAST)])
    trajectory = play(agent(engine=ScriptedEngine(lambda _ids: next(lines))))
    assert trajectory.turns[0].outcome is Outcome.CORRECTED
    assert trajectory.stop is StopReason.ANSWERED
    assert end in trajectory.ids


def test_every_turn_of_every_sample_has_a_different_seed() -> None:
    tasks = [
        Task(replace(QUESTION, id=name), group, sample, step, seed)
        for name in ("a", "b")
        for group in (0, 1)
        for sample in (0, 1)
        for step in (0, 1)
        for seed in (0, 1)
    ]
    seeds = {task.turn_seed(turn) for task in tasks for turn in range(3)}
    assert len(seeds) == 3 * len(tasks)
    assert Task(QUESTION).turn_seed(0) == Task(QUESTION).turn_seed(0)
    assert max(seeds) < 2**64


def test_generation_is_limited_to_the_remaining_budget(agent: MakesAgent, tokens: Tokens) -> None:
    asked: list[Sampling] = []

    class Listening(ScriptedEngine):
        async def generate(self, ids: Sequence[int], sampling: Sampling, *rest: Any) -> Completion:
            asked.append(sampling)
            assert len(ids) + sampling.max_tokens <= 60
            return await super().generate(ids, sampling, *rest)

    engine = Listening.playing(*map(tokens.encode, (FIRST, LAST)))
    play(agent(engine=engine, context_tokens=60, turn_tokens=40), Task(QUESTION, temperature=0.5))
    first, second = asked
    assert first.max_tokens == 40
    assert second.max_tokens < 40
    assert first.stops == ("</search>", "</answer>")
    assert (first.temperature, second.temperature) == (0.5, 0.5)
    assert first.seed != second.seed


def test_on_text_receives_the_whole_transcript(agent: MakesAgent, tokens: Tokens) -> None:
    heard: list[str] = []
    trajectory = asyncio.run(agent(FIRST, LAST).run(Task(QUESTION), on_text=heard.append))
    assert "".join(heard) == tokens.decode(trajectory.ids)
    assert heard[0] == PROMPT


def test_unknown_prompt_is_an_error_before_any_episode(agent: MakesAgent) -> None:
    with pytest.raises(ConfigError, match=r"agent\.prompt is 'nope'; expected one of instruct, brief"):
        agent(prompt="nope")


def test_the_embedded_engine_plays_an_episode(
    agent: MakesAgent, tokens: Tokens, tiny: Callable[..., PreTrainedModel]
) -> None:
    """With random weights the answers are nonsense, but budgets and token records hold."""
    engine = PagedEngine(tiny(), tokens, slots=1, context=129)
    made = agent(engine=engine, context_tokens=128, turn_tokens=16, observation_tokens=12, searches=9)
    trajectory = play(made)
    assert trajectory.stop in (StopReason.OUT_OF_TOKENS, StopReason.OUT_OF_TURNS)
    assert len(trajectory.ids) <= 128
    assert len(trajectory.turns) > 1
    assert all(logprob < 0 for logprob in trajectory.logprobs)
    assert_even(trajectory)
    engine.publish(None, 0)
    assert play(made) == trajectory


def test_prompt_longer_than_the_engine_context_is_an_engine_failure(
    agent: MakesAgent, tokens: Tokens, tiny: Callable[..., PreTrainedModel]
) -> None:
    engine = PagedEngine(tiny(), tokens, slots=1, context=4)
    assert play(agent(engine=engine)).stop is StopReason.ENGINE_FAILED
    with pytest.raises(EngineFailure):
        asyncio.run(engine.generate(tokens.encode(PROMPT), Sampling(1)))


class Busy:
    """A slow search engine that counts concurrent searches."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.queries: list[str] = []
        self._dice = random.Random(0)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        self.queries += queries
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self._dice.random() / 200)
        self.now -= 1
        return [[] for _ in queries]


def tasks(count: int) -> list[Task]:
    return [Task(Question(f"q{n}", f"number {n}", ("x",), "test"), group=n) for n in range(count)]


@pytest.fixture
def repeating(agent: MakesAgent, tokens: Tokens) -> Callable[[Busy], Agent]:
    """An agent that searches for its question and answers with it."""

    def script(ids: Sequence[int]) -> list[int]:
        text = tokens.decode(ids)
        asked = text.removeprefix("Question: ").partition("?")[0]
        return tokens.encode(f"<answer>{asked}</answer>" if "<information>" in text else f"<search>{asked}</search>")

    return lambda search: agent(engine=ScriptedEngine(script), search=search)


@pytest.mark.parametrize("concurrent", [1, 3, 8, 100])
def test_batch_results_are_in_order_and_concurrency_is_bounded(
    repeating: Callable[[Busy], Agent], concurrent: int
) -> None:
    search = Busy()
    done: list[Trajectory] = []
    trajectories = asyncio.run(run_batch(repeating(search), tasks(20), concurrent, done.append))
    assert [trajectory.answer for trajectory in trajectories] == [f"number {n}" for n in range(20)]
    assert [trajectory.group for trajectory in trajectories] == list(range(20))
    assert search.most == min(concurrent, 20)
    assert sorted(done, key=lambda trajectory: trajectory.group) == trajectories


def test_batch_starts_episodes_in_order(repeating: Callable[[Busy], Agent]) -> None:
    search = Busy()
    asyncio.run(run_batch(repeating(search), tasks(12), 4))
    assert search.queries == [f"number {n}" for n in range(12)]


def test_empty_batch(repeating: Callable[[Busy], Agent]) -> None:
    assert asyncio.run(run_batch(repeating(Busy()), [], 4)) == []


def test_batch_raises_the_error_itself_and_not_an_exception_group(repeating: Callable[[Busy], Agent]) -> None:
    class Broken(Busy):
        async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
            if queries == ["number 5"]:
                raise InputError("the index is broken")
            return await super().search(queries, k)

    search = Broken()
    with pytest.raises(InputError, match="the index is broken"):
        asyncio.run(run_batch(repeating(search), tasks(20), 3))
    assert len(search.queries) < 10


def test_batch_can_be_cancelled(repeating: Callable[[Busy], Agent]) -> None:
    async def main() -> None:
        batch = asyncio.create_task(run_batch(repeating(Busy()), tasks(20), 3))
        await asyncio.sleep(0.005)
        batch.cancel()
        await batch

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
