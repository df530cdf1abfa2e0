"""The engine over servers of each kind that die, stall or answer nonsense, and weight updates."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sleuth.engines.base import Completion, Finish, Sampling
from sleuth.engines.servers.weights import DiskTransport
from sleuth.errors import ConfigError, EngineFailure, SleuthError
from sleuth.model.tokens import Tokens


def test_a_session_stays_with_its_server_and_others_go_to_the_least_loaded(
    kind: Any, doubles: Any, tokens: Tokens
) -> None:
    async def main() -> list[list[int]]:
        async with doubles(2) as servers:
            engine = await kind.engine([server.address for server in servers], tokens, context=64).connect()

            async def episode(order: int) -> None:
                with engine.session(order) as session:
                    for _ in range(4):
                        await engine.generate([order], Sampling(1), session)

            await asyncio.gather(*(episode(order) for order in range(1, 7)))
            await engine.close()
            return [sorted(kind.double.prompt(body)[0] for body in server.asked) for server in servers]

    found = asyncio.run(main())
    assert sorted(found[0] + found[1]) == [order for order in range(1, 7) for _ in range(4)]
    assert not set(found[0]) & set(found[1])
    assert len(found[0]) == len(found[1])


def test_another_server_continues_the_completions_of_a_dead_one(
    kind: Any, doubles: Any, tokens: Tokens, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> tuple[list[Completion], list[int], bool]:
        async with doubles(2) as servers:
            servers[0].dies_after = 3
            engine = await kind.engine([server.address for server in servers], tokens, context=64).connect()
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


def test_when_the_last_server_dies_a_call_fails_with_the_reason(asked: Any) -> None:
    with pytest.raises(EngineFailure, match=r"http://127"):
        asked(Sampling(8), dies_after=3)


@pytest.mark.parametrize(
    ("faults", "error"),
    [
        ({"status": 400}, "400: it is said why"),
        ({"status": 500}, "500: it is said why"),
        ({"silent": True}, "0.4 s.*ReadTimeout"),
        ({"message": "[]"}, r"'\[\]'"),
        ({"message": '{"error": {"message": "out of luck"}}'}, "0.4 s.*out of luck"),
        ({"message": '{"error": {"message": "too long", "code": 400}}'}, "400: too long"),
    ],
)
def test_a_bad_response_is_an_engine_failure(asked: Any, faults: dict[str, Any], error: str) -> None:
    with pytest.raises(EngineFailure, match=error):
        asked(Sampling(4), token_timeout=0.2, **faults)


@pytest.mark.parametrize(
    ("faults", "error"),
    [
        ({"version": "0.2.1"}, "0.2.1.* expected 0"),
        ({"version": "9.0.0"}, "9.0.0.* expected 0"),
        ({"version": "dev"}, "dev.* expected 0"),
        ({"raw": True}, "ignore the temperature"),
        ({"raw": True, "flat": 3}, "ignore the temperature"),
        ({"models": []}, "max_model_len"),
        ({"models": [{"id": "policy", "max_model_len": 63}]}, r"6[13] .* 64"),
    ],
)
def test_an_unsuitable_server_is_refused_at_connect(asked: Any, faults: dict[str, Any], error: str) -> None:
    with pytest.raises(SleuthError, match=error):
        asked(Sampling(4), **faults)


def test_an_unreachable_address_is_reported_at_connect(kind: Any, tokens: Tokens) -> None:
    with pytest.raises(EngineFailure, match=r"http://127\.0\.0\.1:9"):
        asyncio.run(kind.engine(["http://127.0.0.1:9"], tokens, context=64).connect())


def test_no_address_is_refused(kind: Any, tokens: Tokens) -> None:
    with pytest.raises(ConfigError, match="0"):
        asyncio.run(kind.engine([], tokens, context=64).connect())


def test_cancelling_a_call_aborts_its_request_at_the_server(kind: Any, doubles: Any, tokens: Tokens) -> None:
    async def main() -> int:
        async with doubles(1) as (server,):
            server.pause = 0.01
            engine = await kind.engine([server.address], tokens, context=64).connect()
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


def test_a_weight_update_through_a_folder_resumes_running_calls(
    kind: Any, doubles: Any, tokens: Tokens, tmp_path: Path
) -> None:
    weights = {"embed": torch.ones(2), "head": torch.ones(2)}
    weights["tied"] = weights["embed"]

    async def main() -> tuple[Completion, list[int]]:
        async with doubles(1) as (server,):
            server.pause = 0.01
            engine = await kind.engine(
                [server.address], tokens, context=64, transport=DiskTransport(tmp_path), in_flight="abort"
            ).connect()
            published: list[asyncio.Future[None]] = []

            def listen(_ids: object) -> None:
                if not published:
                    # In a thread, as the server here is of the loop that publish would hold up.
                    published.append(asyncio.ensure_future(asyncio.to_thread(engine.publish, weights, 5)))

            completion = await engine.generate([10], Sampling(20), None, listen)
            await published[0]
            await engine.close()
            return completion, [len(kind.double.prompt(body)) for body in server.asked]

    completion, prompts = asyncio.run(main())
    assert completion.ids == tuple(range(11, 31))
    before = completion.versions.count(0)
    assert 1 <= before < 20
    assert completion.versions == (0,) * before + (5,) * (20 - before)
    assert prompts == [1, 1 + before]
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


def test_a_server_that_keeps_its_prefix_cache_is_removed(
    kind: Any, doubles: Any, tokens: Tokens, tmp_path: Path
) -> None:
    async def main() -> None:
        async with doubles(1) as (server,):
            server.drops = False
            engine = await kind.engine([server.address], tokens, context=64).connect()
            try:
                await asyncio.to_thread(engine.load, tmp_path, 3)
            finally:
                await engine.close()

    with pytest.raises(EngineFailure, match=r"http://127.*cache"):
        asyncio.run(main())


def test_an_engine_can_be_used_in_another_event_loop(kind: Any, doubles: Any, tokens: Tokens) -> None:
    async def asked_elsewhere() -> list[int]:
        async with doubles(1) as (server,):

            def elsewhere() -> list[int]:
                engine = asyncio.run(kind.engine([server.address], tokens, context=64).connect())

                async def once() -> Any:
                    completion = await engine.generate([10], Sampling(1))
                    await engine.close()
                    return completion.ids[0]

                return [asyncio.run(once())]

            return await asyncio.to_thread(elsewhere)

    assert asyncio.run(asked_elsewhere()) == [11]


def test_in_flight_finish_completes_calls_on_the_old_weights(
    kind: Any, doubles: Any, tokens: Tokens, tmp_path: Path
) -> None:
    async def main() -> tuple[Completion, Completion]:
        async with doubles(1) as (server,):
            server.pause = 0.01
            engine = await kind.engine(
                [server.address], tokens, context=64, transport=DiskTransport(tmp_path), in_flight="finish"
            ).connect()
            started = asyncio.Event()
            call = asyncio.create_task(engine.generate([10], Sampling(20), None, lambda _ids: started.set()))
            await started.wait()
            await asyncio.to_thread(engine.publish, {"head": torch.ones(2)}, 5)
            after = await engine.generate([10], Sampling(2))
            completion = await call
            await engine.close()
            return completion, after

    completion, after = asyncio.run(main())
    assert (completion.versions, after.versions) == ((0,) * 20, (5, 5))


@pytest.mark.parametrize(("given", "error"), [(False, "transport"), (True, "it cannot receive weights")])
def test_publishing_without_transport_or_endpoints_fails(
    kind: Any, doubles: Any, tokens: Tokens, tmp_path: Path, given: bool, error: str
) -> None:
    async def main() -> None:
        async with doubles(1) as (server,):
            server.administered = False
            engine = await kind.engine(
                [server.address], tokens, context=64, transport=DiskTransport(tmp_path) if given else None
            ).connect()
            try:
                await asyncio.to_thread(engine.publish, {"head": torch.ones(2)}, 5)
            finally:
                await engine.close()

    with pytest.raises(EngineFailure, match=error):
        asyncio.run(main())


def test_a_server_that_misses_a_weight_update_is_removed(
    kind: Any, doubles: Any, tokens: Tokens, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> tuple[Completion, list[int]]:
        async with doubles(2) as servers:
            servers[0].administered = False
            engine = await kind.engine(
                [each.address for each in servers], tokens, context=64, transport=DiskTransport(tmp_path)
            ).connect()
            await asyncio.to_thread(engine.publish, {"head": torch.ones(2)}, 5)
            completion = await engine.generate([10], Sampling(2))
            await engine.close()
            return completion, [len(server.asked) for server in servers]

    completion, asked = asyncio.run(main())
    assert (completion.versions, asked) == ((5, 5), [0, 1])
    assert "it cannot receive weights" in capsys.readouterr().err


def test_numpy_numbers_are_accepted(kind: Any, doubles: Any, tokens: Tokens) -> None:
    sampling = Sampling(np.int64(2), np.float64(0.5), seed=np.int64(3))  # type: ignore[arg-type]

    async def main() -> Completion:
        async with doubles(1) as (server,):
            engine = await kind.engine([server.address], tokens, context=64).connect()
            completion: Completion = await engine.generate(np.array([9, 10]), sampling)
            await engine.close()
            return completion

    assert asyncio.run(main()).ids == (11, 12)


def test_a_closed_engine_refuses_calls(kind: Any, doubles: Any, tokens: Tokens) -> None:
    async def main() -> None:
        async with doubles(1) as (server,):
            engine = await kind.engine([server.address], tokens, context=64).connect()
            await engine.close()
            await engine.generate([10], Sampling(1))

    with pytest.raises(EngineFailure, match="closed"):
        asyncio.run(main())


def test_a_stop_string_across_two_requests_is_found(kind: Any, doubles: Any, tokens: Tokens) -> None:
    """The server that continues has not seen the beginning of the stop."""
    spelled = tokens.encode("rome </answer> and more")
    mark = next(place for place, _ in enumerate(spelled) if "</answer>" in tokens.decode(spelled[: place + 1]))

    async def main() -> tuple[Completion, list[int]]:
        async with doubles(2) as servers:
            for server in servers:
                server.spelled, server.pause = spelled, 0.01
            servers[0].dies_after = mark
            engine = await kind.engine([server.address for server in servers], tokens, context=64).connect()
            completion = await engine.generate([10], Sampling(len(spelled), stops=("rome </answer>",)))
            await engine.close()
            return completion, [len(kind.double.prompt(body)) for body in servers[1].asked]

    completion, prompts = asyncio.run(main())
    assert 1 < prompts[0] <= 1 + mark
    assert (completion.finish, completion.stop) == (Finish.STOP, "rome </answer>")
    assert completion.ids == tuple(spelled[: mark + 1])
