"""Search backends by name: an index folder, a retrieval server, web search, or a Python function."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sleuth.config.hooks import Contract, describe_exception, import_function
from sleuth.config.retrieval import WEB_PREFIX, Backend, RetrievalConfig, ServiceConfig, backend_of
from sleuth.corpus.pages import PageStore
from sleuth.credentials import redact, token_from_env
from sleuth.errors import ConfigError, InputError, SearchUnavailable
from sleuth.http.connections import LoopSemaphore
from sleuth.records import Hit, Passage
from sleuth.retrieval import manifest
from sleuth.retrieval.cache import CachedRetriever
from sleuth.retrieval.replay import RecordingRetriever, ReplayRetriever
from sleuth.retrieval.retriever import Pages, Retriever, SearchOutcome
from sleuth.retrieval.wire import parse_hits

if TYPE_CHECKING:
    from sleuth.retrieval.service.client import SearchClient

STARTUP_TIMEOUT = 10.0  # seconds for a server to become ready
CONTRACT = Contract(("queries", "k"), "one list of rows per query", is_async=None)
UNLIMITED = 1 << 40  # no limit: episodes in this process wait for their searches, so none may be rejected


def open_retriever(config: RetrievalConfig, folder: Path, recording: Path) -> Retriever:
    """Open the retriever of a run, with its local index in `folder`; searches are recorded to the file `recording`."""
    identity = backend_identity(config.index if config.index and not config.local else str(folder))
    if config.replay is not None:
        return ReplayRetriever(Path(config.replay), identity)
    if config.local:
        retriever = _open_index(folder, config.device, config.rerank, config.rerank_depth)
    else:
        retriever = open_backend(str(config.index), config.service)
    if config.record:
        retriever = RecordingRetriever(retriever, recording, identity or "")
    return CachedRetriever(retriever, config.cache) if config.cache else retriever


def open_backend(name: str, service: ServiceConfig | None = None, device: str = "auto") -> Retriever:
    """Open the backend `name`: an index folder, an HTTP address, web:PROVIDER or import:package.function."""
    if (backend := backend_of(name)) == "folder":
        return _open_index(Path(name), device)
    return OPENERS[backend](name, service or ServiceConfig())


def require_ready(name: str | None, service: ServiceConfig | None = None, timeout: float = STARTUP_TIMEOUT) -> None:
    """Raise InputError if `name` is a retrieval server that does not answer within `timeout` seconds."""
    if backend_of(name) != "server" or name is None:
        return
    from sleuth.retrieval.service.client import served_index

    service = service or ServiceConfig()
    token = token_from_env(service.token_env)
    if served_index(name, token, service.proxy, patience=min(timeout, service.deadline)) is None:
        # Other implementations have no /readyz, so try a search.
        (outcome,) = asyncio.run(_open_server(name, service).search(["ready"], 1))
        if isinstance(outcome, SearchUnavailable):
            raise InputError(f"the search server {name} does not answer ({outcome.cause}); start it or use another one")


def backend_identity(name: str) -> str | None:
    """Return the identity for recordings: the fingerprint of an index folder (None if missing), or else the name."""
    if backend_of(name) != "folder":
        return redact(name)
    return manifest.fingerprint(Path(name)) if Path(name).exists() else None


def _open_index(folder: Path, device: str, rerank: str | None = None, depth: int = 10) -> Retriever:
    from sleuth.retrieval.index import load
    from sleuth.retrieval.service.batching import BatchingRetriever

    # Episodes send one query at a time; a batch costs the encoder and the index little more than one.
    index = load(folder, device=device, rerank=rerank, depth=depth)
    return BatchingRetriever(index, waiting=UNLIMITED, characters=UNLIMITED)


def _open_server(url: str, service: ServiceConfig) -> "SearchClient":
    from sleuth.retrieval.service.client import SearchClient

    options = service.model_dump(include={"concurrency", "rate", "deadline", "proxy"})
    return SearchClient(url, token=token_from_env(service.token_env), **options)


def _open_web(name: str, service: ServiceConfig) -> Retriever:
    from sleuth.retrieval.web.search import WebSearch

    return WebSearch(name.removeprefix(WEB_PREFIX), **service.model_dump(exclude={"token_env"}))


# A new backend needs an entry here, one in `config.retrieval.BACKENDS`, and its module.
OPENERS: dict[Backend, Callable[[str, ServiceConfig], Retriever]] = {
    "server": _open_server,
    "web": _open_web,
    "function": lambda name, service: FunctionRetriever(
        import_function(name, CONTRACT), name, service.deadline, service.concurrency
    ),
}


class FilePages:
    """Pages read from a JSONL file."""

    def __init__(self, path: Path) -> None:
        self._store = PageStore(path)

    async def access(self, urls: Sequence[str]) -> list[Passage | SearchUnavailable | None]:
        pages = await asyncio.to_thread(lambda: [self._store.get(url) for url in urls])
        return [Passage(url, page["contents"]) if page else None for url, page in zip(urls, pages, strict=True)]


def open_pages(config: RetrievalConfig) -> Pages:
    """Open the pages of a run, from a local file or from the run's search server."""
    if config.pages is not None:
        return FilePages(Path(config.pages))
    if backend_of(config.index) != "server" or config.index is None:
        raise ConfigError(
            "agent.tools includes access, but there are no pages; set retrieval.pages to a file of pages, "
            "or retrieval.index to a server with pages"
        )
    return _open_server(config.index, config.service)


class FunctionRetriever:
    """Retriever over a plain or async function `search(queries, k)` that returns one list per query, best first.

    List entries are Hits, corpus rows, or scored rows in any format that servers return. An exception, or a call longer
    than `deadline` seconds, makes its queries unavailable. Plain functions run in at most `concurrency` threads.
    """

    def __init__(self, function: Callable[..., Any], name: str, deadline: float = 60.0, concurrency: int = 64) -> None:
        self._function, self._name, self._deadline = function, name, deadline
        self._slots = LoopSemaphore(concurrency)

    async def search(self, queries: Sequence[str], k: int) -> list[SearchOutcome]:
        """See Retriever; blank queries are not passed to the function."""
        if k < 1:
            raise ValueError(f"k is {k}, expected at least 1")
        texts = [query for query in queries if query.strip()]
        outcomes = iter(await self._search(texts, k) if texts else [])
        return [next(outcomes) if query.strip() else [] for query in queries]

    async def _search(self, queries: list[str], k: int) -> list[SearchOutcome]:
        try:
            async with self._slots.current(), asyncio.timeout(self._deadline) as limit:
                if inspect.iscoroutinefunction(self._function):
                    answer = await self._function(list(queries), k)
                else:
                    answer = await in_daemon_thread(lambda: self._function(list(queries), k))
                # For callable objects and wrappers, only the return value shows that they are async.
                answer = await answer if inspect.isawaitable(answer) else answer
        except Exception as error:  # user code may raise anything; only these queries fail
            late = isinstance(error, TimeoutError) and limit.expired()
            timeout = f"{self._name!r} did not return within {self._deadline:g} s"
            cause = timeout if late else describe_exception(self._name, error)
            return [SearchUnavailable(query, cause) for query in queries]
        try:
            if not isinstance(answer, Sequence) or len(answer) != len(queries):
                raise ValueError(f"{type(answer).__name__}, expected one list for each of {len(queries)} queries")
            outcomes: list[SearchOutcome] = []
            for found in answer:
                is_hits = isinstance(found, Sequence) and all(isinstance(hit, Hit) for hit in found)
                failed = isinstance(found, SearchUnavailable)
                outcomes.append(found if failed else (list(found) if is_hits else parse_hits(found))[:k])
            return outcomes
        except ValueError as error:
            return [SearchUnavailable(query, f"{self._name!r} returned an invalid value: {error}") for query in queries]


async def in_daemon_thread(call: Callable[[], Any]) -> Any:
    """Run a function in a thread that does not keep the process alive if the function never returns."""
    return await asyncio.wrap_future(start_daemon_thread(call, "search function"))


def start_daemon_thread(call: Callable[[], Any], name: str) -> "Future[Any]":
    """Start a function in a daemon thread and return the future of its result."""
    outcome: Future[Any] = Future()
    outcome.set_running_or_notify_cancel()  # cancelling the caller does not stop the thread; its late result is dropped

    def run() -> None:
        try:
            outcome.set_result(call())
        except StopIteration as error:  # not allowed in an asyncio future
            outcome.set_exception(RuntimeError(f"it raised StopIteration({error})"))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome
