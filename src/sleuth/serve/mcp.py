"""An MCP server over an index: the tools `search` and `fetch`, with results as text and as structured content."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sleuth import __version__
from sleuth.errors import MissingExtra, SearchUnavailable, UserError
from sleuth.http.middleware import RequestCheck
from sleuth.page.document import visible
from sleuth.records import Hit, Passage
from sleuth.serve.library import Library

try:
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.server.transport_security import TransportSecuritySettings
    from mcp.types import CallToolResult, TextContent, ToolAnnotations
except ImportError as error:
    raise MissingExtra("mcp", "mcp") from error

PATH = "/mcp"
MAX_QUERIES, MAX_CHARACTERS, MAX_HITS = 32, 10_000, 100  # queries per call, characters and passages per query
WINDOW = 20_000  # characters of a document per call
MAX_SHOWN = 200  # characters of an id in an error
INSTRUCTIONS = (
    "Search a collection of documents with `search`, in short queries of the words that the text you need would use; "
    "read a document in full with `fetch` and the id of a result. Ask several queries at once where they do not "
    "depend on each other."
)
READ_ONLY = ToolAnnotations(read_only_hint=True, idempotent_hint=True)

Queries = Annotated[str | list[str], Field(description=f"search terms: one query, or up to {MAX_QUERIES} at once")]


class Result(BaseModel):
    """A passage found for a query."""

    query: str
    id: str
    title: str
    text: str
    score: float
    url: str | None = None


class Results(BaseModel):
    """The passages for all queries, in query order and best first, and the reason for each failed query."""

    results: list[Result]
    unanswered: dict[str, str] = Field(default_factory=dict)


class Document(BaseModel):
    """A part of a document: `text` starts at character `start` of `characters`."""

    id: str
    title: str
    text: str
    start: int
    characters: int
    url: str | None = None
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LibraryTools:
    """The tools `search` and `fetch` of a library; `k` is the default number of passages per query."""

    library: Library
    k: int

    async def search(
        self,
        query: Queries,
        k: Annotated[int | None, Field(ge=1, le=MAX_HITS, description="maximum passages per query")] = None,
    ) -> Annotated[CallToolResult, Results]:
        """Search the documents; returns passages with title, text, score and id, best first."""
        queries = _validate([query] if isinstance(query, str) else query)
        answers = dict(zip(queries, await self.library.search(queries, k or self.k), strict=True))
        failed = {
            text: visible(answer.cause) for text, answer in answers.items() if isinstance(answer, SearchUnavailable)
        }
        if len(failed) == len(answers):
            raise ToolError(f"the search failed: {next(iter(failed.values()))}")
        found = {text: answer for text, answer in answers.items() if not isinstance(answer, SearchUnavailable)}
        results = [_result(text, hit) for text, hits in found.items() for hit in hits]
        listings = [_listing(text, hits) for text, hits in found.items()]
        listings += [f"The search for {text!r} failed: {cause}" for text, cause in failed.items()]
        return _answer("\n\n".join(listings), Results(results=results, unanswered=failed))

    async def fetch(
        self,
        id: Annotated[str, Field(coerce_numbers_to_str=True, description="the id of a result, or the url of a page")],  # noqa: A002
        start: Annotated[int, Field(ge=0, description="first character, for long documents")] = 0,
    ) -> Annotated[CallToolResult, Document]:
        """Read a document in full, by the id of a search result."""
        name = id.strip()
        if not name:
            raise ToolError("the id is empty; pass the id of a search result")
        try:
            opened = await self.library.open(name)
        except UserError as error:
            raise ToolError(visible(str(error))) from error
        if isinstance(opened, SearchUnavailable):
            raise ToolError(f"{name[:MAX_SHOWN]!r} cannot be opened: {visible(opened.cause)}")
        if opened is None:
            raise ToolError(f"there is no document {name[:MAX_SHOWN]!r}; pass the exact id of a search result")
        part = opened.text[start : start + WINDOW]
        if start and not part:
            raise ToolError(f"start is {start:,}, but the document has {len(opened.text):,} characters")
        title, text, characters = visible(opened.title), visible(part), len(opened.text)
        extra = {name: visible(value) if isinstance(value, str) else value for name, value in opened.extra.items()}
        document = Document(
            id=opened.id, title=title, text=text, start=start, characters=characters, url=_url(opened), metadata=extra
        )
        end = start + len(text)
        rest = f"\n\n(characters {start:,} to {end:,} of {characters:,}; continue with start={end})"
        return _answer(f"{title} (id: {opened.id})\n\n{text}{rest if end < characters else ''}", document)


def server(library: Library, name: str, k: int) -> MCPServer[Any]:
    """Build the MCP server of a library; `name` describes the collection to clients."""
    built: MCPServer[Any] = MCPServer(
        "sleuth",
        title=f"Sleuth: {name}",
        instructions=INSTRUCTIONS,
        version=__version__,
        log_level="WARNING",
        subscriptions=False,  # nothing changes, and an open stream would keep the server from stopping
    )
    tools = LibraryTools(library, k)
    built.add_tool(tools.search, title="Search", annotations=READ_ONLY)
    built.add_tool(tools.fetch, title="Fetch", annotations=READ_ONLY)
    return built


def application(library: Library, name: str, k: int, names: Sequence[str]) -> ASGIApp:
    """Serve a library over streamable HTTP at /mcp; the Host header must be an IP address or one of `names`.

    Web pages served under one of these names may call the server too, as MCP inspectors do.
    """
    built = server(library, name, k)

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    built.custom_route("/healthz", methods=["GET"])(health)
    security = TransportSecuritySettings(enable_dns_rebinding_protection=False)  # RequestCheck does this
    app: Starlette = built.streamable_http_app(
        streamable_http_path=PATH, json_response=True, stateless_http=True, transport_security=security
    )

    async def post_only(scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse GET streams, as the protocol allows: the server sends nothing on its own."""
        target: ASGIApp = app
        if scope["type"] == "http" and scope["path"] == PATH and scope["method"] != "POST":
            target = JSONResponse({"detail": "send a POST"}, status_code=405, headers={"Allow": "POST"})
        await target(scope, receive, send)

    return RequestCheck(post_only, names, origins=names)


def _validate(queries: Sequence[str]) -> list[str]:
    """Return the queries without duplicates; raises ToolError if they are too many, empty or too long."""
    if not 0 < len(queries) <= MAX_QUERIES:
        raise ToolError(f"there are {len(queries):,} queries; pass 1 to {MAX_QUERIES}")
    for query in queries:
        if not query.strip():
            raise ToolError("a query is empty; write search terms")
        if len(query) > MAX_CHARACTERS:
            raise ToolError(f"a query has {len(query):,} characters; the maximum is {MAX_CHARACTERS:,}, shorten it")
    return list(dict.fromkeys(queries))


def _result(query: str, hit: Hit) -> Result:
    passage = hit.passage
    title, text = visible(passage.title), visible(passage.text)
    return Result(query=query, id=passage.id, title=title, text=text, score=hit.score, url=_url(passage))


def _url(passage: Passage) -> str | None:
    url = passage.extra.get("url")
    return url if isinstance(url, str) else None


def _listing(query: str, hits: Sequence[Hit]) -> str:
    if not hits:
        return f"Nothing was found for {query!r}."
    entries = (
        f"[{rank}] {hit.passage.title} (id: {hit.passage.id}, score: {hit.score:.4g})\n{hit.passage.text}".rstrip()
        for rank, hit in enumerate(hits, 1)
    )
    return "\n\n".join([f"Found for {query!r}:", *entries])


def _answer(text: str, content: BaseModel) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=visible(text))], structured_content=content.model_dump(mode="json"))
