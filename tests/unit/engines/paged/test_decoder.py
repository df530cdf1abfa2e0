"""The fused decoder over scattered pages matches the stock model and shares its parameters."""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PreTrainedModel, Qwen2Config

from sleuth.engines.paged.batch import Batch
from sleuth.engines.paged.decoder import Decoder
from sleuth.engines.paged.kv_cache import KVCache
from sleuth.engines.paged.page_pool import PAGE_SIZE
from sleuth.model.attention import AttentionShape, Tiles
from sleuth.model.kernels.attention import tile_queries
from sleuth.model.llama_family import difference

CONTEXT = 32
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Segment = tuple[int, int, int]  # slot, and the positions from and to which its tokens are computed


class Scene:
    """Sequences in slots whose pages lie anywhere."""

    def __init__(self, model: PreTrainedModel, texts: Sequence[Sequence[int]], context: int = CONTEXT) -> None:
        device, dtype = model.device, model.dtype
        self.model, self.texts, self.device = model, texts, device
        pages = -(-context // PAGE_SIZE)
        self.shape = AttentionShape.of(model.config, dtype)
        self.cache = KVCache(self.shape, len(texts) * pages, len(texts), context, device)
        order = random.Random(0).sample(range(len(texts) * pages), len(texts) * pages)
        self.cache.table_SX[:-1] = torch.tensor(order, dtype=torch.int32).view(len(texts), pages)

    def batch(self, lanes: Sequence[tuple[int, int]], segments: Sequence[Segment]) -> Batch:
        """One token of each lane (slot, position) and some prompt tokens; lanes of slot -1 are nobody's."""
        parts = [(slot, at, at + 1) for slot, at in lanes] + list(segments)
        places = [(slot, at) for slot, start, end in parts for at in range(start, end)]
        for slot, at in lanes:
            self.cache.lengths_S[slot] = at + 1
        return Batch(
            ids_N=self._ints(self.texts[slot][at] if slot >= 0 else 0 for slot, at in places),
            positions_N=self._ints(at for _, at in places),
            addresses_N=self._ints(self._address(slot, at) for slot, at in places),
            slots_B=self._ints(slot if slot >= 0 else self.cache.padding_slot for slot, _ in lanes),
            tiles=self._tiles(len(lanes), segments) if segments else None,
        )

    def _address(self, slot: int, at: int) -> int:
        return int(self.cache.table_SX[slot, at // PAGE_SIZE]) * PAGE_SIZE + at % PAGE_SIZE if slot >= 0 else -1

    def _tiles(self, lanes: int, segments: Sequence[Segment]) -> Tiles:
        firsts = accumulate((end - start for _, start, end in segments), initial=lanes)
        most = tile_queries(self.shape.heads, self.shape.kv_heads)
        tiles = [
            (first + at - start, slot, at, min(most, end - at))
            for first, (slot, start, end) in zip(firsts, segments, strict=False)
            for at in range(start, end, most)
        ]
        return Tiles(*(self._ints(column) for column in zip(*tiles, strict=True)))

    def _ints(self, numbers: Any) -> Tensor:
        return torch.tensor(list(numbers), dtype=torch.int32, device=self.device)

    @torch.no_grad()
    def stock(self, parts: Sequence[Segment]) -> Tensor:
        """The hidden states the Hugging Face model has for these tokens, each in its whole sequence."""
        rows = []
        for slot, start, end in parts:
            ids = torch.tensor(self.texts[slot], device=self.device)[None]
            rows.append(self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0, start:end])
        return torch.cat(rows)


def texts(*lengths: int, words: int = 100) -> list[list[int]]:
    dice = random.Random(1)
    return [[dice.randrange(words) for _ in range(length)] for length in lengths]


def walk(scene: Scene, decoder: Decoder) -> Iterator[tuple[Tensor, Tensor]]:
    """Prompts, then lanes beside the rest of a prompt, then lanes alone: what came out beside what should have."""
    prompts = [(0, 0, 2), (2, 0, 14)]
    yield decoder.hidden_states(scene.batch([], prompts), scene.cache), scene.stock(prompts)
    mixed = decoder.hidden_states(scene.batch([(0, 2), (-1, 0)], [(2, 14, 17), (1, 0, 2)]), scene.cache)
    yield torch.cat([mixed[:1], mixed[2:]]), scene.stock([(0, 2, 3), (2, 14, 17), (1, 0, 2)])
    alone = decoder.hidden_states(scene.batch([(2, 17), (-1, 0), (1, 2)], []), scene.cache)
    yield alone[[0, 2]], scene.stock([(2, 17, 18), (1, 2, 3)])


def assert_same_walk(model: PreTrainedModel) -> None:
    assert difference(model) is None
    for mine, theirs in walk(Scene(model, texts(3, 3, 18)), Decoder(model, CONTEXT)):
        torch.testing.assert_close(mine, theirs, atol=5e-5, rtol=5e-5)


def test_every_family(tiny: Callable[..., PreTrainedModel], family: str) -> None:
    model = here(tiny(family, attention="eager"))
    inside(model).layers = inside(model).layers[:1]  # the interpreter is slow
    model.config.num_hidden_layers = 1
    assert_same_walk(model)


def test_more_than_one_layer(tiny: Callable[..., PreTrainedModel]) -> None:
    assert_same_walk(here(tiny(attention="eager")))


def assert_same(model: PreTrainedModel, decoder: Decoder) -> Tensor:
    """The hidden states of one prompt are the stock model's, which are returned."""
    assert difference(model) is None
    scene, prompt = Scene(model, texts(4)), [(0, 0, 4)]
    found, expected = decoder.hidden_states(scene.batch([], prompt), scene.cache), scene.stock(prompt)
    torch.testing.assert_close(found, expected, atol=5e-5, rtol=5e-5)
    return expected


ROPES: dict[str, dict[str, Any]] = {
    "linear": {"factor": 2.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32},
}


def small(kind: str = "llama", **settings: Any) -> PreTrainedModel:
    """A model of one layer, unless told otherwise."""
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = AutoConfig.for_model(
        kind, **{"vocab_size": 100, "num_hidden_layers": 1, "max_position_embeddings": 128, **sizes, **settings}
    )
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.eval()
    return model


def here(model: PreTrainedModel) -> PreTrainedModel:
    """The model where its kernels run."""
    torch.nn.Module.to(model, DEVICE)
    return model


def inside(model: PreTrainedModel) -> Any:
    """The model without its head, of whose parts transformers has no types."""
    return model.base_model


@pytest.mark.parametrize("kind", ROPES)
def test_every_rotary_embedding_of_positions_alone(kind: str) -> None:
    model = here(small(rope_parameters={"rope_type": kind, "rope_theta": 10000.0, **ROPES[kind]}))
    assert_same(model, Decoder(model, CONTEXT))


@pytest.mark.parametrize("targets", [["k_proj", "o_proj", "up_proj"], "all-linear"])
def test_adapters(targets: list[str] | str) -> None:
    model = here(small(attention_bias=True))
    before = Scene(model, texts(4)).stock([(0, 0, 4)])
    get_peft_model(model, LoraConfig(r=2, target_modules=targets, init_lora_weights=False)).eval()
    after = assert_same(model, Decoder(model, CONTEXT))
    assert not torch.allclose(before, after, atol=1e-2)


def test_what_the_trainer_writes_in_place_is_read(tiny: Callable[..., PreTrainedModel]) -> None:
    model = here(tiny("qwen3", attention="eager"))
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.05)
    decoder = Decoder(model, CONTEXT)
    before = assert_same(model, decoder)
    ids = torch.tensor(texts(5), device=DEVICE)
    model(input_ids=ids, labels=ids).loss.backward()
    optimiser.step()
    assert not decoder.parameters_moved()
    after = assert_same(model, decoder)
    assert not torch.allclose(before, after, atol=1e-2)


def test_parameters_keep_identity_values_and_gradients(tiny: Callable[..., PreTrainedModel]) -> None:
    model, untouched = tiny("qwen2"), tiny("qwen2")
    parameters = dict(model.named_parameters())
    with torch.inference_mode():
        Decoder(model, CONTEXT)
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())
    for name, weight in untouched.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight)
    assert all(parameter.requires_grad and not parameter.is_inference() for parameter in model.parameters())
    attends = inside(model).layers[0].self_attn
    joint = {part.weight.untyped_storage().data_ptr() for part in (attends.q_proj, attends.k_proj, attends.v_proj)}
    assert len(joint) == 1


def test_a_saved_model_is_whole(tiny: Callable[..., PreTrainedModel], tmp_path: Path) -> None:
    model = tiny("qwen2")
    Decoder(model, CONTEXT)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight)
    model.load_state_dict(tiny("qwen2", seed=1).state_dict())
    assert not torch.equal(inside(model).layers[0].mlp.up_proj.weight, inside(loaded).layers[0].mlp.up_proj.weight)


def test_a_second_decoder_moves_nothing(tiny: Callable[..., PreTrainedModel]) -> None:
    model = here(tiny("qwen2", attention="eager"))
    first, second = Decoder(model, CONTEXT), Decoder(model, CONTEXT)
    assert not first.parameters_moved()
    assert_same(model, second)


def _new_dtype(model: PreTrainedModel) -> None:
    model.double()


def _new_storage(model: PreTrainedModel) -> None:
    weight = inside(model).layers[1].self_attn.k_proj.weight
    weight.data = weight.data.clone()


def _new_parameter(model: PreTrainedModel) -> None:
    norm = inside(model).norm
    norm.weight = torch.nn.Parameter(norm.weight.detach().clone())


def _new_adapter(model: PreTrainedModel) -> None:
    get_peft_model(model, LoraConfig(r=1, target_modules=["v_proj"]))


@pytest.mark.parametrize("move", [_new_dtype, _new_storage, _new_parameter, _new_adapter])
def test_parameters_that_moved_are_noticed(
    tiny: Callable[..., PreTrainedModel], move: Callable[[PreTrainedModel], None]
) -> None:
    model = tiny()
    decoder = Decoder(model, CONTEXT)
    assert not decoder.parameters_moved()
    move(model)
    assert decoder.parameters_moved()


REFUSED: dict[str, tuple[Callable[[], PreTrainedModel], str]] = {
    "another type": (lambda: small("gemma2"), "gemma2"),
    "rope by length": (
        lambda: small(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
        "dynamic",
    ),
    "activation": (lambda: small(hidden_act="gelu"), "layer 0 .*GELUActivation"),
    "window": (
        lambda: small("mistral", sliding_window=8),
        "layer 0 .*8 tokens",
    ),
    "window of some layers": (
        lambda: small("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1, num_hidden_layers=2),
        "layer 1 .*8 tokens",
    ),
    "another norm": (lambda: _with(small(), "norm", torch.nn.LayerNorm(16)), "LayerNorm"),
    "another dtype": (lambda: _with_fp16_norm(small()), r"torch\.float16.*torch\.float32"),
    "a part more": (
        lambda: _with(small(), "layers.0.mlp.gate", torch.nn.Linear(2, 2)),
        "MLP of layer 0 .*gate",
    ),
    "a part less": (
        lambda: _without(small(), "layers.0.self_attn", "o_proj"),
        "attention of layer 0 .*o_proj",
    ),
}


def _with(model: PreTrainedModel, path: str, module: torch.nn.Module) -> PreTrainedModel:
    parent, _, name = path.rpartition(".")
    model.base_model.get_submodule(parent).add_module(name, module)
    return model


def _without(model: PreTrainedModel, parent: str, name: str) -> PreTrainedModel:
    delattr(model.base_model.get_submodule(parent), name)
    return model


def _with_fp16_norm(model: PreTrainedModel) -> PreTrainedModel:
    inside(model).layers[0].input_layernorm.half()
    return model


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_cannot_compute_is_refused(case: str) -> None:
    make, reason = REFUSED[case]
    found = difference(make())
    assert found is not None
    assert re.search(reason, found)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["smollm2-135m", "qwen2.5 of four layers"])
def test_hidden_states_in_bf16_at_full_width(kind: str) -> None:
    """As near to the stock model in bf16 as that is to itself in fp32: only the order of sums differs."""
    config = {
        "smollm2-135m": LlamaConfig(
            hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
            intermediate_size=1536, vocab_size=49152, max_position_embeddings=8192, tie_word_embeddings=True,
        ),
        "qwen2.5 of four layers": Qwen2Config(
            hidden_size=2048, num_hidden_layers=4, num_attention_heads=16, num_key_value_heads=2,
            intermediate_size=11008, vocab_size=1000, max_position_embeddings=8192, tie_word_embeddings=True,
        ),
    }[kind]  # fmt: skip
    torch.manual_seed(0)
    model, wide = (
        here(AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval())
        for dtype in (torch.bfloat16, torch.float32)
    )
    wide.load_state_dict(model.state_dict())
    scene, exact = (Scene(each, texts(3, 3, 18), context=1024) for each in (model, wide))
    decoder = Decoder(model, 1024)
    exactly = [theirs for _, theirs in walk(exact, Decoder(wide, 1024))]
    for (mine, theirs), truth in zip(walk(scene, decoder), exactly, strict=True):
        rounding = (theirs - truth).abs().mean()
        assert (mine.float() - theirs).abs().mean() <= 1.5 * rounding
        assert (mine - truth).abs().mean() <= 1.2 * rounding


@pytest.mark.gpu
def test_a_captured_step_reads_what_is_there_when_it_is_replayed(tiny: Callable[..., PreTrainedModel]) -> None:
    model = here(tiny(attention="eager"))
    scene, decoder = Scene(model, texts(3, 3, 18)), Decoder(model, CONTEXT)
    decoder.hidden_states(scene.batch([], [(0, 0, 2), (2, 0, 17)]), scene.cache)
    batch = scene.batch([(0, 2), (2, 17)], [])
    expected = decoder.hidden_states(batch, scene.cache)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = decoder.hidden_states(batch, scene.cache)
    graph.replay()
    torch.testing.assert_close(found, expected, atol=0, rtol=0)
    with torch.no_grad():
        inside(model).norm.weight.mul_(2)
    graph.replay()
    torch.testing.assert_close(found, 2 * expected, atol=0, rtol=0)
