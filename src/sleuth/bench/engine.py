"""Our engine at work: a model of random weights, and every episode a task that asks for its own next turn."""

import asyncio
import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from sleuth.bench.workloads import Episode
from sleuth.engines.base import Engine, Sampling
from sleuth.engines.paged.engine import PagedEngine
from sleuth.errors import EngineFailure
from sleuth.model.attention import NAME


class Ours:
    """The embedded engine in this process."""

    def __init__(self, engine: Engine, loop: asyncio.Runner) -> None:
        self._engine: Engine | None = engine
        self._loop = loop

    def seconds(self, episodes: Sequence[Episode]) -> float:
        """How long all of the episodes take, begun together."""
        if self._engine is None:
            raise EngineFailure("the engine is closed, and episodes were asked of it; ask while it is open")
        return self._loop.run(_all(self._engine, episodes))

    def close(self) -> None:
        """Ends the engine and lets go of it and its model."""
        if self._engine is not None:
            self._loop.run(self._engine.close())
        self._engine = None


@contextmanager
def opened(
    shape: PretrainedConfig, slots: int, context: int, device: torch.device, settings: Mapping[str, Any]
) -> Iterator[Ours]:
    """The engine over a new model; the memory of both is free again afterwards."""
    with asyncio.Runner() as loop:
        ours = Ours(PagedEngine(drawn(shape, device), None, slots=slots, context=context, **settings), loop)
        try:
            yield ours
        finally:
            ours.close()
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()


def drawn(shape: PretrainedConfig, device: torch.device) -> PreTrainedModel:
    """A model of random weights, made where it is used, which never ends a text by itself."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with device:
        model: PreTrainedModel = AutoModelForCausalLM.from_config(shape, dtype=dtype, attn_implementation=NAME)
    if model.generation_config is not None:
        model.generation_config.eos_token_id = None
    model.eval()
    return model


async def _all(engine: Engine, episodes: Sequence[Episode]) -> float:
    start = perf_counter()
    try:
        async with asyncio.TaskGroup() as group:
            for number, episode in enumerate(episodes):
                group.create_task(_played(engine, number, episode))
    except BaseExceptionGroup as several:
        # The first ended the others; alone, it is what callers know how to catch.
        raise several.exceptions[0] from several
    return perf_counter() - start


async def _played(engine: Engine, number: int, episode: Episode) -> None:
    ids: list[int] = []
    with engine.session(number) as session:
        for order, turn in enumerate(episode):
            ids += turn.given
            sampling = Sampling(turn.sampled, seed=number * len(episode) + order)
            completion = await engine.generate(ids, sampling, session)
            if len(completion.logprobs) != turn.sampled:
                raise EngineFailure(f"{len(completion.logprobs)} tokens were sampled, {turn.sampled} were asked for")
            ids += completion.ids
