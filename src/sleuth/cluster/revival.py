"""Watches the rollout workers: one that hangs is killed, and one that Ray restarts gets its model, weights and work."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sleuth.cluster import ray_client
from sleuth.cluster.pool import Member, WorkerPool

POLL_SECONDS = 0.5
PULSE_SECONDS = 5.0
# Ray fails calls to an actor that it restarts, but only after a second or two: these must not count as silence, because
# the actor would be killed while it starts.
RESTART_SECONDS = 10.0


class Revival:
    """Notices lost workers at any time, also while none of them is asked anything; call `stop` at the end.

    `restore` returns a restarted worker to the pool; it raises if the worker is lost again.
    """

    def __init__(self, pool: WorkerPool, restore: Callable[[Member], None], log: Callable[[str], None]) -> None:
        self._pool, self._restore, self._log = pool, restore, log
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self.lost = self.restarted = 0

    def start(self, members: Sequence[Member]) -> None:
        self._threads = [
            threading.Thread(target=self._watch, args=(member,), name=member.name, daemon=True) for member in members
        ]
        for thread in self._threads:
            thread.start()

    def kill_silent(self, actors: Mapping[str, Any], silence: float) -> None:
        """Kill actors, given by name, that answer nothing for `silence` seconds: then their calls fail, at last."""
        threading.Thread(target=self._listen, args=(actors, silence), name="pulses", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()

    def _listen(self, actors: Mapping[str, Any], silence: float) -> None:
        """Ask every actor for its pulse, one call at a time."""
        pulses = {name: _Pulse(actor) for name, actor in actors.items()}
        while not self._stopping.wait(min(PULSE_SECONDS, silence / 4)):
            for name in [name for name, pulse in pulses.items() if pulse.is_silent(silence)]:
                self._log(f"{name} has not answered for {silence:g} s (cluster.silence) and is killed")
                ray_client.kill_and_restart(actors[name])

    def _watch(self, member: Member) -> None:
        """Keep one worker in the pool while it lives."""
        watched, was_up = member.handle.watch.remote(), True
        while not self._stopping.is_set():
            error, before, was_up = self._error_of(watched), was_up, self._pool.is_up(member)
            if error is None and not before and not was_up:  # nothing else would bring it back
                error = RuntimeError("a call to it failed, but its process lives")
            if error is None:
                continue
            if self._stopping.is_set():
                return
            started = time.monotonic()
            self._pool.mark_down(member)
            self.lost += 1
            self._log(f"{member.name} is lost ({ray_client.describe_failure(error)}); its episodes are asked again")
            if not self._revive(member):
                return
            self.restarted += 1
            self._log(f"{member.name} is back after {time.monotonic() - started:.1f} s")
            watched, was_up = member.handle.watch.remote(), True

    def _revive(self, member: Member) -> bool:
        """Return a worker to the pool as often as needed; False if Ray gave it up."""
        while not self._stopping.is_set():
            try:
                self._restore(member)
            except Exception as error:
                if ray_client.is_gone_for_good(error) or not ray_client.is_lost(error):
                    self._log(f"{member.name} is left out: {ray_client.describe_failure(error)}")
                    return False
                self._stopping.wait(POLL_SECONDS)
            else:
                return True
        return False

    def _error_of(self, watched: Any) -> BaseException | None:
        """Wait a moment; return how a watching call failed, or None while it is under way."""
        if not ray_client.wait([watched], POLL_SECONDS):
            return None
        try:
            ray_client.get(watched)
        except Exception as error:
            return error
        return RuntimeError("the worker stopped watching")


class _Pulse:
    """Calls that an actor answers while it lives; it must have answered some call before."""

    def __init__(self, actor: Any) -> None:
        self._actor, self._call, self._asked = actor, None, 0.0
        self._lost = self._reported = False

    def is_silent(self, seconds: float) -> bool:
        """Ask again if the last call has ended; True, once for each call, if it has not for so long."""
        if self._call is not None and ray_client.wait([self._call], 0):
            try:
                ray_client.get(self._call)
                self._lost = False
            except Exception:  # lost, which is handled elsewhere
                self._lost = True
            self._call = None
        if self._call is None:
            self._call, self._asked, self._reported = self._actor.pulse.remote(), time.monotonic(), False
        limit = max(seconds, RESTART_SECONDS) if self._lost else seconds
        silent = not self._reported and time.monotonic() - self._asked > limit
        self._reported = self._reported or silent
        return silent
