"""The files of the page: those of this package and plotly's script, by a list that no request can add to."""

from importlib.util import find_spec
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from sleuth.errors import InputError
from sleuth.http.responses import HttpProblem

STATIC = Path(__file__).with_name("static")
PLOTLY = Path("package_data", "plotly.min.js")
KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}


def static(request: Request, name: str) -> Response:
    """A file of the page by its name below `static`."""
    known = {path.relative_to(STATIC).as_posix(): path for path in STATIC.rglob("*") if path.suffix in KINDS}
    if name not in known:
        raise HttpProblem(404, f"there is no file {name[:200]!r} among those of the page")
    return sent(request, known[name])


def plotly_script() -> Path:
    """Plotly's script in its installed package, found without loading the package."""
    found = find_spec("plotly")
    script = Path(found.origin).parent / PLOTLY if found is not None and found.origin is not None else None
    if script is None or not script.is_file():
        raise InputError("the viewer draws with plotly, which is not installed; install it with: pip install plotly")
    return script


def sent(request: Request, path: Path) -> Response:
    """A file, or that the browser has it already."""
    stat = path.stat()
    tag = f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(path.read_bytes(), headers=headers, media_type=KINDS[path.suffix])
