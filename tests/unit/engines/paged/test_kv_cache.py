"""The size of the key/value cache, and errors for settings that do not fit."""

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from sleuth.engines.paged.engine import PagedEngine
from sleuth.engines.paged.kv_cache import count_pages
from sleuth.engines.paged.page_pool import PAGE_SIZE
from sleuth.errors import ConfigError
from sleuth.model.attention import AttentionShape
from sleuth.model.memory import host_memory

Tiny = Callable[..., PreTrainedModel]
TOTAL, _ = host_memory()


@pytest.fixture
def page_bytes(tiny: Tiny) -> int:
    return PAGE_SIZE * AttentionShape.of(tiny().config, torch.float32).bytes_per_token


def test_a_page_holds_keys_and_values_of_all_layers(page_bytes: int) -> None:
    layers, key_heads, width, tokens, bytes_each = 2, 2, 8, 16, 4
    assert page_bytes == 2 * layers * key_heads * width * tokens * bytes_each


@pytest.mark.parametrize(("slots", "context", "pages"), [(1, 1, 1), (1, 16, 1), (1, 17, 2), (8, 100, 56)])
def test_no_more_than_all_slots_can_fill(tiny: Tiny, slots: int, context: int, pages: int) -> None:
    assert count_pages(tiny(), slots=slots, context=context, share=0.3, prefill_tokens=64) == pages


@pytest.mark.parametrize("pages", [7, 8, 55])
def test_no_more_than_the_share_holds(tiny: Tiny, page_bytes: int, pages: int) -> None:
    share = (pages + 0.5) * page_bytes / TOTAL
    assert count_pages(tiny(), slots=8, context=100, share=share, prefill_tokens=64) == pages


def test_a_share_too_small_for_one_context_is_refused(tiny: Tiny, page_bytes: int) -> None:
    with pytest.raises(ConfigError) as refused:
        PagedEngine(tiny(), None, slots=8, context=100, memory=6.5 * page_bytes / TOTAL)
    message = str(refused.value)
    assert all(fact in message for fact in ("engine.memory", "96 tokens", "100", "agent.context_tokens"))


def test_more_than_is_free_is_refused_before_anything_is_taken(tiny: Tiny, page_bytes: int) -> None:
    context = 2**20
    slots = 1 + 2 * TOTAL // (page_bytes * context // 16)
    with pytest.raises(ConfigError, match=r"engine\.memory.*GiB.*GiB.*free"):
        count_pages(tiny(), slots=slots, context=context, share=1.0, prefill_tokens=64)
