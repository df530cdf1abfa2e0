"""Sentence encoders and cross-encoders; the only module that imports sentence-transformers."""

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
from sleuth.retrieval.dense.encoder_config import fingerprint, model_folder, module_names, read_json_file
from sleuth.retrieval.dense.network import Advance, Network, devices, ignore_progress

POOLING_MODES = {"mean": "mean", "cls": "cls", "last": "lasttoken"}
SUPPORTED_MODULES = frozenset({"Transformer", "Pooling", "Normalize", "Dropout"})
PAIR_TOKENS = 512
NO_REMOTE_CODE = {"trust_remote_code": False}  # otherwise the libraries ask on stdin whether to run code of the folder
LOAD_ERRORS = (OSError, ValueError, RuntimeError, ImportError, KeyError, SafetensorError)


class Encoder:
    """Encodes texts as vectors. Not thread-safe."""

    def __init__(self, settings: EncoderSettings, network: Network, dimensions: int, identity: str) -> None:
        self.settings, self.dimensions, self.fingerprint = settings, dimensions, identity
        self._network = network

    @classmethod
    def load(cls, settings: EncoderSettings, device: str | None = None) -> "Encoder":
        """Load the encoder in half precision on GPUs; the first device of the setting encodes queries."""
        _silence_libraries()
        folder = model_folder(settings.model)
        if unsupported := sorted(set(module_names(folder)) - SUPPORTED_MODULES):
            raise InputError(f"{folder} has an unsupported module {unsupported[0]}; choose another encoder")
        _require_all_weights(folder, AutoModel, unused="pooler.")
        with _explain_load_errors(folder):
            replicas = [_sentence_encoder(folder, settings, place) for place in devices(device)]
        config, tokenizer = _config(replicas[0]), replicas[0].tokenizer
        limit = _max_tokens(tokenizer, config)
        for name in ("query_tokens", "passage_tokens"):
            if (tokens := getattr(settings, name)) > limit:
                raise ConfigError(f"{name} is {tokens}, but {settings.model} accepts at most {limit}; reduce it")
        network = Network(f"the encoder {settings.model}", replicas, tokenizer, "sentence_embedding")
        return cls(settings, network, int(config.hidden_size), fingerprint(folder))

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one row per query, bit-identical alone or in a batch."""
        prefixed = [self.settings.query_prefix + text for text in texts]
        return self._network.run_reproducibly(self.settings.query_tokens, prefixed).reshape(-1, self.dimensions)

    def encode_passages(self, texts: Sequence[str], advance: Advance = ignore_progress) -> NDArray[np.float16]:
        """Return one row per passage in half precision; `advance` receives the number of newly finished texts."""
        prefixed = [self.settings.passage_prefix + text for text in texts]
        found = self._network.run_bulk(self.settings.passage_tokens, prefixed, advance).reshape(-1, self.dimensions)
        with np.errstate(over="ignore"):
            halves = found.astype(np.float16)
        if not np.isfinite(halves).all():
            raise InputError(f"vectors of {self.settings.model} overflow half precision; set normalise")
        return halves


class PairScorer:
    """Scores pairs of query and passage with a cross-encoder. Not thread-safe."""

    def __init__(self, network: Network, max_tokens: int, identity: str) -> None:
        self.fingerprint = identity
        self._network, self._max_tokens = network, max_tokens

    def score(self, queries: Sequence[str], passages: Sequence[str]) -> NDArray[np.float32]:
        """Return one number per pair, higher is better; bit-identical alone or in a batch."""
        return self._network.run_reproducibly(self._max_tokens, queries, passages).reshape(-1)


def load_cross_encoder(model: str, device: str | None = None) -> PairScorer:
    """Load a cross-encoder from a folder or by Hugging Face name onto the first device of the setting."""
    _silence_libraries()
    folder = model_folder(model)
    kinds = (read_json_file(folder, "config.json") or {}).get("architectures") or ["nothing"]
    if not any(str(kind).endswith("ForSequenceClassification") for kind in kinds):
        raise InputError(
            f"{model} is not a cross-encoder: its config.json names {', '.join(map(str, kinds))}, expected a model for "
            "sequence classification, such as cross-encoder/ms-marco-MiniLM-L12-v2"
        )
    _require_all_weights(folder, AutoModelForSequenceClassification)
    place = devices(device)[0]
    with _explain_load_errors(folder):
        loaded = CrossEncoder(str(folder), device=place, model_kwargs={"dtype": _precision(place)}, **NO_REMOTE_CODE)
    if loaded.num_labels != 1:
        raise InputError(f"{model} returns {loaded.num_labels} numbers per pair, expected 1; choose another")
    for parent in list(loaded.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, torch.nn.Linear) and layer.out_features == 1:
                setattr(parent, name, _SingleOutput(layer))
    max_tokens = min(PAIR_TOKENS, _max_tokens(loaded.tokenizer, _config(loaded)))
    network = Network(f"the cross-encoder {model}", [loaded], loaded.tokenizer, "scores")
    return PairScorer(network, max_tokens, fingerprint(folder))


class _SingleOutput(torch.nn.Module):
    """A linear layer with one output that sums every row in the same order.

    In a matrix product with one column, the order of summation may depend on the position of the row.
    """

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found = (rows.float() * self.weight[0].float()).sum(-1, keepdim=True)
        return (found if self.bias is None else found + self.bias.float()).to(rows.dtype)


class _ToFloat32(torch.nn.Module):
    """Converts token embeddings to single precision before pooling and normalisation."""

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {**features, "token_embeddings": features["token_embeddings"].float()}


def _sentence_encoder(folder: Path, settings: EncoderSettings, device: str) -> SentenceTransformer:
    """Assemble the modules that the settings describe, whatever the files of the model say."""
    transformer: Any = Transformer(
        str(folder),
        model_kwargs={"dtype": _precision(device), **NO_REMOTE_CODE},
        processor_kwargs=dict(NO_REMOTE_CODE),
        config_kwargs=dict(NO_REMOTE_CODE),
    )
    pooling = Pooling(transformer.model.config.hidden_size, POOLING_MODES[settings.pooling])
    modules = [transformer, _ToFloat32(), pooling] + [Normalize()] * settings.normalise
    return SentenceTransformer(modules=modules, device=device)


def _require_all_weights(folder: Path, kind: Any, unused: str | None = None) -> None:
    """Raise InputError if weights are missing, which transformers would silently initialise at random."""
    with _explain_load_errors(folder):
        _, report = kind.from_pretrained(folder, output_loading_info=True, **NO_REMOTE_CODE)
    missing = sorted(key for key in report["missing_keys"] if unused is None or unused not in key)
    if missing:
        raise InputError(f"{folder} lacks {len(missing)} weights, such as {missing[0]}; save the model again")


@contextmanager
def _explain_load_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except LOAD_ERRORS as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"cannot load a model from {folder} ({reason}); save it again or use another") from error


def _precision(device: str) -> torch.dtype:
    return torch.float16 if device.startswith("cuda") else torch.float32


def _config(model: Any) -> Any:
    return model.transformers_model.config


def _max_tokens(tokenizer: Any, config: Any) -> int:
    """The longest input of a model; the positions of RoBERTa start after its padding index."""
    positions = int(getattr(config, "max_position_embeddings", 0) or 0)
    if positions and "roberta" in config.model_type:
        positions -= config.pad_token_id + 1
    return min(int(tokenizer.model_max_length), positions) if positions > 0 else int(tokenizer.model_max_length)


def _silence_libraries() -> None:
    """Suppress the libraries' own progress and warnings; errors are still raised."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
