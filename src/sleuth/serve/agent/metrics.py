"""What the service counts, for Prometheus: episodes by how they ended, their tokens, searches and time."""

from prometheus_client import Counter, Histogram

from sleuth.http.middleware import ServerMetrics
from sleuth.serve.agent.events import End

SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class AgentFigures(ServerMetrics):
    """The figures of an agent."""

    def __init__(self) -> None:
        super().__init__()
        counted = self.registry
        self._episodes = Counter("sleuth_episodes", "Episodes, by how they ended.", ["stop"], registry=counted)
        self._tokens = Counter("sleuth_tokens", "Tokens, given or sampled.", ["origin"], registry=counted)
        self._searches = Counter("sleuth_searches", "Searches carried out.", registry=counted)
        self._took = Histogram("sleuth_episode_seconds", "Time of an episode.", buckets=SECONDS, registry=counted)
        self.overloaded = Counter("sleuth_overloaded", "Requests refused by a full house.", registry=counted)
        self.left = Counter("sleuth_disconnects", "Clients that left before their answer.", registry=counted)

    def episode(self, end: End) -> None:
        """One episode that ran to its end."""
        sampled = sum(end.trajectory.sampled)
        self._episodes.labels(end.stop).inc()
        self._tokens.labels("sampled").inc(sampled)
        self._tokens.labels("given").inc(len(end.trajectory.ids) - sampled)
        self._searches.inc(end.trajectory.searches)
        self._took.observe(end.seconds)
