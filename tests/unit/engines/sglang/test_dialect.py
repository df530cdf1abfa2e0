"""Requests to SGLang servers, their responses, and the order of a weight update."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sleuth.engines.base import NOT_FINITE, Completion, Finish, Sampling
from sleuth.engines.servers.weights import DiskTransport
from sleuth.errors import EngineFailure, SleuthError
from sleuth.model.tokens import Tokens

pytestmark = pytest.mark.parametrize("kind", ["sglang"], indirect=True)


def message(ids: list[int], total: int | None = None, finish: Any = None, **meta: Any) -> str:
    """What a server sends when the request has so many tokens, of which it shows some."""
    found = {
        "finish_reason": finish,
        "weight_version": "default",
        "output_token_logprobs": [[-1.0, token, None] for token in ids],
        "completion_tokens": len(ids) if total is None else total,
    }
    return json.dumps({"output_ids": ids, "meta_info": found | meta})


def test_every_sampling_parameter_is_sent(kind: Any, doubles: Any, tokens: Tokens) -> None:
    async def main() -> tuple[Completion, dict[str, Any]]:
        async with doubles(1) as (server,):
            engine = await kind.engine([server.address], tokens, context=64, eos_ids=[3]).connect()
            completion = await engine.generate([10], Sampling(3, 0.7, ("</answer>",), seed=2**63 + 5))
            await engine.close()
            return completion, server.asked[0]

    completion, body = asyncio.run(main())
    assert completion.ids == (11, 12, 13)
    assert completion.logprobs == pytest.approx([-0.6931] * 3, abs=1e-4)
    assert (completion.versions, completion.finish) == ((0, 0, 0), Finish.LENGTH)
    assert body == {
        "input_ids": [10],
        "sampling_params": {
            "temperature": 0.7,
            "top_k": -1,
            "top_p": 1.0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "no_stop_trim": True,
            "skip_special_tokens": False,
            "max_new_tokens": 3,
            "sampling_seed": 5,
            "stop": ["</answer>"],
            "stop_token_ids": [3],
        },
        "return_logprob": True,
        "logprob_start_len": -1,
        "stream": True,
    }


@pytest.mark.parametrize("incremental", [False, True])
def test_messages_with_all_tokens_or_only_new_ones_give_each_token_once(asked: Any, incremental: bool) -> None:
    assert asked(Sampling(5), incremental=incremental).ids == (11, 12, 13, 14, 15)


@pytest.mark.parametrize(
    ("cut", "sent"),
    [
        ({"top_k": 5}, {"top_k": 5, "top_p": 1.0}),
        ({"top_p": 0.4}, {"top_k": -1, "top_p": 0.4}),
        ({"top_k": 1}, {"top_k": -1, "top_p": 1e-6}),  # top_k = 1 would be greedy, at temperature 1
        ({"top_k": 5, "temperature": 0.0}, {"top_k": -1, "top_p": 1.0, "temperature": 0.0}),
    ],
)
def test_truncation_is_sent_as_the_server_should_apply_it(
    kind: Any, doubles: Any, tokens: Tokens, cut: dict[str, Any], sent: dict[str, Any]
) -> None:
    async def main() -> Any:
        async with doubles(1) as (server,):
            engine = await kind.engine([server.address], tokens, context=64).connect()
            await engine.generate([10], Sampling(2, **cut))
            await engine.close()
            return server.asked[0]["sampling_params"]

    found = asyncio.run(main())
    assert {name: found[name] for name in sent} == sent


@pytest.mark.parametrize(("cut", "error"), [({"min_p": 0.2}, "min_p.*0.2"), ({"top_k": 20, "top_p": 0.7}, "20.*0.7")])
def test_truncation_that_sglang_applies_differently_is_refused(asked: Any, cut: dict[str, Any], error: str) -> None:
    with pytest.raises(EngineFailure, match=error):
        asked(Sampling(2, **cut))


@pytest.mark.parametrize("token", [-1, 1_000_000])
def test_a_token_outside_the_vocabulary_never_reaches_the_server(
    kind: Any, doubles: Any, tokens: Tokens, token: int
) -> None:
    async def main() -> None:
        async with doubles(1) as (server,):
            engine = await kind.engine([server.address], tokens, context=64).connect()
            try:
                await engine.generate([10, token], Sampling(2))
            finally:
                await engine.close()
                assert server.asked == []

    with pytest.raises(EngineFailure, match=str(token)):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (message([11], output_token_logprobs=[]), "1 tokens with 0"),
        (message([11], output_token_logprobs=[[-1.0, 12, None]]), "other tokens"),
        (message([11], output_token_logprobs=None), "output_token_logprobs"),
        (message([11], output_token_logprobs=[[float("-inf"), 11, None]]), "-inf"),
        (message([14], total=4), "skipped from token 0 to 3"),
        (message([11, 12, 13, 14, 15]), "5 tokens, expected at most 4"),
        (message([11], finish={"type": "length", "length": 1}), "its own limit after 1 tokens, expected 4"),
        (message([11], finish={"type": "stop", "matched": "NaN happened"}), NOT_FINITE),
        (message([11], finish={"type": "?"}), r"'\?'"),
        (message([], finish={"type": "abort", "message": "bad request", "status_code": 400}), "bad request"),
        (message([], finish={"type": "abort", "message": "Aborted", "status_code": None}), "in . attempts"),
        (json.dumps({"output_ids": [11]}), "output_ids"),
    ],
)
def test_a_bad_message_is_an_engine_failure(asked: Any, sent: str, error: str) -> None:
    with pytest.raises(EngineFailure, match=error):
        asked(Sampling(4), token_timeout=0.2, message=sent)


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        ({"type": "stop", "matched": 3}, (Finish.END, None)),
        ({"type": "stop", "matched": "</answer>"}, (Finish.STOP, "</answer>")),
    ],
)
def test_finish_reasons(asked: Any, finish: Any, expected: Any) -> None:
    completion = asked(Sampling(4, stops=("</answer>",)), message=message([11], finish=finish))
    assert (completion.finish, completion.stop) == expected


def test_an_end_token_at_the_length_limit_is_the_end(kind: Any, doubles: Any, tokens: Tokens) -> None:
    """SGLang looks at the length first."""

    async def main() -> Completion:
        async with doubles(1) as (server,):
            engine = await kind.engine([server.address], tokens, context=64, eos_ids=[12]).connect()
            completion: Completion = await engine.generate([10], Sampling(2))
            await engine.close()
            return completion

    assert asyncio.run(main()).finish is Finish.END


def test_a_stop_string_that_the_server_misses_ends_the_completion(asked: Any, tokens: Tokens) -> None:
    spelled = tokens.encode("rome </answer> and more")
    completion = asked(Sampling(len(spelled), stops=("rome </answer>",)), spelled=spelled)
    assert (completion.finish, completion.stop) == (Finish.STOP, "rome </answer>")
    assert tokens.decode(completion.ids) == "rome </answer>"


@pytest.mark.parametrize(
    ("faults", "error"),
    [
        ({"version": "0.5.11"}, "0.5.11.*0.5.12 to 0.5.23"),
        ({"version": "0.6.0"}, "0.6.0.*0.5.12 to 0.5.23"),
        ({"deterministic": False}, "enable-deterministic-inference"),
        ({"deterministic": None}, "enable_deterministic_inference"),
        ({"raw": True}, "SGLANG_RETURN_ORIGINAL_LOGPROB"),
        ({"models": [{"id": "policy", "max_model_len": 65}]}, "63 .* 64.*--context-length of 64 and 2 more"),
    ],
)
def test_an_unsuitable_server_is_refused_with_the_remedy(asked: Any, faults: dict[str, Any], error: str) -> None:
    with pytest.raises(SleuthError, match=error):
        asked(Sampling(4), **faults)


def test_a_supported_post_release_is_accepted(asked: Any) -> None:
    assert asked(Sampling(1), version="0.5.15.post1").ids == (11,)


@pytest.mark.parametrize("in_flight", ["abort", "finish"])
def test_a_weight_update_pauses_loads_drops_the_cache_and_resumes(
    kind: Any, doubles: Any, tokens: Tokens, tmp_path: Path, in_flight: Any
) -> None:
    async def main() -> Any:
        async with doubles(1) as (server,):
            engine = await kind.engine(
                [server.address], tokens, context=64, transport=DiskTransport(tmp_path), in_flight=in_flight
            ).connect()
            await asyncio.to_thread(engine.publish, {"head": torch.ones(2)}, 5)
            completion = await engine.generate([10], Sampling(1))
            await engine.close()
            return server.posted, server.weights, completion.versions

    posted, name, versions = asyncio.run(main())
    assert name.endswith("-5")
    assert versions == (5,)
    update = [
        ("POST /update_weights_from_disk", {"model_path": str(tmp_path / "weights-5"), "flush_cache": False}),
        ("POST /update_weight_version", {"new_version": name, "abort_all_requests": False}),
        ("POST /flush_cache?timeout=60", None),
    ]
    before = [("POST /pause_generation", {"mode": "abort"})]
    after = [("POST /continue_generation", {"torch_empty_cache": False})]
    assert posted == (update if in_flight == "finish" else before + update + after)


def test_a_server_whose_weights_another_client_replaced_is_removed(
    kind: Any, doubles: Any, tokens: Tokens, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> tuple[Completion, list[int]]:
        async with doubles(2) as servers:
            engine = await kind.engine([each.address for each in servers], tokens, context=64).connect()
            servers[0].weights = "theirs"
            completions = [await engine.generate([10], Sampling(2)) for _ in range(2)]
            await engine.close()
            return completions[0], [len(server.asked) for server in servers]

    completion, asked = asyncio.run(main())
    assert (completion.ids, asked) == ((11, 12), [1, 2])
    assert "'theirs'" in capsys.readouterr().err
