"""Review of question files in a browser: each question beside its evidence; decisions are rows of a file beside it."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field

from sleuth import __version__
from sleuth.corpus.questions import EVIDENCE, QuestionRow, read_rows, write_rows
from sleuth.errors import InputError
from sleuth.http.middleware import RequestCheck
from sleuth.http.requests import parse_body, read_body
from sleuth.http.responses import HttpProblem, add_problem_handlers
from sleuth.page.document import THEME
from sleuth.records import Passage
from sleuth.runs import lock
from sleuth.runs.json_files import append_row
from sleuth.runs.json_files import read_rows as read_json_rows
from sleuth.view.jsonl import Tree
from sleuth.view.server import SecurityHeaders, invalid_parameters, json_response, static_file

MAX_BODY = 1 << 20
BODY_SECONDS = 30.0
EXPECTED = '{"id": "q1", "action": "keep", "question": "...", "golden_answers": ["..."]}'

FindPassage = Callable[[str], Passage | None]


class Decision(BaseModel):
    """What becomes of a question; an edit has the new question and answers, `undo` takes a decision back."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    action: Literal["keep", "drop", "edit", "undo"]
    question: str | None = None
    golden_answers: Annotated[list[str] | None, Field(max_length=100)] = None

    def require_whole(self) -> None:
        """Raise a 422 problem for an edit without a question or an answer."""
        edited = self.action == "edit"
        if edited and not ((self.question or "").strip() and any(each.strip() for each in self.golden_answers or ())):
            raise HttpProblem(422, f"an edit needs a question and an answer; expected {EXPECTED}")


def decisions_path(file: Path) -> Path:
    """Return the file of decisions beside a question file: NAME.review.jsonl."""
    return file.with_name(f"{file.name.removesuffix('.gz').removesuffix('.jsonl')}.review.jsonl")


def read_decisions(path: Path) -> dict[str, Decision]:
    """Read the last decision about each question; an empty result if there is no file."""
    found: dict[str, Decision] = {}
    for number, row in enumerate(read_json_rows(path) if path.exists() else (), start=1):
        try:
            decision = Decision.model_validate(row)
        except ValueError as error:
            raise InputError(f"{path}, line {number} is not a decision; expected {EXPECTED}") from error
        found.pop(decision.id, None)
        if decision.action != "undo":
            found[decision.id] = decision
    return found


def apply_decisions(file: Path, out: Path) -> Counter[str]:
    """Write the questions that were not dropped, with their edits, to `out`; return the count of each action."""
    decisions = read_decisions(decisions_path(file))
    counts: Counter[str] = Counter()

    def kept() -> Iterator[QuestionRow]:
        for row in read_rows(file):
            decision = decisions.get(row.question.id)
            counts["undecided" if decision is None else decision.action] += 1
            if decision is None or decision.action != "drop":
                yield row if decision is None else edited(row, decision)

    write_rows(out, kept())
    return counts


def edited(row: QuestionRow, decision: Decision) -> QuestionRow:
    """Return the row with the question and answers of an edit."""
    if decision.action != "edit" or decision.question is None or decision.golden_answers is None:
        return row
    answers = tuple(each.strip() for each in decision.golden_answers if each.strip())
    question = replace(row.question, question=decision.question.strip(), golden_answers=answers)
    return QuestionRow(question, row.extra)


@dataclass(slots=True)
class Review:
    """The questions of a file with the decisions about them, which are on disk before `decide` returns."""

    file: Path
    rows: dict[str, QuestionRow]
    decisions: dict[str, Decision]
    find: FindPassage | None = None
    _writing: Lock = field(default_factory=Lock)

    @classmethod
    @contextmanager
    def open(cls, file: Path, find: FindPassage | None = None) -> Iterator["Review"]:
        """Open a question file for one reviewer; raise InputError if it is open elsewhere or has no questions."""
        rows = {row.question.id: row for row in read_rows(file)}
        if not rows:
            raise InputError(f"{file} has no questions; give a question file")
        path = decisions_path(file)
        with path.open("ab") as held:
            lock.acquire(held, f"{file} is already open in another sleuth data review; use that one")
            yield cls(file, rows, read_decisions(path), find)

    def listing(self) -> Tree:
        """Return the file and one line per question."""
        lines: list[dict[str, str | None]] = []
        for name, row in self.rows.items():
            decision = self.decisions.get(name)
            question = (row if decision is None else edited(row, decision)).question.question
            lines.append({"id": name, "question": question, "action": decision.action if decision else None})
        return {"file": str(self.file), "decisions": str(decisions_path(self.file)), "questions": lines}

    def detail(self, name: str) -> Tree:
        """Return a question with its evidence: quotes, and the whole passages if the corpus is known."""
        row = self.rows.get(name)
        if row is None:
            raise HttpProblem(404, f"there is no question {name[:200]!r}")
        decision = self.decisions.get(name)
        question = (edited(row, decision) if decision else row).question
        return {
            "id": name,
            "question": question.question,
            "golden_answers": list(question.golden_answers),
            "type": question.type,
            "answerable": question.answerable,
            "action": decision.action if decision else None,
            "evidence": [self._evidence(passage, quotes) for passage, quotes in _quotes(row).items()],
        }

    def decide(self, decision: Decision) -> Tree:
        """Record a decision and return the question."""
        if decision.id not in self.rows:
            raise HttpProblem(404, f"there is no question {decision.id[:200]!r}")
        decision.require_whole()
        with self._writing:
            append_row(decisions_path(self.file), decision.model_dump(exclude_none=True))
            self.decisions.pop(decision.id, None)
            if decision.action != "undo":
                self.decisions[decision.id] = decision
        return self.detail(decision.id)

    def _evidence(self, name: str, quotes: list[str]) -> dict[str, Any]:
        passage = self.find(name) if self.find is not None else None
        return {"id": name, "quotes": quotes, "contents": None if passage is None else passage.contents}


def _quotes(row: QuestionRow) -> Mapping[str, list[str]]:
    """Return the quotes by passage, with the passages that have none."""
    found: dict[str, list[str]] = {name: [] for name in row.question.supporting_ids}
    written = row.extra.get(EVIDENCE)
    for each in written if isinstance(written, list) else ():
        match each:
            case {"id": str(name), "quote": str(quote)}:
                found.setdefault(name, []).append(quote)
    return found


class QuestionQuery(BaseModel):
    """Parameters of a request for one question."""

    model_config = ConfigDict(extra="forbid")

    id: str


def application(review: Review, names: Collection[str] = ()) -> FastAPI:
    """Build the review server; `names` are the accepted host names besides localhost and IP addresses."""
    app = FastAPI(title="Sleuth review", version=__version__, openapi_url=None, redirect_slashes=False)

    @app.get("/")
    def page(request: Request) -> Response:
        return static_file(request, "review.html")

    @app.get("/theme.css")
    def theme() -> Response:
        return Response(THEME.encode(), headers={"Cache-Control": "no-cache"}, media_type="text/css")

    @app.get("/static/{name:path}")
    def file(request: Request, name: str) -> Response:
        return static_file(request, name)

    @app.get("/api/questions")
    def questions() -> Response:
        return json_response(review.listing())

    @app.get("/api/question")
    def question(query: Annotated[QuestionQuery, Query()]) -> Response:
        return json_response(review.detail(query.id))

    @app.post("/api/decision")
    async def decide(request: Request) -> Response:
        body = await read_body(
            request.scope, request.receive, max_bytes=MAX_BODY, seconds=BODY_SECONDS, remedy="shorten the question"
        )
        return json_response(review.decide(parse_body(body, Decision, EXPECTED)))

    add_problem_handlers(app)
    app.exception_handler(RequestValidationError)(invalid_parameters)
    app.add_middleware(RequestCheck, names=names)
    app.add_middleware(SecurityHeaders)
    return app
