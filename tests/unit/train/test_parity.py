"""Parity: what engine and trainer agree on, and every way of being wrong that it must see."""

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sleuth.engines.base import Completion, Sampling
from sleuth.engines.paged.engine import PagedEngine
from sleuth.engines.scripted import ScriptedEngine
from sleuth.errors import EngineFailure, UserError
from sleuth.model.packing import row
from sleuth.model.policy import Policy
from sleuth.train import parity
from sleuth.train.loop import train
from sleuth.train.observer import SilentObserver
from sleuth.train.parity import Parity, compare, measure, require
from sleuth.train.parts import Parts

Making = Callable[..., Policy]
LIMIT = 0.02
QUESTIONS = ("Who wrote the book?", "Who wrote the book that Ada Lovelace read in Oslo?", "Lisbon")


class Listening(SilentObserver):
    """A observer that remembers the lines it was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, line: str) -> None:
        self.lines.append(line)


def prompts(policy: Policy) -> list[list[int]]:
    return [policy.tokens.encode(text) for text in QUESTIONS]


def engine(policy: Policy, slots: int = 4) -> PagedEngine:
    return PagedEngine(policy.model, policy.tokens, slots=slots, context=201, lockstep=True)


def found(sampling: Policy, scoring: Policy, slots: int = 4, temperature: float = 1.0) -> Parity:
    """The parity of one policy's engine with another policy."""
    asked = prompts(sampling)
    return asyncio.run(
        measure(engine(sampling, slots), scoring, asked, context=200, concurrent=slots, temperature=temperature)
    )


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
@pytest.mark.parametrize("slots", [2, 12])
def test_same_weights_agree(policy: Making, slots: int, temperature: float) -> None:
    one = policy()
    agreed = found(one, one, slots, temperature)
    assert agreed.within(1e-5)
    assert agreed.mean <= agreed.maximum < 1e-4
    assert 0 <= agreed.k3 < 1e-8
    assert (agreed.dtype, agreed.device, agreed.temperature) == ("float32", "cpu", temperature)
    require(agreed, LIMIT, "model")


def other_weights(policy: Making) -> Policy:
    return policy(seed=1)


def one_layer_off(policy: Making) -> Policy:
    made = policy()
    with torch.no_grad():
        made.model.get_parameter("model.layers.1.self_attn.v_proj.weight").mul_(1.1)
    return made


def other_rotation(policy: Making) -> Policy:
    made = policy()
    made.model.get_buffer("model.rotary_emb.inv_freq").mul_(1.05)
    return made


@pytest.mark.parametrize("wrong", [other_weights, one_layer_off, other_rotation], ids=lambda made: made.__name__)
def test_wrong_policy_is_refused(wrong: Callable[[Making], Policy], policy: Making) -> None:
    apart = found(policy(), wrong(policy))
    with pytest.raises(UserError, match=r"differ by .* engine\.parity = 0\.02.* doctor"):
        require(apart, LIMIT, "model")


def test_no_number_is_never_within() -> None:
    broken = Parity(9, math.nan, math.nan, math.inf, "bfloat16", "cuda", 1.0)
    with pytest.raises(UserError, match="differ by nan"):
        require(broken, 1e9, "model")
    assert json.dumps(broken.as_json(), allow_nan=False)
    assert broken.as_json() == {
        "tokens": 9, "mean": None, "maximum": None, "k3": None, "dtype": "bfloat16", "device": "cuda",
        "temperature": 1.0,
    }  # fmt: skip


def test_figures_are_those_of_the_definition(policy: Making) -> None:
    one, ids = policy(), (5, 6, 7, 8)
    exact = compare(one, [row(ids, (0.0, 1.0, 0.0, 1.0), old=(0.0, 0.0))], 1.0)
    assert exact.tokens == 2
    with torch.no_grad():
        logprobs = torch.log_softmax(one.model(torch.tensor([ids]), layout=_layout(4)).logits[0], -1)
    apart = [float(logprobs[0, 6]), float(logprobs[2, 8])]
    assert exact.mean == pytest.approx(-sum(apart) / 2, rel=1e-5)
    assert exact.maximum == pytest.approx(-min(apart), rel=1e-5)
    assert exact.k3 == pytest.approx(sum(math.exp(each) - each - 1 for each in apart) / 2, rel=1e-5)
    assert exact.metrics() == {"parity/mean": exact.mean, "parity/max": exact.maximum, "parity/k3": exact.k3}


def _layout(length: int) -> object:
    from sleuth.model.attention import PackedLayout

    return PackedLayout([length], torch.device("cpu"))


@pytest.mark.parametrize("context", [1, 3, 17, 40, 90, 2000])
def test_groups_share_prompts_and_second_turns_go_on_from_the_first(policy: Making, context: int) -> None:
    one = policy()
    asked: list[tuple[int, ...]] = []

    def script(ids: Sequence[int]) -> Sequence[int]:
        asked.append(tuple(ids))
        return [7]

    given = prompts(one)
    asyncio.run(measure(ScriptedEngine(script), one, given, context=context, tokens=4))
    opening = [ids for ids in asked if any(ids == tuple(prompt[: len(ids)]) for prompt in given)]
    assert all(opening.count(ids) % parity.SAMPLES == 0 for ids in opening)
    assert len(opening) == parity.SAMPLES * len(given)
    going_on = [ids for ids in asked if ids not in opening]
    assert all(any(ids[: len(first) + 1] == (*first, 7) for first in opening) for ids in going_on)
    # A second turn needs room for its own tokens, and one to be given before them.
    roomy = [prompt for prompt in given if min(len(prompt), max(1, context - 4)) <= context - 6]
    assert len(going_on) == len(roomy) * parity.SAMPLES // 2
    assert max(map(len, asked)) <= max(1, context - 4)
    assert context < 2000 or len({len(ids) for ids in asked}) == 2 * len(given)


def test_engine_that_breaks_raises_its_failure(policy: Making) -> None:
    one = policy()
    with pytest.raises(EngineFailure, match="the script has only 1 lines"):
        asyncio.run(measure(ScriptedEngine.playing([7]), one, prompts(one), context=90))


def test_engine_samples_afterwards_as_after_a_start(policy: Making) -> None:
    one = policy()
    checked, fresh = engine(one), engine(one)
    asyncio.run(measure(checked, one, prompts(one), context=200))
    checked.publish(None, 0)

    def sampled(by: PagedEngine) -> list[Completion]:
        async def several() -> list[Completion]:
            asked = (by.generate(ids, Sampling(8, seed=seed)) for seed, ids in enumerate(prompts(one)))
            return list(await asyncio.gather(*asked))

        return asyncio.run(several())

    assert sampled(checked) == sampled(fresh)


def test_run_records_its_parity(parts: Callable[..., Parts], tmp_path: Path) -> None:
    made, observer = parts(tmp_path / "run"), Listening()
    train(made, observer, 0.0)
    saved = json.loads((tmp_path / "run" / parity.FILE).read_text())
    first = next(iter(made.run.metrics()))
    assert 0 <= saved["mean"] < 1e-5
    assert [first[f"parity/{name}"] for name in ("mean", "max", "k3")] == [
        saved[name] for name in ("mean", "maximum", "k3")
    ]
    assert saved["step"] == 0
    assert [line.startswith("logprobs of engine and trainer differ by ") for line in observer.lines] == [True, False]


def test_resumed_run_is_checked_with_the_weights_it_goes_on_with(parts: Callable[..., Parts], tmp_path: Path) -> None:
    settings = {"questions": 2, "samples": 3, "learning_rate": 1e-3}
    train(parts(tmp_path / "run", train={**settings, "steps": 1}), SilentObserver(), 0.0)
    observer = Listening()
    train(parts(tmp_path / "run", train={**settings, "steps": 2}), observer, 0.0)
    assert sum(line.startswith("logprobs of engine and trainer differ by ") for line in observer.lines) == 2
    assert json.loads((tmp_path / "run" / parity.FILE).read_text())["step"] == 1


def test_run_whose_engine_has_other_weights_does_not_start(
    parts: Callable[..., Parts], policy: Making, tmp_path: Path
) -> None:
    made = parts(tmp_path / "run")
    wrong = replace(made, learner=replace(made.learner, policy=policy(seed=1)))
    with pytest.raises(UserError, match=r"engine\.parity = 0\.02"):
        train(wrong, SilentObserver(), 0.0)
    assert list(made.run.metrics()) == []
    assert json.loads((tmp_path / "run" / parity.FILE).read_text())["mean"] > LIMIT
    allowed = parts(tmp_path / "loose", engine={"slots": 4, "parity": 1e3})
    train(replace(allowed, learner=replace(allowed.learner, policy=policy(seed=1))), SilentObserver(), 0.0)
    assert next(iter(allowed.run.metrics()))["parity/mean"] > LIMIT
