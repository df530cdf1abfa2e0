"""The scripted engine."""

import asyncio

import pytest

from sleuth.engines.base import Completion, Finish, Sampling
from sleuth.engines.scripted import ScriptedEngine
from sleuth.errors import EngineFailure


def test_lines_are_played_one_after_the_other_and_then_no_more() -> None:
    async def main() -> None:
        engine = ScriptedEngine.playing([1, 2, 3], [4])
        assert (await engine.generate([9], Sampling(5))).ids == (1, 2, 3)
        assert (await engine.generate([9], Sampling(5))).ids == (4,)
        with pytest.raises(EngineFailure, match="2 lines"):
            await engine.generate([9], Sampling(5))

    asyncio.run(main())


def test_a_line_is_cut_at_max_tokens() -> None:
    async def main() -> list[tuple[tuple[int, ...], Finish]]:
        engine = ScriptedEngine(lambda ids: [*ids, 7])
        found = [await engine.generate([1, 2], Sampling(most)) for most in (2, 3)]
        return [(completion.ids, completion.finish) for completion in found]

    assert asyncio.run(main()) == [((1, 2), Finish.LENGTH), ((1, 2, 7), Finish.STOP)]


def test_a_completion_is_played_as_it_is_and_heard() -> None:
    completion = Completion((5, 6), (-1.0, -2.0), (3, 4), Finish.END, None)
    heard: list[int] = []
    engine = ScriptedEngine(lambda _ids: completion)
    assert asyncio.run(engine.generate([1], Sampling(1), None, heard.extend)) is completion
    assert heard == [5, 6]
