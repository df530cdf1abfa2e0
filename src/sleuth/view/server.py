"""The viewer over HTTP: its page, and what the page asks for; it reads and never writes what it shows."""

from collections.abc import Callable, Collection
from typing import Annotated, TypeVar

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError

from sleuth import __version__
from sleuth.http.middleware import RequestCheck
from sleuth.http.responses import HttpProblem, add_problem_handlers, encode_json, problem_response
from sleuth.page.document import THEME
from sleuth.view import asked
from sleuth.view.desk import Desk
from sleuth.view.door import Door
from sleuth.view.files import plotly_script, sent, static
from sleuth.view.library import Tree

Wanted = TypeVar("Wanted", bound=asked.Asked)


def application(desk: Desk, names: Collection[str] = ()) -> FastAPI:
    """The server of a desk; `names` are those it may be called by besides localhost and addresses."""
    app = FastAPI(
        title="Sleuth viewer",
        version=__version__,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a path is one that is there, or none
    )
    script = plotly_script()

    @app.get("/")
    def page(request: Request) -> Response:
        return static(request, "index.html")

    @app.get("/plotly.min.js")
    def plotly(request: Request) -> Response:
        return sent(request, script)

    @app.get("/theme.css")
    def theme() -> Response:
        return Response(THEME.encode(), headers={"Cache-Control": "no-cache"}, media_type="text/css")

    @app.get("/static/{name:path}")
    def file(request: Request, name: str) -> Response:
        return static(request, name)

    @app.get("/healthz")
    def alive() -> Response:
        return _answer({"status": "ok", "version": __version__})

    @app.get("/api/library")
    def library() -> Response:
        return _answer(desk.library.overview())

    _serve(app, "/api/run", asked.OfRun, desk.run)
    _serve(app, "/api/metrics", asked.OfMetrics, desk.metrics)
    _serve(app, "/api/trajectories", asked.OfTrajectories, desk.trajectories)
    _serve(app, "/api/trajectory", asked.OfTrajectory, desk.trajectory)
    _serve(app, "/api/group", asked.OfGroup, desk.group)
    _serve(app, "/api/question", asked.OfQuestion, desk.question)
    _serve(app, "/api/questions", asked.OfQuestions, desk.questions)
    _serve(app, "/api/evaluation", asked.OfEvaluation, desk.evaluation)
    _serve(app, "/api/compare", asked.OfComparison, desk.compare)
    add_problem_handlers(app)
    app.exception_handler(RequestValidationError)(_misunderstood)
    app.exception_handler(OSError)(_unreadable)
    app.add_middleware(RequestCheck, names=names)
    app.add_middleware(Door)
    return app


def _serve(app: FastAPI, path: str, kind: type[Wanted], answer: Callable[[Wanted], Tree]) -> None:
    """Puts an answer at a path; it is made in a thread of its own, so that a long one does not hold up the others."""

    def answered(wanted: Wanted) -> Response:
        return _answer(answer(wanted))

    # What the framework reads parameters from is known only here.
    answered.__annotations__["wanted"] = Annotated[kind, Query()]
    app.get(path)(answered)


def _answer(found: Tree) -> Response:
    return Response(encode_json(found), headers={"Cache-Control": "no-store"}, media_type="application/json")


async def _misunderstood(_: Request, error: RequestValidationError) -> Response:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"][1:]) or "the query"
    match first["type"]:
        case "missing":
            return problem_response(HttpProblem(400, f"the parameter {name} is missing"))
        case "extra_forbidden":
            return problem_response(HttpProblem(400, f"there is no parameter {name[:80]!r} here"))
        case _:
            message = first["msg"][0].lower() + first["msg"][1:]
            return problem_response(
                HttpProblem(400, f"the parameter {name} is {str(first['input'])[:80]!r}: {message}")
            )


async def _unreadable(_: Request, error: OSError) -> Response:
    """A file that went away while it was read, or that this user may not read."""
    return problem_response(
        HttpProblem(503, f"a file of this folder cannot be read ({error.strerror}); look whether it is still there")
    )
