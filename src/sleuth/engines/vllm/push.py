"""New weights for servers: requests in flight are halted, the weights are taken in, what was cached is dropped."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol

import httpx

from sleuth.errors import EngineFailure

if TYPE_CHECKING:
    from torch import Tensor

InFlight = Literal["finish", "pause", "abort"]
# What a server does with requests in flight. Of our own, what the old weights do not finish is asked for anew.
MODES: dict[InFlight, str] = {"finish": "wait", "pause": "keep", "abort": "abort"}
# Seconds for a server to finish what is in flight, and to take in its weights.
PATIENCE = 1800.0

Post = Callable[[str, Mapping[str, Any] | None], Any]
# Has one server take in weights that are ready for it.
Load = Callable[[Post], None]


class Way(Protocol):
    """How weights travel from the trainer to servers."""

    def ready(self, weights: "Mapping[str, Tensor]", version: int) -> Load:
        """Makes weights ready to be taken in, by one server after the other."""
        ...

    def close(self) -> None:
        """Frees what is held for servers."""
        ...


def push(address: str, load: Load, in_flight: InFlight) -> None:
    """Has a server go on with new weights; an EngineFailure says why it did not."""
    with httpx.Client(base_url=address, timeout=httpx.Timeout(PATIENCE, connect=5.0), trust_env=False) as client:
        post = _poster(client, address)
        with _halted(post, MODES[in_flight]):
            load(post)
            # Requests that wait give their keys and values back, and compute them again by the new weights.
            answer = post("/reset_prefix_cache?reset_running_requests=true", None)
            if isinstance(answer, dict) and answer.get("success") is False:
                raise EngineFailure(f"{address} keeps keys and values of its old weights; restart it")


def _poster(client: httpx.Client, address: str) -> Post:
    def post(path: str, body: Mapping[str, Any] | None) -> Any:
        response = client.post(path, json=body)
        if response.status_code == httpx.codes.NOT_FOUND:
            raise EngineFailure(
                f"{address} has no {path}, so weights cannot be sent there; start vLLM with VLLM_SERVER_DEV_MODE=1"
            )
        if response.status_code != httpx.codes.OK:
            raise EngineFailure(f"{address}{path} answered {response.status_code}: {response.text[:200]}")
        return response.json() if response.content else None

    return post


@contextmanager
def _halted(post: Post, mode: str) -> Iterator[None]:
    post(f"/pause?mode={mode}", None)
    try:
        yield
    finally:
        post("/resume", None)
