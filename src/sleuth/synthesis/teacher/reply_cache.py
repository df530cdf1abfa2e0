"""Replies of the teacher on disk, so that no call is paid for twice: an append-only JSONL file."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Self

from sleuth.engines.base import Sampling
from sleuth.errors import InputError
from sleuth.runs import lock
from sleuth.runs.atomic import explain_write_errors
from sleuth.runs.json_files import read_rows
from sleuth.synthesis.teacher.teacher import Reply


def reply_key(identity: Mapping[str, Any], messages: Sequence[Mapping[str, str]], sampling: Sampling) -> str:
    """Hash everything that a reply depends on: the model, the messages and the sampling."""
    content = json.dumps([dict(identity), [dict(each) for each in messages], asdict(sampling)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


class ReplyCache:
    """Replies by key; each is on disk before `add` returns. One process at a time may open a file.

    A process that is killed leaves at most one incomplete line, which the next one removes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._replies: dict[str, Reply] = {}
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        with explain_write_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab")
        try:
            lock.acquire(self._file, f"{self.path} is in use by another process; wait for it, or use another --out")
            self._load()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def __len__(self) -> int:
        return len(self._replies)

    def get(self, key: str) -> Reply | None:
        return self._replies.get(key)

    def add(self, key: str, reply: Reply) -> None:
        """Append a reply; the operating system has it when this returns, even if the process is killed."""
        if self._file is None:
            raise RuntimeError("the cache is not open; use it in a with statement")
        row = {"key": key, "text": reply.text, **_tokens(reply)}
        with explain_write_errors(self.path):
            self._file.write(json.dumps(row).encode() + b"\n")
            self._file.flush()
        self._replies[key] = reply

    def _load(self) -> None:
        """Read all replies, and remove an incomplete last line."""
        for number, row in enumerate(read_rows(self.path), start=1):
            match row:
                case {"key": str(key), "text": str(text), "prompt_tokens": int(given), "completion_tokens": int(made)}:
                    self._replies[key] = Reply(text, given, made)
                case _:
                    raise InputError(f"{self.path}, line {number} is not a reply; remove the line, or the file")
        content = self.path.read_bytes()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            os.truncate(self.path, end)


def _tokens(reply: Reply) -> dict[str, int]:
    return {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.completion_tokens}
