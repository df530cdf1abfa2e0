"""Models whose settings tell nothing unusual, and whose forward pass is not what engine and trainer rely on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from sleuth.errors import InputError
from sleuth.model.attention import NAME
from sleuth.model.load import load
from sleuth.model.probe import strange

Tiny = Callable[..., PreTrainedModel]
SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip


def small(kind: str, **settings: Any) -> PreTrainedModel:
    config = AutoConfig.for_model(kind, **SIZES, **settings)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation=NAME)
    dice = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, float("norm" in name), 0.2, generator=dice)
    model.eval()
    return model


def test_models_of_plain_attention_are_not_strange(tiny: Tiny, family: str) -> None:
    assert strange(tiny(family)) is None


@pytest.mark.parametrize("kind", ["gpt_neox", "olmo2", "phi", "qwen2_moe", "gpt2"])
def test_nor_are_those_with_other_norms_positions_or_experts(kind: str) -> None:
    assert strange(small(kind)) is None


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_nor_is_rounding_strange(tmp_path: Path, tiny: Tiny, family: str, dtype: torch.dtype) -> None:
    tiny(family).save_pretrained(tmp_path)
    assert strange(load(tmp_path, torch.device("cuda"), dtype)) is None


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("bloom", "0 of its 2 layers attend through the attention interface"),
        ("mamba", "0 of its 2 layers attend through the attention interface"),
        ("stablelm", "its forward pass does not take what our attention needs"),
        ("diffllama", "layer 0 attends twice"),
    ],
)
def test_what_attends_in_its_own_way_is_refused(tmp_path: Path, kind: str, reason: str) -> None:
    small(kind).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=f"cannot be served exactly: .*{reason}.*; choose a model"):
        load(tmp_path, torch.device("cpu"), torch.float32)


def test_a_token_that_depends_on_its_neighbour_is_noticed(tiny: Tiny) -> None:
    model = tiny()
    mlp = model.model.layers[1].mlp
    mlp.register_forward_hook(lambda _module, _given, out: out + out.cumsum(1))
    assert (
        strange(model) == "its tokens see their neighbours, or their place, by other ways than attention and position"
    )


def test_a_token_that_counts_its_own_place_is_noticed(tiny: Tiny) -> None:
    """As models do that number the tokens of a call from 0, whatever positions they are given."""
    model = tiny()
    model.model.rotary_emb.register_forward_pre_hook(
        lambda _module, given, named: (given, {"position_ids": torch.arange(named["position_ids"].shape[1])[None]}),
        with_kwargs=True,
    )
    assert "by other ways than attention and position" in (strange(model) or "")


def test_logits_of_more_than_a_product_are_noticed(tiny: Tiny) -> None:
    model = tiny()
    model.lm_head.register_forward_hook(lambda _module, _given, out: out.tanh())
    assert strange(model) == "its logits are not those of one linear layer"


def test_weights_that_are_no_numbers_are_for_others_to_find(tiny: Tiny) -> None:
    model = tiny()
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    assert strange(model) is None
