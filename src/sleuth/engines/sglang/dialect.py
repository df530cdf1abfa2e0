"""SGLang's HTTP interface: /generate for tokens, and the endpoints that update weights.

SGLang's logprobs are log(softmax(logits / T)) over the whole vocabulary, before top_k, top_p and min_p: the engine's
contract, unless the server runs with SGLANG_RETURN_ORIGINAL_LOGPROB.
"""

import json
from collections.abc import Mapping, Sequence
from operator import index
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sleuth.config.engine import ENTRY_WORDS, InFlight
from sleuth.engines.base import NOT_FINITE, Sampling
from sleuth.engines.servers.completion import Chunk, PartialCompletion, is_truncated
from sleuth.engines.servers.dialect import Request, Served, Versions
from sleuth.engines.servers.weights import Control, Load
from sleuth.errors import ConfigError, EngineFailure

SEEDS = 2**63  # SGLang keeps seeds as signed 64-bit integers
DETERMINISTIC = "--enable-deterministic-inference"  # without it, SGLang ignores seeds
RESERVED_TOKENS = 2  # positions at the end of the context that SGLang never samples
NAN_REPORT = "NaN happened"  # SGLang's stop string for a token sampled from NaN
BEST_ONLY = 1e-6  # a top_p that keeps only the likeliest token of any vocabulary
FLUSH_TIMEOUT = 60  # seconds until the server has no more requests


class Sglang:
    """SGLang 0.5.12 to 0.5.23 with --enable-deterministic-inference.

    Servers that other clients use cannot pause requests during an update: in these versions, dropping the cache fails
    while paused requests wait.
    """

    name = "SGLang"
    path = "/generate"
    health = "/health_generate"
    health_timeout = 25.0  # a server reports itself unhealthy after 20 s
    versions: Versions = ((0, 5, 12), (0, 5, 23))
    finds_stops = False  # it decodes only as many tokens as the stop string itself has
    checks_prompts = False  # and such a token ends the server
    context_option = "a --context-length of {context} and " + f"{RESERVED_TOKENS} more"
    logprobs_remedy = "start SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB"
    missing_remedy = "install SGLang 0.5.12 or later"
    example = "env/bin/python -m sglang.launch_server"
    environment: Mapping[str, str] = MappingProxyType(
        {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1", "SGLANG_RETURN_ORIGINAL_LOGPROB": "0"}
    )
    memory_option = "--mem-fraction-static"
    prefill_option = "--chunked-prefill-size"
    parallel_option = "--tp-size"

    def command_end(self, command: Sequence[str]) -> int:
        return next(place for place, word in enumerate(command, 1) if word in ENTRY_WORDS["sglang"])

    def arguments(self, model: Path, context: int, slots: int) -> list[str]:
        limits = ["--context-length", str(context + RESERVED_TOKENS), "--max-running-requests", str(slots)]
        return ["--model-path", str(model), *limits, "--incremental-streaming-output"]

    async def describe(self, request: Request) -> Served:
        server = await request("GET", "/server_info", None)
        models = await request("GET", "/v1/models", None)
        weights = await request("GET", "/model_info", None)
        try:
            first = models["data"][0]
            served = Served(
                str(server["version"]),
                str(first["id"]),
                int(first["max_model_len"]) - RESERVED_TOKENS,
                str(weights["weight_version"]),
            )
            deterministic = server["enable_deterministic_inference"]
        except (TypeError, LookupError, ValueError) as error:
            raise EngineFailure(
                f"the server describes itself as {str(server)[:120]!r} with the models {str(models)[:120]!r}, expected "
                "version, max_model_len, weight_version and enable_deterministic_inference"
            ) from error
        if not deterministic:
            raise ConfigError(f"a server of {served.model!r} ignores seeds; start SGLang with {DETERMINISTIC}")
        return served

    def request_body(self, partial: PartialCompletion, model: str) -> dict[str, Any]:  # noqa: ARG002  a server has one
        sampling = partial.sampling
        return _body(
            partial.begin_request(),
            sampling.temperature,
            **_truncation(sampling),
            max_new_tokens=partial.tokens_left,
            # The seed is combined with the position, so that a resumed request draws what the first one would have.
            sampling_seed=index(sampling.seed) % SEEDS,
            stop=list(sampling.stops),
            stop_token_ids=list(partial.eos_ids),
        ) | {"stream": True}

    def parse_chunk(self, message: str, received: int) -> Chunk:
        """Messages repeat all tokens of the request, or contain the new ones only, as the server was started."""
        try:
            answer = json.loads(message)
            meta = answer["meta_info"]
            reason = meta["finish_reason"] or {}
            if reason.get("type") == "abort":
                return _aborted(reason)
            ids = tuple(int(token) for token in answer["output_ids"])
            scored = [(float(logprob), int(token)) for logprob, token, *_ in meta["output_token_logprobs"]]
            total, weights = int(meta["completion_tokens"]), str(meta["weight_version"])
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise EngineFailure(
                f"the server returned {message[:120]!r}, expected output_ids and output_token_logprobs"
            ) from error
        start = max(0, total - len(ids))
        if start > received:
            raise EngineFailure(f"the server skipped from token {received} to {start}, expected every token")
        if [token for _, token in scored] != list(ids):
            raise EngineFailure(f"the server returned {len(ids)} tokens with {len(scored)} logprobs of other tokens")
        new = slice(received - start, None)
        stop = reason.get("matched")
        if stop == NAN_REPORT:
            raise EngineFailure(f"the server sampled from NaN: {NOT_FINITE}")
        logprobs = tuple(logprob for logprob, _ in scored)
        return Chunk(ids[new], logprobs[new], reason.get("type"), stop if isinstance(stop, str) else None, weights)

    async def rescore(self, request: Request, model: str, partial: PartialCompletion, chunk: Chunk) -> Chunk:  # noqa: ARG002
        return chunk

    def probe_body(self, model: str, ids: Sequence[int], temperature: float, count: int) -> dict[str, Any]:  # noqa: ARG002
        return _body(ids, temperature, max_new_tokens=1, sampling_seed=0) | {"top_logprobs_num": count}

    def parse_top_logprobs(self, answer: object) -> dict[int, float]:
        try:
            (found,) = answer["meta_info"]["output_top_logprobs"]  # type: ignore[index]
            return {int(token): float(logprob) for logprob, token, *_ in found}
        except (ValueError, TypeError, LookupError) as error:
            raise EngineFailure(f"the server returned {str(answer)[:120]!r}, expected output_top_logprobs") from error

    def load_folder(self, control: Control, folder: Path) -> None:
        control.post("/update_weights_from_disk", {"model_path": str(folder), "flush_cache": False})

    def adapter_options(self, rank: int) -> Sequence[str]:  # noqa: ARG002
        return ()

    def load_adapter(self, control: Control, folder: Path) -> None:  # noqa: ARG002
        raise EngineFailure("adapters are not sent to SGLang servers; use engine.kind = vllm, or model.lora.rank = 0")

    def update_weights(self, control: Control, load: Load, in_flight: InFlight, name: str) -> None:
        # With `finish`, the update itself waits until running requests have ended.
        if in_flight != "finish":
            control.post("/pause_generation", {"mode": "abort"})
        try:
            load(control)
            control.post("/update_weight_version", {"new_version": name, "abort_all_requests": False})
            # Not part of the update: there, a cache that cannot be dropped ends the server.
            control.post(f"/flush_cache?timeout={FLUSH_TIMEOUT}")
        finally:
            if in_flight != "finish":
                control.post("/continue_generation", {"torch_empty_cache": False})


def _body(ids: Sequence[int], temperature: float, **sampling: Any) -> dict[str, Any]:
    """Build a request that sets every sampling parameter, so that the server's defaults have no effect."""
    neutral = {
        "top_k": -1,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "no_stop_trim": True,
        "skip_special_tokens": False,
    }
    return {
        "input_ids": list(ids),
        "sampling_params": {**neutral, "temperature": float(temperature), **sampling},
        "return_logprob": True,
        "logprob_start_len": -1,
    }


def _truncation(sampling: Sampling) -> dict[str, Any]:
    """Return top_k and top_p as SGLang should apply them; raises EngineFailure for those it applies differently."""
    if not is_truncated(sampling):
        return {}
    if sampling.min_p > 0:
        raise EngineFailure(f"min_p is {sampling.min_p}, which SGLang cannot combine with seeds; use top_k or top_p")
    if sampling.top_k == 1:
        # top_k = 1 is greedy in SGLang, with the logprobs of temperature 1.
        return {"top_p": BEST_ONLY}
    if sampling.top_k and sampling.top_p < 1:
        raise EngineFailure(
            f"top_k is {sampling.top_k} and top_p is {sampling.top_p}, but SGLang applies top_p to the whole "
            "distribution; use one of them"
        )
    return {"top_p": sampling.top_p} if sampling.top_p < 1 else {"top_k": index(sampling.top_k)}


def _aborted(reason: Mapping[str, Any]) -> Chunk:
    """A chunk without tokens, which are requested again; raises EngineFailure if the request itself was rejected."""
    status = reason.get("status_code")
    if isinstance(status, int) and 400 <= status < 500:
        raise EngineFailure(f"the server rejected the request: {reason.get('message')}")
    return Chunk((), (), "abort")
