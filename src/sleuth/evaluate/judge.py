"""LLM judge over an OpenAI-compatible endpoint; verdicts are saved in the evaluation folder and reused."""

import asyncio
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from sleuth.credentials import Secrets, authorization_header, redact, redact_tree
from sleuth.errors import ConfigError, InputError
from sleuth.evaluate.folder import EvaluationFolder
from sleuth.evaluate.results import QuestionResult
from sleuth.http.client import RequestFailure, RetryPolicy, receive
from sleuth.records import THINK_CLOSE, THINK_OPEN
from sleuth.runs.json_files import read_rows

JUDGE, VERDICTS = "judge.json", "judge.jsonl"
PROMPT = (
    "You grade short answers. Say yes if the given answer means the same as one of the accepted answers, as a reply to "
    "the question; other wording, spelling or detail does not matter. Say no if it does not. Reply with yes or no only."
    "\n\nQuestion: {question}\nAccepted answers: {golds}\nGiven answer: {answer}"
)
MAX_REFUSALS = 20  # consecutive refusals after which the server is considered unusable

_WORD = re.compile(r"\b(yes|no)\b")
_BEGINS = re.compile(r"\W*(yes|no)\s*(?:[^\w\s]|\n|$)")
_ENDS = re.compile(r"(?:^|.*\W)(yes|no)\W*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Judge:
    url: str
    model: str
    key_env: str = "OPENAI_API_KEY"
    timeout: float = 60.0
    deadline: float = 120.0  # per verdict, including retries
    concurrent: int = 32
    tokens: int = 512  # allows for reasoning before the verdict

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"--judge {self.url} is not an address; expected one such as https://host/v1")

    @property
    def key(self) -> str | None:
        return os.environ.get(self.key_env) or None

    @property
    def base(self) -> str:
        return self.url.rstrip("/").removesuffix("/chat/completions")

    @property
    def identity(self) -> dict[str, str]:
        """Key of saved verdicts: the address, model and prompt."""
        return {"url": redact(self.base), "model": self.model, "prompt": hashlib.sha256(PROMPT.encode()).hexdigest()}

    def request(self, result: QuestionResult) -> dict[str, Any]:
        question, golds = result.question.question, "; ".join(result.question.golden_answers)
        fields = {"question": question, "golds": golds, "answer": str(result.answer)}
        # One substitution pass, so that braces in an answer are kept.
        text = re.sub(r"\{(question|golds|answer)\}", lambda match: fields[match[1]], PROMPT)
        message = {"role": "user", "content": text}
        return {"model": self.model, "messages": [message], "temperature": 0, "max_tokens": self.tokens}


async def judge_results(
    folder: EvaluationFolder, results: Sequence[QuestionResult], judge: Judge, on_verdict: Callable[[], None]
) -> list[QuestionResult]:
    """Add a `judge` value of 1 or 0 to each result; saved verdicts are not requested again.

    A question without an answer is wrong without a request. A question whose verdict failed has no `judge` value.
    """
    verdicts = read_verdicts(folder.path, judge.identity)
    missing = [place for place, result in enumerate(results) if place not in verdicts and result.answer]
    async with httpx.AsyncClient(timeout=httpx.Timeout(None), headers=authorization_header(judge.key)) as client:
        with folder.appending(VERDICTS) as append:
            requests, slots = _JudgeClient(client, judge), asyncio.Semaphore(judge.concurrent)

            async def judge_one(place: int) -> None:
                async with slots:
                    verdict = await requests.verdict(results[place])
                if verdict is not None:
                    verdicts[place] = verdict
                    append({"group": place, **judge.identity, "verdict": verdict})
                on_verdict()

            try:
                # Send one request first: it is enough to detect a server that rejects every request.
                for places in (missing[:1], missing[1:]):
                    async with asyncio.TaskGroup() as group:
                        for place in places:
                            group.create_task(judge_one(place))
            except ExceptionGroup as failures:  # the first failure cancelled the other requests
                raise failures.exceptions[0] from None
    folder.write(JUDGE, json.dumps(judge.identity) + "\n")
    return _with_verdicts(results, verdicts)


def with_saved_verdicts(folder: EvaluationFolder, results: Sequence[QuestionResult]) -> list[QuestionResult]:
    about = folder.read(JUDGE)
    if about is None:
        return list(results)
    if not isinstance(about.get("url"), str) or not isinstance(about.get("model"), str):
        raise InputError(f"{folder.path / JUDGE} has no url and model; restore it, or remove it")
    identity = Judge(about["url"], about["model"]).identity
    identity["prompt"] = about.get("prompt", identity["prompt"])
    return _with_verdicts(results, read_verdicts(folder.path, identity))


def count_unjudged(results: Sequence[QuestionResult]) -> int:
    return sum(result.values is not None and "judge" not in result.values for result in results)


def parse_verdict(reply: str) -> float | None:
    """Return 1 for yes, 0 for no, None for unfinished reasoning or a reply with neither word or both."""
    reply = reply.rpartition(THINK_CLOSE)[2].strip().lower()
    if THINK_OPEN in reply or len(set(_WORD.findall(reply))) != 1:
        return None
    found = _BEGINS.match(reply) or _ENDS.match(reply)
    return None if found is None else float(found[1] == "yes")


def read_verdicts(folder: Path, identity: Mapping[str, str]) -> dict[int, float]:
    file = folder / VERDICTS
    found: dict[int, float] = {}
    for number, row in enumerate(read_rows(file) if file.exists() else (), start=1):
        place, verdict = row.get("group"), row.get("verdict")
        if type(place) is not int or verdict not in (0.0, 1.0):
            raise InputError(f"{file}, line {number} has no verdict of 1 or 0; remove the line, or the file")
        row = redact_tree(row)  # earlier versions wrote addresses with credentials
        if all(row.get(name) == value for name, value in identity.items()):
            found[place] = float(verdict)
    return found


@dataclass(slots=True)
class _JudgeClient:
    """Requests verdicts; gives up on a server that rejects the first request, or many in a row."""

    client: httpx.AsyncClient
    judge: Judge
    answered: bool = False
    refusals: int = 0

    async def verdict(self, result: QuestionResult) -> float | None:
        """Request a verdict: 1, 0, or None if no attempt within the deadline returned a clear verdict."""
        found = await RetryPolicy(self.judge.deadline).run(partial(self._attempt, result))
        if not isinstance(found, RequestFailure):
            self.answered, self.refusals = True, 0
            return parse_verdict(found)
        self.refusals += 1
        if not self.answered or self.refusals >= MAX_REFUSALS:
            raise InputError(
                f"the judge at {self.judge.base}/chat/completions gave no verdict: {found.cause}; check --judge, "
                f"--judge-model {self.judge.model} and the key in {self.judge.key_env}, then repeat the command, which "
                "keeps answers and verdicts"
            )
        return None

    async def _attempt(self, result: QuestionResult, _: RequestFailure | None) -> str | RequestFailure:
        secrets = Secrets({} if self.judge.key is None else {"key": self.judge.key})
        response = self.client.post(f"{self.judge.base}/chat/completions", json=self.judge.request(result))
        return await receive(response, self.judge.timeout, _reply_text, secrets)


def _with_verdicts(results: Sequence[QuestionResult], verdicts: Mapping[int, float]) -> list[QuestionResult]:
    """Set the `judge` value of each result; without any verdict, remove it from all results."""
    no_verdicts = not verdicts and any(result.answer for result in results)
    judged = []
    for place, result in enumerate(results):
        if result.values is not None:
            values = {name: value for name, value in result.values.items() if name != "judge"}
            verdict = None if no_verdicts else verdicts.get(place) if result.answer else 0.0
            result = replace(result, values=values if verdict is None else {**values, "judge": verdict})
        judged.append(result)
    return judged


def _reply_text(body: bytes) -> str:
    try:
        text = json.loads(body)["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError):
        return ""
    return text if isinstance(text, str) else ""
