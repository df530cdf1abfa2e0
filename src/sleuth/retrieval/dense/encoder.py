"""Encoders and cross-encoders, through sentence-transformers, whose only home this is."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors import SafetensorError
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from transformers import AutoModel, AutoModelForSequenceClassification

from sleuth.config.retrieval import EncoderSettings
from sleuth.errors import ConfigError, InputError
from sleuth.retrieval.dense.encoder_config import fingerprint, model_folder, module_names, read
from sleuth.retrieval.dense.network import Advance, Network, devices, unheard

MODES = {"mean": "mean", "cls": "cls", "last": "lasttoken"}
MODULES = frozenset({"Transformer", "Pooling", "Normalize", "Dropout"})
PAIR_TOKENS = 512
OWN_CODE = {"trust_remote_code": False}  # without it the libraries ask on stdin whether to run the code of a folder
LOADING = (OSError, ValueError, RuntimeError, ImportError, KeyError, SafetensorError)


class Encoder:
    """Texts as vectors, in the way its settings say; called by one thread at a time."""

    def __init__(self, settings: EncoderSettings, network: Network, dimensions: int, identity: str) -> None:
        self.settings = settings
        self.dimensions = dimensions
        self.fingerprint = identity
        self._network = network

    @classmethod
    def load(cls, settings: EncoderSettings, device: str | None = None) -> "Encoder":
        """The encoder on the devices of a setting, of which the first answers queries; half precision on GPUs."""
        _quiet()
        folder = model_folder(settings.model)
        if others := sorted(set(module_names(folder)) - MODULES):
            raise InputError(f"{folder} has a module {others[0]}, which is not read here; choose another encoder")
        _refuse_missing_weights(folder, AutoModel, unused="pooler.")
        with _explained(folder):
            replicas = [_sentence_encoder(folder, settings, place) for place in devices(device)]
        config, tokenizer = _config(replicas[0]), replicas[0].tokenizer
        _refuse_long_texts(settings, _limit(tokenizer, config))
        network = Network(f"the encoder {settings.model}", replicas, tokenizer, "sentence_embedding")
        return cls(settings, network, int(config.hidden_size), fingerprint(folder))

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One row a query; a query has the same vector, to the last bit, alone and among others."""
        prefixed = [self.settings.query_prefix + text for text in texts]
        return self._network.steady(self.settings.query_tokens, prefixed).reshape(-1, self.dimensions)

    def encode_passages(self, texts: Sequence[str], advance: Advance = unheard) -> NDArray[np.float16]:
        """One row a passage, as an index stores it; `advance` hears how many more are done."""
        prefixed = [self.settings.passage_prefix + text for text in texts]
        found = self._network.bulk(self.settings.passage_tokens, prefixed, advance).reshape(-1, self.dimensions)
        with np.errstate(over="ignore"):
            halves = found.astype(np.float16)
        if not np.isfinite(halves).all():
            raise InputError(f"vectors of {self.settings.model} are too long for half precision; state normalise")
        return halves


class PairScorer:
    """How well passages answer queries, by a cross-encoder; called by one thread at a time."""

    def __init__(self, network: Network, longest: int, identity: str) -> None:
        self.fingerprint = identity
        self._network = network
        self._longest = longest

    def score(self, queries: Sequence[str], passages: Sequence[str]) -> NDArray[np.float32]:
        """One number a pair, higher is better; the same, to the last bit, alone and among others."""
        return self._network.steady(self._longest, queries, passages).reshape(-1)


def load_cross_encoder(model: str, device: str | None = None) -> PairScorer:
    """The cross-encoder of a folder or of a name on the hub, on the first device of a setting."""
    _quiet()
    folder = model_folder(model)
    kinds = (read(folder, "config.json") or {}).get("architectures") or ["nothing"]
    if not any(str(kind).endswith("ForSequenceClassification") for kind in kinds):
        raise InputError(
            f"{model} is no cross-encoder: its config.json names {', '.join(map(str, kinds))}, expected a model for "
            "sequence classification, like cross-encoder/ms-marco-MiniLM-L12-v2"
        )
    _refuse_missing_weights(folder, AutoModelForSequenceClassification)
    place = devices(device)[0]
    with _explained(folder):
        loaded = CrossEncoder(str(folder), device=place, model_kwargs={"dtype": _precision(place)}, **OWN_CODE)
    if loaded.num_labels != 1:
        raise InputError(f"{model} gives {loaded.num_labels} numbers a pair, expected 1; choose another cross-encoder")
    _keep_rows_apart(loaded)
    longest = min(PAIR_TOKENS, _limit(loaded.tokenizer, _config(loaded)))
    network = Network(f"the cross-encoder {model}", [loaded], loaded.tokenizer, "scores")
    return PairScorer(network, longest, fingerprint(folder))


class _OneNumber(torch.nn.Module):
    """A linear layer with one output that sums every row in the same order.

    Matrix products with one column sum a row in an order that may depend on its place among the others.
    """

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.weight = layer.weight
        self.bias = layer.bias

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found = (rows.float() * self.weight[0].float()).sum(-1, keepdim=True)
        return (found if self.bias is None else found + self.bias.float()).to(rows.dtype)


def _keep_rows_apart(model: torch.nn.Module) -> None:
    for parent in list(model.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, torch.nn.Linear) and layer.out_features == 1:
                setattr(parent, name, _OneNumber(layer))


class _Widened(torch.nn.Module):
    """Halves are summed, and their lengths taken, in single precision."""

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {**features, "token_embeddings": features["token_embeddings"].float()}


def _sentence_encoder(folder: Path, settings: EncoderSettings, device: str) -> SentenceTransformer:
    """The modules put together as the settings say, whatever the model's files do."""
    transformer: Any = Transformer(
        str(folder),
        model_kwargs={"dtype": _precision(device), **OWN_CODE},
        processor_kwargs=dict(OWN_CODE),
        config_kwargs=dict(OWN_CODE),
    )
    modules = [transformer, _Widened(), Pooling(transformer.model.config.hidden_size, MODES[settings.pooling])]
    return SentenceTransformer(modules=modules + [Normalize()] * settings.normalise, device=device)


def _refuse_missing_weights(folder: Path, kind: Any, unused: str | None = None) -> None:
    """Weights that a folder lacks would be drawn at random in silence; a report of them comes only from this door."""
    with _explained(folder):
        _, report = kind.from_pretrained(folder, output_loading_info=True, **OWN_CODE)
    absent = sorted(key for key in report["missing_keys"] if unused is None or unused not in key)
    if absent:
        raise InputError(f"{folder} lacks {len(absent)} weights, {absent[0]} among them; save the model again")


def _refuse_long_texts(settings: EncoderSettings, limit: int) -> None:
    for name, tokens in (("query_tokens", settings.query_tokens), ("passage_tokens", settings.passage_tokens)):
        if tokens > limit:
            raise ConfigError(f"{name} is {tokens}, and {settings.model} reads {limit} at most; give {limit} or fewer")


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Says in one sentence why a folder cannot be loaded."""
    try:
        yield
    except LOADING as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"no model can be loaded from {folder} ({reason}); save it again or give another") from error


def _precision(device: str) -> torch.dtype:
    return torch.float16 if device.startswith("cuda") else torch.float32


def _config(model: Any) -> Any:
    return model.transformers_model.config


def _limit(tokenizer: Any, config: Any) -> int:
    """How many tokens a model reads; RoBERTa's positions begin after its padding index."""
    positions = int(getattr(config, "max_position_embeddings", 0) or 0)
    if positions and "roberta" in config.model_type:
        positions -= config.pad_token_id + 1
    return min(int(tokenizer.model_max_length), positions) if positions > 0 else int(tokenizer.model_max_length)


def _quiet() -> None:
    """Libraries do not talk over our own progress; their errors are raised all the same."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
