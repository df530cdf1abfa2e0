"""Small policies, hand-made trajectories and a retriever over three passages."""

import json
from collections.abc import Callable, Sequence

import pytest
import torch
from transformers import PreTrainedModel

from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens
from sleuth.records import Question, Segment, StopReason, Trajectory
from sleuth.retrieval import index
from sleuth.retrieval.retriever import Retriever


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Small tensors are slower on several threads."""
    torch.set_num_threads(1)


@pytest.fixture
def policy(tiny: Callable[..., PreTrainedModel], tokens: Tokens) -> Callable[..., Policy]:
    """Factory of small policies by seed."""

    def make(seed: int = 0) -> Policy:
        return Policy(tiny(seed=seed), tokens)

    return make


@pytest.fixture
def trajectory() -> Callable[..., Trajectory]:
    """Factory of trajectories with the given tokens; every logprob is -1."""

    def make(
        ids: Sequence[int] = (5, 6, 7),
        sampled: Sequence[bool] = (False, True, True),
        *,
        stop: StopReason = StopReason.ANSWERED,
    ) -> Trajectory:
        question = Question("q0", "Who wrote book 0?", ("Ada",), "library", hops=1)
        count = sum(sampled)
        return Trajectory(
            question, 0, 0, 1, (Segment(tuple(ids), tuple(sampled), (-1.0,) * count, (0,) * count),), (), stop
        )

    return make


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    """A retriever over three passages."""
    folder = tmp_path_factory.mktemp("library")
    contents = ['"Ada"\nAda wrote book 1.', '"Oslo"\nOslo is a city.', '"Lisbon"\nLisbon lies by the sea.']
    lines = (json.dumps({"id": f"p{n}", "contents": text}) + "\n" for n, text in enumerate(contents))
    (folder / "corpus.jsonl").write_text("".join(lines))
    index.build(folder / "corpus.jsonl", folder / "index")
    return index.load(folder / "index")
