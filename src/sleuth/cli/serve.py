"""sleuth serve: serve a search index over HTTP or MCP, or an agent as an OpenAI-compatible model."""

import re
import sys
import time
from contextlib import ExitStack, redirect_stdout
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from sleuth.api.progress import StageProgress
from sleuth.cli import options
from sleuth.cli.terminal import echo, silence_transformers
from sleuth.credentials import redact, token_from_env
from sleuth.errors import ConfigError, InputError

if TYPE_CHECKING:
    from sleuth.agent.loading import AgentSpec
    from sleuth.retrieval.retriever import Retriever
    from sleuth.serve.library import Library

SHUTDOWN_SECONDS = 120  # limit for running episodes to finish
ADDRESS = re.compile(r"(?:(?P<host>\[[0-9a-fA-F:.]+\]|[^:\[\]]*):)?(?P<port>\d{1,5})")

app = typer.Typer(no_args_is_help=True, help="Serve an agent or a search index.")

TokenEnv = Annotated[
    str | None, Option(metavar="NAME", help="Environment variable of the bearer token.", show_default="no token")
]

Pages = Annotated[Path | None, Option(help="Full pages to fetch: JSONL with url and contents.")]


@app.command()
def agent(
    model: Annotated[str, Argument(metavar="RUN|MODEL", help="A run or model folder, or a hub name.")],
    index: options.AgentIndex = None,
    port: options.Port = 8000,
    host: options.Host = "127.0.0.1",
    token_env: TokenEnv = None,
    allow_host: options.AllowHost = None,
    name: Annotated[str | None, Option(help="Model name for clients.", show_default="the folder's name")] = None,
    concurrent: Annotated[int | None, Option(min=1, max=options.MAX_ITEMS, help="Questions answered at once.")] = None,
    wait: Annotated[
        float, Option(min=0.0, callback=options.require_finite, help="Maximum seconds in the queue; 0 rejects at once.")
    ] = 60.0,
    max_tokens: Annotated[int | None, Option(min=1, max=options.MAX_TOKENS, help="Maximum new tokens.")] = None,
    max_prompt: Annotated[int | None, Option(min=1, max=options.MAX_TOKENS, help="Maximum prompt tokens.")] = None,
    temperature: Annotated[float, Option(min=0.0, max=2.0, help="Default temperature; 0 is greedy.")] = 0.0,
    method: options.Method = None,
    before: options.Before = False,
    settings: options.AgentSettings = None,
) -> None:
    """Serve an agent with the OpenAI API: POST /v1/chat/completions, streamed or not, and GET /v1/models.

    Open / in a browser to ask questions; /health reports the load, /metrics has Prometheus metrics. On Ctrl-C or
    SIGTERM, the server finishes running answers, then stops.
    """
    token = token_from_env(token_env)

    from sleuth.agent.loading import AgentOptions, describe_agent
    from sleuth.engines.remote import is_address
    from sleuth.http.middleware import server_names
    from sleuth.http.server import authority, bind, serve
    from sleuth.serve.agent.server import ServedModel, ServerLimits, application

    with bind(host, port) as listener:
        silence_transformers()
        if is_address(model):
            raise InputError(
                f"{model} is the address of a server, but an agent needs local weights; give a run or model"
            )
        agent_options = AgentOptions(tuple(settings or ()), index, method, before)
        # Questions come from clients; this file is never read.
        spec = describe_agent(model, agent_options, Path("asked.jsonl"))
        info = ServedModel(name or spec.name, _index_name(spec), int(time.time()))
        limits = ServerLimits(
            concurrent or spec.concurrency, max_tokens, max_prompt, temperature=temperature, wait=wait
        )
        names = server_names(host, allow_host or ())
        served = application(spec.load(lockstep=False), info, limits, token=token, names=names)
        address = f"http://{authority(host, listener.getsockname()[1])}"
        line = f"serving {info.name} at {address} ({spec.config.agent.method}, {info.index}); stop with Ctrl-C"
        serve(served, listener, lambda: echo(line), shutdown_seconds=SHUTDOWN_SECONDS, lifespan="on")


def _index_name(spec: "AgentSpec") -> str:
    """Return the name of the index, without local paths."""
    from sleuth.config.agent import UNSEARCHED

    config = spec.config
    if config.agent.method in UNSEARCHED:
        return "no index"
    if not config.retrieval.local:
        return redact(str(config.retrieval.index))
    folder = PurePath(spec.index)
    # The index of a run is always called "index": name its run.
    return f"{spec.name}/{folder.name}" if spec.index.parent == spec.recording.parent else folder.name


@app.command()
def mcp(
    index: options.SearchIndex,
    http: Annotated[str | None, Option(metavar="[HOST:]PORT", help="Serve over HTTP instead of stdio.")] = None,
    k: Annotated[int, Option(min=1, max=100, help="Default number of passages per query.")] = 5,
    pages: Pages = None,
    token_env: TokenEnv = None,
    allow_host: options.AllowHost = None,
    index_token_env: Annotated[str | None, Option(help="Variable of the bearer token of a retrieval server.")] = None,
    device: options.IndexDevice = None,
) -> None:
    """Serve search tools over the Model Context Protocol, on stdio or over HTTP.

    Claude, Cursor, VS Code and others start this command themselves; docs/mcp.md has their settings. --token-env and
    --allow-host need --http.
    """
    from sleuth.config.retrieval import RetrievalConfig, backend_of

    for option, value, useful, needed in (
        ("--token-env", token_env, http is not None, "--http"),
        ("--allow-host", allow_host, http is not None, "--http"),
        ("--index-token-env", index_token_env, backend_of(index) == "server", "the address of a server as INDEX"),
        ("--device", device, RetrievalConfig(index=index).local, "an index folder"),
    ):
        if value is not None and not useful:
            raise ConfigError(f"{option} has no effect without {needed}; remove it")
    address = None if http is None else _parse_address(http)
    token = token_from_env(token_env)

    def library() -> "Library":
        from sleuth.serve.library import open_library

        return open_library(index, pages=pages, token_env=index_token_env, device=device or "auto")

    name = Path(index).name
    if address is None:
        # Anything that is printed while loading must not be mistaken for a protocol message.
        with redirect_stdout(sys.stderr):
            from sleuth.serve.mcp import server

            opened = library()
        server(opened, name, k).run("stdio")  # until stdin closes
        return
    from sleuth.http.middleware import LOOPBACK, BearerAuth, server_names
    from sleuth.http.server import authority, bind, serve
    from sleuth.serve.mcp import PATH, application

    host, port = address
    with bind(host, port) as listener:
        served = application(library(), name, k, [*LOOPBACK, *server_names(host, allow_host or ())])
        line = f"serving {index} at http://{authority(host, listener.getsockname()[1])}{PATH}; stop with Ctrl-C"
        serve(BearerAuth(served, token) if token else served, listener, lambda: echo(line), lifespan="on")


def _parse_address(address: str) -> tuple[str, int]:
    """Parse [HOST:]PORT; without a host, the server listens on this machine only."""
    match = ADDRESS.fullmatch(address)
    if match is None or int(match["port"]) > 65535:
        raise ConfigError(f"--http is {address!r}; expected a port or HOST:PORT, such as 8080 or 0.0.0.0:8080")
    return (match["host"] or "127.0.0.1").strip("[]"), int(match["port"])


@app.command()
def retriever(
    index: Annotated[Path, Argument(help="An index folder, built by sleuth index build.")],
    port: options.Port = 8000,
    host: options.Host = "127.0.0.1",
    k: Annotated[int, Option(min=1, max=1000, help="Default number of hits per query.")] = 3,
    rerank: Annotated[str | None, Option(metavar="MODEL", help="Cross-encoder that reranks the hits.")] = None,
    device: Annotated[str, Option(help="Device of the vectors: auto, cpu, cuda, cuda:1.")] = "auto",
    cache: Annotated[int, Option(min=0, max=options.MAX_INT, help="Number of cached searches.")] = 0,
    pages: Pages = None,
    token_env: TokenEnv = None,
    allow_host: options.AllowHost = None,
    address_dir: Annotated[Path | None, Option(help="Folder for ip:port, for ASearcher's clients.")] = None,
    ray: Annotated[
        str | None, Option(metavar="ADDRESS", help="Search on a Ray cluster: local, auto, or HOST:PORT.")
    ] = None,
    replicas: Annotated[
        int | None,
        Option(min=1, max=options.MAX_PROCESSES, help="With --ray: copies of the index, or of each shard. Default: 1."),
    ] = None,
    shards: Annotated[
        int | None,
        Option(min=1, max=options.MAX_PROCESSES, help="With --ray: parts of a dense index. Default: 1."),
    ] = None,
) -> None:
    """Serve an index over HTTP to Sleuth, and to clients of Search-R1, verl, slime, RLinf, Agent Lightning, ASearcher.

    POST /retrieve {"queries": ["..."], "topk": 3, "return_scores": true} returns passages, POST /access pages;
    /docs documents both, /readyz describes the index, /metrics has Prometheus metrics. On Ctrl-C or SIGTERM, the
    server finishes accepted requests, then stops. With --ray, this process answers HTTP requests, and replicas on the
    cluster search; results are the same.
    """
    for option, value in (("--replicas", replicas), ("--shards", shards)):
        if value is not None and ray is None:
            raise ConfigError(f"{option} has no effect without --ray; remove it, or add --ray local, auto or HOST:PORT")
    token = token_from_env(token_env)

    from sleuth.corpus.pages import PageStore
    from sleuth.http.middleware import server_names
    from sleuth.http.server import authority, bind, serve
    from sleuth.retrieval.index import load
    from sleuth.retrieval.manifest import read
    from sleuth.retrieval.service.server import Facts, advertise, application

    with ExitStack() as stack:
        listener = stack.enter_context(bind(host, port))
        manifest = read(index)
        facts = Facts(str(index), manifest.kind, manifest.passages)
        loaded: Retriever
        status = None
        if ray is None:
            loaded = load(index, device=device, rerank=rerank)
        else:
            from sleuth.cluster.serving import replicated_index

            port = listener.getsockname()[1]
            sizes = {"replicas": replicas or 1, "shards": shards or 1}
            sharded = stack.enter_context(replicated_index(index, ray, port, device=device, rerank=rerank, **sizes))
            loaded, status = sharded, sharded.shard_status
        names = server_names(host, allow_host or ())
        store = None
        if pages is not None:
            with StageProgress() as progress:
                store = PageStore(pages, progress)
        served = application(
            loaded,
            facts,
            k=k,
            pages=store,
            token=token,
            cache=cache,
            names=names,
            concurrent=replicas or 1,
            shard_status=status,
        )

        def ready() -> None:
            chosen = listener.getsockname()[1]
            if address_dir:
                stack.enter_context(advertise(address_dir, host, chosen))
            address = f"http://{authority(host, chosen)}"
            cluster = f", {shards or 1} shards x {replicas or 1} replicas on Ray" if ray else ""
            echo(f"serving {index} at {address} ({facts.kind}, {facts.passages:,} passages{cluster}); stop with Ctrl-C")

        serve(served, listener, ready)
