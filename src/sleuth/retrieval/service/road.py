"""The road to a server: where it ends, the proxy on the way, the certificates trusted; all as the user gives them."""

import functools
import ssl

import httpx

from sleuth.errors import ConfigError

SCHEMES = ("http", "https")
LAST_PORT = 65535
# Servers of the field (uvicorn) drop a connection that was idle for 5 s; one that is about to go is not used again.
IDLE = 4.0


def transport(proxy: httpx.Proxy | None) -> httpx.AsyncHTTPTransport:
    """Connections through the proxy given, or none: one that the environment names may not know the server."""
    limits = httpx.Limits(keepalive_expiry=IDLE)
    return httpx.AsyncHTTPTransport(verify=_trusted(), trust_env=False, proxy=proxy, limits=limits)


def proxy_at(url: str | None) -> httpx.Proxy | None:
    """The proxy, if any; its url may hold a password and is not repeated in errors."""
    if url is None:
        return None
    expected = "expected one like http://127.0.0.1:3128"
    try:
        parsed = httpx.URL(url)
        host = parsed.host  # decoded only here, which may fail
    except (httpx.InvalidURL, UnicodeError):
        raise ConfigError(f"the url of the proxy cannot be read; {expected}") from None
    _check_port(parsed, expected)
    if parsed.scheme not in SCHEMES or not host:
        raise ConfigError(f"the proxy has the scheme {parsed.scheme!r} and the host {host!r}; {expected}")
    return httpx.Proxy(parsed, ssl_context=_trusted() if parsed.scheme == "https" else None)


def endpoint(url: str, path: str) -> httpx.URL:
    """Where requests go: to `path` on the server that a url without one names, else to the url itself."""
    shown, expected = "" if "@" in url else f" {url!r}", "expected one like http://127.0.0.1:8000"
    try:
        parsed = httpx.URL(url)
        host = parsed.host  # decoded only here, which may fail
    except (httpx.InvalidURL, UnicodeError):
        raise ConfigError(f"the url{shown} of the search server cannot be read; {expected}") from None
    _check_port(parsed, expected)
    if parsed.userinfo:
        raise ConfigError("the url of the search server holds a user or password; give a token or key instead")
    if parsed.scheme not in SCHEMES or not host:
        raise ConfigError(f"the url{shown} is not of a search server; {expected}")
    return parsed.copy_with(path=path) if parsed.path in ("", "/") else parsed


def check_above_zero(**settings: float) -> None:
    """Refuses a number that nothing can be done with."""
    for name, value in settings.items():
        if not value > 0:
            raise ConfigError(f"{name} is {value}; expected a number above 0")


def _check_port(url: httpx.URL, expected: str) -> None:
    if (url.port or 0) > LAST_PORT:
        raise ConfigError(f"there is no port {url.port}, the last is {LAST_PORT}; {expected}")


@functools.cache
def _trusted() -> ssl.SSLContext:
    """The certificates trusted, those of SSL_CERT_FILE where set; read once, since that takes longer than a search."""
    return httpx.create_ssl_context()
