"""What is evaluated without weights here: a model behind an address, with what it searches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sleuth.agent.remote import RemoteAgent, make_message_protocol
from sleuth.agent.user_tools import load_tools
from sleuth.config.agent import UNSEARCHED
from sleuth.config.tree import Config
from sleuth.credentials import redact
from sleuth.engines.remote import Endpoint, served_model
from sleuth.errors import ConfigError, InputError
from sleuth.records import Question
from sleuth.train.assemble import SEARCHES, require_search, tool_of
from sleuth.train.candidates import Wish, circumstances, composed, method_of, require_tables

TABLES = ("agent.", "retrieval.", "engine.slots")


@dataclass(frozen=True, slots=True)
class Served:
    """A model behind an address to evaluate; it has no questions of its own."""

    name: str
    config: Config
    endpoint: Endpoint
    index: Path
    told: Mapping[str, Any] | None  # what the server says of the model
    questions: None = None
    training: None = None
    notes: tuple[str, ...] = ()

    @property
    def concurrency(self) -> int:
        """Questions in flight at most: the server's own, so that more of them do not wait for tools alone."""
        return self.config.agent.concurrency or self.config.engine.slots

    def agent(self, shots: Sequence[Question] = ()) -> RemoteAgent:
        require_search(self.config)
        return RemoteAgent.of(self.endpoint, tool_of(self.config, self.index, Path(SEARCHES)), self.config.agent, shots)

    def stamp(self) -> Mapping[str, Any]:
        """All that its answers depend on but the questions, as far as it can be known from here."""
        model = {"url": redact(self.endpoint.base), "name": self.endpoint.model, "served": self.told}
        protocol = make_message_protocol(self.config.agent.protocol, load_tools(self.config.agent))
        return {"model": model, **circumstances(self.config, self.index, protocol)}


def named(endpoint: Endpoint, wish: Wish, questions: Path | None) -> Served:
    """The model that an address serves; a server that is away or has no such model is an InputError."""
    require_tables(wish.settings, TABLES)
    if wish.before:
        raise ConfigError("--before has no effect with an address, whose model is as it is; leave it out")
    if questions is None:
        raise InputError(f"{endpoint.url} is an address, which has no questions of its own; name some with --suite")
    if wish.index is None and method_of(wish) not in UNSEARCHED:
        raise ConfigError(f"{endpoint.url} is an address, which searches nothing by itself; name an index with --index")
    tree: dict[str, Any] = {
        "data": {"train": str(questions), "test": str(questions)},
        "retrieval": {} if wish.index is None else {"index": wish.index},
    }
    config = composed(tree, wish)
    told = served_model(endpoint)
    limit = (told or {}).get("max_model_len")
    if isinstance(limit, int) and config.agent.context_tokens > limit:
        raise ConfigError(
            f"agent.context_tokens is {config.agent.context_tokens}, and {endpoint.model} is served with {limit}; "
            f"give --set agent.context_tokens={limit}"
        )
    return Served(endpoint.model, config, endpoint, Path(wish.index or "index"), told)
