"""The embedded engine under failures: broken models, failing callbacks, cancelled calls."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from sleuth.engines.base import Completion, Sampling
from sleuth.engines.paged.engine import PagedEngine
from sleuth.errors import ConfigError, EngineFailure
from sleuth.model.tokens import Tokens

Tiny = Callable[..., PreTrainedModel]
LIMIT = 20.0


@pytest.fixture
def model(tiny: Tiny) -> PreTrainedModel:
    return tiny()


@pytest.fixture
def prompt(tokens: Tokens) -> list[int]:
    return tokens.encode("Who wrote the book that Ada read?")


@pytest.fixture(params=[False, True], ids=["free", "lockstep"])
def engine(request: pytest.FixtureRequest, model: PreTrainedModel, tokens: Tokens) -> PagedEngine:
    return PagedEngine(model, tokens, slots=2, context=256, lockstep=request.param)


@contextmanager
def before_each_pass(model: PreTrainedModel, act: Callable[[list[int]], None]) -> Iterator[None]:
    """Something that happens in the model whenever it computes tokens."""
    hook = model.get_input_embeddings().register_forward_pre_hook(lambda _module, ids: act(ids[0].flatten().tolist()))
    yield
    hook.remove()


async def idle(engine: PagedEngine) -> None:
    """Waits until the engine holds no page for anybody."""
    while engine.pages_in_use:  # noqa: ASYNC110  nobody is told when the last page is given back
        await asyncio.sleep(0.005)


def burst_into_flames(_ids: list[int]) -> None:
    raise MemoryError("no more")


def test_a_broken_model_fails_every_caller_and_then_works_again(
    engine: PagedEngine, model: PreTrainedModel, prompt: list[int]
) -> None:
    async def main() -> tuple[list[Completion | BaseException], Completion, Completion]:
        before = await engine.generate(prompt, Sampling(9, seed=4))
        with before_each_pass(model, burst_into_flames):
            calls = [engine.generate(prompt, Sampling(9, seed=n)) for n in range(5)]
            failures = await asyncio.gather(*calls, return_exceptions=True)
        return failures, before, await engine.generate(prompt, Sampling(9, seed=4))

    failures, before, after = asyncio.run(main())
    assert len(failures) == 5
    for failure in failures:
        assert isinstance(failure, EngineFailure)
        assert "the machine is out of memory" in str(failure)
        assert isinstance(failure.__cause__, MemoryError)
    assert after == before


def test_a_model_that_breaks_on_the_way_leaves_nothing_behind(
    engine: PagedEngine, model: PreTrainedModel, prompt: list[int]
) -> None:
    passes = iter(range(100))

    def later(ids: list[int]) -> None:
        if next(passes) == 6:
            burst_into_flames(ids)

    async def main() -> tuple[Completion, Completion]:
        with engine.session(0) as session, before_each_pass(model, later), pytest.raises(EngineFailure):
            await engine.generate(prompt, Sampling(40), session)
        calls = [engine.generate(prompt, Sampling(9, seed=n)) for n in (1, 1)]
        first, second = await asyncio.gather(*calls)
        return first, second

    first, second = asyncio.run(main())
    assert first.ids == second.ids


def test_numbers_that_are_none_are_a_failure_and_do_not_linger(
    engine: PagedEngine, model: PreTrainedModel, prompt: list[int]
) -> None:
    weight = model.get_output_embeddings().weight
    key = model.model.layers[0].self_attn.v_proj.weight
    good = {id(each): each.detach().clone() for each in (weight, key)}
    before = asyncio.run(engine.generate(prompt, Sampling(9)))
    for broken in (weight, key):
        with torch.no_grad():
            broken.fill_(float("nan"))
        engine.publish(None, 1)
        with pytest.raises(EngineFailure, match="not finite"):
            asyncio.run(engine.generate(prompt * 3, Sampling(9)))
        with torch.no_grad():
            broken.copy_(good[id(broken)])
        engine.publish(None, 0)
        assert asyncio.run(engine.generate(prompt, Sampling(9))) == before


def test_a_listener_that_raises_ends_its_own_call_only(engine: PagedEngine, prompt: list[int]) -> None:
    def deaf(_ids: Sequence[int]) -> None:
        raise RuntimeError("cannot hear")

    async def main() -> list[Completion | BaseException]:
        calls = [engine.generate(prompt, Sampling(9), None, deaf), engine.generate(prompt, Sampling(9))]
        return [*await asyncio.gather(*calls, return_exceptions=True), await engine.generate(prompt, Sampling(9))]

    broken, whole, after = asyncio.run(asyncio.wait_for(main(), LIMIT))
    assert isinstance(broken, RuntimeError)
    assert isinstance(whole, Completion)
    assert isinstance(after, Completion)
    assert after.ids == whole.ids


def test_a_listener_that_ends_the_call_of_another_loses_no_slot(engine: PagedEngine, prompt: list[int]) -> None:
    async def main() -> list[Completion]:
        first = asyncio.create_task(engine.generate(prompt, Sampling(200, seed=1)))

        def cancel(_ids: Sequence[int]) -> None:
            first.cancel()

        await engine.generate(prompt, Sampling(9), None, cancel)
        return await asyncio.gather(*(engine.generate(prompt, Sampling(30, seed=5)) for _ in range(2)))

    first, second = asyncio.run(asyncio.wait_for(main(), LIMIT))
    assert first.ids == second.ids


def test_nothing_is_heard_after_a_call_is_cancelled(engine: PagedEngine, prompt: list[int]) -> None:
    heard: list[int] = []

    async def main() -> int:
        started = asyncio.Event()

        def listen(ids: Sequence[int]) -> None:
            heard.extend(ids)
            started.set()

        doomed = asyncio.create_task(engine.generate(prompt, Sampling(200), None, listen))
        await started.wait()
        doomed.cancel()
        count = len(heard)
        await engine.generate(prompt, Sampling(20))
        return count

    count = asyncio.run(asyncio.wait_for(main(), LIMIT))
    assert len(heard) == count


def test_a_closed_engine_fails_its_callers_and_is_closed(
    engine: PagedEngine, model: PreTrainedModel, prompt: list[int]
) -> None:
    async def main() -> list[Completion | BaseException]:
        loop, decoding = asyncio.get_running_loop(), asyncio.Event()

        def seen(_ids: list[int]) -> None:
            loop.call_soon_threadsafe(decoding.set)

        with before_each_pass(model, seen):
            calls = [asyncio.create_task(engine.generate(prompt, Sampling(200, seed=n))) for n in range(3)]
            await decoding.wait()
            await engine.close()
            ended = await asyncio.gather(*calls, return_exceptions=True)
        with pytest.raises(EngineFailure, match="closed"):
            await engine.generate(prompt, Sampling(2))
        return ended

    ended = asyncio.run(asyncio.wait_for(main(), LIMIT))
    assert [type(each) for each in ended] == [EngineFailure] * 3
    assert "the engine was closed" in str(ended[0])
    assert engine.pages_in_use == 0


def test_an_engine_closed_before_it_began_tells_its_callers(engine: PagedEngine, prompt: list[int]) -> None:
    async def main() -> None:
        call = asyncio.create_task(engine.generate(prompt, Sampling(5)))
        await asyncio.sleep(0)
        await engine.close()
        with pytest.raises(EngineFailure, match="closed"):
            await call

    asyncio.run(asyncio.wait_for(main(), LIMIT))


@pytest.mark.parametrize(
    ("raised", "told"), [(StopIteration(), RuntimeError), (asyncio.CancelledError(), asyncio.CancelledError)]
)
def test_what_a_listener_raises_ends_its_own_call_alone(
    engine: PagedEngine, prompt: list[int], raised: BaseException, told: type[BaseException]
) -> None:
    def listen(_ids: Sequence[int]) -> None:
        raise raised

    async def main() -> list[Completion | BaseException]:
        calls = [engine.generate(prompt, Sampling(5), None, listen)]
        calls += [engine.generate(prompt, Sampling(5, seed=n)) for n in range(3)]
        return await asyncio.gather(*map(asyncio.ensure_future, calls), return_exceptions=True)

    first, *others = asyncio.run(asyncio.wait_for(main(), LIMIT))
    assert isinstance(first, told)
    assert all(isinstance(each, Completion) for each in others)


def test_a_model_that_raises_what_no_future_carries_fails_its_callers(
    engine: PagedEngine, model: PreTrainedModel, prompt: list[int]
) -> None:
    def broken(_ids: list[int]) -> None:
        raise StopIteration

    async def main() -> Completion:
        with before_each_pass(model, broken), pytest.raises(EngineFailure, match="StopIteration"):
            await engine.generate(prompt, Sampling(5))
        return await engine.generate(prompt, Sampling(5))

    assert len(asyncio.run(asyncio.wait_for(main(), LIMIT)).ids) == 5


def test_a_loop_that_stopped_without_ending_its_tasks_is_left_behind(engine: PagedEngine, prompt: list[int]) -> None:
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    before = first.run_until_complete(engine.generate(prompt, Sampling(5)))
    after = second.run_until_complete(asyncio.wait_for(engine.generate(prompt, Sampling(5)), LIMIT))
    assert after.ids == before.ids
    for loop in (first, second):
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.05))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def test_a_second_event_loop_at_the_same_time_is_refused(
    engine: PagedEngine, model: PreTrainedModel, prompt: list[int]
) -> None:
    def elsewhere() -> Completion:
        return asyncio.run(engine.generate(prompt, Sampling(5)))

    async def main() -> None:
        with before_each_pass(model, lambda _ids: time.sleep(0.005)):
            call = asyncio.create_task(engine.generate(prompt, Sampling(60)))
            await asyncio.sleep(0.02)
            with pytest.raises(EngineFailure, match="event loop"):
                await asyncio.to_thread(elsewhere)
            await call

    asyncio.run(asyncio.wait_for(main(), LIMIT))


@pytest.mark.parametrize("ids", [[1.7], [float("nan")], ["a"], [None]])
def test_a_prompt_of_other_things_than_whole_numbers_is_refused(engine: PagedEngine, ids: list[Any]) -> None:
    with pytest.raises(EngineFailure, match="integers"):
        asyncio.run(engine.generate(ids, Sampling(3)))


def test_a_prompt_of_numpy_numbers_is_the_same_prompt(engine: PagedEngine, prompt: list[int]) -> None:
    expected = asyncio.run(engine.generate(prompt, Sampling(3)))
    assert asyncio.run(engine.generate(cast(Any, np.array(prompt)), Sampling(3))).ids == expected.ids


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"context": 5000}, "5000"),
        ({"slots": 0}, "slots = 0"),
        ({"memory": 2.0}, "memory = 2.0"),
        ({"prefill_tokens": -1}, "prefill_tokens = -1"),
    ],
)
def test_settings_no_engine_can_be_made_with(model: PreTrainedModel, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        PagedEngine(model, None, **{"slots": 2, "context": 64, **settings})


def test_an_engine_outlives_the_event_loop_it_was_used_in(
    engine: PagedEngine, model: PreTrainedModel, prompt: list[int]
) -> None:
    """A loop that ends cancels what is under way; in the next loop the engine works as before."""

    async def leave() -> None:
        task = asyncio.create_task(engine.generate(prompt, Sampling(200)))
        await asyncio.sleep(0.03)
        assert not task.done()

    before = asyncio.run(engine.generate(prompt, Sampling(12)))
    with before_each_pass(model, lambda _ids: time.sleep(0.005)):
        asyncio.run(leave())
    again = asyncio.run(engine.generate(prompt, Sampling(12)))
    assert again.ids == before.ids
    assert again.logprobs == pytest.approx(before.logprobs, abs=1e-5)


def test_a_caller_that_gives_up_and_asks_again_from_its_seat_is_served(
    engine: PagedEngine, model: PreTrainedModel, prompt: list[int]
) -> None:
    async def main() -> Completion:
        with engine.session(0) as session, engine.session(1) as other:
            beside = asyncio.create_task(engine.generate(prompt, Sampling(100, seed=9), other))
            with before_each_pass(model, lambda _ids: time.sleep(0.005)), pytest.raises(TimeoutError):
                await asyncio.wait_for(engine.generate(prompt, Sampling(240), session), 0.01)
            again = await engine.generate(prompt, Sampling(9, seed=3), session)
            beside.cancel()
            return again

    again = asyncio.run(asyncio.wait_for(main(), LIMIT))
    assert again.ids == asyncio.run(engine.generate(prompt, Sampling(9, seed=3))).ids


def test_a_seat_left_with_a_call_under_way_keeps_nobody_waiting(engine: PagedEngine, prompt: list[int]) -> None:
    async def main() -> list[Completion]:
        with engine.session(0) as session:
            loose = asyncio.create_task(engine.generate(prompt, Sampling(20, seed=1), session))
        with engine.session(1) as session:
            return [await engine.generate(prompt, Sampling(20, seed=1), session), await loose]

    first, second = asyncio.run(asyncio.wait_for(main(), LIMIT))
    assert first.ids == second.ids


def test_in_lockstep_nobody_moves_before_everybody_asks(model: PreTrainedModel, tokens: Tokens) -> None:
    engine = PagedEngine(model, tokens, slots=2, context=64, lockstep=True)
    prompt = tokens.encode("Who?")
    heard: list[Sequence[int]] = []

    async def main() -> None:
        with engine.session(0) as first:
            with engine.session(1):
                early = asyncio.create_task(engine.generate(prompt, Sampling(9), first, heard.append))
                await asyncio.sleep(0.05)
                assert heard == []
            await early
        assert heard

    asyncio.run(asyncio.wait_for(main(), LIMIT))


def test_in_lockstep_a_seat_left_by_an_exception_frees_the_others(model: PreTrainedModel, tokens: Tokens) -> None:
    engine = PagedEngine(model, tokens, slots=2, context=64, lockstep=True)
    prompt = tokens.encode("Who?")

    async def failing() -> None:
        with engine.session(1) as session:
            await engine.generate(prompt, Sampling(2), session)
            await asyncio.sleep(0.02)
            raise OSError("the search broke")

    async def going_on() -> Completion:
        with engine.session(0) as session:
            return await engine.generate(prompt, Sampling(30, seed=1), session)

    async def main() -> tuple[BaseException | None, Completion | BaseException]:
        return await asyncio.gather(failing(), going_on(), return_exceptions=True)

    failure, completion = asyncio.run(asyncio.wait_for(main(), LIMIT))
    assert isinstance(failure, OSError)
    assert isinstance(completion, Completion)


def test_in_lockstep_a_cancelled_caller_frees_the_others(model: PreTrainedModel, tokens: Tokens) -> None:
    engine = PagedEngine(model, tokens, slots=1, context=64, lockstep=True)
    prompt = tokens.encode("Who?")

    async def caller(order: int) -> Completion:
        with engine.session(order) as session:
            await asyncio.sleep(0.03 * order)
            return await engine.generate(prompt, Sampling(30, seed=1), session)

    async def main() -> list[Completion]:
        tasks = [asyncio.create_task(caller(order)) for order in range(4)]
        await asyncio.sleep(0.01)
        tasks[0].cancel()  # waits in lockstep
        tasks[3].cancel()  # has not asked yet
        return await asyncio.gather(*tasks[1:3])

    first, second = asyncio.run(asyncio.wait_for(main(), LIMIT))
    assert first.ids == second.ids


def test_weights_of_another_name_are_refused(engine: PagedEngine, prompt: list[int]) -> None:
    before = asyncio.run(engine.generate(prompt, Sampling(5)))
    with pytest.raises(ValueError, match=r"no\.such"):
        engine.publish({"no.such": torch.zeros(3)}, 1)
    assert asyncio.run(engine.generate(prompt, Sampling(5))).versions == before.versions


def test_weights_of_another_shape_are_refused_before_any_is_written(
    engine: PagedEngine, model: PreTrainedModel, tiny: Tiny, prompt: list[int]
) -> None:
    before = asyncio.run(engine.generate(prompt, Sampling(5)))
    new = dict(tiny(seed=1).state_dict())
    new["lm_head.weight"] = new["lm_head.weight"][1:]
    with pytest.raises(ValueError, match=r"lm_head\.weight.*32"):
        engine.publish(new, 1)
    engine.publish(None, 0)
    assert asyncio.run(engine.generate(prompt, Sampling(5))) == before


def test_a_great_many_tokens_may_be_asked_for(engine: PagedEngine, prompt: list[int]) -> None:
    """Only as many random numbers are drawn as there is room for tokens."""
    completion = asyncio.run(engine.generate(prompt, Sampling(10**12, stops=("e",))))
    assert completion.ids


def test_a_call_that_came_and_left_between_two_looks_is_not_computed(
    engine: PagedEngine, model: PreTrainedModel, prompt: list[int]
) -> None:
    async def main() -> None:
        beginning = asyncio.Event()
        with before_each_pass(model, lambda _ids: time.sleep(0.01)):
            whole = asyncio.create_task(engine.generate(prompt, Sampling(16), None, lambda _ids: beginning.set()))
            await beginning.wait()
            brief = asyncio.create_task(engine.generate(prompt, Sampling(100)))
            await asyncio.sleep(0)
            brief.cancel()
            await whole
            await idle(engine)

    asyncio.run(asyncio.wait_for(main(), LIMIT))
    assert engine.stats.sampled == 16


def test_a_model_in_training_is_left_as_the_trainer_had_it(
    engine: PagedEngine, model: PreTrainedModel, prompt: list[int]
) -> None:
    frozen = model.get_input_embeddings()
    model.train()
    frozen.eval()
    before = [module.training for module in model.modules()]
    asyncio.run(engine.generate(prompt, Sampling(3)))
    assert [module.training for module in model.modules()] == before


def test_every_token_is_drawn_with_a_random_number_of_its_own(
    engine: PagedEngine, model: PreTrainedModel, prompt: list[int]
) -> None:
    with torch.no_grad():
        model.get_output_embeddings().weight.zero_()  # all tokens are equally likely, whatever came before
    engine.publish(None, 1)
    found = asyncio.run(engine.generate(prompt, Sampling(12, seed=4)))
    assert len(set(found.ids)) > 6
