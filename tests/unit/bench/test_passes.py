"""Forward and backward passes of every way, and what is told of them."""

import pytest
import torch

from sleuth.bench import passes, shapes
from sleuth.bench.device import SynchronizedTimer, mfu
from sleuth.bench.logits import Growth, growth
from sleuth.bench.passes import Pass, Timing, Work, compare, table, timed
from sleuth.train.metrics import GIB

CPU = torch.device("cpu")
WORK = Work(rows=2, row_tokens=12, repetitions=2)


def test_every_way_is_repeated_and_ours_comes_last() -> None:
    heard: list[str] = []
    found = compare(shapes.named("tiny"), WORK, heard.append)
    assert [each.way for each in found] == [passes.STOCK, passes.CHECKPOINTED, passes.OURS, passes.STEPPED]
    assert all(len(each.seconds) == 2 and not each.failure for each in found)
    assert all(seconds > 0 for each in found for seconds in each.seconds)
    assert [line.partition(":")[0] for line in heard] == [each.way for each in found]


def test_too_little_memory_is_a_row() -> None:
    def crowded() -> Pass:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.")

    full = timed("stock", crowded, WORK, 10, CPU)
    assert full == Timing("stock", failure="out of memory")
    ours = Timing("ours", (0.002, 0.004, 0.009), 0.5, 12.0)
    lines = table("small", WORK, [full, ours]).markdown().splitlines()
    assert lines[-2:] == ["| stock | out of memory | - | - | - | - |", "| ours | 4 | 6,000 | 0.5 | 12 | - |"]


def test_a_pass_that_fails_otherwise_is_raised() -> None:
    def broken() -> Pass:
        raise RuntimeError("no such kernel")

    with pytest.raises(RuntimeError, match="no such kernel"):
        timed("ours", broken, WORK, 10, CPU)


def test_the_table_holds_ours_against_stock() -> None:
    timings = [Timing("stock", (0.009, 0.012, 0.011)), Timing("ours", (0.0055,))]
    printed = table("small", Work(16, 1000, 3, recompute=0.25), timings).markdown()
    assert "small, 16 rows of 1,000 tokens, every position scored, median of 3, 25% of our layers" in printed
    assert printed.splitlines()[-1] == "| ours | 5.5 | 2,909,091 | - | - | 2 |"


def test_operations_have_no_peak_on_a_cpu() -> None:
    assert mfu(100, 10, 1.0, CPU) is None


def test_a_clock_that_waits_counts_like_the_other() -> None:
    clock = SynchronizedTimer(CPU)
    with clock.time("train"):
        pass
    assert 0 <= clock.collect()["time/train"] < 1


@pytest.mark.parametrize(("grown", "chunked", "verdict"), [(GIB, True, "none was made"), (2 * GIB, False, "ONE MAY")])
def test_memory_tells_whether_all_logits_were_made(grown: int, chunked: bool, verdict: str) -> None:
    found = Growth(grown, 2 * GIB)
    assert found.chunked is chunked
    assert f"{grown / GIB:.2f} GiB more" in found.told()
    assert verdict in found.told()


@pytest.mark.gpu
def test_the_head_makes_logits_in_chunks() -> None:
    found = growth(shapes.named("smollm2-135m"), 16_000)
    assert found is not None
    assert found.chunked


@pytest.mark.gpu
def test_passes_on_a_gpu_know_peak_and_memory() -> None:
    found = compare(shapes.named("tiny"), Work(rows=2, row_tokens=256, repetitions=2), print)
    assert all(each.peak_gib is not None and each.peak_gib > 0 for each in found)
