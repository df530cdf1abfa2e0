"""Checks of servers before use: version, model, context, logprobs, and updates of a tied output head."""

import re
from collections.abc import Mapping, Sequence

import httpx

from sleuth.engines.servers.client import ServerClient, ServerLost
from sleuth.engines.servers.dialect import Dialect, Served
from sleuth.errors import ConfigError, EngineFailure

LOW_TEMPERATURE = 0.5  # doubles the differences between logprobs of the sampled distribution
TOP = 5
PROMPTS = range(1, 9)  # token ids that every vocabulary has
MIN_SPREAD = 0.01  # of the top logprobs; a prompt with less is inconclusive
HEAD_PROMPT = 1
TOLERANCE = 0.05


async def check_servers(clients: Sequence[ServerClient], context: int) -> str:
    """Check every server and return the name of the model that all of them serve."""
    served = [await _check(client) for client in clients]
    models, limit = sorted({each.model for each in served}), min((each.context for each in served), default=0)
    if len(models) != 1 or not 1 < context <= limit:
        option = clients[0].dialect.context_option if clients else "a context length"
        raise ConfigError(
            f"{len(served)} servers with models {models} and a context of {limit} tokens, expected one model and "
            f"a context of {context}: start all of them with the same model and {option.format(context=context)}"
        )
    return models[0]


async def _check(client: ServerClient) -> Served:
    """Return what the server says about itself, if it can be used."""
    try:
        served = await client.dialect.describe(client.request)
        _check_version(client, served.version)
        await _check_logprobs(client, served.model)
    except ServerLost as lost:
        raise EngineFailure(
            f"no {client.dialect.name} server answers at {lost}; start it first, or correct the address"
        ) from lost
    client.weights = served.weights
    return served


def _check_version(client: ServerClient, version: str) -> None:
    oldest, newest = client.dialect.versions
    found = re.match(r"\d+(\.\d+)*", version)
    numbers = tuple(int(part) for part in found[0].split(".")[: len(oldest)]) if found else ()
    if not oldest <= numbers <= newest:
        low, high = (".".join(map(str, supported)) for supported in (oldest, newest))
        raise ConfigError(
            f"{client.address} runs {client.dialect.name} {version!r}, expected {low} to {high}; install one of these "
            "versions"
        )


async def _check_logprobs(client: ServerClient, model: str) -> None:
    """Check that logprobs depend on the temperature: halving it must double their differences."""
    dialect = client.dialect
    for prompt in PROMPTS:
        spreads = []
        for temperature in (1.0, LOW_TEMPERATURE):
            answer = await client.request("POST", dialect.path, dialect.probe_body(model, [prompt], temperature, TOP))
            found = [*_top_logprobs(dialect, answer).values()]
            spreads.append(found[0] - found[-1])
        spread, cold = spreads
        if spread < MIN_SPREAD:
            continue
        if abs(cold / spread - 1 / LOW_TEMPERATURE) > TOLERANCE / LOW_TEMPERATURE:
            raise ConfigError(
                f"{client.address} returns logprobs that ignore the temperature; {dialect.logprobs_remedy}"
            )
        return


def _top_logprobs(dialect: Dialect, answer: object) -> dict[int, float]:
    """Keep the TOP highest logprobs; servers also list the sampled token if it is not among them."""
    return dict(sorted(dialect.parse_top_logprobs(answer).items(), key=lambda each: -each[1])[:TOP])


def request_top_logprobs(address: str, dialect: Dialect, model: str, prompt: int) -> dict[int, float]:
    """Request the logprobs of the TOP likeliest tokens after a one-token prompt."""
    body = dialect.probe_body(model, [prompt], 1.0, TOP)
    answer = httpx.post(f"{address}{dialect.path}", json=body, timeout=120.0, trust_env=False)
    if answer.status_code != httpx.codes.OK:
        raise EngineFailure(f"{address} returned {answer.status_code}: {answer.text[:200]}")
    return _top_logprobs(dialect, answer.json())


def head_followed(before: Mapping[int, float], after: Mapping[int, float], vocabulary: int) -> bool:
    """Whether the outputs shifted with the embedding, ignoring ties with the last listed token."""
    last = min(before.values()) + TOLERANCE
    return all(
        abs(after.get((token + 1) % vocabulary, -1e9) - logprob) < TOLERANCE
        for token, logprob in before.items()
        if logprob > last
    )
