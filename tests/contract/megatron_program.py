"""Megatron-core on a CPU: build the GPTModel of a Hugging Face config, load a checkpoint into it, compute, save.

Run by the Python of an environment with megatron-core, which need not have Sleuth. Writes OUT/config.json,
OUT/logits.safetensors (one process only) and OUT/checkpoint, as tests/contract/recordings/megatron-core has them.
"""

import argparse
import json
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import dist_checkpointing, parallel_state  # noqa: E402
from megatron.core.dist_checkpointing import ShardedTensor  # noqa: E402
from megatron.core.dist_checkpointing.mapping import ShardedObject  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.tensor_parallel import get_cuda_rng_tracker  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

TOKENS = 12


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--load", type=str)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vocabulary", type=int, help="With padding.")
    parser.add_argument("--per-layer", action="store_true", help="Save each layer, and gate and up, under own names.")
    parser.add_argument("--optimiser", action="store_true", help="Save moments and random states, too.")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--tensor", type=int, default=1)
    parser.add_argument("--pipeline", type=int, default=1)
    options = parser.parse_args()
    start(options)
    config = json.loads(options.config.read_text())
    model = build(config, options.vocabulary or config["vocab_size"])
    torch.manual_seed(options.seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            torch.nn.init.normal_(parameter, float("norm" in name), 0.3)
    if options.load:
        wanted = model.sharded_state_dict(metadata=dist_checkpointing.load_content_metadata(options.load))
        loaded = dist_checkpointing.load(wanted, options.load)
        model.load_state_dict({name: each for name, each in loaded.items() if name in wanted})
    if options.tensor * options.pipeline == 1:
        save_file({"logits": logits(model)[:, : config["vocab_size"]].contiguous()}, options.out / "logits.safetensors")
    save(model, options)


def start(options: argparse.Namespace) -> None:
    """Join the process group; what Megatron asks of CUDA without need is answered for a CPU."""
    answers: list[tuple[Any, str, Any]] = [
        (torch.cuda, "current_device", lambda: "cpu"),
        (torch.cuda, "synchronize", lambda *_: None),
        (torch.Tensor, "cuda", lambda tensor, *_: tensor),
    ]
    for owner, name, answer in answers:
        setattr(owner, name, answer)
    options.out.mkdir(parents=True, exist_ok=True)
    address, ranks = f"file://{options.out.absolute() / 'store'}", options.tensor * options.pipeline
    dist.init_process_group("gloo", init_method=address, rank=options.rank, world_size=ranks)
    parallel_state.initialize_model_parallel(options.tensor, options.pipeline)
    get_cuda_rng_tracker().fork = lambda *_: nullcontext()


def build(config: dict[str, Any], vocabulary: int) -> Any:
    sizes = TransformerConfig(
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        ffn_hidden_size=config["intermediate_size"],
        num_attention_heads=config["num_attention_heads"],
        num_query_groups=config["num_key_value_heads"],
        kv_channels=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
        layernorm_epsilon=config["rms_norm_eps"],
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        pipeline_model_parallel_size=parallel_state.get_pipeline_model_parallel_world_size(),
        pipeline_dtype=torch.float32,
        params_dtype=torch.float32,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        add_qkv_bias=config["model_type"] == "qwen2",
        qk_layernorm=config["model_type"] == "qwen3",
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
    )
    return GPTModel(
        sizes,
        get_gpt_layer_local_spec(qk_layernorm=sizes.qk_layernorm, normalization="RMSNorm"),
        vocab_size=vocabulary,
        max_sequence_length=config["max_position_embeddings"],
        position_embedding_type="rope",
        rotary_base=config["rope_parameters"]["rope_theta"],
        share_embeddings_and_output_weights=config["tie_word_embeddings"],
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
    ).eval()


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    positions = torch.arange(TOKENS)[None]
    hidden = torch.triu(torch.ones(TOKENS, TOKENS, dtype=torch.bool), 1)[None, None]
    found: torch.Tensor = model(positions + 1, positions, hidden)[0]
    return found


def save(model: Any, options: argparse.Namespace) -> None:
    content = {"singleton_local_shards": options.per_layer}
    state = model.sharded_state_dict(metadata=content)
    if options.optimiser:
        moment = ShardedTensor.from_rank_offsets(
            "optimizer.state.exp_avg.decoder.final_layernorm.weight", torch.ones(4)
        )
        state |= {"optimizer": {"exp_avg": moment}, "rng_state": ShardedObject("rng_state", [1], (1,), (0,))}
    folder = options.out / "checkpoint"
    folder.mkdir(exist_ok=True)
    dist.barrier()
    dist_checkpointing.save(state, str(folder), content_metadata=content)


if __name__ == "__main__":
    main()
