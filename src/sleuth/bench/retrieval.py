"""Search speed: BM25 next to bm25s, dense search next to matrix product and top-k, our server next to a locking one."""

import asyncio
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import httpx
import numpy as np
import Stemmer
import torch
from fastapi import FastAPI
from numpy.typing import NDArray

from sleuth.bench.measurement import Table, synchronize
from sleuth.config.retrieval import BM25Settings, IndexKind, IndexPlan
from sleuth.corpus.passages import OFFSETS, stream, survey
from sleuth.errors import MissingExtra, SearchUnavailable, SleuthError
from sleuth.http.server import bind, serve
from sleuth.retrieval.bm25.build import build_index
from sleuth.retrieval.bm25.search import BM25
from sleuth.retrieval.dense.exact import DeviceShard, HostShard, Shard, nearest
from sleuth.retrieval.index import build, load
from sleuth.retrieval.retriever import Retriever
from sleuth.retrieval.service.server import Facts, application
from sleuth.retrieval.wire import Limits, RetrieveRequest, scored_row

OURS, BM25S, BM25S_NUMBA = "ours", "bm25s", "bm25s with numba"
BM25_REPEATS = 3
BATCH = 512
SINGLE_QUERIES = 256  # take bm25s without numba about a second
WIKI18 = 21_015_324
BATCHES = (1, 8, 64, 256, 512)
CHUNK = 1 << 20
DENSE_REPEATS = 5
HOST = "127.0.0.1"
K = 3
# New interpreters: threads and devices of this process would not survive a fork.
PROCESSES = multiprocessing.get_context("spawn")

Search = Callable[[Sequence[str], int], object]
Opener = Callable[[], Retriever]  # opens the retriever in the server's process; must be picklable


@dataclass(frozen=True, slots=True)
class BM25Timing:
    """Best time of a task by implementation, in seconds; shown as a rate if there is a `scale`."""

    task: str
    seconds: dict[str, float]
    scale: float | None = None

    def shown(self, name: str) -> float | str:
        if name not in self.seconds:
            return "-"
        return self.seconds[name] if self.scale is None else self.scale / self.seconds[name]

    def ratio(self, name: str) -> float | str:
        return self.seconds[name] / self.seconds[OURS] if name in self.seconds else "-"


def bm25_table(corpus: Path, queries: list[str], k: int) -> Table:
    timings = compare_bm25(corpus, queries, k)
    peers = [name for name in (BM25S, BM25S_NUMBA) if any(name in timing.seconds for timing in timings)]
    return Table(
        f"BM25, {corpus.name}, {len(queries):,} queries, best {k}",
        ("", OURS, *peers, *(f"times as fast as {peer}" for peer in peers)),
        [
            (timing.task, *(timing.shown(name) for name in (OURS, *peers)), *(timing.ratio(peer) for peer in peers))
            for timing in timings
        ],
    )


def compare_bm25(corpus: Path, queries: list[str], k: int, *, compiled: bool = True) -> list[BM25Timing]:
    """Time indexing a plain corpus, single queries, and a batch of queries.

    bm25s has its texts in memory and does not save its index; ours reads and writes files. Surveying the corpus, which
    checks rows and ids before any index is built, is not counted. With numba installed, bm25s is also timed `compiled`;
    the compilation takes ten seconds.
    """
    with TemporaryDirectory() as scratch:
        passages, offsets = survey(corpus, Path(scratch)).passages, Path(scratch, OFFSETS)
        settings, folder = BM25Settings(), Path(scratch, "index")
        peer = _Bm25s([passage.contents for passage in stream(corpus)], settings)

        def build_ours() -> None:
            shutil.rmtree(folder, ignore_errors=True)
            build_index(corpus, offsets, folder, settings)

        indexing = BM25Timing(f"index {passages:,} passages, s", _best_seconds({OURS: build_ours, BM25S: peer.index}))
        ours = BM25(folder, settings, np.arange(passages, dtype=np.uint32))
        searches: dict[str, Search] = {OURS: ours.rank} | peer.searches(compiled=compiled)
        single, many = queries[:SINGLE_QUERIES], queries[:BATCH]

        def one_by_one(search: Search) -> None:
            for query in single:
                search([query], k)

        alone = _best_seconds({name: partial(one_by_one, search) for name, search in searches.items()})
        batched = _best_seconds({name: partial(search, many, k) for name, search in searches.items()})
        return [
            indexing,
            BM25Timing("queries/s, one at a time", alone, len(single)),
            BM25Timing(f"queries/s, {len(many)} at once", batched, len(many)),
        ]


def _best_seconds(tasks: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Time several interleaved runs of each task, so that other load affects all tasks; return the shortest times."""
    seconds = dict.fromkeys(tasks, float("inf"))
    for _ in range(BM25_REPEATS):
        for name, task in tasks.items():
            start = perf_counter()
            task()
            seconds[name] = min(seconds[name], perf_counter() - start)
    return seconds


class _Bm25s:
    """bm25s as documented: its own tokenizer, a Snowball stemmer, one thread per core."""

    def __init__(self, texts: list[str], settings: BM25Settings) -> None:
        try:
            import bm25s
        except ImportError:
            raise MissingExtra("bm25s", "bench") from None
        self._bm25s: Any = bm25s
        self._texts, self._settings = texts, settings
        self._stemmer = Stemmer.Stemmer(settings.stemmer)
        self._index: Any = None

    def index(self) -> None:
        self._index = self._bm25s.BM25(k1=self._settings.k1, b=self._settings.b, method="lucene", backend="numpy")
        self._index.index(self._tokenize(self._texts), show_progress=False)

    def searches(self, *, compiled: bool) -> dict[str, Search]:
        if not compiled or find_spec("numba") is None:
            return {BM25S: partial(self._search, "numpy")}
        self._index.activate_numba_scorer()
        return {BM25S: partial(self._search, "numpy"), BM25S_NUMBA: partial(self._search, "numba")}

    def _search(self, backend: str, queries: Sequence[str], k: int) -> object:
        # A single query is slower on many threads than on one.
        threads = len(os.sched_getaffinity(0)) if len(queries) > 1 else 0
        self._index.backend = backend
        return self._index.retrieve(self._tokenize(list(queries)), k=k, n_threads=threads, show_progress=False)

    def _tokenize(self, texts: list[str]) -> Any:
        return self._bm25s.tokenize(texts, stopwords="en", stemmer=self._stemmer, show_progress=False)


class DenseTiming(NamedTuple):
    """Search time for one batch size in milliseconds, ours and plain, and the number of hits that differ."""

    batch: int
    ours: float
    plain: float
    differing: int


def dense_table(rows: int | None, dimensions: int, k: int) -> Table:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    count = rows or (WIKI18 if device == "cuda" else 200_000)
    return Table(
        f"Exact search among {count:,} x {dimensions} random unit vectors, best {k}, on {device}",
        ("queries at once", "plain, ms", "ours, ms", "ours, queries/s", "times as fast", "hits that differ"),
        [
            (each.batch, each.plain, each.ours, 1e3 * each.batch / each.ours, each.plain / each.ours, each.differing)
            for each in compare_dense(count, dimensions, k, BATCHES, device)
        ],
    )


def compare_dense(rows: int, dimensions: int, k: int, batches: Sequence[int], device: str) -> list[DenseTiming]:
    """Time our exact search and the plain one on random unit vectors; hits are compared with fp32 products."""
    vectors = _unit_vectors(rows, dimensions, device)
    order = torch.arange(len(vectors), dtype=torch.int32, device=vectors.device)
    on_gpu = vectors.device.type == "cuda"
    shard: Shard = DeviceShard(vectors, order) if on_gpu else HostShard(vectors.half().numpy(), order)
    timings = []
    for batch in batches:
        queries = _unit_vectors(batch, dimensions, device)
        asked: NDArray[np.float32] = queries.float().cpu().numpy()
        ours = _median_ms(partial(nearest, shard, asked, k), vectors.device)
        plain = _median_ms(partial(_plain_search, vectors, queries, k, vectors.dtype), vectors.device)
        scores, right = (each.cpu().numpy() for each in _plain_search(vectors, queries, k, torch.float32))
        found, found_scores = nearest(shard, asked, k)
        # If two rows are equal up to fp32 rounding, either is correct.
        close = np.abs(found_scores - scores) < 1e-6
        timings.append(DenseTiming(batch, ours, plain, int(((found != right) & ~close).sum())))
    return timings


def _plain_search(
    vectors: torch.Tensor, queries: torch.Tensor, k: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Search by matrix product and top-k in chunks, with stock PyTorch; results are on the CPU."""
    asked = queries.to(dtype)
    best = []
    for start in range(0, len(vectors), CHUNK):
        found = (asked @ vectors[start : start + CHUNK].to(dtype).T).topk(k, dim=1)
        best.append((found.values, found.indices + start))
    values, indices = (torch.cat(part, dim=1) for part in zip(*best, strict=True))
    top = values.topk(k, dim=1)
    return top.values.cpu(), indices.gather(1, top.indices).cpu()


def _median_ms(work: Callable[[], object], device: torch.device) -> float:
    times = []
    for _ in range(1 + DENSE_REPEATS):
        synchronize(device)
        start = perf_counter()
        work()
        synchronize(device)
        times.append(1e3 * (perf_counter() - start))
    return float(np.median(times[1:]))


def _unit_vectors(rows: int, dimensions: int, device: str) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(rows)
    # CPUs multiply fp16 slowly or not at all, so the plain search uses fp32 there.
    dtype = torch.float16 if torch.device(device).type == "cuda" else torch.float32
    vectors = torch.empty(rows, dimensions, dtype=dtype, device=device)
    for start in range(0, rows, CHUNK):
        drawn = torch.randn(min(CHUNK, rows - start), dimensions, device=device, generator=generator)
        vectors[start : start + CHUNK] = torch.nn.functional.normalize(drawn, dim=1).half()
    return vectors


@dataclass(frozen=True, slots=True)
class Load:
    """Results of one server under load; each client sends its next query when the previous one is answered."""

    server: str
    clients: int
    seconds: float
    answered: int
    errors: int
    queries_per_second: float
    p50_ms: float
    p99_ms: float


def server_table(corpus: Path, queries: list[str], kind: IndexKind, clients: int, seconds: float, out: Path) -> Table:
    manifest = build(corpus, out, IndexPlan.of(kind))
    loads = compare_servers(partial(load, out), queries, clients=clients, seconds=seconds)
    return Table(
        f"{clients} clients for {seconds:g} s, {kind}, {manifest.passages:,} passages",
        ("server", "queries/s", "p50, ms", "p99, ms", "answered", "errors"),
        [
            (each.server, each.queries_per_second, each.p50_ms, each.p99_ms, each.answered, each.errors)
            for each in loads
        ],
    )


def compare_servers(opener: Opener, queries: Sequence[str], *, clients: int = 256, seconds: float = 60.0) -> list[Load]:
    """Put both servers under the same load, one after the other, each in its own process.

    Raises SleuthError if the two servers answer any query differently.
    """
    loads, answers = [], []
    for name in SERVERS:
        with _serving(name, opener) as port:
            url = f"http://{HOST}:{port}/retrieve"
            answers.append(httpx.post(url, json=_request(queries), trust_env=False, timeout=3600.0).json())
            # Clients run in their own process, so that they slow the server no more than real ones.
            with PROCESSES.Pool(1) as pool:
                times, errors = pool.apply(_run_clients, (port, list(queries), clients, seconds))
            p50, p99 = np.percentile(times, [50, 99]) * 1000 if times else (float("nan"),) * 2
            rate = len(times) / seconds
            loads.append(Load(name, clients, seconds, len(times), errors, rate, float(p50), float(p99)))
    if answers[0] != answers[1]:
        raise SleuthError("the two servers returned different hits, so their speed cannot be compared")
    return loads


def _batching_server(retriever: Retriever) -> FastAPI:
    return application(retriever, Facts("bench", "bench", 0), k=K, limits=Limits())


def _locking_server(retriever: Retriever) -> FastAPI:
    """Create a server in the common design: a lock around one unbatched search."""
    app, lock = FastAPI(), asyncio.Lock()

    @app.post("/retrieve")
    async def retrieve(request: RetrieveRequest) -> dict[str, Any]:
        async with lock:
            answers = await retriever.search(request.queries, request.topk or K)
        return {
            "result": [[] if isinstance(each, SearchUnavailable) else list(map(scored_row, each)) for each in answers]
        }

    return app


SERVERS: dict[str, Callable[[Retriever], FastAPI]] = {"gathering": _batching_server, "one at a time": _locking_server}


@contextmanager
def _serving(name: str, opener: Opener) -> Iterator[int]:
    ours, its = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=_serve, args=(name, opener, its), daemon=True)
    process.start()
    its.close()
    try:
        yield ours.recv()
    except EOFError:
        raise SleuthError(f"the server {name!r} exited before it was ready; see its output") from None
    finally:
        process.terminate()
        process.join()


def _serve(name: str, opener: Opener, parent: "Connection[int, int]") -> None:
    listener = bind(HOST, 0)
    serve(SERVERS[name](opener()), listener, lambda: parent.send(listener.getsockname()[1]))


def _run_clients(port: int, queries: list[str], clients: int, seconds: float) -> tuple[list[float], int]:
    """Return the times of complete answers, and the number of errors."""

    async def run() -> tuple[list[float], int]:
        loop = asyncio.get_running_loop()
        head = f"POST /retrieve HTTP/1.1\r\nhost: {HOST}:{port}\r\ncontent-type: application/json\r\n"
        bodies = [json.dumps(_request([query])).encode() for query in queries]
        requests = [f"{head}content-length: {len(body)}\r\n\r\n".encode() + body for body in bodies]
        protocols = [_Client(requests, number * len(requests) // clients) for number in range(clients)]
        for client in protocols:
            await loop.create_connection(lambda client=client: client, HOST, port)  # type: ignore[misc]
        for client in protocols:
            client.send()
        await asyncio.sleep(seconds)
        end = perf_counter()
        for client in protocols:
            client.stop()
        times = [time for client in protocols for moment, time in client.answered if moment <= end]
        return times, sum(client.errors for client in protocols)

    return asyncio.run(run())


class _Client(asyncio.Protocol):
    """One client on one connection, which sends prepared requests and parses only the head of each answer."""

    def __init__(self, requests: list[bytes], first: int) -> None:
        self._requests, self._next = requests, first
        self._received = bytearray()
        self._stopped = False
        self.answered: list[tuple[float, float]] = []
        self.errors = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def send(self) -> None:
        self._sent = perf_counter()
        self._transport.write(self._requests[self._next % len(self._requests)])
        self._next += 1

    def stop(self) -> None:
        self._stopped = True
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._received += data
        valid = _is_valid(self._received)
        if valid is None:
            return
        now = perf_counter()
        if valid:
            self.answered.append((now, now - self._sent))
        else:
            self.errors += 1
        self._received.clear()
        if not self._stopped:
            self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.errors += not self._stopped


def _is_valid(received: bytearray) -> bool | None:
    """Whether a complete answer is valid; None while it is incomplete."""
    head = received.find(b"\r\n\r\n")
    if head < 0:
        return None
    start = received.lower().find(b"content-length:", 0, head) + len(b"content-length:")
    length = int(received[start : received.find(b"\r", start)])
    if len(received) < head + 4 + length:
        return None
    return received.startswith(b"HTTP/1.1 200") and received.startswith(b'{"result":[[', head + 4)


def _request(queries: Sequence[str]) -> dict[str, Any]:
    return {"queries": list(queries), "topk": K, "return_scores": True}
