"""A step on random weights: episodes as long as asked for, weights that move, and parts that add up."""

from collections.abc import Iterator
from time import monotonic

import pytest
import torch
from transformers import LlamaConfig

from sleuth.bench import policies, shapes
from sleuth.bench.encyclopedia import Encyclopedia, generated
from sleuth.bench.forced import Forced, fitted
from sleuth.bench.plan import Plan
from sleuth.bench.rig import Rig, assembled
from sleuth.bench.step import PARTS, REST, measure, one
from sleuth.errors import InputError
from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens
from sleuth.records import Outcome, ToolCall, run_lengths

CPU = torch.device("cpu")
PLAN = Plan(
    questions=3,
    samples=2,
    searches=2,
    prompt_tokens=60,
    turn_tokens=6,
    observation_tokens=40,
    update=4,
    pack_tokens=400,
    slots=6,
    warmup=1,
    passages=200,
)
SHAPE = shapes.named("tiny")


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    return policies.tokens(SHAPE, None)


@pytest.fixture(scope="module")
def encyclopedia() -> Iterator[Encyclopedia]:
    with generated(PLAN.passages, 8) as made:
        yield made


@pytest.fixture
def rig(tokens: Tokens, encyclopedia: Encyclopedia) -> Iterator[Rig]:
    with assembled(SHAPE, tokens, PLAN, encyclopedia, CPU) as made:
        yield made


def test_episodes_are_as_long_as_asked_for_and_show_what_was_found(
    rig: Rig, encyclopedia: Encyclopedia, tokens: Tokens
) -> None:
    found = rig.step(encyclopedia.questions[:3], 0)
    assert [(each.group, each.sample) for each in found] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    asked = {question.question for question in encyclopedia.questions}
    for each in found:
        (given, prompt), *others = run_lengths(each.sampled)
        assert given == "given"
        assert 45 <= prompt <= 90
        assert others == [("sampled", 6), ("given", 40), ("sampled", 6), ("given", 40), ("sampled", 6)]
        assert each.question.question in tokens.decode(each.ids[:prompt])
        assert [turn.outcome for turn in each.turns] == [Outcome.FOUND, Outcome.FOUND, Outcome.REFUSED]
        assert all(isinstance(turn.action, ToolCall) and set(turn.action.lookups) <= set(asked) for turn in each.turns)
        shown = tokens.decode(each.ids[prompt + 6 : prompt + 46])
        assert shown.startswith(f"\n\n<information>Doc 1(Title: {each.turns[0].hits[0].passage.title}")
        assert shown.endswith("</information>\n\n")


def test_samples_of_a_question_share_its_prompt_and_every_version_is_told(rig: Rig, encyclopedia: Encyclopedia) -> None:
    first, again = (rig.step(encyclopedia.questions[:1], number) for number in (0, 1))
    assert {version for each in first for version in each.versions} == {0}
    assert {version for each in again for version in each.versions} == {1}
    assert rig.engine.stats.reused > 2 * 48  # the whole pages of a prompt, once more in each step


def test_the_policy_moves_and_the_reference_does_not(rig: Rig, encyclopedia: Encyclopedia) -> None:
    policy, reference = rig.learner.policy, rig.learner.reference
    assert isinstance(reference, Policy)
    before = [each.detach().clone() for each in policy.model.parameters()]
    assert all(map(torch.equal, before, reference.model.parameters()))
    rig.step(encyclopedia.questions[:3], 0)
    assert not any(map(torch.equal, before, policy.model.parameters()))
    assert all(map(torch.equal, before, reference.model.parameters()))


def test_the_parts_add_up_to_the_step(rig: Rig, encyclopedia: Encyclopedia) -> None:
    began = monotonic()
    found = one(rig, encyclopedia.questions[:3], 0)
    elapsed = monotonic() - began
    assert set(found.seconds) == {*PARTS, REST}
    assert all(seconds > 0 for seconds in found.seconds.values())
    assert 0.5 * elapsed < found.whole <= elapsed
    assert 0 < found.searching < found.seconds["generate"]
    assert (found.trajectories, found.searches, found.sampled, found.updates) == (6, 12, 6 * 18, 2)
    assert 6 * (45 + 98) <= found.tokens <= 6 * (90 + 98)
    assert (found.mfu, found.peak_gib) == (None, None)


def test_an_adapter_alone_without_a_reference(tokens: Tokens) -> None:
    heard: list[str] = []
    plan = Plan(
        questions=2, samples=2, searches=1, prompt_tokens=20, turn_tokens=3, observation_tokens=20, kl=False, lora=2,
        recompute=0.5, slots=4, warmup=1, steps=2, passages=200,
    )  # fmt: skip
    found = measure(SHAPE, tokens, plan, heard.append)
    assert [each.trajectories for each in found] == [4, 4]
    assert all(each.seconds["score"] < each.seconds["train"] for each in found)
    assert [line.partition(":")[0] for line in heard] == ["warm-up", "step 1", "step 2"]


def test_episodes_longer_than_the_model_are_refused(tokens: Tokens) -> None:
    with pytest.raises(InputError, match=r"more than the 8192 positions.*--turn-tokens"):
        measure(SHAPE, tokens, Plan(questions=1, turn_tokens=3000, warmup=0, passages=200), print)


def test_an_update_holds_a_group() -> None:
    with pytest.raises(InputError, match="updates of 4 trajectories are smaller than a group of 5"):
        Plan(update=4)
    assert Plan().updates(2560) == 10
    assert Plan().updates(320) == 2


def test_a_vocabulary_smaller_than_the_tokenizer_is_refused() -> None:
    with pytest.raises(InputError, match="the shape has 16 tokens and the tokenizer 1253"):
        policies.tokens(LlamaConfig(vocab_size=16), None)


def test_a_text_is_cut_or_repeated(tokens: Tokens) -> None:
    text = "Question: Who wrote it?\n"
    whole = tokens.encode(text)
    assert tokens.encode(fitted(text, 3, tokens)) == whole[:3]
    assert tokens.encode(fitted(text, 2 * len(whole), tokens)) == whole * 2
    with pytest.raises(ValueError, match="without tokens"):
        fitted("", 3, tokens)


def test_whatever_is_said_is_a_search() -> None:
    forced = Forced(["one", "two"], "Do it.")
    assert [forced.parse(text) for text in ("<answer> x </answer>", "", "?")] == [
        ToolCall.search("one"), ToolCall.search("two"), ToolCall.search("one"),
    ]  # fmt: skip
    assert (forced.stops, forced.instruction) == ((), "Do it.")
