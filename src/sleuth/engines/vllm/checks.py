"""Checks of a vLLM server before use: version, model, logprobs mode, and updates of a tied output head."""

import re
from collections.abc import Mapping, Sequence

import httpx

from sleuth.engines.vllm.client import ServerLost, VllmClient
from sleuth.engines.vllm.completions import PATH, parse_top_logprobs, probe_body
from sleuth.errors import ConfigError, EngineFailure

OLDEST, NEWEST = (0, 26), (0, 32)
LOW_TEMPERATURE = 0.5  # doubles the differences between logprobs of the sampled distribution
TOP = 5
PROMPTS = range(1, 9)  # token ids that every vocabulary has
MIN_SPREAD = 0.01  # of the top logprobs; a prompt with less is inconclusive
HEAD_PROMPT = 1
TOLERANCE = 0.05


async def check_servers(clients: Sequence[VllmClient], context: int) -> str:
    """Check every server and return the name of the model that all of them serve."""
    served = [await _check(client) for client in clients]
    models, limit = sorted({model for model, _ in served}), min((length for _, length in served), default=0)
    if len(models) != 1 or not 1 < context <= limit:
        raise ConfigError(
            f"{len(served)} servers with models {models} and a context of {limit} tokens, expected one model and "
            f"a context of {context}: start all of them with the same model and --max-model-len {context}"
        )
    return models[0]


async def _check(client: VllmClient) -> tuple[str, int]:
    """Return the name of the served model and its context length."""
    try:
        answer = await client.request("GET", "/version")
        version = str(answer.get("version")) if isinstance(answer, dict) else str(answer)
        found = re.match(r"(\d+)\.(\d+)", version)
        if not found or not OLDEST <= (int(found[1]), int(found[2])) <= NEWEST:
            low, high = (".".join(map(str, supported)) for supported in (OLDEST, NEWEST))
            raise ConfigError(
                f"{client.address} runs vLLM {version!r}, expected {low} to {high}; install one of these versions"
            )
        answer = await client.request("GET", "/v1/models")
        try:
            first = answer["data"][0]
            model, context = str(first["id"]), int(first["max_model_len"])
        except (TypeError, LookupError, ValueError) as error:
            raise EngineFailure(
                f"{client.address} lists no model with a max_model_len: {str(answer)[:120]!r}"
            ) from error
        await _check_logprobs(client, model)
    except ServerLost as lost:
        raise EngineFailure(f"no vLLM server answers at {lost}; start it first, or correct the address") from lost
    return model, context


async def _check_logprobs(client: VllmClient, model: str) -> None:
    """Check that logprobs depend on the temperature: halving it must double their differences."""
    for prompt in PROMPTS:
        spreads = []
        for temperature in (1.0, LOW_TEMPERATURE):
            answer = await client.request("POST", PATH, probe_body(model, [prompt], temperature, TOP))
            found = [*top_logprobs(answer).values()]
            spreads.append(found[0] - found[-1])
        spread, cold = spreads
        if spread < MIN_SPREAD:
            continue
        if abs(cold / spread - 1 / LOW_TEMPERATURE) > TOLERANCE / LOW_TEMPERATURE:
            raise ConfigError(
                f"{client.address} returns logprobs that ignore the temperature; "
                "start vLLM with --logprobs-mode processed_logprobs"
            )
        return


def top_logprobs(answer: object) -> dict[int, float]:
    """Keep the TOP highest logprobs; servers also list the sampled token if it is not among them."""
    return dict(sorted(parse_top_logprobs(answer).items(), key=lambda each: -each[1])[:TOP])


def request_top_logprobs(address: str, model: str, prompt: int) -> dict[int, float]:
    """Request the logprobs of the TOP likeliest tokens after a one-token prompt."""
    body = probe_body(model, [prompt], 1.0, TOP)
    answer = httpx.post(f"{address}{PATH}", json=body, timeout=120.0, trust_env=False)
    if answer.status_code != httpx.codes.OK:
        raise EngineFailure(f"{address} returned {answer.status_code}: {answer.text[:200]}")
    return top_logprobs(answer.json())


def head_followed(before: Mapping[int, float], after: Mapping[int, float], vocabulary: int) -> bool:
    """Whether the outputs shifted with the embedding, ignoring ties with the last listed token."""
    last = min(before.values()) + TOLERANCE
    return all(
        abs(after.get((token + 1) % vocabulary, -1e9) - logprob) < TOLERANCE
        for token, logprob in before.items()
        if logprob > last
    )
