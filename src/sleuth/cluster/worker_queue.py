"""A simulated rollout worker: continuous batching as a processor-sharing queue, with prefill, searches and weights.

Decode steps are aggregated: between two events every running sequence gets tokens at the same speed, which depends on
how many sequences run. Prefill and the host's work of a turn stop the decoding.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil

from sleuth.cluster.rates import ClusterRates, EpisodeShape
from sleuth.cluster.scenario import WorkerLimits

PAGE = 16  # tokens of a prompt's last page, which the samples of a group do not share
BURST = 4  # decode steps between two checks of lockstep
EPSILON = 1e-6  # of a decode step
NEVER = float("inf")


@dataclass(slots=True, eq=False)
class SimulatedEpisode:
    """An episode under way; `version_sum` is the sum of the weight versions of its sampled tokens."""

    shape: EpisodeShape
    group: int
    shares_prompt: bool  # another sample of its group computes the prompt
    turn: int = 0
    left: float = 0.0  # tokens of the turn that are not sampled yet
    context: float = 0.0
    cached: int = -1  # version of the weights in the KV cache
    begun: float = 0.0  # worker's token clock at the start of the turn, or at the last change of the weights
    version_sum: float = 0.0
    oldest: int = -1
    search_began: float = 0.0


@dataclass(slots=True)
class Work:
    """What a worker has done: decode steps, tokens decoded and prefilled, turns, and searches with their seconds."""

    steps: float = 0.0
    tokens: float = 0.0
    prefilled: float = 0.0
    turns: int = 0
    searched: int = 0
    search_seconds: float = 0.0


@dataclass(slots=True)
class Waiting:
    """Seconds of a worker by what it did."""

    busy: float = 0.0
    search: float = 0.0
    weights: float = 0.0


@dataclass(slots=True, eq=False)
class WorkerQueue:
    """One rollout worker; `schedule_search` starts a search that ends with `end_search`, `finish` ends an episode."""

    rates: ClusterRates
    limits: WorkerLimits
    schedule_search: Callable[["WorkerQueue", SimulatedEpisode], None]
    finish: Callable[[SimulatedEpisode], None]
    version: int = 0
    speed: float = 1.0
    paused: bool = False  # takes new weights
    epoch: int = 0  # changes with every change of the queue, so that older events are void
    queued: deque[SimulatedEpisode] = field(default_factory=deque)
    in_flight: int = 0
    work: Work = field(default_factory=Work)
    waiting: Waiting = field(default_factory=Waiting)
    _now: float = 0.0
    _clock: float = 0.0  # tokens that a sequence running since the start would have
    _order: int = 0
    _lanes: list[tuple[float, int, SimulatedEpisode]] = field(default_factory=list)
    _prefilling: deque[tuple[float, SimulatedEpisode]] = field(default_factory=deque)
    _prefilled: float = 0.0  # seconds spent on the first of them
    _without_slot: deque[SimulatedEpisode] = field(default_factory=deque)
    _searching: int = 0
    _search_queue: deque[SimulatedEpisode] = field(default_factory=deque)

    @property
    def load(self) -> int:
        return self.in_flight + len(self.queued)

    @property
    def is_computing(self) -> bool:
        held = self.limits.lockstep and (self._searching or self._search_queue)
        return bool(self._prefilling or self._lanes) and not (held or self.paused)

    def next_event(self) -> float:
        """Return the time of the next end of a prefill or of a turn, if nothing else happens before."""
        if not self.is_computing:
            return NEVER
        if self._prefilling:
            return self._now + (self._prefilling[0][0] - self._prefilled) / self.speed
        tokens = max(0.0, self._lanes[0][0] - self._clock)
        return self._now + tokens * self.rates.decode_step(len(self._lanes)) / self.speed

    def advance(self, now: float) -> None:
        """Do the work until `now`, which is at most the next event."""
        passed, self._now = now - self._now, now
        if self.is_computing:
            self.waiting.busy += passed
            self._compute(passed * self.speed)
        elif self.in_flight and not self.paused:
            self.waiting.search += passed
        else:
            self.waiting.weights += passed

    def _compute(self, seconds: float) -> None:
        if self._prefilling:
            self._prefilled += seconds
            return
        steps = seconds / self.rates.decode_step(len(self._lanes))
        self._clock += steps
        self.work.steps += steps
        self.work.tokens += steps * len(self._lanes)

    def complete(self) -> None:
        """Carry out the event that is due: a prefill ends, or turns end."""
        if self._prefilling:
            _, episode = self._prefilling.popleft()
            self._prefilled = 0.0
            self._decode(episode)
        elif self._lanes:
            self._clock = self._lanes[0][0]
            # Turns that end in the same step end together: in lockstep, the search of one stops the others.
            ended: list[SimulatedEpisode] = []
            while self._lanes and self._lanes[0][0] <= self._clock + EPSILON:
                ended.append(heappop(self._lanes)[2])
            for episode in ended:
                self._end_turn(episode)

    def add(self, episodes: list[SimulatedEpisode]) -> None:
        self.queued.extend(episodes)
        self._start_queued()

    def _start_queued(self) -> None:
        while self.queued and self.in_flight < self.limits.concurrency:
            self.in_flight += 1
            self._request(self.queued.popleft())

    def _request(self, episode: SimulatedEpisode) -> None:
        """Ask for the tokens of a turn: it waits for a slot, then for its prefill."""
        if len(self._lanes) + len(self._prefilling) < self.limits.slots:
            self._prefill(episode)
        else:
            self._without_slot.append(episode)

    def _prefill(self, episode: SimulatedEpisode) -> None:
        turn = episode.shape.turns[episode.turn]
        given = min(turn.given, PAGE) if episode.shares_prompt and not episode.turn else turn.given
        kept = episode.cached in (self.version, -1) or self.limits.keep_cache
        episode.context += turn.given
        episode.left = turn.sampled
        self.work.turns += 1
        self._compute_tokens(episode, given if kept else episode.context, self.rates.turn)

    def _compute_tokens(self, episode: SimulatedEpisode, tokens: float, seconds: float) -> None:
        self.work.prefilled += tokens
        episode.cached = self.version
        self._prefilling.append((tokens / self.rates.prefill + seconds, episode))

    def _decode(self, episode: SimulatedEpisode) -> None:
        steps = ceil(episode.left / BURST) * BURST if self.limits.lockstep else episode.left
        self._order += 1
        episode.begun = self._clock
        heappush(self._lanes, (self._clock + steps, self._order, episode))

    def _count_tokens(self, episode: SimulatedEpisode, tokens: float) -> None:
        episode.left -= tokens
        episode.context += tokens
        episode.version_sum += tokens * self.version
        if tokens and episode.oldest < 0:
            episode.oldest = self.version

    def _end_turn(self, episode: SimulatedEpisode) -> None:
        self._count_tokens(episode, episode.left)
        searches = episode.shape.turns[episode.turn].searches
        episode.turn += 1
        if episode.turn == len(episode.shape.turns):
            self.in_flight -= 1
            self.finish(episode)
            self._start_queued()
        elif searches:
            episode.search_began = self._now
            self._search(episode)
        else:
            self._request(episode)
        if self._without_slot and len(self._lanes) + len(self._prefilling) < self.limits.slots:
            self._prefill(self._without_slot.popleft())

    def _search(self, episode: SimulatedEpisode) -> None:
        if self.limits.searches is not None and self._searching >= self.limits.searches:
            self._search_queue.append(episode)
            return
        self._searching += 1
        self.schedule_search(self, episode)

    def end_search(self, episode: SimulatedEpisode) -> None:
        """Continue an episode with the result of its search."""
        self._searching -= 1
        self.work.searched += 1
        self.work.search_seconds += self._now - episode.search_began
        if self._search_queue:
            self._search(self._search_queue.popleft())
        self._request(episode)

    def load_weights(self, version: int) -> None:
        """Continue with new weights between two decode steps; running contexts are computed again unless kept."""
        running = [episode for _, _, episode in self._lanes]
        for episode in running:
            self._count_tokens(episode, min(self._clock - episode.begun, episode.left))
            episode.begun = self._clock
        self.version = version
        if not self.limits.keep_cache:
            self._lanes.clear()
            for _, episode in self._prefilling:
                episode.cached = version
            for episode in running:
                self._compute_tokens(episode, episode.context, 0.0)
