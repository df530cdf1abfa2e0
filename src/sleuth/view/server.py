"""Read-only HTTP server of the viewer: the page, its static files and the API."""

from collections.abc import Callable, Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sleuth import __version__
from sleuth.errors import InputError
from sleuth.http.middleware import RequestCheck
from sleuth.http.responses import HttpProblem, add_problem_handlers, encode_json, problem_response
from sleuth.page.document import THEME
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


class SecurityHeaders:
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
    """Build the server; `names` are the accepted host names besides localhost and IP addresses."""
    app = FastAPI(title="Sleuth viewer", version=__version__, openapi_url=None, redirect_slashes=False)
    _add_pages(app)

    @app.get("/healthz")
    def health() -> Response:
        return json_response({"status": "ok", "version": __version__})

    @app.get("/api/library")
    def library() -> Response:
        return json_response(api.library.overview())

    methods: list[Callable[[Any], Tree]] = [api.run, api.metrics, api.workers, api.evaluation, api.compare]
    methods += [api.group, api.trajectories, api.trajectory, api.question, api.questions]
    for method in methods:
        _add_path(app, method)
    add_problem_handlers(app)
    app.exception_handler(RequestValidationError)(invalid_parameters)

    @app.exception_handler(OSError)
    async def unreadable_file(_: Request, error: OSError) -> Response:
        detail = f"a file of this folder cannot be read ({error.strerror}); check that it still exists"
        return problem_response(HttpProblem(503, detail))

    app.add_middleware(RequestCheck, names=names)
    app.add_middleware(SecurityHeaders)
    return app


def _add_pages(app: FastAPI) -> None:
    plotly_package = find_spec("plotly")  # not imported: only its script is needed
    folder = Path(plotly_package.origin).parent if plotly_package and plotly_package.origin else None
    if folder is None or not (script := folder / "package_data/plotly.min.js").is_file():
        raise InputError("the viewer needs plotly, which is not installed; install it with: pip install plotly")

    @app.get("/")
    def page(request: Request) -> Response:
        return static_file(request, "index.html")

    @app.get("/plotly.min.js")
    def plotly(request: Request) -> Response:
        return file_response(request, script)

    @app.get("/theme.css")
    def theme() -> Response:
        return Response(THEME.encode(), headers={"Cache-Control": "no-cache"}, media_type="text/css")

    @app.get("/static/{name:path}")
    def file(request: Request, name: str) -> Response:
        return static_file(request, name)


def _add_path(app: FastAPI, method: Callable[[Any], Tree]) -> None:
    """Serve an API method; a synchronous method runs in a thread and does not block other requests."""

    def endpoint(query: Any) -> Response:
        return json_response(method(query))

    # FastAPI reads the parameters from the annotation.
    kind = method.__annotations__["query"]
    endpoint.__annotations__["query"] = Annotated[kind, Query()]
    app.get(f"/api/{method.__name__}")(endpoint)


def json_response(content: Tree) -> Response:
    """Return JSON that browsers do not cache."""
    return Response(encode_json(content), headers={"Cache-Control": "no-store"}, media_type="application/json")


def static_file(request: Request, name: str) -> Response:
    """Return a file below `static`, looked up among the known names and never by path."""
    known = {path.relative_to(STATIC).as_posix(): path for path in STATIC.rglob("*") if path.suffix in MEDIA_TYPES}
    if name not in known:
        raise HttpProblem(404, f"there is no static file {name[:200]!r}")
    return file_response(request, known[name])


def file_response(request: Request, path: Path) -> Response:
    """Return a file, or 304 if the browser has it."""
    stat = path.stat()
    tag = f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(path.read_bytes(), headers=headers, media_type=MEDIA_TYPES[path.suffix])


async def invalid_parameters(_: Request, error: RequestValidationError) -> Response:
    """Respond with 400 and the first invalid parameter."""
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
