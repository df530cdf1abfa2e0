"""Steps on trajectories of several segments: they weigh and learn as one.

Agent Lightning and rLLM made each turn a sample of its own in GRPO: agents with many turns dominated the baseline and
the loss, and tool calling died out (microsoft/agent-lightning#489, PR 462).
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sleuth.config.algorithm import AlgorithmConfig, CriticConfig
from sleuth.config.train import TrainConfig
from sleuth.model.policy import Policy
from sleuth.records import Group, Question, Score, Segment, StopReason, Trajectory
from sleuth.train.models import Critic
from sleuth.train.optimiser import Optimiser
from sleuth.train.step import Learner, StepRates

QUESTION = Question("q", "Who?", ("Ada",), "test")
ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "sequence means": {"normalise": "sequence"},
    "divided by a constant": {"advantage": "dr_grpo", "normalise": "constant", "constant": 9},
    "gspo": {"loss": "gspo", "clip_low": 0.5, "clip_high": 0.9},
    "reinforce_pp": {"advantage": "reinforce_pp"},
    "KL in the reward": {"kl": {"place": "reward", "coefficient": 0.5}},
    "sequences masked": {"correction": {"level": "sequence", "action": "mask", "low": 1e-9, "high": 1e6}},
    "geometric": {"correction": {"level": "geometric", "high": 1.5}},
    "gae": {"advantage": "gae", "critic": {"gamma": 0.9, "lam": 0.8}},
    "overlong punished": {"overlong": "shape", "overlong_tokens": 12},
}
# A prompt, and two tokens sampled in each of four turns with an observation before each but the first.
IDS = (5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19)
ORIGIN = "...xx.xx..xx.xx"


@pytest.fixture
def learner(policy: Callable[..., Policy], tmp_path: Path) -> Callable[..., Learner]:
    def make(algorithm: dict[str, Any] | None = None, **train: Any) -> Learner:
        settings = AlgorithmConfig.model_validate(algorithm or {})
        trained, critic = policy(0), None
        if settings.advantage == "gae":
            policy(2).save(tmp_path / "critic")
            cpu = torch.device("cpu")
            critic = Critic.load(tmp_path / "critic", cpu, torch.float32, CriticConfig(), TrainConfig())
            torch.nn.init.normal_(critic.head.weight, 0.0, 0.1, generator=torch.Generator().manual_seed(0))
        optimiser = Optimiser(trained.parameters(), learning_rate=1e-2, weight_decay=0.0)
        reference = policy(1) if settings.kl.place != "none" else None
        return Learner(trained, optimiser, settings, TrainConfig(**train), 24, reference, critic)

    return make


def gradient(learner: Learner, group: Group) -> dict[str, Tensor]:
    """The gradient of the step, which is not made; zeros if there is none."""
    for _, parameter in learner.policy.parameters():
        parameter.grad = None
    learner.learn([group], StepRates(1e-2, learner.algorithm.kl.coefficient), lambda _: False, recompute=False)
    named = learner.policy.parameters()
    return {name: torch.zeros_like(each) if each.grad is None else each.grad.clone() for name, each in named}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert any(bool(each.any()) for each in first.values())
    for name, each in first.items():
        torch.testing.assert_close(each, second[name], rtol=1e-4, atol=1e-7)


def segment(ids: Iterable[int], sampled: str, role: str = "", **more: Any) -> Segment:
    """Sampled tokens are marked with x; the engine's logprobs differ from token to token."""
    ids, origin = tuple(ids), tuple(mark == "x" for mark in sampled)
    logprobs = tuple(-3.0 - token % 5 / 4 for token, own in zip(ids, origin, strict=True) if own)
    return Segment(ids, origin, logprobs, (0,) * len(logprobs), role, **more)


def trajectory(*segments: Segment, sample: int = 0) -> Trajectory:
    return Trajectory(QUESTION, 0, sample, 1, segments, (), StopReason.ANSWERED)


def group(*trajectories: Trajectory, rewards: tuple[float, ...] = (1.0, 0.0, 0.25)) -> Group:
    return Group(QUESTION, trajectories, tuple(Score(reward, {}) for reward in rewards))


WHOLE = segment(IDS, ORIGIN)
OTHERS = (
    trajectory(segment((5, 6, 7, 30, 31, 32), "...xxx"), sample=1),
    trajectory(segment((5, 6, 7, 40, 41), "...xx"), sample=2),
)


def in_segments(count: int) -> Trajectory:
    """The same tokens in the same contexts, in several segments: each shares all of the one before."""
    ends = [5, 8, 12, 15][-count:]
    starts = [0, *ends[:-1]]
    parts = [
        segment(IDS[:end], "." * start + ORIGIN[start:end], parent=number - 1 if number else None, shared=start)
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
    return trajectory(*parts)


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_gradient_does_not_depend_on_the_number_of_segments(
    algorithm: dict[str, Any], count: int, learner: Callable[..., Learner]
) -> None:
    ours = learner(algorithm)
    whole = gradient(ours, group(trajectory(WHOLE), *OTHERS))
    same(whole, gradient(ours, group(in_segments(count), *OTHERS)))


@pytest.mark.parametrize("normalise", ["token", "sequence", "constant"])
def test_a_rewritten_history_weighs_as_one(normalise: str, learner: Callable[..., Learner]) -> None:
    """Both segments train; advantages and the sum of the weights are those of one segment."""
    ours = learner({"normalise": normalise})
    logged = []
    rewritten = trajectory(segment(IDS[:5], ORIGIN[:5]), segment((50, *IDS[1:]), "." * 5 + ORIGIN[5:]))
    for first in (trajectory(WHOLE), rewritten):
        gradient(ours, group(first, *OTHERS))
        log = ours.token_log.collect()
        logged.append([log[id(each)] for each in (first, *OTHERS)])
    assert logged[0][0].pop("ratio") != logged[1][0].pop("ratio")
    assert len(logged[0]) == 3
    assert logged[0] == logged[1]


def test_long_agents_do_not_dominate(learner: Callable[..., Learner]) -> None:
    """Three failures of forty segments each move the baseline as three of one do, and so the success among them."""
    ours, right = learner({"advantage": "dr_grpo", "normalise": "sequence"}), OTHERS[0]
    found = []
    for count in (1, 40):
        wrong = [trajectory(*(segment((5, 20 + n), ".x") for n in range(count)), sample=2 + n) for n in range(3)]
        gradient(ours, group(right, *wrong, rewards=(1.0, 0.0, 0.0, 0.0)))
        log = ours.token_log.collect()
        found.append([(log[id(each)]["advantage"], log[id(each)]["weight"]) for each in (right, *wrong)])
    assert found[0][0] == found[1][0]
    advantages, weights = zip(*found[1], strict=True)
    assert advantages == (0.75, -0.25, -0.25, -0.25)
    assert weights == pytest.approx((1 / 4 / 3, *[1 / 4 / 40] * 3))


def test_mini_batches_split_by_trajectory(learner: Callable[..., Learner]) -> None:
    """With two updates of two trajectories, the segments of one are never in both."""
    ours = learner(updates=2)
    many = [trajectory(*(segment((5, 20 + n), ".x") for n in range(5)), sample=n) for n in range(3)]
    gradient(ours, group(*many, OTHERS[0], rewards=(1.0, 0.0, 0.0, 0.0)))
    log = ours.token_log.collect()
    assert [log[id(each)]["weight"] for each in (*many, OTHERS[0])] == pytest.approx([1 / 10] * 2 + [1 / 8] * 2)


PLAN = segment((5, 6, 20, 21), "..xx", "planner")
WRITE = segment((7, 8, 22, 23, 24), "..xxx", "writer")


def test_only_the_trained_role_has_a_gradient(learner: Callable[..., Learner]) -> None:
    """It is that of the same trajectories in which the other role's tokens are given."""
    teams = [trajectory(PLAN, WRITE), trajectory(PLAN, segment((7, 8, 25), "..x", "writer"), sample=1)]
    given = [
        replace(each, segments=(segment(each.segments[0].ids, "....", "planner"), *each.segments[1:])) for each in teams
    ]
    rewards = (1.0, 0.0)
    one = gradient(learner(roles=["writer"]), group(*teams, rewards=rewards))
    same(one, gradient(learner(), group(*given, rewards=rewards)))
    both = gradient(learner(), group(*teams, rewards=rewards))
    assert any(not torch.allclose(one[name], each) for name, each in both.items())


def test_advantage_of_a_role_that_does_not_train_moves_nothing(learner: Callable[..., Learner]) -> None:
    """The writer wrote only where the reward is that of the mean; the planners around it still set that mean."""
    alone = [trajectory(PLAN), trajectory(WRITE, sample=1), trajectory(PLAN, sample=2)]
    ours = learner({"advantage": "dr_grpo"}, roles=["writer"])
    found = gradient(ours, group(*alone, rewards=(1.0, 0.5, 0.0)))
    assert all(not bool(each.any()) for each in found.values())
    log = ours.token_log.collect()
    assert [log[id(each)]["advantage"] for each in alone] == [[None, None], 0.0, [None, None]]
    found = gradient(ours, group(*alone, rewards=(0.0, 1.0, 0.5)))
    assert any(bool(each.any()) for each in found.values())
    assert ours.token_log.collect()[id(alone[1])]["advantage"] == 0.5


def test_tokens_of_another_temperature_are_scored_at_their_own(learner: Callable[..., Learner]) -> None:
    """As in a step in which all have that temperature."""
    warm = replace(WHOLE, temperatures=(2.0,) * len(WHOLE.logprobs))
    mixed, uniform = learner(temperature=1.0), learner(temperature=2.0)
    plain = [replace(each, segments=(replace(each.segments[0], temperatures=(2.0,) * 3),)) for each in OTHERS[:1]]
    both = (1.0, 0.0)
    same(
        gradient(mixed, group(trajectory(warm), *plain, rewards=both)),
        gradient(uniform, group(trajectory(WHOLE), OTHERS[0], rewards=both)),
    )


def test_ratio_of_a_token_is_one_at_the_temperature_it_was_sampled_at(
    learner: Callable[..., Learner], tiny: Callable[..., PreTrainedModel]
) -> None:
    temperatures = (0.5, 1.0, 2.0, 0.5, 1.0, 2.0, 0.5, 1.0)
    logits = tiny(seed=0, attention="eager")(input_ids=torch.tensor(IDS)[None]).logits[0].detach()
    places = [place for place, mark in enumerate(ORIGIN) if mark == "x"]
    logprobs = tuple(
        float(torch.log_softmax(logits[place - 1] / each, -1)[IDS[place]])
        for place, each in zip(places, temperatures, strict=True)
    )
    ratios: list[Any] = []
    for known in (temperatures, ()):
        ours, first = learner(), trajectory(replace(WHOLE, temperatures=known, logprobs=logprobs))
        gradient(ours, group(first, *OTHERS))
        ratios.append(ours.token_log.collect()[id(first)]["ratio"])
    assert ratios[0] == pytest.approx([1.0] * 8, abs=1e-4)
    assert ratios[1] != pytest.approx([1.0] * 8, abs=1e-2)


def test_log_has_a_value_for_each_sampled_token_in_the_order_of_the_segments(learner: Callable[..., Learner]) -> None:
    ours = learner(roles=["writer"])
    team = trajectory(segment((7, 8, 25), "..x", "writer"), PLAN, WRITE)
    gradient(ours, group(team, *OTHERS))
    log = ours.token_log.collect()[id(team)]
    assert log["weight"] == [0.25, None, None, 0.25, 0.25, 0.25]
    assert isinstance(log["ratio"], list)
    assert [each is None for each in log["ratio"]] == [False, True, True, False, False, False]
