"""The keys of a search provider: taken from the environment, put on requests on their way out, told to nobody."""

from collections.abc import Mapping
from urllib.parse import quote, quote_plus

import httpx

from sleuth.errors import ConfigError


class Keys:
    """Values for headers and url parameters, each read from the environment variable named for it."""

    def __init__(self, headers: Mapping[str, str], params: Mapping[str, str], environment: Mapping[str, str]) -> None:
        self._variables = tuple(dict.fromkeys((*headers.values(), *params.values())))
        self._values = {variable: _value(variable, environment) for variable in self._variables}
        self._headers = {name: self._values[variable] for name, variable in headers.items()}
        self._params = {name: self._values[variable] for name, variable in params.items()}

    def __repr__(self) -> str:
        return f"Keys({', '.join(self._variables)})"

    @property
    def variables(self) -> str:
        """Where the keys come from, in words."""
        return " and ".join(self._variables)

    def hidden(self, text: str) -> str:
        """A text of others, without the keys that may stand in it: servers repeat what they were sent."""
        for variable, value in self._values.items():
            for form in (value, quote(value, safe=""), quote_plus(value)):
                text = text.replace(form, f"[{variable}]")
        return text

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

    def __init__(self, keys: Keys, road: httpx.AsyncBaseTransport) -> None:
        self._keys = keys
        self._road = road

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._road.handle_async_request(self._keys.put_on(request))

    async def aclose(self) -> None:
        await self._road.aclose()


def _value(variable: str, environment: Mapping[str, str]) -> str:
    value = environment.get(variable, "").strip()
    if not value:
        raise ConfigError(
            f"the environment variable {variable} is not set; web search expects the provider's key there"
        )
    if not (value.isascii() and value.isprintable()) or " " in value:
        raise ConfigError(f"the environment variable {variable} holds characters no key has; set it to the key alone")
    return value
