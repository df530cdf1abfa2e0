"""The page at /: ask, watch it think and search, open the sources, see what it cost; nothing comes from elsewhere."""

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from sleuth.page.document import THEME

_HERE = files("sleuth.serve.agent") / "static"
# The browser itself enforces what the page promises: only its own files, and no other server hears of a question.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
FILES = {
    "/": ("index.html", "text/html"),
    "/playground/playground.css": ("playground.css", "text/css"),
    "/playground/main.js": ("main.js", "text/javascript"),
    "/playground/client.js": ("client.js", "text/javascript"),
    "/playground/transcript.js": ("transcript.js", "text/javascript"),
    "/playground/element.js": ("element.js", "text/javascript"),
}
STYLE = "/playground/theme.css"
PATHS = frozenset({*FILES, STYLE})


async def answer(request: Request) -> Response:
    """One of the files of the page."""
    path = request.url.path
    if path == STYLE:
        return Response(THEME, headers=HEADERS, media_type="text/css")
    name, kind = FILES[path]
    return Response((_HERE / name).read_bytes(), headers=HEADERS, media_type=kind)
