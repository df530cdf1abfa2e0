"""Timing of forward and backward passes, and the memory of the head."""

import pytest
import torch

from sleuth.bench import training
from sleuth.bench.measurement import SynchronizedTimer, mfu
from sleuth.bench.training import Growth, Pass, Timing, Work, compare, head_growth, table, time_pass
from sleuth.model.shapes import published_shape
from sleuth.train.metrics import GIB

CPU = torch.device("cpu")
WORK = Work(rows=2, row_tokens=12, repetitions=2)


def test_every_implementation_is_repeated_and_ours_is_last() -> None:
    logged: list[str] = []
    found = compare(published_shape("tiny"), WORK, logged.append)
    assert [each.way for each in found] == [training.STOCK, training.CHECKPOINTED, training.OURS, training.UPDATE]
    assert all(len(each.seconds) == 2 and not each.failure for each in found)
    assert all(seconds > 0 for each in found for seconds in each.seconds)
    assert [line.partition(":")[0] for line in logged] == [each.way for each in found]


def test_out_of_memory_is_a_row() -> None:
    def exhausted() -> Pass:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.")

    full = time_pass("stock", exhausted, WORK, 10, CPU)
    assert full == Timing("stock", failure="out of memory")
    ours = Timing("ours", (0.002, 0.004, 0.009), 0.5, 12.0)
    lines = table("small", WORK, [full, ours]).markdown().splitlines()
    assert lines[-2:] == ["| stock | out of memory | - | - | - | - |", "| ours | 4 | 6,000 | 0.5 | 12 | - |"]


def test_pass_that_fails_otherwise_is_raised() -> None:
    def broken() -> Pass:
        raise RuntimeError("no such kernel")

    with pytest.raises(RuntimeError, match="no such kernel"):
        time_pass("ours", broken, WORK, 10, CPU)


def test_table_compares_with_stock() -> None:
    timings = [Timing("stock", (0.009, 0.012, 0.011)), Timing("ours", (0.0055,))]
    printed = table("small", Work(16, 1000, 3, recompute=0.25), timings).markdown()
    assert "small, 16 rows of 1,000 tokens, every position scored, median of 3, 25% of our layers" in printed
    assert printed.splitlines()[-1] == "| ours | 5.5 | 2,909,091 | - | - | 2 |"


def test_mfu_is_unknown_on_a_cpu() -> None:
    assert mfu(100, 10, 1.0, CPU) is None


def test_synchronized_timer_measures_time() -> None:
    clock = SynchronizedTimer(CPU)
    with clock.time("train"):
        pass
    assert 0 <= clock.collect()["time/train"] < 1


@pytest.mark.parametrize(
    ("grown", "chunked", "verdict"), [(GIB, True, "none was allocated"), (2 * GIB, False, "ONE MAY")]
)
def test_growth_detects_unchunked_logits(grown: int, chunked: bool, verdict: str) -> None:
    found = Growth(grown, 2 * GIB)
    assert found.chunked is chunked
    assert f"{grown / GIB:.2f} GiB more" in found.describe()
    assert verdict in found.describe()


@pytest.mark.gpu
def test_head_computes_logits_in_chunks() -> None:
    found = head_growth(published_shape("smollm2-135m"), 16_000)
    assert found is not None
    assert found.chunked


@pytest.mark.gpu
def test_passes_on_a_gpu_report_mfu_and_memory() -> None:
    found = compare(published_shape("tiny"), Work(rows=2, row_tokens=256, repetitions=2), print)
    assert all(each.peak_gib is not None and each.peak_gib > 0 for each in found)
