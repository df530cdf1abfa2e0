"""Attempts wait for workers, and end with a result, at their deadline, or when their worker vanishes."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from sleuth.agent.task import Task
from sleuth.errors import ConfigError, FunctionFailed
from sleuth.gateway.endpoint import Endpoint
from sleuth.gateway.launcher import AttemptLost
from sleuth.gateway.task_queue import TaskQueue, Timing
from sleuth.records import Question, Score

TASK = Task(Question("q1", "Where?", ("Oslo",), "test"))
ENDPOINT = Endpoint("http://127.0.0.1:1/rollout/a/v1", "key")
QUICK = Timing(poll=0.2, heartbeat=0.05, silence=0.3)


def play(scene: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await scene

    asyncio.run(bounded())


def test_worker_that_waits_gets_the_task_and_its_result_is_returned() -> None:
    async def scene() -> None:
        queue = TaskQueue()
        worker = queue.register("w")
        pull = asyncio.create_task(queue.pull(worker.id, 10.0))
        await asyncio.sleep(0.01)
        launched = asyncio.create_task(queue.launch(TASK, ENDPOINT, 60.0))
        (assignment,) = await pull
        assert (assignment.task, assignment.endpoint) == (TASK, ENDPOINT)
        queue.finish(worker.id, assignment.id, Score(0.5))
        assert await launched == Score(0.5)

    play(scene())


def test_pull_without_tasks_ends_after_its_time() -> None:
    async def scene() -> None:
        queue = TaskQueue()
        assert await queue.pull(queue.register("w").id, 0.01) == []
        launched = asyncio.create_task(queue.launch(TASK, ENDPOINT, 60.0))  # not given to the pull that has ended
        await asyncio.sleep(0)
        assert len(await queue.pull(queue.register("v").id, 1.0)) == 1
        launched.cancel()

    play(scene())


def test_deadline_starts_when_a_worker_takes_the_task_and_heartbeats_do_not_move_it() -> None:
    async def scene() -> None:
        queue = TaskQueue(QUICK)
        launched = asyncio.create_task(queue.launch(TASK, ENDPOINT, 0.2))
        await asyncio.sleep(0.4)
        assert not launched.done()
        worker = queue.register("w")
        (assignment,) = await queue.pull(worker.id, 1.0)
        while not launched.done():
            stops = queue.heartbeat(worker.id, [assignment.id])
            await asyncio.sleep(0.02)
        with pytest.raises(FunctionFailed, match=r"0\.2 s"):
            await launched
        assert stops == []
        assert queue.heartbeat(worker.id, [assignment.id]) == [assignment.id]
        assert queue.counts.late == 1

    play(scene())


def test_silent_worker_loses_its_attempts() -> None:
    async def scene() -> None:
        queue = TaskQueue(QUICK)
        worker = queue.register("w")
        launched = asyncio.create_task(queue.launch(TASK, ENDPOINT, 60.0))
        await asyncio.sleep(0)
        assert len(await queue.pull(worker.id, 1.0)) == 1
        assert queue.workers == 1
        with pytest.raises(AttemptLost, match="w was lost"):
            await launched
        assert queue.workers == 0

    play(scene())


def test_worker_that_is_heard_in_time_keeps_its_attempts() -> None:
    """While this process was busy, the heartbeat waited: it counts before the worker is declared lost."""

    async def scene() -> None:
        queue = TaskQueue(QUICK)
        worker = queue.register("w")
        launched = asyncio.create_task(queue.launch(TASK, ENDPOINT, 60.0))
        await asyncio.sleep(0)
        (assignment,) = await queue.pull(worker.id, 1.0)
        await asyncio.sleep(QUICK.silence + 0.2)
        queue.heartbeat(worker.id, [assignment.id])
        await asyncio.sleep(0.1)
        assert not launched.done()
        queue.finish(worker.id, assignment.id, None)
        assert await launched is None

    play(scene())


def test_task_that_never_arrived_is_lost() -> None:
    async def scene() -> None:
        queue = TaskQueue(QUICK)
        worker = queue.register("w")
        launched = asyncio.create_task(queue.launch(TASK, ENDPOINT, 60.0))
        await asyncio.sleep(0)
        assert len(await queue.pull(worker.id, 1.0)) == 1
        queue.heartbeat(worker.id, [])  # may have been sent before the reply to the pull
        assert not launched.done()
        await asyncio.sleep(3 * QUICK.heartbeat)
        queue.heartbeat(worker.id, [])
        with pytest.raises(AttemptLost, match="never received"):
            await launched

    play(scene())


def test_cancelled_launch_stops_the_attempt() -> None:
    async def scene() -> None:
        queue = TaskQueue()
        worker = queue.register("w")
        launched = asyncio.create_task(queue.launch(TASK, ENDPOINT, 60.0))
        waiting = asyncio.create_task(queue.launch(TASK, ENDPOINT, 60.0))
        await asyncio.sleep(0)
        (assignment,) = await queue.pull(worker.id, 1.0)
        for each in (launched, waiting):
            each.cancel()
        await asyncio.wait({launched, waiting})
        assert queue.heartbeat(worker.id, [assignment.id]) == [assignment.id]
        assert await queue.pull(worker.id, 0.01) == []
        assert queue.counts.withdrawn == 2

    play(scene())


def test_worker_that_leaves_hands_its_attempts_back() -> None:
    async def scene() -> None:
        queue = TaskQueue()
        worker = queue.register("w")
        launched = asyncio.create_task(queue.launch(TASK, ENDPOINT, 60.0))
        await asyncio.sleep(0)
        assert len(await queue.pull(worker.id, 1.0)) == 1
        queue.leave(worker.id)
        with pytest.raises(AttemptLost, match="stopped"):
            await launched

    play(scene())


def test_failure_of_all_workers_ends_attempts_now_and_later() -> None:
    async def scene() -> None:
        queue = TaskQueue()
        launched = asyncio.create_task(queue.launch(TASK, ENDPOINT, 60.0))
        await asyncio.sleep(0)
        queue.fail(ConfigError("no such module"))
        for attempt in (launched, queue.launch(TASK, ENDPOINT, 60.0)):
            with pytest.raises(ConfigError, match="no such module"):
                await attempt

    play(scene())


def test_tasks_that_wait_in_vain_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    async def scene() -> None:
        now = [0.0]
        queue = TaskQueue(QUICK, clock=lambda: now[0])
        launched = [asyncio.create_task(queue.launch(TASK, ENDPOINT, 60.0)) for _ in range(2)]
        await asyncio.sleep(3 * QUICK.heartbeat)
        assert capsys.readouterr().err == ""
        now[0] = 61.0
        await asyncio.sleep(3 * QUICK.heartbeat)
        assert capsys.readouterr().err == "sleuth: 2 tasks wait, and no worker is connected\n"
        for each in launched:
            each.cancel()
        await asyncio.wait(launched)

    play(scene())
