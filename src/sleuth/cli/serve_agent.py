"""sleuth serve agent: a trained agent for other programs, and a page to try it."""

import time
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated

import typer

from sleuth.cli.options import MAX_ITEMS, MAX_TOKENS, require_finite
from sleuth.cli.terminal import echo
from sleuth.credentials import redact, token_from_env
from sleuth.errors import InputError

if TYPE_CHECKING:
    from sleuth.agent.loading import AgentSpec

GRACE = 120  # seconds that episodes under way are given to end


def agent(
    model: Annotated[
        str, typer.Argument(metavar="RUN|MODEL", help="the folder of a run, or a model: a folder or a hub name")
    ],
    index: Annotated[
        str | None,
        typer.Option(
            "--index",
            "--retriever",
            help="what is searched: an index folder, an address or web:PROVIDER",
            show_default="that of the run",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 finds a free one, which is printed")] = 8000,
    host: Annotated[str, typer.Option(help="the address to listen on; 0.0.0.0 lets other machines in")] = "127.0.0.1",
    token_env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="the environment variable that holds the bearer token", show_default="open"),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="a name this machine is called by; again for each", show_default="none"),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="what clients call the model", show_default="that of its folder")
    ] = None,
    concurrent: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_ITEMS, help="questions answered at once at most", show_default="agent.concurrency"),
    ] = None,
    wait: Annotated[
        float, typer.Option(min=0.0, callback=require_finite, help="Maximum seconds in the queue; 0 rejects at once.")
    ] = 60.0,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_TOKENS, help="Maximum new tokens per question.", show_default="the agent's own"),
    ] = None,
    max_prompt: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_TOKENS, help="Maximum prompt tokens per question.", show_default="the context"),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0, help="where a request names none; 0 is greedy")] = 0.0,
    method: Annotated[
        str | None,
        typer.Option(help="search, direct, cot or rag", show_default="that of the run, search for a model"),
    ] = None,
    before: Annotated[bool, typer.Option("--before", help="the policy of a run as it was before training")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="a setting of agent, retrieval or engine, or model.dtype"),
    ] = None,
) -> None:
    """Serve an agent as OpenAI's API is served: POST /v1/chat/completions, whole or streamed, and GET /v1/models.

    The page at / asks it in a browser; /health says how busy it is, /metrics has figures for Prometheus. Ctrl-C and
    SIGTERM finish the answers under way, then end the server.
    """
    token = token_from_env(token_env)

    from sleuth.agent.loading import AgentOptions, describe_agent
    from sleuth.cli.terminal import silence_transformers
    from sleuth.http.middleware import server_names
    from sleuth.http.server import authority, bind, serve
    from sleuth.serve.agent.server import ServedModel, ServerLimits, application

    with bind(host, port) as listener:
        silence_transformers()
        _require_weights(model)
        options = AgentOptions(tuple(settings or ()), index, method, before)
        # Questions come from clients: the name of this file is never looked for.
        spec = describe_agent(model, options, Path("asked.jsonl"))
        facts = ServedModel(name or spec.name, _searched(spec), int(time.time()))
        places = concurrent or spec.concurrency
        terms = ServerLimits(places, max_tokens, max_prompt, temperature=temperature, wait=wait)
        names = server_names(host, allow_host or ())
        app = application(spec.load(lockstep=False), facts, terms, token=token, names=names)
        at = f"http://{authority(host, listener.getsockname()[1])}"
        said = f"serving {facts.name} at {at} ({spec.config.agent.method}, {facts.index}); stop with Ctrl-C"
        serve(app, listener, lambda: echo(said), shutdown_seconds=GRACE, lifespan="on")


def _require_weights(model: str) -> None:
    """Refuses an address: behind one is a server already, which gives words and no tokens."""
    from sleuth.engines.remote import is_address

    if is_address(model):
        raise InputError(
            f"{model} is an address, and an agent is served from weights that are here; give a run or a model"
        )


def _searched(spec: "AgentSpec") -> str:
    """What the agent searches, without the folders of this machine."""
    from sleuth.config.agent import UNSEARCHED

    config = spec.config
    if config.agent.method in UNSEARCHED:
        return "no index"
    if not config.retrieval.local:
        return redact(str(config.retrieval.index))
    folder = PurePath(spec.index)
    # The index of a run has no name of its own.
    return f"{spec.name}/{folder.name}" if spec.index.parent == spec.recording.parent else folder.name
