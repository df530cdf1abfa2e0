"""Web search as a Retriever: a provider's results, with its snippets or the text of the pages around them."""

import asyncio
import json
import os
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import httpx

from sleuth.corpus.decoding import clean
from sleuth.errors import ConfigError, SearchUnavailable
from sleuth.records import Hit, Passage
from sleuth.retrieval.fetch import Fetcher, trusted
from sleuth.retrieval.keys import Keys, Signed
from sleuth.retrieval.providers import PROVIDERS, Asked, Found
from sleuth.retrieval.reading import Reader
from sleuth.retrieval.retries import Failure, broken, pause, refused
from sleuth.retrieval.slots import Slots
from sleuth.retrieval.throttle import Throttle

LANGUAGE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})?")
COUNTRY = re.compile(r"[A-Za-z]{2}")
# What providers say when nothing but a new month or a payment helps; a limit a minute is over sooner than that.
EXHAUSTED = re.compile(r"run out|not enough credits|per day|daily limit|monthly", re.IGNORECASE)
FORBIDDEN = frozenset({401, 403})


class Web:
    """Searches the web: hits, or within `deadline` seconds a SearchUnavailable that says why.

    At most `concurrency` requests are in flight and `rate` a second are sent; one without an answer after half the
    deadline is tried again, `attempts` times in all. With `pages` a hit holds the page's text around the snippet; a
    page that cannot be had in time leaves the snippet. `counts` says how often each thing happened.
    """

    def __init__(
        self,
        provider: str,
        *,
        language: str | None = None,
        country: str | None = None,
        pages: bool | Fetcher = False,
        proxy: str | None = None,
        concurrency: int = 16,
        rate: float | None = None,
        deadline: float = 30.0,
        attempts: int = 4,
        base_url: str | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        _check_above_zero(concurrency=concurrency, rate=1 if rate is None else rate)
        _check_above_zero(deadline=deadline, attempts=attempts)
        if provider not in PROVIDERS:
            raise ConfigError(f"no web search provider is called {provider!r}; expected one of {', '.join(PROVIDERS)}")
        self._provider = PROVIDERS[provider]
        self._keys = Keys(self._provider.key_headers, self._provider.key_params, environment)
        self._language = _code(language, LANGUAGE, "language", "de or zh-TW")
        self._country = _code(country, COUNTRY, "country", "de or US")
        self._url = _endpoint(self._provider.url, base_url)
        self._proxy = _proxy(proxy)
        self.counts: Counter[str] = Counter()
        fetcher = Fetcher(proxy=self._proxy) if pages is True else pages
        self._reader = Reader(fetcher, self.counts) if fetcher else None
        self._deadline, self._attempts = deadline, attempts
        self._throttle = None if rate is None else Throttle(rate)
        self._dice = random.Random()  # its own, so that seeded runs draw the same with and without retries
        self._slots = Slots(concurrency)

    def __repr__(self) -> str:
        return f"Web({self._url}, {self._keys!r})"

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:
        """See Retriever; a query that stands here twice is paid for once."""
        ends = asyncio.get_running_loop().time() + self._deadline
        async with self._client() as client, asyncio.TaskGroup() as group:
            tasks = {query: group.create_task(self._answer(client, query, k, ends)) for query in dict.fromkeys(queries)}
        answers = [tasks[query].result() for query in queries]
        return [list(answer) if isinstance(answer, list) else answer for answer in answers]

    def _client(self) -> httpx.AsyncClient:
        """A client whose requests hold no key until they leave it."""
        unlimited = httpx.Limits(max_connections=None)  # the slots are the limit
        road = httpx.AsyncHTTPTransport(verify=trusted(), proxy=self._proxy, limits=unlimited)
        # With a transport of its own it uses no proxy of the environment's; a redirect would carry the key along.
        return httpx.AsyncClient(transport=Signed(self._keys, road), timeout=self._deadline, follow_redirects=False)

    async def _answer(
        self, client: httpx.AsyncClient, query: str, k: int, ends: float
    ) -> list[Hit] | SearchUnavailable:
        if not clean(query).strip():
            return []
        failures: list[Failure] = []
        try:
            async with asyncio.timeout_at(ends):
                found = await self._persist(client, Asked(query, k, self._language, self._country), ends, failures)
        except TimeoutError:
            found = self._overdue(failures)
        if isinstance(found, Failure):
            self.counts["unavailable"] += 1
            return SearchUnavailable(query, self._keys.hidden(found.cause))
        self.counts["answered"] += 1
        texts = await self._texts(found[:k], query, ends)
        return [_hit(each, text, place) for place, (each, text) in enumerate(zip(found[:k], texts, strict=True), 1)]

    async def _texts(self, found: list[Found], query: str, ends: float) -> list[str]:
        if self._reader is None:
            return [each.snippet for each in found]
        return await asyncio.gather(*(self._reader.read(each, query, ends) for each in found))

    async def _persist(
        self, client: httpx.AsyncClient, asked: Asked, ends: float, failures: list[Failure]
    ) -> list[Found] | Failure:
        """Asks until there is an answer or no point in asking; each failure on the way is put on the list."""
        while True:
            async with self._slots.here():
                if self._throttle is not None:
                    await self._throttle.take()
                self.counts["requests"] += 1
                found = await self._attempt(client, asked)
            if not isinstance(found, Failure):
                return found
            failures.append(found)
            self.counts[f"failed: {found.kind}"] += 1
            tried, left = len(failures), ends - asyncio.get_running_loop().time()
            if not found.again:
                return found
            if tried >= self._attempts:
                return replace(found, cause=f"{found.cause} (attempt {tried} of {self._attempts})")
            wait = found.after + pause(tried, self._dice)
            if wait >= left:
                too_late = f"the next attempt, in {wait:.3g} s, would come after the deadline of {self._deadline:g} s"
                return replace(found, cause=f"{found.cause}; {too_late}")
            await asyncio.sleep(wait)

    async def _attempt(self, client: httpx.AsyncClient, asked: Asked) -> list[Found] | Failure:
        fields = self._provider.ask(asked)
        post = self._provider.method == "POST"
        try:
            async with asyncio.timeout(self._deadline / 2):
                response = await client.request(
                    self._provider.method,
                    self._url,
                    json=fields if post else None,
                    params=None if post else fields,
                    headers={"Accept": "application/json"},
                )
        except TimeoutError:
            return Failure("time-out", f"no answer within {self._deadline / 2:g} s")
        except httpx.RequestError as error:
            return broken(error)
        return self._read(response) if response.is_success else self._refused(response)

    def _read(self, response: httpx.Response) -> list[Found] | Failure:
        try:
            return self._provider.read(json.loads(response.content))
        except (ValueError, RecursionError) as error:
            return Failure("not an answer", f"what the provider sent is not an answer: {error}")

    def _refused(self, response: httpx.Response) -> Failure:
        """A refusal, with what the user can do about it."""
        failure = refused(self._keyless(response))
        if EXHAUSTED.search(failure.cause):
            return Failure("quota", f"the quota is used up: {failure.cause}", again=False)
        if response.status_code in FORBIDDEN:
            return Failure("key", f"{failure.cause}; is {self._keys.variables} right?", again=False)
        return failure

    def _keyless(self, response: httpx.Response) -> httpx.Response:
        """What a refusal says without the keys, taken out before it is cut to length, which would leave half of one."""
        body = response.content.decode("utf-8", "replace")
        try:
            body = json.dumps(json.loads(body), ensure_ascii=False)  # escapes would hide a key from the search
        except (ValueError, RecursionError):
            body = " ".join(body.split())
        asks = {"retry-after": response.headers.get("retry-after", "")}
        return httpx.Response(response.status_code, headers=asks, text=self._keys.hidden(clean(body)))

    def _overdue(self, failures: list[Failure]) -> Failure:
        last = f"; the last of {len(failures)} failed attempts: {failures[-1].cause}" if failures else ""
        return Failure("deadline", f"no answer within the deadline of {self._deadline:g} s{last}")


def _hit(found: Found, text: str, place: int) -> Hit:
    passage = Passage(found.url, f'"{found.title}"\n{text}', {"url": found.url, "title": found.title})
    return Hit(passage, 1.0 / place)


def _check_above_zero(**settings: float) -> None:
    for name, value in settings.items():
        if not value > 0:
            raise ConfigError(f"{name} is {value}; expected a number above 0")


def _code(value: str | None, form: re.Pattern[str], name: str, example: str) -> str | None:
    if value is not None and not form.fullmatch(value):
        raise ConfigError(f"the {name} of web search is {value!r}; expected a code like {example}")
    return value


def _endpoint(url: str, base_url: str | None) -> httpx.URL:
    """Where requests go: the provider, or a gateway in its place; one given without a path has the provider's."""
    if base_url is None:
        return httpx.URL(url)
    try:
        given = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"the base url cannot be read ({error}); expected one like https://gateway.example") from None
    if given.scheme not in ("http", "https") or not given.host or given.userinfo:
        raise ConfigError("the base url of web search expects http or https, a host and no password")
    return given.copy_with(path=httpx.URL(url).path) if given.path in ("", "/") else given


def _proxy(url: str | None) -> httpx.Proxy | None:
    """The proxy, if any; its url may hold a password and is not repeated in errors."""
    expected = "expected one like http://127.0.0.1:3128"
    try:
        proxy = None if url is None else httpx.Proxy(url)
    except (ValueError, httpx.InvalidURL):
        raise ConfigError(f"the url of the proxy cannot be read; {expected}") from None
    if proxy is not None and proxy.url.scheme not in ("http", "https"):
        raise ConfigError(f"the proxy has the scheme {proxy.url.scheme!r}; {expected}")
    return proxy
