"""One file brought from the hub: it goes on where it broke off, and bears its name only when its bytes are right."""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import BinaryIO

import httpx

from sleuth.corpus.datasets.hub import Hub, HubFile
from sleuth.errors import InputError
from sleuth.runs.atomic import explain_write_errors
from sleuth.runs.lock import acquire

PARTIAL = ".partial"
CHUNK = 1 << 20  # bytes read at a time of what is there
TRIES = 5  # without one new byte, after which a transfer is given up
PAUSE = 1.0  # seconds before the second try, doubled for each further one

Counted = Callable[[int], object]


def bring(
    hub: Hub, repository: str, pieces: Sequence[HubFile], target: Path, counted: Counted, pause: float = PAUSE
) -> None:
    """Writes the pieces one after the other into `target`, telling `counted` how many bytes are there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + PARTIAL)
    with explain_write_errors(target), held(partial) as file:
        start = 0
        for piece in pieces:
            _bring_piece(_Piece(file, start, piece, counted), hub, repository, pause)
            start += piece.size
        file.truncate(start)
        file.flush()
        os.fsync(file.fileno())
        partial.replace(target)


class _Piece:
    """A piece within its file: what of it is there, and the digest of that."""

    def __init__(self, file: BinaryIO, start: int, known: HubFile, counted: Counted) -> None:
        self.known, self._file, self._start, self._counted = known, file, start, counted
        self.done = 0
        self._digest = _digest(known)
        for chunk in _chunks(file, start, known.size):
            self._count(chunk)

    def take(self, chunk: bytes) -> None:
        self._file.seek(self._start + self.done)
        self._file.write(chunk)
        self._count(chunk)

    def rewind(self) -> None:
        """Begins anew."""
        self._file.truncate(self._start)
        self.done, self._digest = 0, _digest(self.known)

    @property
    def right(self) -> bool:
        expected = self.known.sha256 or self.known.blob
        return self.done == self.known.size and expected in (None, self._digest.hexdigest())

    def _count(self, chunk: bytes) -> None:
        self.done += len(chunk)
        self._digest.update(chunk)
        self._counted(self._start + self.done)


def _bring_piece(piece: _Piece, hub: Hub, repository: str, pause: float) -> None:
    """Bytes that are not those the hub names are fetched once more from the beginning: what was there may be old."""
    for _ in range(2):
        _fill(piece, hub, repository, pause)
        if piece.right:
            return
        piece.rewind()
    raise InputError(
        f"{piece.known.path} of {repository} came twice with other bytes than the hub names for it "
        f"({piece.known.size:,} bytes, digest {piece.known.sha256 or piece.known.blob}); try again later"
    )


def _fill(piece: _Piece, hub: Hub, repository: str, pause: float) -> None:
    failures = 0
    while piece.done < piece.known.size:
        before, cause = piece.done, "the server ended the answer too early"
        try:
            _receive(piece, hub, repository)
        except httpx.HTTPError as error:
            if refused(error):
                raise
            cause = reason(error)
        if piece.done >= piece.known.size:
            return
        failures = 1 if piece.done > before else failures + 1
        if failures == TRIES:
            raise InputError(
                f"{piece.known.path} of {repository} broke off after {piece.done:,} of {piece.known.size:,} bytes "
                f"({cause}); run the command again, and it goes on from there"
            )
        sleep(pause * 2 ** (failures - 1))


def _receive(piece: _Piece, hub: Hub, repository: str) -> None:
    with hub.opened(repository, piece.known.path, piece.done) as (begins, chunks):
        if begins != piece.done:
            piece.rewind()
        for chunk in chunks:
            piece.take(chunk)
            if piece.done > piece.known.size:
                return


def refused(error: httpx.HTTPError) -> bool:
    """Whether the server will not say anything else the next time."""
    if not isinstance(error, httpx.HTTPStatusError):
        return False
    return error.response.is_client_error and error.response.status_code not in (408, 429)


def reason(error: httpx.HTTPError | httpx.InvalidURL) -> str:
    """What went wrong, in a few words."""
    if isinstance(error, httpx.HTTPStatusError):
        return f"the server says {error.response.status_code} {error.response.reason_phrase}".rstrip()
    return str(error) or type(error).__name__


def _digest(known: HubFile) -> "hashlib._Hash":
    """Large files have their SHA-256, small ones the id that git gives them."""
    if known.sha256 is None and known.blob is not None:
        return hashlib.sha1(b"blob %d\0" % known.size, usedforsecurity=False)
    return hashlib.sha256()


def _chunks(file: BinaryIO, start: int, size: int) -> Iterator[bytes]:
    """What is there of a piece already."""
    file.seek(start)
    left = size
    while left and (chunk := file.read(min(CHUNK, left))):
        left -= len(chunk)
        yield chunk


@contextmanager
def held(partial: Path) -> Iterator[BinaryIO]:
    """The unfinished file, kept from other processes as long as this one writes it."""
    with open(os.open(partial, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:  # noqa: PTH123  made where missing, kept where not
        acquire(file, f"another process is downloading {partial}; wait for it, or end it first")
        yield file
