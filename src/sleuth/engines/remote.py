"""Models behind an OpenAI-compatible server: the endpoint, its list of models, and chat completions."""

import asyncio
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx

from sleuth.credentials import Secrets, authorization_header
from sleuth.engines.base import Sampling
from sleuth.errors import ConfigError, EngineFailure, InputError
from sleuth.http.client import RequestFailure, RetryPolicy, receive
from sleuth.http.connections import tls_context

SCHEMES = ("http://", "https://")
DEFAULT_KEY_ENV = "OPENAI_API_KEY"
DEFAULT_TIMEOUT = 300.0
EXAMPLE = "expected one like http://127.0.0.1:8000/v1"
LONGEST_PAUSE = 30.0
LONGEST_RETRY_AFTER = 120.0
CONTEXT_ERROR = re.compile(r"context.?length|context window|maximum context|too many tokens", re.IGNORECASE)
LISTING_TIMEOUT = 30.0
LISTING_PATIENCE = 2.0  # seconds to retry a refused connection while a user waits
NO_LISTING = (404, 405, 501)  # statuses of servers without a list of models
MODEL_FIELDS = ("root", "owned_by", "max_model_len")  # stable between requests, unlike dates and permissions
MAX_NAMES = 20
SEED_LIMIT = 2**31  # accepted by every server
UNKNOWN = object()

Message = Mapping[str, Any]


class ContextFull(EngineFailure):
    """The conversation exceeds the context length of the model."""


class EndpointUnreachable(EngineFailure):
    """The server does not answer in time."""


class EndpointRefused(EngineFailure):
    """The server answers with an error status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's base URL, ending in /v1, and a model; the key is read from the environment variable `key_env`.

    A request that times out after `timeout` seconds, or fails temporarily, is retried until `patience` seconds have
    passed (default: twice the timeout), with pauses that start at `pause` seconds.
    """

    url: str
    model: str
    key_env: str | None = None
    timeout: float = DEFAULT_TIMEOUT
    patience: float | None = None
    pause: float = 0.5

    def __post_init__(self) -> None:
        if "@" in self.url:
            raise ConfigError("the model URL contains a user name or password; use --key-env instead")
        try:
            parsed = httpx.URL(self.url)
        except (httpx.InvalidURL, UnicodeError):
            raise ConfigError(f"the model URL {self.url!r} is not valid; {EXAMPLE}") from None
        if not is_address(self.url) or not parsed.host or parsed.query:
            raise ConfigError(f"the model URL {self.url!r} is not the base URL of a server; {EXAMPLE}")
        if self.key_env is not None and not os.environ.get(self.key_env):
            raise ConfigError(f"the environment variable {self.key_env} of --key-env is empty; set it to the key")
        authorization_header(self.key, f"the key in {self.key_env or DEFAULT_KEY_ENV}")

    @property
    def base(self) -> str:
        return self.url.rstrip("/").removesuffix("/chat/completions")

    @property
    def key(self) -> str | None:
        return os.environ.get(self.key_env or DEFAULT_KEY_ENV) or None

    @property
    def secrets(self) -> Secrets:
        return Secrets({} if self.key is None else {"key": self.key})

    def client(self) -> httpx.AsyncClient:
        """An HTTP client that sends the key; timeouts are set per request."""
        return httpx.AsyncClient(
            headers=authorization_header(self.key), timeout=httpx.Timeout(None), verify=tls_context()
        )


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function call of the model; `arguments` is JSON as the model wrote it, possibly invalid."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """One assistant message: content, separate reasoning if the server returns it, and the first function call.

    `finished` is False if the message was truncated. `stop` is the stop string that ended the message, which servers
    remove from the content: None if the server reports that there was none, "" if it does not report it. Token counts
    are 0 if the server does not report them.
    """

    content: str
    reasoning: str
    call: FunctionCall | None
    calls: int
    finished: bool
    stop: str | None
    completion_tokens: int
    prompt_tokens: int


def is_address(name: str) -> bool:
    """Whether a model name is the URL of a server."""
    return name.startswith(SCHEMES)


async def complete_chat(
    http: httpx.AsyncClient,
    endpoint: Endpoint,
    messages: Sequence[Message],
    sampling: Sampling,
    functions: Sequence[Mapping[str, Any]] = (),
) -> Reply:
    """Request the model's next message; raises EngineFailure if the server returns none."""
    body: dict[str, Any] = {
        "model": endpoint.model,
        "messages": list(messages),
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
    }
    # Optional fields are sent only if needed, because some servers reject fields they do not know.
    if sampling.temperature:
        body["seed"] = sampling.seed % SEED_LIMIT
    if sampling.stops:
        body["stop"] = list(sampling.stops)
    if functions:
        body["tools"] = [dict(function) for function in functions]
    return _parse_reply(await _request_json(http, endpoint, "/chat/completions", body), endpoint)


def served_model(endpoint: Endpoint) -> Mapping[str, Any] | None:
    """Return what the server reports about the model, or None if the server does not list its models.

    Raises InputError if the server does not answer, rejects the key, or does not serve the model.
    """

    async def list_models() -> Any:
        quick = replace(endpoint, timeout=min(LISTING_TIMEOUT, endpoint.timeout), patience=LISTING_PATIENCE)
        async with endpoint.client() as http:
            return await _request_json(http, quick, "/models")

    try:
        listed = asyncio.run(list_models())
    except EndpointUnreachable as error:
        raise InputError(f"{error}; start the server, or use another") from error
    except EndpointRefused as error:
        if error.status in NO_LISTING:
            return None
        raise InputError(str(error)) from error
    rows = listed.get("data") if isinstance(listed, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and isinstance(row.get("id"), str) for row in rows):
        return None
    models = {row["id"]: row for row in rows}
    if endpoint.model not in models:
        names = ", ".join([*models][:MAX_NAMES]) + (", …" if len(models) > MAX_NAMES else "")
        problem = f"{endpoint.base} does not serve {endpoint.model!r}" if endpoint.model else "no model was given"
        raise InputError(
            f"{problem}; use --model (--teacher-model of sleuth start) with one of: "
            f"{names or '(the server lists no models)'}"
        )
    return {name: value for name in MODEL_FIELDS if isinstance(value := models[endpoint.model].get(name), str | int)}


async def _request_json(
    http: httpx.AsyncClient, endpoint: Endpoint, path: str, body: Mapping[str, Any] | None = None
) -> Any:
    """Send a POST (a GET without a body) and return the JSON response; raises EngineFailure after the last retry."""
    url, content = f"{endpoint.base}{path}", json.dumps(body).encode()
    headers = {"content-type": "application/json"}

    async def attempt(_: RequestFailure | None) -> Any:
        response = http.get(url) if body is None else http.post(url, content=content, headers=headers)
        result = await receive(response, endpoint.timeout, json.loads, endpoint.secrets)
        if isinstance(result, RequestFailure) and result.retry_after > LONGEST_RETRY_AFTER:
            return replace(result, retryable=False)
        return result

    # `patience` limits when a new attempt may start; a slow response in progress may take longer.
    patience = 2 * endpoint.timeout if endpoint.patience is None else endpoint.patience
    policy = RetryPolicy(patience, endpoint.pause, LONGEST_PAUSE, interrupt=False)
    result = await policy.run(attempt)
    if not isinstance(result, RequestFailure):
        return result
    message, status = f"{url}: {result.cause}", result.status
    if status is None:
        raise EngineFailure(message) if result.kind == "not an answer" else EndpointUnreachable(message)
    if status in (400, 413) and CONTEXT_ERROR.search(result.cause):
        raise ContextFull(message)
    if status in (401, 403):
        message += f"; check the key in {endpoint.key_env or DEFAULT_KEY_ENV}, or name its variable with --key-env"
    raise EndpointRefused(status, message)


def _parse_reply(answer: Any, endpoint: Endpoint) -> Reply:
    match answer:
        case {"choices": [{"message": dict(message), **choice}, *_]}:
            usage = answer.get("usage")
        case _:
            raise EngineFailure(
                f"{endpoint.base}/chat/completions returned no message "
                f"({endpoint.secrets.redact(json.dumps(answer))[:120]}); expected an OpenAI-compatible server"
            )
    calls = message.get("tool_calls")
    calls = calls if isinstance(calls, list) else []
    stop = choice.get("stop_reason", choice.get("matched_stop", UNKNOWN))
    return Reply(
        content=_text(message.get("content")),
        reasoning=_text(message.get("reasoning_content") or message.get("reasoning")),
        call=_parse_call(calls[0]) if calls else None,
        calls=len(calls),
        finished=choice.get("finish_reason") != "length",
        stop="" if stop is UNKNOWN else stop if isinstance(stop, str) else None,
        completion_tokens=_count(usage, "completion_tokens"),
        prompt_tokens=_count(usage, "prompt_tokens"),
    )


def _text(content: object) -> str:
    """Message content as text; some servers return a list of parts."""
    if isinstance(content, list):
        return "".join(_text(part.get("text")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _parse_call(call: object) -> FunctionCall:
    match call:
        case {"function": {"name": str(name), **function}, **rest}:
            written, id_ = function.get("arguments"), rest.get("id")
            arguments = written if isinstance(written, str) else json.dumps(written)
            return FunctionCall(id_ if isinstance(id_, str) and id_ else "call", name, arguments)
    return FunctionCall("call", "", "")


def _count(usage: object, name: str) -> int:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and value > 0 else 0
