"""What differs between kinds of servers: requests, responses, and how new weights are loaded."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sleuth.config.engine import InFlight
from sleuth.engines.servers.completion import Chunk, PartialCompletion
from sleuth.engines.servers.process import Launcher
from sleuth.engines.servers.weights import Control, Load

ADAPTER_NAME = "sleuth-adapter"
Versions = tuple[tuple[int, ...], tuple[int, ...]]  # oldest and newest
Request = Callable[[str, str, Mapping[str, Any] | None], Awaitable[Any]]  # method, path, body


@dataclass(frozen=True, slots=True)
class Served:
    """What a server says about itself; `weights` is its name for the weights it samples with, if it has one."""

    version: str
    model: str
    context: int
    weights: str | None = None


class Dialect(Launcher, Protocol):
    """One kind of server: its command line and its HTTP interface.

    `versions` are the supported ones. `finds_stops` is whether a server finds stop strings however
    they are split into tokens, `checks_prompts` whether it rejects tokens outside its vocabulary. The remedies are
    parts of error messages.
    """

    name: str
    path: str
    versions: Versions
    finds_stops: bool
    checks_prompts: bool
    context_option: str
    logprobs_remedy: str
    missing_remedy: str
    memory_option: str
    prefill_option: str
    parallel_option: str

    async def describe(self, request: Request) -> Served:
        """Ask a server for its version, model and context length; raises ConfigError if it cannot be used."""
        ...

    def request_body(self, partial: PartialCompletion, model: str) -> dict[str, Any]:
        """Build a streaming request for the rest of a completion."""
        ...

    def parse_chunk(self, message: str, received: int) -> Chunk:
        """Parse the message after the first `received` tokens of a stream."""
        ...

    async def rescore(self, request: Request, model: str, partial: PartialCompletion, chunk: Chunk) -> Chunk:
        """Return the chunk with logprobs of the untruncated distribution; the same chunk if it has them."""
        ...

    def probe_body(self, model: str, ids: Sequence[int], temperature: float, count: int) -> dict[str, Any]:
        """Build a request for the logprobs of the `count` likeliest tokens after `ids`."""
        ...

    def parse_top_logprobs(self, answer: object) -> dict[int, float]:
        """Parse the response to a `probe_body` request into logprobs by token."""
        ...

    def load_folder(self, control: Control, folder: Path) -> None:
        """Make a server load the weights of a model folder."""
        ...

    def adapter_options(self, rank: int) -> Sequence[str]:
        """Return the options with which a server accepts adapters of a rank."""
        ...

    def load_adapter(self, control: Control, folder: Path) -> None:
        """Make a server load the adapter of a PEFT folder, in place of an earlier one, under ADAPTER_NAME."""
        ...

    def update_weights(self, control: Control, load: Load, in_flight: InFlight, name: str) -> None:
        """Switch a server to the weights that `load` sends, called `name`, and drop its cache of the old ones."""
        ...
