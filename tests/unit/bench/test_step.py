"""A step with random weights: planned lengths, moving weights, parts that add up, and the report."""

import json
from collections.abc import Iterator
from dataclasses import replace
from time import monotonic

import pytest
import torch
from transformers import LlamaConfig

from sleuth.bench.episodes import (
    Encyclopedia,
    ForcedSearch,
    Plan,
    Rig,
    assembled_rig,
    generated_encyclopedia,
    resize,
)
from sleuth.bench.models import load_tokens
from sleuth.bench.step import ANCHORS, PARTS, REST, Measured, markdown, measure, measure_step, rates, record
from sleuth.errors import InputError
from sleuth.model.policy import Policy
from sleuth.model.shapes import published_shape
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
SHAPE = published_shape("tiny")


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    return load_tokens(SHAPE, None)


@pytest.fixture(scope="module")
def encyclopedia() -> Iterator[Encyclopedia]:
    with generated_encyclopedia(replace(PLAN, steps=3)) as made:
        yield made


@pytest.fixture
def rig(tokens: Tokens, encyclopedia: Encyclopedia) -> Iterator[Rig]:
    with assembled_rig(SHAPE, tokens, PLAN, encyclopedia, CPU) as made:
        yield made


def test_episodes_have_the_planned_length_and_show_hits(rig: Rig, encyclopedia: Encyclopedia, tokens: Tokens) -> None:
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


def test_samples_share_a_prompt_and_carry_the_weight_version(rig: Rig, encyclopedia: Encyclopedia) -> None:
    first, again = (rig.step(encyclopedia.questions[:1], number) for number in (0, 1))
    assert {version for each in first for version in each.versions} == {0}
    assert {version for each in again for version in each.versions} == {1}
    assert rig.engine.stats.reused > 2 * 48  # the whole pages of a prompt, once more in each step


def test_policy_changes_and_reference_does_not(rig: Rig, encyclopedia: Encyclopedia) -> None:
    policy, reference = rig.learner.policy, rig.learner.reference
    assert isinstance(reference, Policy)
    before = [each.detach().clone() for each in policy.model.parameters()]
    assert all(map(torch.equal, before, reference.model.parameters()))
    rig.step(encyclopedia.questions[:3], 0)
    assert not any(map(torch.equal, before, policy.model.parameters()))
    assert all(map(torch.equal, before, reference.model.parameters()))


def test_parts_add_up_to_the_step(rig: Rig, encyclopedia: Encyclopedia) -> None:
    began = monotonic()
    found = measure_step(rig, encyclopedia.questions[:3], 0)
    elapsed = monotonic() - began
    assert set(found.seconds) == {*PARTS, REST}
    assert all(seconds > 0 for seconds in found.seconds.values())
    assert 0.5 * elapsed < found.whole <= elapsed
    assert 0 < found.searching < found.seconds["generate"]
    assert (found.trajectories, found.searches, found.sampled, found.updates) == (6, 12, 6 * 18, 2)
    assert 6 * (45 + 98) <= found.tokens <= 6 * (90 + 98)
    assert (found.mfu, found.peak_gib) == (None, None)


def test_lora_without_reference(tokens: Tokens) -> None:
    logged: list[str] = []
    plan = Plan(
        questions=2, samples=2, searches=1, prompt_tokens=20, turn_tokens=3, observation_tokens=20, kl=False, lora=2,
        recompute=0.5, slots=4, warmup=1, steps=2, passages=200,
    )  # fmt: skip
    found = measure(SHAPE, tokens, plan, logged.append)
    assert [each.trajectories for each in found] == [4, 4]
    assert all(each.seconds["score"] < each.seconds["train"] for each in found)
    assert [line.partition(":")[0] for line in logged] == ["warm-up", "step 1", "step 2"]


def test_episodes_longer_than_the_model_are_rejected(tokens: Tokens) -> None:
    with pytest.raises(InputError, match=r"exceed the 8192 positions.*--turn-tokens"):
        measure(SHAPE, tokens, Plan(questions=1, turn_tokens=3000, warmup=0, passages=200), print)


def test_update_must_hold_a_group() -> None:
    with pytest.raises(InputError, match="updates of 4 trajectories are smaller than a group of 5"):
        Plan(update=4)
    assert Plan().updates(2560) == 10
    assert Plan().updates(320) == 2


def test_vocabulary_smaller_than_the_tokenizer_is_rejected() -> None:
    with pytest.raises(InputError, match="16 tokens, the tokenizer 1253"):
        load_tokens(LlamaConfig(vocab_size=16), None)


def test_text_is_cut_or_repeated(tokens: Tokens) -> None:
    text = "Question: Who wrote it?\n"
    whole = tokens.encode(text)
    assert tokens.encode(resize(text, 3, tokens)) == whole[:3]
    assert tokens.encode(resize(text, 2 * len(whole), tokens)) == whole * 2
    with pytest.raises(ValueError, match="without tokens"):
        resize("", 3, tokens)


def test_every_text_is_a_search() -> None:
    forced = ForcedSearch(["one", "two"], "Do it.")
    assert [forced.parse(text) for text in ("<answer> x </answer>", "", "?")] == [
        ToolCall.search("one"), ToolCall.search("two"), ToolCall.search("one"),
    ]  # fmt: skip
    assert (forced.stops, forced.instruction) == ((), "Do it.")


FIRST = Measured(
    seconds={"generate": 4.0, "score": 1.0, "train": 3.0, "optimiser": 1.0, "publish": 0.5, "rest": 0.5},
    searching=2.0,
    searches=20,
    latency=0.05,
    trajectories=10,
    tokens=9000,
    sampled=2400,
    updates=2,
    mfu=0.5,
    peak_gib=60.0,
)
SECOND = replace(FIRST, seconds=FIRST.seconds | {"train": 6.0, "rest": 7.5}, mfu=0.25, peak_gib=70.0, latency=0.15)


def test_rates_are_over_all_steps() -> None:
    found = rates([FIRST, SECOND])
    assert found["trajectories"] == pytest.approx(20 / 30)
    assert found["tokens"] == pytest.approx(18_000 / 30)
    assert found["sampled"] == pytest.approx(4800 / 30)
    assert found["generating"] == pytest.approx(4800 / 8)
    assert found["training"] == pytest.approx(18_000 / 9)
    assert found["mfu"] == pytest.approx((0.5 * 3 + 0.25 * 6) / 9)
    assert found["peak_gib"] == 70.0
    assert found["latency_ms"] == pytest.approx(100.0)


def test_gpu_figures_are_none_on_a_cpu() -> None:
    found = rates([replace(FIRST, mfu=None, peak_gib=None, searches=0, latency=0.0)])
    assert (found["mfu"], found["peak_gib"], found["latency_ms"]) == (None, None, None)


def test_tables() -> None:
    printed = markdown("small", Plan(questions=2, samples=5), [FIRST])
    title = (
        "**small: 2 questions x 5, 2 searches, 900 tokens per trajectory (240 sampled), KL, updates: 2, all weights**"
    )
    assert title in printed
    lines = printed.splitlines()
    start = lines.index("| generate | 4 | 40.0% |")
    assert lines[start : start + 8] == [
        "| generate | 4 | 40.0% |",
        "| - with a search in flight | 2 | 20.0% |",
        "| score | 1 | 10.0% |",
        "| train | 3 | 30.0% |",
        "| optimiser | 1 | 10.0% |",
        "| publish | 0.5 | 5.0% |",
        "| rest | 0.5 | 5.0% |",
        "| whole step | 10 | 100.0% |",
    ]
    assert "| MFU of forward and backward (6N) | 0.5 |" in lines
    assert "| Search-R1, trajectories/s per H100, from its paper | 2.4 |" in lines


def test_table_of_several_steps_shows_means() -> None:
    printed = markdown("small", Plan(lora=8, kl=False, recompute=0.5), [FIRST, SECOND])
    assert "no KL, updates: 2, LoRA of rank 8, 50% of the layers recomputed, mean of 2 steps**" in printed
    assert "| train | 4.5 | 30.0% |" in printed
    assert "| whole step | 15 | 100.0% |" in printed


def test_record_is_complete_json() -> None:
    kept = json.loads(json.dumps(record("a machine", "small", Plan(), [FIRST, SECOND])))
    assert [step["whole"] for step in kept["steps"]] == [10.0, 20.0]
    assert kept["steps"][0]["seconds"] == FIRST.seconds
    assert (kept["machine"], kept["shape"], kept["plan"]["update"]) == ("a machine", "small", 256)
    assert kept["rates"] == rates([FIRST, SECOND])
    assert kept["anchors"] == ANCHORS
