"""What the server counts, for Prometheus: requests, their time, queries, batches, the queue, failures."""

from collections.abc import Callable
from time import perf_counter

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SIZES = tuple(2.0**power for power in range(13))
CLIENT_GONE = 499  # nginx's number for a client that left before its answer; none was sent


class Figures:
    """What every server counts, in a registry of its own: two servers in a process do not mix."""

    CONTENT_TYPE = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "sleuth_requests", "Requests answered, by path and status.", ["path", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "sleuth_request_seconds",
            "From the first byte of a request to the last of its answer.",
            ["path"],
            buckets=SECONDS,
            registry=self._registry,
        )

    def watch(self, name: str, meaning: str, figure: Callable[[], float]) -> None:
        """A figure that is read whenever the figures are asked for."""
        Gauge(name, meaning, registry=self._registry).set_function(figure)

    def request(self, path: str, status: int, seconds: float) -> None:
        """One request answered."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def page(self) -> bytes:
        """All figures in the text format of Prometheus."""
        return generate_latest(self._registry)


class Metrics(Figures):
    """The figures of a search engine."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = Counter("sleuth_queries", "Queries asked.", registry=self._registry)
        self.unavailable = Counter("sleuth_unavailable", "Queries that got no answer.", registry=self._registry)
        self.overloaded = Counter(
            "sleuth_overloaded", "Requests refused for want of room or of a turn in time.", registry=self._registry
        )
        self._batch = Histogram(
            "sleuth_batch_queries", "Queries searched at once.", buckets=SIZES, registry=self._registry
        )
        self._searching = Histogram(
            "sleuth_search_seconds", "Time of one batch in the index.", buckets=SECONDS, registry=self._registry
        )

    def batch(self, queries: int, seconds: float) -> None:
        """One batch searched."""
        self._batch.observe(queries)
        self._searching.observe(seconds)


class Measured:
    """An application whose requests are counted; paths that are not its own count as one."""

    def __init__(self, app: ASGIApp, metrics: Figures, paths: frozenset[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began = perf_counter()
        status = CLIENT_GONE

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, counted)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.request(path, status, perf_counter() - began)
