"""A language model as judge over an OpenAI-compatible endpoint; what it does not say is not scored."""

import asyncio
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from sleuth.errors import ConfigError
from sleuth.evaluate.folder import Folder
from sleuth.evaluate.marks import Mark
from sleuth.runs import read_rows

FILE = "judge.jsonl"
PROMPT = (
    "You grade short answers. Say yes if the given answer means the same as one of the accepted answers, as a reply to "
    "the question; other wording, spelling or detail does not matter. Say no if it does not. Reply with yes or no only."
    "\n\nQuestion: {question}\nAccepted answers: {golds}\nGiven answer: {answer}"
)
VERDICT = re.compile(r"\b(yes|no)\b", re.IGNORECASE)
PASSING = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Judge:
    """Who judges: the address of the endpoint up to and with /v1, the model, and where its key is."""

    url: str
    model: str
    key_env: str = "OPENAI_API_KEY"
    timeout: float = 60.0
    attempts: int = 3
    concurrent: int = 32

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"--judge {self.url} is no address; give one such as https://host/v1")

    def client(self) -> httpx.AsyncClient:
        key = os.environ.get(self.key_env)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.AsyncClient(timeout=self.timeout, headers=headers)

    @property
    def address(self) -> str:
        return f"{self.url.rstrip('/').removesuffix('/chat/completions')}/chat/completions"


async def judged(folder: Folder, marks: Sequence[Mark], judge: Judge, done: Callable[[], None]) -> list[Mark]:
    """The marks with a `judge` of 1 or 0 each; verdicts are kept in the folder, so none is asked for twice.

    A question without an answer is wrong without asking; one that the judge failed on has no verdict.
    """
    known = dict(_known(folder.path / FILE, judge.model))
    slots = asyncio.Semaphore(judge.concurrent)
    async with judge.client() as client:
        with (folder.path / FILE).open("a", encoding="utf-8") as file:

            async def one(place: int, mark: Mark) -> None:
                async with slots:
                    verdict = await _verdict(client, judge, mark)
                if verdict is not None:
                    known[place] = verdict
                    file.write(json.dumps({"group": place, "model": judge.model, "verdict": verdict}) + "\n")
                    file.flush()
                done()

            asked = [(place, mark) for place, mark in enumerate(marks) if place not in known and mark.answer]
            async with asyncio.TaskGroup() as group:
                for place, mark in asked:
                    group.create_task(one(place, mark))
    return [_with(mark, known.get(place)) for place, mark in enumerate(marks)]


def remembered(folder: Folder, marks: Sequence[Mark], model: str) -> list[Mark]:
    """The marks with the verdicts that are in the folder already."""
    known = dict(_known(folder.path / FILE, model))
    return [_with(mark, known.get(place)) for place, mark in enumerate(marks)]


def unjudged(marks: Sequence[Mark]) -> int:
    """Questions that should have a verdict and have none."""
    return sum(mark.values is not None and "judge" not in mark.values for mark in marks)


def _with(mark: Mark, verdict: float | None) -> Mark:
    if mark.values is None:
        return mark
    verdict = 0.0 if not mark.answer else verdict
    return mark if verdict is None else replace(mark, values={**mark.values, "judge": verdict})


def _known(file: Path, model: str) -> Iterator[tuple[int, float]]:
    for row in read_rows(file) if file.exists() else ():
        if row["model"] == model:
            yield row["group"], row["verdict"]


async def _verdict(client: httpx.AsyncClient, judge: Judge, mark: Mark) -> float | None:
    """1, 0, or None where no attempt brought a yes or a no."""
    for attempt in range(judge.attempts):
        try:
            reply = await client.post(judge.address, json=_request(judge, mark))
        except httpx.HTTPError:
            reply = None
        if reply is not None and reply.status_code not in PASSING:
            return _read(reply)
        await asyncio.sleep(0.2 * 2**attempt)
    return None


def _request(judge: Judge, mark: Mark) -> dict[str, Any]:
    question = mark.question
    # In one pass each, so that an answer with braces in it stays what it is.
    filled = {"question": question.question, "golds": "; ".join(question.golden_answers), "answer": str(mark.answer)}
    text = re.sub(r"\{(question|golds|answer)\}", lambda place: filled[place[1]], PROMPT)
    return {
        "model": judge.model,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": 16,
    }


def _read(reply: httpx.Response) -> float | None:
    try:
        said = str(reply.json()["choices"][0]["message"]["content"])
    except (ValueError, KeyError, IndexError, TypeError):
        return None
    found = VERDICT.search(said) if reply.is_success else None
    return None if found is None else float(found[1].lower() == "yes")
