"""Loading refuses models that would be computed wrongly, with the reason."""

import builtins
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from sleuth.config.retrieval import EncoderSettings
from sleuth.errors import InputError
from sleuth.model.attention import NAME
from sleuth.model.load import inexact_reason, load, unsupported_reason
from sleuth.model.shapes import shape_of_folder
from sleuth.model.tokens import Tokens
from sleuth.retrieval.dense import encoder

Tiny = Callable[..., PreTrainedModel]
CPU = torch.device("cpu")


@pytest.fixture
def folder(tiny: Tiny, tmp_path: Path) -> Path:
    tiny().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_the_weights_as_saved_with_our_attention(folder: Path, tiny: Tiny, family: str) -> None:
    saved = tiny(family)
    saved.save_pretrained(folder)
    loaded = load(folder, CPU, torch.float32)
    assert loaded.config._attn_implementation == NAME
    assert not loaded.training
    for mine, theirs in zip(loaded.parameters(), saved.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_the_type_asked_for(folder: Path) -> None:
    assert {parameter.dtype for parameter in load(folder, CPU, torch.bfloat16).parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"sliding_window": 4096}, "4096"),
        ({"sliding_window": 64, "use_sliding_window": True}, "64"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"logits_scaling": 8.0}, "logits_scaling"),
        ({"logit_scale": 0.0625}, "logit_scale"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_parameters": {"full_attention": {"rope_type": "longrope"}}}, "longrope"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_scaling": {"type": "su"}}, "(su)"),
    ],
)
def test_models_of_another_meaning_are_refused(folder: Path, settings: dict[str, object], reason: str) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    with pytest.raises(InputError) as refused:
        load(folder, CPU, torch.float32)
    assert reason in str(refused.value)
    assert str(folder) in str(refused.value)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"sliding_window": None},
        {"sliding_window": 4096, "use_sliding_window": False},
        {"layer_types": ["full_attention"] * 2},
        {"final_logit_softcapping": None, "logits_scaling": 1.0},
        {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}, "rope_scaling": None},
        {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
    ],
)
def test_models_of_plain_meaning_are_served(settings: dict[str, object]) -> None:
    assert unsupported_reason(settings) is None


@pytest.mark.parametrize("kind", ["mistral", "gemma2", "gemma3_text", "cohere", "granite", "gpt_oss"])
def test_families_known_to_differ_are_refused_by_their_own_settings(kind: str) -> None:
    settings = AutoConfig.for_model(kind).to_dict()
    if kind == "granite":
        settings["logits_scaling"] = 16.0
    assert unsupported_reason(settings)


def test_no_model_folder(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match=r"config\.json"):
            load(folder, CPU, torch.float32)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
def test_settings_that_are_none(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json.*JSON"):
        load(folder, CPU, torch.float32)


def test_a_model_nobody_knows(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "no such"}')
    with pytest.raises(InputError, match="no causal model can be loaded"):
        load(folder, CPU, torch.float32)


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="no causal model can be loaded"):
        load(folder, CPU, torch.float32)


def test_weights_cut_short(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(InputError, match="no causal model can be loaded"):
        load(folder, CPU, torch.float32)


def test_weights_of_another_shape(folder: Path, tiny: Tiny) -> None:
    tiny("qwen3").save_pretrained(folder, state_dict=tiny("llama").state_dict())
    with pytest.raises(InputError):
        load(folder, CPU, torch.float32)


def test_absent_weights_are_never_drawn_at_random(folder: Path, tiny: Tiny) -> None:
    weights = tiny().state_dict()
    del weights["model.layers.1.mlp.up_proj.weight"]
    tiny().save_pretrained(folder, state_dict=weights)
    with pytest.raises(InputError, match=r"1 weights.*model\.layers\.1\.mlp\.up_proj\.weight"):
        load(folder, CPU, torch.float32)


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
    assert inexact_reason(tiny(family)) is None


@pytest.mark.parametrize("kind", ["gpt_neox", "olmo2", "phi", "qwen2_moe", "gpt2"])
def test_nor_are_those_with_other_norms_positions_or_experts(kind: str) -> None:
    assert inexact_reason(small(kind)) is None


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_nor_is_rounding_strange(tmp_path: Path, tiny: Tiny, family: str, dtype: torch.dtype) -> None:
    tiny(family).save_pretrained(tmp_path)
    assert inexact_reason(load(tmp_path, torch.device("cuda"), dtype)) is None


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("bloom", "0 of its 2 layers"),
        ("mamba", "0 of its 2 layers"),
        ("stablelm", "its forward pass"),
        ("diffllama", "layer 0"),
    ],
)
def test_what_attends_in_its_own_way_is_refused(tmp_path: Path, kind: str, reason: str) -> None:
    small(kind).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=f"cannot be served exactly: .*{reason}"):
        load(tmp_path, torch.device("cpu"), torch.float32)


def test_a_token_that_depends_on_its_neighbour_is_noticed(tiny: Tiny) -> None:
    model = tiny()
    mlp = model.model.layers[1].mlp
    mlp.register_forward_hook(lambda _module, _given, out: out + out.cumsum(1))
    assert "neighbours" in (inexact_reason(model) or "")


def test_a_token_that_counts_its_own_place_is_noticed(tiny: Tiny) -> None:
    """As models do that number the tokens of a call from 0, whatever positions they are given."""
    model = tiny()
    model.model.rotary_emb.register_forward_pre_hook(
        lambda _module, given, named: (given, {"position_ids": torch.arange(named["position_ids"].shape[1])[None]}),
        with_kwargs=True,
    )
    assert "position" in (inexact_reason(model) or "")


def test_logits_of_more_than_a_product_are_noticed(tiny: Tiny) -> None:
    model = tiny()
    model.lm_head.register_forward_hook(lambda _module, _given, out: out.tanh())
    assert "logits" in (inexact_reason(model) or "")


def test_weights_that_are_no_numbers_are_for_others_to_find(tiny: Tiny) -> None:
    model = tiny()
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    assert inexact_reason(model) is None


CODE = """
open({mark!r}, "w").close()
from transformers import BertConfig as Config, BertForSequenceClassification as Scorer, BertModel as Model
from transformers import Qwen2ForCausalLM as Causal, Qwen2TokenizerFast as Tokenizer
"""
AUTO = {
    "AutoConfig": "hostile.Config",
    "AutoModel": "hostile.Model",
    "AutoModelForCausalLM": "hostile.Causal",
    "AutoModelForSequenceClassification": "hostile.Scorer",
    "AutoTokenizer": ["hostile.Tokenizer", "hostile.Tokenizer"],
}
SETTINGS = EncoderSettings()
LOADERS: dict[str, Callable[[Path], object]] = {
    "policy": lambda folder: load(folder, torch.device("cpu"), torch.float32),
    "tokenizer": Tokens.load,
    "encoder": lambda folder: encoder.Encoder.load(SETTINGS.model_copy(update={"model": str(folder)}), "cpu"),
    "modules of an encoder": lambda folder: encoder._sentence_encoder(folder, SETTINGS, "cpu"),
    "reranker": lambda folder: encoder.load_cross_encoder(str(folder), "cpu"),
    "shape": shape_of_folder,
}


@pytest.mark.parametrize("loads", LOADERS.values(), ids=LOADERS)
def test_code_of_a_folder_is_not_run(
    loads: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builtins, "input", lambda *_: "y")
    folder, mark = tmp_path / "model", tmp_path / "ran"
    folder.mkdir()
    (folder / "hostile.py").write_text(CODE.format(mark=str(mark)))
    config = {"model_type": "hostile", "architectures": ["HostileForSequenceClassification"], "auto_map": AUTO}
    (folder / "config.json").write_text(json.dumps(config))
    written = {"tokenizer_class": "Tokenizer", "auto_map": {"AutoTokenizer": AUTO["AutoTokenizer"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(written))
    (folder / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": "hostile.Pooling"}]))
    try:
        with pytest.raises(Exception, match=r"custom code|cannot be served exactly|no class that is known"):
            loads(folder)
    finally:
        assert not mark.exists()  # before whatever was said: that the code ran is what matters
