"""Greedy tokens equal those of Hugging Face `generate` for each prompt, except for ties.

A folder named in SLEUTH_TEST_MODEL is held to the same: on a CPU a few prompts of it, on a GPU as many as of our own.
"""

import asyncio
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from sleuth.agent import prompts
from sleuth.agent.tags import Tags
from sleuth.config.recipe import resolve_policy
from sleuth.corpus.questions import stream
from sleuth.engines.base import Completion, Finish, Sampling
from sleuth.engines.paged.engine import PagedEngine
from sleuth.model.load import load
from sleuth.model.tokens import Tokens
from sleuth.records import Question
from sleuth.synthesis.world.world import World

REAL = Path(__file__).parents[2].parent / "shared" / "data" / "hotpotqa.questions.test.jsonl.gz"
NAMED = [os.environ["SLEUTH_TEST_MODEL"]] if "SLEUTH_TEST_MODEL" in os.environ else []
OURS = "quickstart"
TIE = 1e-4
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def asked(name: str, count: int, tokens: Tokens) -> list[list[int]]:
    """Prompts as an episode begins with them: of a generated world, or of real questions where they lie about."""
    world = (posed.question for posed in World(2000, 0).questions("test", count))
    questions: Iterator[Question] = stream(REAL) if name != OURS and REAL.exists() else world
    template = "brief" if name == OURS else "instruct"
    return [prompts.render(question, template, Tags(), tokens) for question in islice(questions, count)]


def generated(
    model: PreTrainedModel, given: Sequence[Sequence[int]], most: int, ends: Sequence[int]
) -> list[list[int]]:
    """What Hugging Face makes of each prompt; those of one length at once, since padding changes the sums."""
    settings = GenerationConfig(max_new_tokens=most, do_sample=False, eos_token_id=[*ends], pad_token_id=ends[0])
    generate: Any = model.generate
    alike: dict[int, list[int]] = defaultdict(list)
    for number, ids in enumerate(given):
        alike[len(ids)].append(number)
    found: dict[int, list[int]] = {}
    for length, numbers in alike.items():
        rows = torch.tensor([given[number] for number in numbers], device=model.device)
        out = generate(rows, attention_mask=torch.ones_like(rows), generation_config=settings)
        found |= {number: _to_the_end(row[length:].tolist(), ends) for number, row in zip(numbers, out, strict=True)}
    return [found[number] for number in range(len(given))]


def _to_the_end(ids: list[int], ends: Sequence[int]) -> list[int]:
    last = next((place for place, token in enumerate(ids) if token in ends), len(ids))
    return ids[: last + 1]


def _ends(model: PreTrainedModel, tokens: Tokens) -> list[int]:
    named: Any = getattr(model.generation_config, "eos_token_id", None)
    listed = named if isinstance(named, list) else [named]
    return sorted({token for token in (*listed, tokens.eos_id) if token is not None})


def _is_tie(model: PreTrainedModel, ids: Sequence[int], tokens: set[int]) -> bool:
    """Whether these two tokens are the best after `ids`, and as good as equal."""
    with torch.no_grad():
        best = model(torch.tensor([[*ids]], device=model.device)).logits[0, -1].float().topk(2)
    return set(best.indices.tolist()) == tokens and float(best.values[0] - best.values[1]) < TIE


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [OURS, *NAMED])
def test_greedy_tokens_are_those_of_hugging_face(name: str, device: str) -> None:
    folder = resolve_policy(name)
    few = device == "cpu" and name != OURS
    count, most = (10, 16) if few else (100, 32)
    tokens = Tokens.load(folder)
    given = asked(name, count, tokens)
    engine = PagedEngine(
        load(folder, torch.device(device), torch.float32), tokens, slots=32, context=max(map(len, given)) + most + 1
    )

    async def main() -> list[Completion]:
        return await asyncio.gather(*(engine.generate(ids, Sampling(most, temperature=0.0)) for ids in given))

    completions = asyncio.run(main())
    stock = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.nn.Module.to(stock, device)
    ends = _ends(stock, tokens)
    expected = generated(stock, given, most, ends)
    ties = 0
    for prompt, completion, line in zip(given, completions, expected, strict=True):
        same = next((n for n, pair in enumerate(zip(completion.ids, line, strict=False)) if pair[0] != pair[1]), None)
        if same is None:
            assert list(completion.ids) == line
            assert completion.finish is (Finish.END if line[-1] in ends else Finish.LENGTH)
        else:
            assert _is_tie(stock, [*prompt, *line[:same]], {completion.ids[same], line[same]})
            ties += 1
    print(f"{name} on {device}: {count} prompts, {sum(map(len, expected))} tokens, {ties} ended in a tie")
    assert ties < count / 10
