"""The vLLM engine with servers that die, stall or answer nonsense, and weight updates."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sleuth.engines.base import Completion, Engine, Finish, Sampling
from sleuth.engines.vllm.engine import VllmEngine
from sleuth.engines.vllm.weight_sync import DiskTransport
from sleuth.errors import ConfigError, EngineFailure, SleuthError
from sleuth.model.tokens import Tokens


async def asked(
    doubles: Any, tokens: Tokens, sampling: Sampling, *, token_timeout: float = 5.0, **faults: Any
) -> Completion:
    """What an engine gets from one server with these faults."""
    async with doubles(1) as (server,):
        for name, value in faults.items():
            setattr(server, name, value)
        engine = await VllmEngine([server.address], tokens, context=64, token_timeout=token_timeout).connect()
        try:
            return await engine.generate([10], sampling)
        finally:
            await engine.close()


def test_every_sampling_parameter_is_sent(doubles: Any, tokens: Tokens) -> None:
    async def main() -> tuple[Completion, dict[str, Any]]:
        async with doubles(1) as (server,):
            engine: Engine = await VllmEngine([server.address], tokens, context=64, eos_ids=[3]).connect()
            completion = await engine.generate([10], Sampling(3, 0.7, ("</answer>",), seed=2**63 + 5))
            await engine.close()
            return completion, server.asked[0]

    completion, body = asyncio.run(main())
    assert completion.ids == (11, 12, 13)
    assert completion.logprobs == pytest.approx([-0.6931] * 3, abs=1e-4)
    assert (completion.versions, completion.finish) == ((0, 0, 0), Finish.LENGTH)
    expected = {"prompt": [10], "temperature": 0.7, "seed": 5, "stop": ["</answer>"], "stop_token_ids": [3]}
    assert {name: body[name] for name in expected} == expected
    neutral = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "include_stop_str_in_output": True}
    assert {name: body[name] for name in neutral} == neutral


def test_truncated_sampling_is_scored_in_the_whole_distribution(doubles: Any, tokens: Tokens) -> None:
    completion = asyncio.run(asked(doubles, tokens, Sampling(3, top_k=5)))
    assert completion.logprobs == (-7.0,) * 3


def test_a_session_stays_with_its_server_and_others_go_to_the_least_loaded(doubles: Any, tokens: Tokens) -> None:
    async def main() -> list[list[int]]:
        async with doubles(2) as servers:
            engine = await VllmEngine([server.address for server in servers], tokens, context=64).connect()

            async def episode(order: int) -> None:
                with engine.session(order) as session:
                    for _ in range(4):
                        await engine.generate([order], Sampling(1), session)

            await asyncio.gather(*(episode(order) for order in range(1, 7)))
            await engine.close()
            return [sorted(body["prompt"][0] for body in server.asked) for server in servers]

    found = asyncio.run(main())
    assert sorted(found[0] + found[1]) == [order for order in range(1, 7) for _ in range(4)]
    assert not set(found[0]) & set(found[1])
    assert len(found[0]) == len(found[1])


def test_another_server_continues_the_completions_of_a_dead_one(
    doubles: Any, tokens: Tokens, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> tuple[list[Completion], list[int], bool]:
        async with doubles(2) as servers:
            servers[0].dies_after = 3
            engine = await VllmEngine([server.address for server in servers], tokens, context=64).connect()
            heard: list[int] = []
            first = engine.generate([10], Sampling(8), None, heard.extend)
            others = [engine.generate([10], Sampling(8)) for _ in range(199)]
            completions = await asyncio.gather(first, *others)
            await engine.close()
            return completions, heard, list(engine.lost) == [servers[0].address]

    completions, heard, named = asyncio.run(main())
    assert {completion.ids for completion in completions} == {tuple(range(11, 19))}
    assert (len(completions), heard, named) == (200, list(range(11, 19)), True)
    assert "http://127.0.0.1" in capsys.readouterr().err


def test_when_the_last_server_dies_a_call_fails_with_the_reason(doubles: Any, tokens: Tokens) -> None:
    with pytest.raises(EngineFailure, match=r"http://127"):
        asyncio.run(asked(doubles, tokens, Sampling(8), dies_after=3))


@pytest.mark.parametrize(
    ("faults", "error"),
    [
        ({"status": 400}, "400: it is said why"),
        ({"status": 500}, "500: it is said why"),
        ({"silent": True}, "0.4 s.*ReadTimeout"),
        ({"message": "[]"}, r"'\[\]'"),
        ({"message": '{"error": {"message": "out of luck"}}'}, "0.4 s.*out of luck"),
        ({"message": '{"choices": [{"token_ids": [1, 2], "logprobs": {"token_logprobs": [-1]}}]}'}, "2 tokens with 1"),
        ({"message": '{"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": [-9999]}}]}'}, "-9999"),
        (
            {"message": '{"choices": [{"token_ids": [], "logprobs": null, "finish_reason": "length"}]}'},
            "length",
        ),
        (
            {"message": '{"choices": [{"token_ids": [], "logprobs": null, "finish_reason": "?"}]}'},
            r"'\?'",
        ),
    ],
)
def test_a_bad_response_is_an_engine_failure(doubles: Any, tokens: Tokens, faults: dict[str, Any], error: str) -> None:
    with pytest.raises(EngineFailure, match=error):
        asyncio.run(asked(doubles, tokens, Sampling(4), token_timeout=0.2, **faults))


@pytest.mark.parametrize(
    ("faults", "error"),
    [
        ({"version": "0.25.1"}, "0.25.1.*0.26 to 0.32"),
        ({"version": "dev"}, "dev.*0.26 to 0.32"),
        ({"raw": True}, "logprobs-mode processed_logprobs"),
        ({"raw": True, "flat": 3}, "logprobs-mode processed_logprobs"),
        ({"models": []}, "max_model_len"),
        ({"models": [{"id": "policy", "max_model_len": 63}]}, "63 .* 64"),
    ],
)
def test_an_unsuitable_server_is_refused_at_connect(
    doubles: Any, tokens: Tokens, faults: dict[str, Any], error: str
) -> None:
    with pytest.raises(SleuthError, match=error):
        asyncio.run(asked(doubles, tokens, Sampling(4), **faults))


def test_an_unreachable_address_is_reported_at_connect(tokens: Tokens) -> None:
    with pytest.raises(EngineFailure, match=r"http://127\.0\.0\.1:9"):
        asyncio.run(VllmEngine(["http://127.0.0.1:9"], tokens, context=64).connect())


def test_no_address_is_refused(tokens: Tokens) -> None:
    with pytest.raises(ConfigError, match="0"):
        asyncio.run(VllmEngine([], tokens, context=64).connect())


def test_cancelling_a_call_aborts_its_request_at_the_server(doubles: Any, tokens: Tokens) -> None:
    async def main() -> int:
        async with doubles(1) as (server,):
            server.pause = 0.01
            engine = await VllmEngine([server.address], tokens, context=64).connect()
            started = asyncio.Event()
            call = asyncio.create_task(engine.generate([10], Sampling(60), None, lambda _ids: started.set()))
            await started.wait()
            call.cancel()
            await asyncio.wait([call])
            for _ in range(100):
                await asyncio.sleep(0.01)
                if server.gone:
                    break
            await engine.close()
            gone: int = server.gone
            return gone

    assert asyncio.run(main()) == 1


def test_a_weight_update_through_a_folder_resumes_running_calls(doubles: Any, tokens: Tokens, tmp_path: Path) -> None:
    weights = {"embed": torch.ones(2), "head": torch.ones(2)}
    weights["tied"] = weights["embed"]

    async def main() -> tuple[Completion, list[Any], list[int]]:
        async with doubles(1) as (server,):
            server.pause = 0.01
            engine = await VllmEngine([server.address], tokens, context=64, transport=DiskTransport(tmp_path)).connect()
            published: list[int] = []
            published_by: list[asyncio.Future[None]] = []

            def listen(_ids: object) -> None:
                if not published:
                    published.append(1)
                    # In a thread, as the server here is of the loop that publish would hold up.
                    published_by.append(asyncio.ensure_future(asyncio.to_thread(engine.publish, weights, 5)))

            completion = await engine.generate([10], Sampling(20), None, listen)
            await published_by[0]
            await engine.close()
            return completion, server.posted, [len(body["prompt"]) for body in server.asked]

    completion, posted, prompts = asyncio.run(main())
    assert completion.ids == tuple(range(11, 31))
    before = completion.versions.count(0)
    assert 1 <= before < 20
    assert completion.versions == (0,) * before + (5,) * (20 - before)
    assert prompts == [1, 1 + before]
    reload = {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path / "weights-5")}}
    assert posted == [
        ("POST /pause?mode=keep", None),
        ("POST /collective_rpc", reload),
        ("POST /reset_prefix_cache?reset_running_requests=true", None),
        ("POST /resume", None),
    ]
    assert list(tmp_path.iterdir()) == []


def test_weights_on_disk_stay_until_their_successors_are_loaded(tmp_path: Path) -> None:
    """Only the call for a third version means that the second one was loaded."""
    disk, weights = DiskTransport(tmp_path), {"head": torch.ones(2)}
    kept = []
    for version in (1, 2, 3, 2):
        disk.prepare(weights, version)
        kept.append(sorted(path.name for path in tmp_path.iterdir()))
    assert kept == [["weights-1"], ["weights-1", "weights-2"], ["weights-2", "weights-3"], ["weights-2", "weights-3"]]
    disk.close()
    assert list(tmp_path.iterdir()) == []


def test_servers_load_the_weights_of_a_model_folder(doubles: Any, tokens: Tokens, tmp_path: Path) -> None:
    async def main() -> tuple[Completion, list[Any]]:
        async with doubles(1) as (server,):
            engine = await VllmEngine([server.address], tokens, context=64, in_flight="abort").connect()
            await asyncio.to_thread(engine.load, tmp_path, 3)
            completion = await engine.generate([10], Sampling(2))
            await engine.close()
            return completion, server.posted

    completion, posted = asyncio.run(main())
    assert completion.versions == (3, 3)
    assert posted[0] == ("POST /pause?mode=abort", None)
    assert posted[1][1] == {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path)}}
    assert tmp_path.exists()


def test_a_server_that_keeps_its_prefix_cache_is_removed(doubles: Any, tokens: Tokens, tmp_path: Path) -> None:
    async def main() -> None:
        async with doubles(1) as (server,):
            server.drops = False
            engine = await VllmEngine([server.address], tokens, context=64).connect()
            try:
                await asyncio.to_thread(engine.load, tmp_path, 3)
            finally:
                await engine.close()

    with pytest.raises(EngineFailure, match=r"http://127.*cache"):
        asyncio.run(main())


def test_an_engine_can_be_used_in_another_event_loop(doubles: Any, tokens: Tokens) -> None:
    async def asked_elsewhere() -> list[int]:
        async with doubles(1) as (server,):

            def elsewhere() -> list[int]:
                engine = asyncio.run(VllmEngine([server.address], tokens, context=64).connect())

                async def once() -> int:
                    completion = await engine.generate([10], Sampling(1))
                    await engine.close()
                    return completion.ids[0]

                return [asyncio.run(once())]

            return await asyncio.to_thread(elsewhere)

    assert asyncio.run(asked_elsewhere()) == [11]


def test_in_flight_finish_completes_calls_on_the_old_weights(doubles: Any, tokens: Tokens, tmp_path: Path) -> None:
    async def main() -> tuple[Completion, Completion, str]:
        async with doubles(1) as (server,):
            server.pause = 0.01
            engine = await VllmEngine(
                [server.address], tokens, context=64, transport=DiskTransport(tmp_path), in_flight="finish"
            ).connect()
            started = asyncio.Event()
            call = asyncio.create_task(engine.generate([10], Sampling(20), None, lambda _ids: started.set()))
            await started.wait()
            await asyncio.to_thread(engine.publish, {"head": torch.ones(2)}, 5)
            after = await engine.generate([10], Sampling(2))
            completion = await call
            await engine.close()
            return completion, after, server.posted[0][0]

    completion, after, pause = asyncio.run(main())
    assert (completion.versions, after.versions) == ((0,) * 20, (5, 5))
    assert pause == "POST /pause?mode=wait"


@pytest.mark.parametrize(("given", "error"), [(False, "transport"), (True, "VLLM_SERVER_DEV_MODE=1")])
def test_publishing_without_transport_or_developer_mode_fails(
    doubles: Any, tokens: Tokens, tmp_path: Path, given: bool, error: str
) -> None:
    async def main() -> None:
        async with doubles(1) as (server,):
            server.developer = False
            engine = await VllmEngine(
                [server.address], tokens, context=64, transport=DiskTransport(tmp_path) if given else None
            ).connect()
            try:
                await asyncio.to_thread(engine.publish, {"head": torch.ones(2)}, 5)
            finally:
                await engine.close()

    with pytest.raises(EngineFailure, match=error):
        asyncio.run(main())


def test_a_server_that_misses_a_weight_update_is_removed(
    doubles: Any, tokens: Tokens, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> tuple[Completion, list[int]]:
        async with doubles(2) as servers:
            servers[0].developer = False
            engine = await VllmEngine(
                [each.address for each in servers], tokens, context=64, transport=DiskTransport(tmp_path)
            ).connect()
            await asyncio.to_thread(engine.publish, {"head": torch.ones(2)}, 5)
            completion = await engine.generate([10], Sampling(2))
            await engine.close()
            return completion, [len(server.asked) for server in servers]

    completion, asked = asyncio.run(main())
    assert (completion.versions, asked) == ((5, 5), [0, 1])
    assert "VLLM_SERVER_DEV_MODE=1" in capsys.readouterr().err


def test_numpy_numbers_are_accepted(doubles: Any, tokens: Tokens) -> None:
    sampling = Sampling(np.int64(2), np.float64(0.5), seed=np.int64(3))  # type: ignore[arg-type]

    async def main() -> Completion:
        async with doubles(1) as (server,):
            engine = await VllmEngine([server.address], tokens, context=64).connect()
            completion = await engine.generate(np.array([9, 10]), sampling)  # type: ignore[arg-type]
            await engine.close()
            return completion

    assert asyncio.run(main()).ids == (11, 12)


def test_a_closed_engine_refuses_calls(doubles: Any, tokens: Tokens) -> None:
    async def main() -> None:
        async with doubles(1) as (server,):
            engine = await VllmEngine([server.address], tokens, context=64).connect()
            await engine.close()
            await engine.generate([10], Sampling(1))

    with pytest.raises(EngineFailure, match="closed"):
        asyncio.run(main())


def test_a_stop_string_across_two_requests_is_found(doubles: Any, tokens: Tokens) -> None:
    """The server that continues has not seen the beginning of the stop."""
    spelled = tokens.encode("rome </answer> and more")
    mark = next(place for place, _ in enumerate(spelled) if "</answer>" in tokens.decode(spelled[: place + 1]))

    async def main() -> tuple[Completion, list[int]]:
        async with doubles(2) as servers:
            for server in servers:
                server.spelled, server.pause = spelled, 0.01
            servers[0].dies_after = mark
            engine = await VllmEngine([server.address for server in servers], tokens, context=64).connect()
            completion = await engine.generate([10], Sampling(len(spelled), stops=("rome </answer>",)))
            await engine.close()
            return completion, [len(body["prompt"]) for body in servers[1].asked]

    completion, prompts = asyncio.run(main())
    assert 1 < prompts[0] <= 1 + mark
    assert (completion.finish, completion.stop) == (Finish.STOP, "rome </answer>")
    assert completion.ids == tuple(spelled[: mark + 1])
