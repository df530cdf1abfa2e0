"""Signals: the first stops work where it can be resumed, the second exits at once."""

import asyncio
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from sleuth.errors import Interrupted
from sleuth.runs.interruption import INTERRUPTION, run_interruptible

BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
# Work that never checks for the first signal.
STUBBORN = """
import signal, time
from sleuth.runs.interruption import INTERRUPTION
with INTERRUPTION.handle_signals(), INTERRUPTION.defer():
    signal.raise_signal(signal.SIGTERM)
    print("going on", flush=True)
    signal.raise_signal(signal.SIGINT)
    print("still there")
"""


@BOTH
def test_signal_raises_with_its_exit_code_and_handlers_are_restored(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Interrupted) as interrupted, INTERRUPTION.handle_signals():
        signal.raise_signal(number)
    assert interrupted.value.code == 128 + number
    assert signal.getsignal(number) is before


@BOTH
def test_deferred_signal_is_only_recorded(number: signal.Signals, capfd: pytest.CaptureFixture[str]) -> None:
    with INTERRUPTION.handle_signals(), INTERRUPTION.defer():
        INTERRUPTION.raise_if_interrupted()
        signal.raise_signal(number)
        assert INTERRUPTION.signal == number
        with pytest.raises(Interrupted):
            INTERRUPTION.raise_if_interrupted()
    assert "press Ctrl-C again" in capfd.readouterr().err


def test_signal_cancels_a_running_coroutine() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(1000)
        finally:
            ended.append("in order")

    with pytest.raises(Interrupted) as interrupted, INTERRUPTION.handle_signals():
        run_interruptible(work())
    assert interrupted.value.code == 143
    assert ended == ["in order"]


def test_no_work_starts_after_a_signal() -> None:
    async def work() -> None:
        raise AssertionError("begun")

    with INTERRUPTION.handle_signals(), INTERRUPTION.defer():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Interrupted):
            run_interruptible(work())


def test_second_signal_exits_at_once() -> None:
    ended = subprocess.run([sys.executable, "-c", STUBBORN], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout) == (130, "going on\n")


def test_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with INTERRUPTION.handle_signals():
            signal.raise_signal(signal.SIGINT)
        assert INTERRUPTION.signal is None
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_second_signal_can_raise_instead_of_exiting() -> None:
    with INTERRUPTION.handle_signals(second_exits=False), INTERRUPTION.defer():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert INTERRUPTION.signal is None


def test_another_thread_handles_no_signals() -> None:
    before = signal.getsignal(signal.SIGINT)

    def handled() -> object:
        with INTERRUPTION.handle_signals():
            return signal.getsignal(signal.SIGINT)

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(handled).result() is before
