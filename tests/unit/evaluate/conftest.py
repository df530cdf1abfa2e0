"""Evaluations of finished trajectories, and a scripted agent controlled by its questions."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sleuth.agent.episode import Agent
from sleuth.agent.tags import Tags
from sleuth.agent.tools import Toolbox
from sleuth.config.agent import AgentConfig
from sleuth.config.reward import RewardConfig
from sleuth.engines.scripted import ScriptedEngine
from sleuth.errors import EngineFailure, SearchUnavailable
from sleuth.evaluate.results import Evaluation, QuestionResult, ScoredTrajectory
from sleuth.model.tokens import Tokens
from sleuth.records import Answer, Hit, Outcome, Passage, Question, Segment, StopReason, ToolCall, Trajectory, Turn
from sleuth.retrieval.retriever import Retriever
from sleuth.reward.rubric import Rubric


def _trajectory(question: Question, answer: str | None, searches: int) -> Trajectory:
    """An episode with searches and an answer; without an answer, its search failed."""
    turns = [Turn("<search>x</search>", ToolCall.search("x"), Outcome.FOUND, 3)] * searches
    if answer is not None:
        turns.append(Turn(f"<answer>{answer}</answer>", Answer(answer), Outcome.ANSWERED, 3))
    stop = StopReason.SEARCH_UNAVAILABLE if answer is None else StopReason.ANSWERED
    return Trajectory(question, 0, 0, 0, (Segment((1,), (False,), (), ()),), tuple(turns), stop)


@pytest.fixture
def evaluation() -> Callable[..., Evaluation]:
    """Evaluation of questions whose answer is "oslo", from rows of (type, hops, answer, searches)."""
    rubric = Rubric(RewardConfig())

    def made(*rows: tuple[str | None, int | None, str | None, int]) -> Evaluation:
        questions = [
            Question(f"q{n}", "Where?", ("oslo",), "world", type=row[0], hops=row[1]) for n, row in enumerate(rows)
        ]
        played = (_trajectory(question, row[2], row[3]) for question, row in zip(questions, rows, strict=True))
        return Evaluation(
            tuple(QuestionResult.of(ScoredTrajectory(*asyncio.run(rubric.score_one(each)))) for each in played)
        )

    return made


class Shelf:
    """A search engine with one passage that fails for the query "book"."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        return [
            SearchUnavailable(query, "offline") if query == "book" else [Hit(Passage("1", '"A"\noslo'), 1.0)][:k]
            for query in queries
        ]


@pytest.fixture(scope="session")
def tokens() -> Tokens:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return Tokens(PreTrainedTokenizerFast(tokenizer_object=tokenizer))


@pytest.fixture
def shelf() -> Retriever:
    return Shelf()


@pytest.fixture
def agent(tokens: Tokens, shelf: Retriever) -> Agent:
    """Answers with the text of the question, after a search if it starts with "search"."""

    def script(ids: Sequence[int]) -> list[int]:
        text = tokens.decode(ids)
        if "fail" in text:
            raise EngineFailure("out of luck")
        wish = text.removeprefix("Question: ").partition("?")[0]
        if "search " in wish and "<information>" not in text:
            return tokens.encode(f"<search>{wish.removeprefix('search ')}</search>")
        return tokens.encode(f"<answer>{wish.removeprefix('search ')}</answer>")

    return Agent(ScriptedEngine(script), tokens, Tags(), Toolbox(shelf, 3), AgentConfig(prompt="brief"))
