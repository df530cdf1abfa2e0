"""Options that several commands share, with their checks and upper bounds."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from sleuth.config.section import MAX_INT as MAX_INT
from sleuth.errors import ConfigError, InputError

if TYPE_CHECKING:
    from sleuth.engines.remote import Endpoint

# Upper bounds: a typo must not exhaust the machine's memory.
MAX_SEED = 2**64 - 1
MAX_ITEMS = 1_000_000  # held in memory at the same time
MAX_TOKENS = 2**24
MAX_HITS = 10_000
MAX_PROCESSES = 1_024


def require_finite(option: typer.CallbackParam, value: float | None) -> float | None:
    """Option callback: reject inf and nan, which pass typer's range checks."""
    if value is not None and not math.isfinite(value):
        raise ConfigError(f"{option.opts[0]} is {value}: expected a finite number")
    return value


def require_new_file(path: Path | None) -> None:
    """Raise InputError if an output file exists or cannot be created, before any work is done."""
    if path is not None and path.exists():
        raise InputError(f"{path} already exists; name a new file, or move the old one away")
    if path is not None and not path.parent.is_dir():
        raise InputError(f"cannot write {path}: the folder {path.parent} does not exist; create it first")


ModelName = Annotated[
    str | None, Option("--model", metavar="NAME", help="With an address: name of the model on that server.")
]
KeyEnv = Annotated[
    str | None, Option(help="With an address: environment variable of the API key. Default: OPENAI_API_KEY.")
]
Timeout = Annotated[
    float | None, Option(min=0.001, callback=require_finite, help="With an address: seconds per request. Default: 300.")
]
Temperature = Annotated[float, Option(min=0.0, callback=require_finite, help="Temperature; 0 is greedy.")]
Method = Annotated[str | None, Option(help="search, direct, cot or rag. Default: the run's, or search.")]
Before = Annotated[bool, Option("--before", help="Use the run's policy from before training.")]
AgentSettings = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="A setting of agent, retrieval or engine, or model.dtype."),
]
AgentIndex = Annotated[
    str | None, Option("--index", "--retriever", help="Index folder, retrieval server, or web:PROVIDER.")
]
SearchIndex = Annotated[str, Argument(help="Index folder, retrieval server, web:PROVIDER, or import:package.function.")]
IndexDevice = Annotated[str | None, Option(help="Device of an index folder: auto (default), cpu, cuda, cuda:0.")]
JsonFile = Annotated[Path | None, Option("--json", help="New JSON file with all figures.")]
Port = Annotated[int, Option(min=0, max=65535, help="Port; 0 picks a free one and prints it.")]
Host = Annotated[str, Option(help="Address to listen on; 0.0.0.0 accepts other machines.")]
AllowHost = Annotated[
    list[str] | None,
    Option(metavar="NAME", help="A host name of this machine to accept; repeatable.", show_default="none"),
]


def parse_endpoint(name: str, model: str | None, key_env: str | None, timeout: float | None) -> "Endpoint | None":
    """Return the endpoint of a server address; for any other name, reject the endpoint options and return None."""
    from sleuth.engines.remote import DEFAULT_TIMEOUT, Endpoint, is_address

    if is_address(name):
        # Without a model name, the model is chosen from the server's list.
        return Endpoint(name, model or "", key_env, DEFAULT_TIMEOUT if timeout is None else timeout)
    for option, value in {"--model": model, "--key-env": key_env, "--timeout": timeout}.items():
        if value is not None:
            raise ConfigError(f"{option} has no effect without an address such as http://host:8000/v1; remove it")
    return None
