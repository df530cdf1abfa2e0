"""How many pages the engine may have, and what it says where that cannot be."""

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from sleuth.engines.paged.budget import pages_for
from sleuth.engines.paged.engine import PagedEngine
from sleuth.engines.paged.pages import PAGE
from sleuth.errors import ConfigError
from sleuth.model.attention import AttentionShape
from sleuth.model.memory import host_memory

Tiny = Callable[..., PreTrainedModel]
TOTAL, _ = host_memory()


@pytest.fixture
def page_bytes(tiny: Tiny) -> int:
    return PAGE * AttentionShape.of(tiny().config, torch.float32).bytes_per_token


def test_a_page_holds_keys_and_values_of_all_layers(page_bytes: int) -> None:
    layers, key_heads, width, tokens, bytes_each = 2, 2, 8, 16, 4
    assert page_bytes == 2 * layers * key_heads * width * tokens * bytes_each


@pytest.mark.parametrize(("slots", "context", "pages"), [(1, 1, 1), (1, 16, 1), (1, 17, 2), (8, 100, 56)])
def test_no_more_than_all_slots_can_fill(tiny: Tiny, slots: int, context: int, pages: int) -> None:
    assert pages_for(tiny(), slots=slots, context=context, share=0.3, prefill_tokens=64) == pages


@pytest.mark.parametrize("pages", [7, 8, 55])
def test_no_more_than_the_share_holds(tiny: Tiny, page_bytes: int, pages: int) -> None:
    share = (pages + 0.5) * page_bytes / TOTAL
    assert pages_for(tiny(), slots=8, context=100, share=share, prefill_tokens=64) == pages


def test_a_share_too_small_for_one_context_is_refused(tiny: Tiny, page_bytes: int) -> None:
    with pytest.raises(ConfigError) as refused:
        PagedEngine(tiny(), None, slots=8, context=100, memory=6.5 * page_bytes / TOTAL)
    told = str(refused.value)
    assert "holds keys and values of 96 tokens, expected room for one context of 100" in told
    assert "raise it, or lower agent.context_tokens" in told


def test_more_than_is_free_is_refused_before_anything_is_taken(tiny: Tiny, page_bytes: int) -> None:
    context = 2**20
    slots = 1 + 2 * TOTAL // (page_bytes * context // 16)
    with pytest.raises(
        ConfigError, match=r"asks for .* GiB of keys and values, beside .* and .* GiB are free: lower it"
    ):
        pages_for(tiny(), slots=slots, context=context, share=1.0, prefill_tokens=64)
