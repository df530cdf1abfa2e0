"""The keys of search providers: read from the environment, put on requests on their way out, and never told."""

from collections.abc import Mapping

import httpx

from sleuth.errors import ConfigError
from sleuth.retrieval.service.secrets import Secrets


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
