"""A rollout worker on the trainer's GPU publishes only versions that it copied completely."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sleuth.cluster.weights import Bucket, Entry
from sleuth.cluster.worker import WEIGHTS, RolloutWorker
from sleuth.cluster.worker_engine import EmbeddedEngine
from sleuth.config import recipe

NAMES = ("model.norm.weight", "model.layers.0.input_layernorm.weight")


@dataclass
class HostHandle:
    """A handle of memory on the host, where there is no GPU; `copy` waits for `allowed`."""

    flat_N: Tensor
    allowed: threading.Event = field(default_factory=threading.Event)

    def copy(self) -> Tensor:
        assert self.allowed.wait(20)
        if self.flat_N.numel() == 0:
            raise RuntimeError("out of memory")
        return self.flat_N.clone()


def ready(flat_N: Tensor) -> HostHandle:
    handle = HostHandle(flat_N)
    handle.allowed.set()
    return handle


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RolloutWorker:
    monkeypatch.chdir(tmp_path)
    config = recipe.load("quickstart")
    worker = RolloutWorker(config, tmp_path, tmp_path, str(tmp_path))
    worker._engine = EmbeddedEngine.load(config)
    return worker


@pytest.fixture
def weight(worker: RolloutWorker) -> Callable[[str], Tensor]:
    assert isinstance(worker._engine, EmbeddedEngine)
    own = worker._engine.engine._model.state_dict()
    return lambda name: own[name]


@pytest.fixture
def buckets(weight: Callable[[str], Tensor]) -> list[Bucket]:
    return [(Entry(name, tuple(weight(name).shape), torch.float32),) for name in NAMES]


def test_copied_buckets_are_published_together(
    worker: RolloutWorker, weight: Callable[[str], Tensor], buckets: list[Bucket]
) -> None:
    async def main() -> None:
        for value, bucket in zip((1.5, 2.5), buckets, strict=True):
            await worker.copy(1, bucket, ready(torch.full((bucket[0].size,), value)))  # type: ignore[arg-type]
        await worker.switch(1, 7, buckets, False)

    asyncio.run(main())
    assert [weight(name).unique().tolist() for name in NAMES] == [[1.5], [2.5]]


def test_no_mix_of_two_versions_is_published(
    worker: RolloutWorker, weight: Callable[[str], Tensor], buckets: list[Bucket]
) -> None:
    before = [weight(name).clone() for name in NAMES]

    async def main() -> None:
        for bucket in buckets:  # the first transfer is never switched to
            await worker.copy(1, bucket, ready(torch.full((bucket[0].size,), 1.5)))  # type: ignore[arg-type]
        await worker.copy(2, buckets[0], ready(torch.full((buckets[0][0].size,), 2.5)))  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="out of memory"):
            await worker.copy(2, buckets[1], ready(torch.empty(0)))  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="version 2"):
            await worker.switch(2, 2, buckets, False)

    asyncio.run(main())
    assert all(torch.equal(weight(name), old) for name, old in zip(NAMES, before, strict=True))


def test_late_copy_of_an_earlier_transfer_is_dropped(worker: RolloutWorker, buckets: list[Bucket]) -> None:
    async def main() -> None:
        late = HostHandle(torch.full((buckets[1][0].size,), 1.5))
        pending = asyncio.create_task(worker.copy(1, buckets[1], late))  # type: ignore[arg-type]
        await worker.copy(2, buckets[0], ready(torch.full((buckets[0][0].size,), 2.5)))  # type: ignore[arg-type]
        late.allowed.set()
        await pending
        with pytest.raises(RuntimeError, match="version 2"):
            await worker.switch(2, 2, buckets, False)

    asyncio.run(main())


def test_copying_counts_as_waiting_for_weights(worker: RolloutWorker, buckets: list[Bucket]) -> None:
    async def main() -> None:
        worker._has_weights.set()
        worker._agent = object()  # type: ignore[assignment]  # only that there is one
        handle = HostHandle(torch.zeros(buckets[0][0].size))
        pending = asyncio.create_task(worker.copy(1, buckets[0], handle))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert worker._state() == WEIGHTS
        handle.allowed.set()
        await pending

    asyncio.run(main())
