"""Tests whose need is not met on this machine are left out, counted and named at the end; small models and tokenizers.

What is heavy is imported by the fixtures that need it, so that tests without a model start at once.
"""

import gc
import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from sleuth.model.policy import Policy
    from sleuth.model.tokens import Tokens

LEFT_OUT = pytest.StashKey[Counter[str]]()
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
CAP_SYS_ADMIN = 21
ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"

# Two processes share the cores: threads of one that wait for those of the other would take most of the time. Programs
# that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A background job of a shell ignores Ctrl-C, and its children inherit that; tests of interrupts need it heard.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Imports make millions of objects and little garbage: looked through when they are all there, and then left alone.
gc.disable()

if not Path("/dev/nvidiactl").exists():
    # Read when triton is first imported, by whichever test: its kernels then run on the CPU, operation by operation.
    os.environ["TRITON_INTERPRET"] = "1"


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _can_broadcast() -> bool:
    """Whether trainer and server can form a group: on CPUs they use gloo, and NCCL needs a GPU for each."""
    import torch

    return not torch.cuda.is_available() or torch.cuda.device_count() > 1


def _has_browser() -> bool:
    return any(shutil.which(browser) for browser in BROWSERS)


def _has_history() -> bool:
    """Whether git can read the whole history here: not in an sdist, a shallow clone, or another user's checkout."""
    if shutil.which("git") is None:
        return False
    asked = subprocess.run(["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True)
    return (ROOT / ".git").exists() and asked.stdout.strip() == "false"


def _can_make_namespaces() -> bool:
    """Whether this process may create network namespaces: not even root may in most containers."""
    effective = re.search(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())
    return bool(effective and int(effective[1], 16) >> CAP_SYS_ADMIN & 1) and shutil.which("ip") is not None


NEEDS: dict[str, Callable[[], bool]] = {
    "gpu": _has_gpu,
    "broadcast": _can_broadcast,
    "chromium": _has_browser,
    "vllm": lambda: Path(os.environ.get("SLEUTH_VLLM", "")).is_file(),
    "megatron": lambda: Path(os.environ.get("SLEUTH_MEGATRON", "")).is_file(),
    "sglang": lambda: Path(os.environ.get("SLEUTH_SGLANG", "").partition(" ")[0]).is_file(),
    "frameworks": lambda: "SLEUTH_FRAMEWORKS" in os.environ,
    "bitsandbytes": lambda: find_spec("bitsandbytes") is not None,
    "wandb": lambda: find_spec("wandb") is not None,
    "tensorboard": lambda: find_spec("tensorboard") is not None,
    "trackio": lambda: find_spec("trackio") is not None,
    "mlflow": lambda: find_spec("mlflow") is not None,
    "ray": lambda: find_spec("ray") is not None,
    "netns": _can_make_namespaces,
    "shared": SHARED.is_dir,
    "history": _has_history,
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = {need for need in NEEDS for item in items if item.get_closest_marker(need)}
    unmet = {need for need in wanted if not NEEDS[need]()}
    reasons = [
        next((need for need in NEEDS if need in unmet and item.get_closest_marker(need)), None) for item in items
    ]
    left_out = [item for item, reason in zip(items, reasons, strict=True) if reason]
    config.stash[LEFT_OUT] = Counter(reason for reason in reasons if reason)
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item, reason in zip(items, reasons, strict=True) if not reason]
    names = Counter(item.nodeid for item in items)
    if twice := [name for name, count in names.items() if count > 1]:
        raise pytest.UsageError(f"tests of one name are dealt out to processes as one: {twice[0]}; name each of them")


def pytest_collection_finish() -> None:
    """What was imported stays: a search for garbage that looks through all of it takes most of a second."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Some libraries count what they find alive at the end as lost."""
    gc.unfreeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tests run in two processes, each of which tells the first what it left out: the same in both."""
    told = getattr(session.config, "workeroutput", None)
    if told is not None:
        counts: Counter[str] = session.config.stash.get(LEFT_OUT, Counter())
        told["left_out"] = dict(counts)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    node.config.stash[LEFT_OUT] = Counter(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    counts = config.stash.get(LEFT_OUT, Counter())
    if counts:
        terminalreporter.write_line("not run here: " + ", ".join(f"{count} {need}" for need, count in counts.items()))


TEXTS = (
    "Question: Who wrote the book that Ada Lovelace read in Oslo?\n",
    "<think> I need the author. </think><search> Ada Lovelace </search>",
    "\n\n<information>Doc 1(Title: Ada)</information>\n\n",
    "<answer> Lisbon </answer>",
    "No action was taken: neither a search nor an answer was closed. Write query to search or answer to answer.",
)

# Kinds of attention the engine must compute exactly: plain and grouped heads, biases, norms of queries and keys.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "num_key_value_heads": 4, "tie_word_embeddings": True},
    "llama, grouped heads": {"model_type": "llama", "num_key_value_heads": 2},
    "qwen2": {"model_type": "qwen2", "num_key_value_heads": 1},
    "qwen3": {"model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 16},
    "mistral": {"model_type": "mistral", "num_key_value_heads": 2, "sliding_window": None},
}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def tokens() -> "Tokens":
    """Every word of a few texts is a token, the tags of the grammar too; other text falls into bytes."""
    from sleuth.model.tokens import Tokens
    from sleuth.sft.quickstart_policy import build_tokenizer

    return Tokens(build_tokenizer(TEXTS))


# Chat templates with tools, in the structure of those of Hermes and Qwen 2.5, and of Llama 3.
HERMES = """{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}{% else %}You are of help.{% endif %}

# Functions
<tools>{% for tool in tools %}{{ '\\n' ~ (tool | tojson) }}{% endfor %}{{ '\\n' }}</tools>
Write a call as <tool_call>
{"name": NAME, "arguments": ARGUMENTS}
</tool_call><|im_end|>
{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}{{ '\\n' }}<tool_response>
{{ message.content }}
</tool_response>{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>
{% endif -%}
{%- elif message.tool_calls -%}
<|im_start|>assistant{% if message.content %}{{ '\\n' ~ message.content }}{% endif %}
{%- for call in message.tool_calls %}{{ '\\n' }}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% elif not (tools and loop.first and message.role == 'system') -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""
LLAMA = """<|begin|>{%- for message in messages -%}
{%- set role = 'ipython' if message.role == 'tool' else message.role -%}
<|header|>{{ role }}<|body|>

{% if loop.first and tools %}You may answer with a function call, {"name": NAME, "parameters": PARAMETERS}, of one of:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}
{% endif -%}
{%- if message.tool_calls -%}
{%- set call = message.tool_calls[0].function -%}
{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}
{%- elif message.role == 'tool' -%}{{ message.content | tojson }}
{%- else -%}{{ message.content | trim }}
{%- endif -%}<|eot|>{%- endfor -%}
{%- if add_generation_prompt %}<|header|>assistant<|body|>

{% endif -%}"""
TEMPLATES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {  # with special and other tokens of their own
    "hermes": (HERMES, ("<|im_end|>", "<|im_start|>"), ("<tool_call>", "</tool_call>", "<think>", "</think>")),
    "llama": (LLAMA, ("<|eot|>", "<|eom|>", "<|begin|>", "<|header|>", "<|body|>", "<|python_tag|>"), ()),
}


@pytest.fixture(scope="session")
def speaker() -> "Callable[..., Tokens]":
    """Makes a tokenizer of single bytes with the chat template of a kind of model, or with one of the test's own."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from sleuth.model.tokens import Tokens

    def make(kind: str = "hermes", template: str | None = None, *, hidden: bool = False) -> Tokens:
        known, special, plain = TEMPLATES[kind]
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        backend = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(alphabet)}, merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens([AddedToken(name, special=True) for name in special])
        backend.add_tokens([AddedToken(name, special=hidden, normalized=False) for name in plain])
        chosen = known if template is None else template or None
        return Tokens(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=special[0], chat_template=chosen))

    return make


@pytest.fixture(scope="session")
def spelled() -> "Callable[[Sequence[str]], Tokens]":
    """Makes a tokenizer of exactly these pieces, the first of which ends a text."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from sleuth.model.tokens import Tokens

    def make(pieces: Sequence[str]) -> Tokens:
        backend = Tokenizer(models.WordLevel({piece: number for number, piece in enumerate(pieces)}, pieces[0]))
        longest = "|".join(re.escape(piece) for piece in sorted(pieces, key=len, reverse=True))
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(longest), behavior="isolated")
        backend.decoder = decoders.Fuse()
        return Tokens(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=pieces[0]))

    return make


@pytest.fixture(scope="session")
def tiny(tokens: "Tokens") -> "Callable[..., PreTrainedModel]":
    """Makes a small model of a family with weights drawn by seed: the same whatever its attention."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

    from sleuth.model.attention import NAME

    def make(
        family: str = "llama, grouped heads", *, seed: int = 0, attention: str = NAME, **changes: Any
    ) -> PreTrainedModel:
        usual: dict[str, Any] = {
            **FAMILIES[family],
            "vocab_size": len(tokens.tokenizer),
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 512,
            "bos_token_id": None,
            "eos_token_id": tokens.eos_id,
        }
        config = AutoConfig.for_model(**usual | changes)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        dice = torch.Generator().manual_seed(seed)
        for name, parameter in model.named_parameters():
            torch.nn.init.normal_(parameter, float("norm" in name), 0.3, generator=dice)
        model.eval()
        return model

    return make


@pytest.fixture(scope="session")
def reciter() -> "Callable[[Tokens, Sequence[Sequence[str]]], PreTrainedModel]":
    """Makes a model that knows some lines by heart: after each piece it says, all but surely, the next of its line."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

    from sleuth.model.attention import NAME
    from sleuth.model.tokens import Tokens

    def make(tokens: Tokens, lines: Sequence[Sequence[str]]) -> PreTrainedModel:
        count = len(tokens.tokenizer)
        config = LlamaConfig(
            vocab_size=count,
            hidden_size=count,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            head_dim=32,  # the least that vLLM computes on a CPU
            bos_token_id=None,
            eos_token_id=tokens.eos_id,
        )
        model = LlamaForCausalLM(config)
        model.set_attn_implementation(NAME)
        vocabulary = tokens.tokenizer.get_vocab()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
            model.model.norm.weight.fill_(1.0)
            model.model.embed_tokens.weight.copy_(torch.eye(count))
            for line in lines:
                for piece, following in pairwise(line):
                    model.lm_head.weight[vocabulary[following], vocabulary[piece]] = 10.0
        model.eval()
        return model

    return make


@pytest.fixture
def policy(tiny: "Callable[..., PreTrainedModel]", tokens: "Tokens") -> "Callable[..., Policy]":
    """Makes a new small policy with weights drawn by seed."""
    from sleuth.model.policy import Policy

    return lambda seed=0: Policy(tiny(seed=seed), tokens)
