"""The hub of public data sets, over plain HTTP: what a data set holds, and its bytes from any place on.

HF_ENDPOINT names another server of the same kind, HF_TOKEN opens what is not open to all, HF_HUB_OFFLINE=1 keeps off.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from sleuth import __version__

ENDPOINT = "https://huggingface.co"
SECONDS = 60.0  # without a byte, after which a connection is given up


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a data set: its size, and the digest the hub names for it (of git's blob where it is a small one)."""

    path: str
    size: int
    sha256: str | None = None
    blob: str | None = None


class Hub:
    """A connection to the hub."""

    def __init__(self, endpoint: str | None = None) -> None:
        self.endpoint = (endpoint or os.environ.get("HF_ENDPOINT") or ENDPOINT).rstrip("/")
        token = os.environ.get("HF_TOKEN")
        headers = {"user-agent": f"sleuth/{__version__}", "accept-encoding": "identity"}
        self._client = httpx.Client(
            headers={**headers, **({"authorization": f"Bearer {token}"} if token else {})},
            follow_redirects=True,
            timeout=httpx.Timeout(SECONDS),
        )

    def files(self, repository: str) -> list[HubFile]:
        """Every file of a data set."""
        address: str | None = f"{self.endpoint}/api/datasets/{repository}/tree/main?recursive=true"
        found: list[HubFile] = []
        while address:
            _refuse_offline()
            answer = self._client.get(address).raise_for_status()
            found += _files(answer)
            address = answer.links.get("next", {}).get("url")
        return found

    @contextmanager
    def opened(self, repository: str, path: str, start: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Where the answer begins, which is 0 from a server that sends no ranges, and its bytes."""
        _refuse_offline()
        headers = {"range": f"bytes={start}-"} if start else {}
        address = f"{self.endpoint}/datasets/{repository}/resolve/main/{quote(path)}"
        with self._client.stream("GET", address, headers=headers) as answer:
            answer.raise_for_status()
            yield (start if answer.status_code == httpx.codes.PARTIAL_CONTENT else 0), answer.iter_raw()

    def close(self) -> None:
        self._client.close()


def _files(answer: httpx.Response) -> list[HubFile]:
    try:
        return [_file(entry) for entry in answer.json() if entry["type"] == "file"]
    except (ValueError, TypeError, KeyError) as error:
        # Networks that want a password first answer everything with a page.
        raise httpx.DecodingError(f"{answer.url} answers with no list of files", request=answer.request) from error


def _file(entry: dict[str, Any]) -> HubFile:
    large = entry.get("lfs")
    if large:
        return HubFile(entry["path"], large["size"], sha256=large["oid"])
    return HubFile(entry["path"], entry["size"], blob=entry.get("oid"))


def _refuse_offline() -> None:
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise httpx.ConnectError("HF_HUB_OFFLINE is set")
