"""Weights are split into buckets and arrive as they were sent, through a gloo group and through arrays."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest
import torch
from torch._C._distributed_c10d import TCPStore

from sleuth.cluster.weights import (
    BroadcastGroup,
    ClusterWeights,
    Entry,
    GpuHandle,
    GroupSpec,
    plan_buckets,
    read_objects,
    unpack,
)

HOST = "127.0.0.1"


def test_buckets_keep_the_order_one_dtype_and_the_limit() -> None:
    def entry(name: str, size: int, dtype: torch.dtype = torch.float32) -> Entry:
        return Entry(name, (size,), dtype)

    entries = [entry("a", 2), entry("b", 2), entry("c", 9), entry("d", 1), entry("e", 1, torch.bfloat16)]
    buckets = plan_buckets(entries, limit=16)
    assert [[each.name for each in bucket] for bucket in buckets] == [["a", "b"], ["c"], ["d"], ["e"]]
    assert plan_buckets([]) == []


@pytest.mark.parametrize("generations", [1, 2])
def test_weights_reach_every_member_of_each_generation(generations: int) -> None:
    weights = {"matrix": torch.randn(3, 5), "vector": torch.randn(7), "half": torch.randn(4).bfloat16()}
    publisher = ClusterWeights(weights, None)
    publisher.sender = True  # type: ignore[assignment]  # gather here too
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    for generation in range(generations):
        members = 3 - generation
        spec = GroupSpec(HOST, store.port, generation, members, "gloo")
        with ThreadPoolExecutor(members) as threads:
            joins = [threads.submit(spec.join, rank, HOST, store if rank == 0 else None) for rank in range(members)]
            root, *others = [join.result() for join in joins]
            received = [threads.submit(other.receive, publisher.buckets) for other in others]
            send(root, publisher)
            for each in received:
                assert each.result().keys() == weights.keys()
                assert all(torch.equal(each.result()[name], weight) for name, weight in weights.items())


def send(root: BroadcastGroup, publisher: ClusterWeights) -> None:
    for flat_N in publisher._gathered():
        root.broadcast(flat_N)


def test_weights_are_sent_in_the_dtype_of_the_engines() -> None:
    publisher = ClusterWeights({"matrix": torch.randn(3, 5)}, torch.bfloat16)
    publisher.sender = True  # type: ignore[assignment]
    (flat_N,) = publisher._gathered()
    assert flat_N.dtype == torch.bfloat16
    assert publisher.buckets[0][0].bytes == 30


def test_weights_are_read_from_arrays_that_must_not_be_written() -> None:
    weights = {"matrix": torch.randn(3, 5), "half": torch.randn(4).bfloat16()}
    publisher = ClusterWeights(weights, None)
    publisher.sender = True  # type: ignore[assignment]
    arrays = [flat_N.view(torch.uint8).numpy() for flat_N in publisher._gathered()]
    for array in arrays:
        array.setflags(write=False)
    found = read_objects(arrays, publisher.buckets)
    assert all(torch.equal(found[name], weight) for name, weight in weights.items())


def test_bucket_of_another_size_is_an_error() -> None:
    with pytest.raises(RuntimeError):
        unpack(torch.zeros(3), (Entry("a", (2,), torch.float32),))


@pytest.mark.gpu
def test_bucket_is_copied_by_another_process_on_the_same_gpu() -> None:
    flat_N = torch.randn(1000, device="cuda").bfloat16()
    handle = GpuHandle.of(flat_N)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as processes:
        total = processes.submit(copied_sum, handle).result(timeout=120)
    assert total == flat_N.double().sum().item()


def copied_sum(handle: GpuHandle) -> float:
    return float(handle.copy().double().sum())
