"""The address file of a server: clients on other machines find it by a glob over a shared folder."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sleuth.runs.atomic import atomic_write

EVERYWHERE = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 (compared with, never bound to)
# Nothing is sent there: connecting a datagram socket only asks the system which way it would go. The addresses are
# set aside for documentation, so that they lie outside of every network.
OUTSIDE = ((socket.AF_INET, "203.0.113.1"), (socket.AF_INET6, "2001:db8::1"))


def reachable(host: str) -> str:
    """The address under which others reach a server that listens on `host`."""
    if host not in EVERYWHERE:
        return host
    ways = (_outgoing(family, outside) for family, outside in OUTSIDE)
    return next((address for address in ways if address), "127.0.0.1")


def _outgoing(family: socket.AddressFamily, outside: str) -> str | None:
    """This machine's own address on the way out; None where it has no such way."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((outside, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def authority(host: str, port: int) -> str:
    """Host and port as they stand in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def announced(folder: Path, host: str, port: int) -> Iterator[Path]:
    """Keeps `Host{ip}_IP{port}.txt` with `ip:port` in the folder, the form that ASearcher's clients look for."""
    ip = reachable(host)
    path = folder / f"Host{ip}_IP{port}.txt"
    with atomic_write(path) as temporary:
        temporary.write_text(authority(ip, port), encoding="utf-8")
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
