"""HTTP server of the viewer: the page, its static files and the API. It only reads."""

from collections.abc import Callable, Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, TypeVar

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sleuth import __version__
from sleuth.errors import InputError
from sleuth.http.middleware import RequestCheck
from sleuth.http.responses import HttpProblem, add_problem_handlers, encode_json, problem_response
from sleuth.page.document import THEME
from sleuth.view import api as parameters
from sleuth.view.api import Api
from sleuth.view.jsonl import Tree

STATIC = Path(__file__).with_name("static")
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
# Plotly sets inline styles; with images and requests limited to this server, a style cannot leak data.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

Parsed = TypeVar("Parsed", bound=parameters.Parameters)


class SecurityHeaders:
    """Middleware that adds SECURITY_HEADERS to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)


def application(api: Api, names: Collection[str] = ()) -> FastAPI:
    """Build the server; `names` are host names it answers to besides localhost and IP addresses."""
    app = FastAPI(
        title="Sleuth viewer",
        version=__version__,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    _add_pages(app)

    @app.get("/healthz")
    def health() -> Response:
        return _json({"status": "ok", "version": __version__})

    @app.get("/api/library")
    def library() -> Response:
        return _json(api.library.overview())

    _add_path(app, "/api/run", parameters.RunParameters, api.run)
    _add_path(app, "/api/metrics", parameters.MetricsParameters, api.metrics)
    _add_path(app, "/api/trajectories", parameters.TrajectoriesParameters, api.trajectories)
    _add_path(app, "/api/trajectory", parameters.TrajectoryParameters, api.trajectory)
    _add_path(app, "/api/group", parameters.GroupParameters, api.group)
    _add_path(app, "/api/question", parameters.QuestionParameters, api.question)
    _add_path(app, "/api/questions", parameters.QuestionsParameters, api.questions)
    _add_path(app, "/api/evaluation", parameters.EvaluationParameters, api.evaluation)
    _add_path(app, "/api/compare", parameters.ComparisonParameters, api.compare)
    add_problem_handlers(app)
    app.exception_handler(RequestValidationError)(_invalid_parameters)
    app.exception_handler(OSError)(_unreadable_file)
    app.add_middleware(RequestCheck, names=names)
    app.add_middleware(SecurityHeaders)
    return app


def _add_pages(app: FastAPI) -> None:
    script = _plotly_script()

    @app.get("/")
    def page(request: Request) -> Response:
        return _static_file(request, "index.html")

    @app.get("/plotly.min.js")
    def plotly(request: Request) -> Response:
        return _file_response(request, script)

    @app.get("/theme.css")
    def theme() -> Response:
        return Response(THEME.encode(), headers={"Cache-Control": "no-cache"}, media_type="text/css")

    @app.get("/static/{name:path}")
    def file(request: Request, name: str) -> Response:
        return _static_file(request, name)


def _add_path(app: FastAPI, path: str, kind: type[Parsed], respond: Callable[[Parsed], Tree]) -> None:
    """Serve a path; being synchronous, the function runs in a thread and does not block other requests."""

    def endpoint(query: Parsed) -> Response:
        return _json(respond(query))

    # FastAPI reads the parameters from the annotation.
    endpoint.__annotations__["query"] = Annotated[kind, Query()]
    app.get(path)(endpoint)


def _json(content: Tree) -> Response:
    return Response(encode_json(content), headers={"Cache-Control": "no-store"}, media_type="application/json")


def _static_file(request: Request, name: str) -> Response:
    """A file below `static`, looked up by name and never by path."""
    known = {path.relative_to(STATIC).as_posix(): path for path in STATIC.rglob("*") if path.suffix in MEDIA_TYPES}
    if name not in known:
        raise HttpProblem(404, f"there is no static file {name[:200]!r}")
    return _file_response(request, known[name])


def _plotly_script() -> Path:
    """Script of the installed plotly package, without importing it."""
    found = find_spec("plotly")
    script = Path(found.origin).parent / "package_data/plotly.min.js" if found and found.origin else None
    if script is None or not script.is_file():
        raise InputError("the viewer needs plotly, which is not installed; install it with: pip install plotly")
    return script


def _file_response(request: Request, path: Path) -> Response:
    stat = path.stat()
    tag = f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(path.read_bytes(), headers=headers, media_type=MEDIA_TYPES[path.suffix])


async def _invalid_parameters(_: Request, error: RequestValidationError) -> Response:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"][1:]) or "the query"
    match first["type"]:
        case "missing":
            detail = f"the parameter {name} is missing"
        case "extra_forbidden":
            detail = f"the parameter {name[:80]!r} is unknown"
        case _:
            message = first["msg"][0].lower() + first["msg"][1:]
            detail = f"the parameter {name} is {str(first['input'])[:80]!r}: {message}"
    return problem_response(HttpProblem(400, detail))


async def _unreadable_file(_: Request, error: OSError) -> Response:
    """A file that disappeared while being read, or without permission."""
    detail = f"a file of this folder cannot be read ({error.strerror}); check that it still exists"
    return problem_response(HttpProblem(503, detail))
