"""What is told to nobody: keys and tokens, put on requests on their way out and taken out of what others say."""

import json
from collections.abc import Mapping
from urllib.parse import quote, quote_plus

import httpx

from sleuth.errors import ConfigError


class Secrets:
    """Values by the names that are shown in their place."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._values)})"

    def hidden(self, text: str) -> str:
        """A text of others, without the secrets that may stand in it: servers repeat what they were sent."""
        for name, value in self._values.items():
            for form in (value, json.dumps(value)[1:-1], quote(value, safe=""), quote_plus(value)):
                text = text.replace(form, f"[{name}]")
        return text


class Keys(Secrets):
    """The keys of a search provider: `headers` and `params` say in which variable of the environment each stands."""

    def __init__(self, headers: Mapping[str, str], params: Mapping[str, str], environment: Mapping[str, str]) -> None:
        super().__init__({name: _value(name, environment) for name in (*headers.values(), *params.values())})
        self._headers = {name: self._values[variable] for name, variable in headers.items()}
        self._params = {name: self._values[variable] for name, variable in params.items()}

    @property
    def variables(self) -> str:
        """Where the keys come from, in words."""
        return " and ".join(self._values)

    def put_on(self, request: httpx.Request) -> httpx.Request:
        """A copy of the request that holds the keys."""
        return httpx.Request(
            request.method,
            request.url.copy_merge_params(self._params) if self._params else request.url,
            headers={**request.headers, **self._headers},
            stream=request.stream,
            extensions=request.extensions,
        )


class Signed(httpx.AsyncBaseTransport):
    """Puts keys on what passes: what a client logs, and what its errors hold, is the request before."""

    def __init__(self, keys: Keys, transport: httpx.AsyncBaseTransport) -> None:
        self._keys, self._transport = keys, transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._transport.handle_async_request(self._keys.put_on(request))

    async def aclose(self) -> None:
        await self._transport.aclose()


def _value(variable: str, environment: Mapping[str, str]) -> str:
    value = environment.get(variable, "").strip()
    if not value:
        raise ConfigError(
            f"the environment variable {variable} is not set; web search expects the provider's key there"
        )
    if not (value.isascii() and value.isprintable()) or " " in value:
        raise ConfigError(f"the environment variable {variable} holds characters no key has; set it to the key alone")
    return value
