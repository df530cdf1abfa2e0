"""A language model as judge over an OpenAI-compatible endpoint; what it does not say is not scored."""

import asyncio
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import httpx

from sleuth.credentials import redacted
from sleuth.errors import ConfigError, InputError
from sleuth.evaluate import verdicts
from sleuth.evaluate.folder import Folder
from sleuth.evaluate.marks import Mark
from sleuth.retrieval.service.exchange import Failure, retry_after
from sleuth.retrieval.service.retries import Retries

ABOUT = "judge.json"
PROMPT = (
    "You grade short answers. Say yes if the given answer means the same as one of the accepted answers, as a reply to "
    "the question; other wording, spelling or detail does not matter. Say no if it does not. Reply with yes or no only."
    "\n\nQuestion: {question}\nAccepted answers: {golds}\nGiven answer: {answer}"
)
PASSING = frozenset({408, 429, 500, 502, 503, 504})
REFUSALS = 20  # so many in a row are no longer about single questions

_WORD = re.compile(r"\b(yes|no)\b")
_BEGINS = re.compile(r"\W*(yes|no)\s*(?:[^\w\s]|\n|$)")
_ENDS = re.compile(r"(?:^|.*\W)(yes|no)\W*$", re.DOTALL)
_SHOWN = 200  # characters of what a server said


@dataclass(frozen=True, slots=True)
class Judge:
    """Who judges: the address of the endpoint up to and with /v1, the model, and where its key is."""

    url: str
    model: str
    key_env: str = "OPENAI_API_KEY"
    timeout: float = 60.0
    deadline: float = 120.0  # of one verdict, retries and pauses included
    concurrent: int = 32
    tokens: int = 512  # room for a thought before the word

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"--judge {self.url} is no address; give one such as https://host/v1")

    def client(self) -> httpx.AsyncClient:
        key = os.environ.get(self.key_env)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.AsyncClient(timeout=self.timeout, headers=headers)

    @property
    def base(self) -> str:
        return self.url.rstrip("/").removesuffix("/chat/completions")

    @property
    def address(self) -> str:
        return f"{self.base}/chat/completions"

    @property
    def name(self) -> dict[str, str]:
        """What tells its verdicts from those of others: where it is, the model, and what it is told."""
        return {"url": redacted(self.base), "model": self.model, "prompt": hashlib.sha256(PROMPT.encode()).hexdigest()}


async def judged(folder: Folder, marks: Sequence[Mark], judge: Judge, done: Callable[[], None]) -> list[Mark]:
    """The marks with a `judge` of 1 or 0 each; verdicts are kept in the folder, so none is asked for twice.

    A question without an answer is wrong without asking; one that the judge failed on has no verdict. A server that
    refuses before it ever judged, or again and again, is an error: the rest of the questions would fare no better.
    """
    known = verdicts.known(folder.path, judge.name)
    asked = [place for place, mark in enumerate(marks) if place not in known and mark.answer]
    async with judge.client() as client:
        with verdicts.writing(folder.path, judge.name) as write:
            bench = _Bench(client, judge)
            slots = asyncio.Semaphore(judge.concurrent)

            async def one(place: int) -> None:
                async with slots:
                    verdict = await bench.verdict(marks[place])
                if verdict is not None:
                    known[place] = verdict
                    write(place, verdict)
                done()

            # The first alone: where a server refuses everyone, one request tells.
            for places in (asked[:1], asked[1:]):
                await _together([one(place) for place in places])
    folder.write(ABOUT, json.dumps(judge.name) + "\n")
    return _with(marks, known)


def remembered(folder: Folder, marks: Sequence[Mark]) -> list[Mark]:
    """The marks with the verdicts of the folder's judge, as far as it had one and they are there."""
    about = folder.read(ABOUT)
    if about is None:
        return list(marks)
    if not isinstance(about.get("url"), str) or not isinstance(about.get("model"), str):
        raise InputError(f"{folder.path / ABOUT} has no url and model of a judge; put it back, or remove it")
    name = Judge(about["url"], about["model"]).name
    return _with(marks, verdicts.known(folder.path, {**name, "prompt": about.get("prompt", name["prompt"])}))


def unjudged(marks: Sequence[Mark]) -> int:
    """Questions that should have a verdict and have none."""
    return sum(mark.values is not None and "judge" not in mark.values for mark in marks)


def read(said: str) -> float | None:
    """1 for yes, 0 for no, None where it is not plain which: a thought without its end, neither word, or both."""
    reply = said.rpartition("</think>")[2].strip().lower()
    if "<think>" in reply or len(set(_WORD.findall(reply))) != 1:
        return None
    found = _BEGINS.match(reply) or _ENDS.match(reply)
    return None if found is None else float(found[1] == "yes")


@dataclass(slots=True)
class _Bench:
    """Asks the judge, and knows how many refusals in a row there were and whether any verdict came."""

    client: httpx.AsyncClient
    judge: Judge
    answered: bool = False
    refusals: int = 0

    async def verdict(self, mark: Mark) -> float | None:
        """1, 0, or None where no attempt within the deadline brought a yes or a no."""
        ends = asyncio.get_running_loop().time() + self.judge.deadline
        found = await Retries(self.judge.deadline).first_answer(partial(self._attempt, mark), ends)
        if not isinstance(found, Failure):
            self.answered, self.refusals = True, 0
            return read(_said(found))
        self.refusals += 1
        if not self.answered or self.refusals >= REFUSALS:
            raise InputError(
                f"the judge at {self.judge.address} gave no verdict: {found.cause}; check --judge, "
                f"--judge-model {self.judge.model} and the key in {self.judge.key_env}, then give the command again: "
                "answers and verdicts are kept"
            )
        return None

    async def _attempt(self, mark: Mark, _: Failure | None) -> httpx.Response | Failure:
        try:
            reply = await self.client.post(self.judge.address, json=_request(self.judge, mark))
        except httpx.HTTPError as error:
            return Failure("no answer", f"it does not answer ({str(error) or type(error).__name__})")
        if reply.is_success:
            return reply
        told = " ".join(reply.text.split())[:_SHOWN] or "nothing more"
        after = retry_after(reply.headers.get("retry-after", ""), datetime.now(UTC))
        cause = f"it refuses with HTTP {reply.status_code} ({told})"
        return Failure("refused", cause, again=reply.status_code in PASSING, after=after)


async def _together(calls: Sequence[Any]) -> None:
    """Waits for all; the first that fails ends the others, and is raised by itself."""
    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(call)
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


def _with(marks: Sequence[Mark], known: Mapping[int, float]) -> list[Mark]:
    """The marks with these verdicts and no others; a judge that said nothing at all has no figure, not even of zero."""
    silent = not known and any(mark.answer for mark in marks)
    return [_marked(mark, None if silent else known.get(place), silent) for place, mark in enumerate(marks)]


def _marked(mark: Mark, verdict: float | None, silent: bool) -> Mark:
    if mark.values is None:
        return mark
    values = {name: value for name, value in mark.values.items() if name != "judge"}
    if not mark.answer and not silent:
        verdict = 0.0
    return replace(mark, values=values if verdict is None else {**values, "judge": verdict})


def _request(judge: Judge, mark: Mark) -> dict[str, Any]:
    question = mark.question
    # In one pass each, so that an answer with braces in it stays what it is.
    filled = {"question": question.question, "golds": "; ".join(question.golden_answers), "answer": str(mark.answer)}
    text = re.sub(r"\{(question|golds|answer)\}", lambda place: filled[place[1]], PROMPT)
    return {
        "model": judge.model,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": judge.tokens,
    }


def _said(reply: httpx.Response) -> str:
    """The words of a reply; none where it has another shape."""
    try:
        said = reply.json()["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError):
        return ""
    return said if isinstance(said, str) else ""
