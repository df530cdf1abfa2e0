"""Where a model is that others serve: its address, its name there, and the environment variable with the key."""

import os
import ssl
from dataclasses import dataclass
from functools import lru_cache

import httpx

from sleuth.errors import ConfigError

SCHEMES = ("http://", "https://")
KEY = "OPENAI_API_KEY"
TIMEOUT = 300.0
EXAMPLE = "give one such as http://127.0.0.1:8000/v1"


def is_address(name: str) -> bool:
    """Whether a model is named by where it is served."""
    return name.startswith(SCHEMES)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address up to and with /v1, and a model there; a `key_env` of the user's own must hold a key.

    A request without an answer after `timeout` seconds, or refused for the moment, is sent again until `patience`
    seconds have passed, twice the time-out by default, after pauses that begin with `pause` seconds.
    """

    url: str
    model: str
    key_env: str | None = None
    timeout: float = TIMEOUT
    patience: float | None = None
    pause: float = 0.5

    def __post_init__(self) -> None:
        if "@" in self.url:
            raise ConfigError("the address of the model holds a user or password; give a key with --key-env instead")
        try:
            parsed = httpx.URL(self.url)
        except (httpx.InvalidURL, UnicodeError):
            raise ConfigError(f"the address {self.url!r} cannot be read; {EXAMPLE}") from None
        if not is_address(self.url) or not parsed.host or parsed.query:
            raise ConfigError(f"the address {self.url!r} is not that of a server; {EXAMPLE}")
        if self.key_env is not None and not os.environ.get(self.key_env):
            raise ConfigError(f"the environment variable {self.key_env} of --key-env is empty; put the key there")
        if self.key and not (self.key.isascii() and self.key.isprintable() and " " not in self.key):
            raise ConfigError(f"the key in {self.key_env or KEY} holds characters a header cannot carry; set it anew")

    @property
    def base(self) -> str:
        return self.url.rstrip("/").removesuffix("/chat/completions")

    @property
    def key(self) -> str | None:
        return os.environ.get(self.key_env or KEY) or None

    def client(self) -> httpx.AsyncClient:
        """Connections with the key; every request has a time-out of its own."""
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        return httpx.AsyncClient(headers=headers, timeout=httpx.Timeout(None), verify=_trusted())

    def hidden(self, text: str) -> str:
        """A text of others without the key: servers repeat what they were sent."""
        return text.replace(self.key, "[key]") if self.key else text


@lru_cache(maxsize=1)
def _trusted() -> ssl.SSLContext:
    """The certificates trusted, read once: an episode opens connections of its own."""
    return httpx.create_ssl_context()
