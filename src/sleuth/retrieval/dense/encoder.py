"""Sentence encoders and cross-encoders; the only module that imports sentence-transformers.

The shape of a text's batch depends on the length of the text, never on the other texts. Matrix products round
differently in different shapes, and attention differs with and without a mask. With full batches of fixed shapes, a
query has the same vector, to the last bit, alone or in a batch.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
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
from sleuth.retrieval.dense.exact import devices

POOLING_MODES = {"mean": "mean", "cls": "cls", "last": "lasttoken"}
SUPPORTED_MODULES = frozenset({"Transformer", "Pooling", "Normalize", "Dropout"})
PAIR_TOKENS = 512
NO_REMOTE_CODE = {"trust_remote_code": False}  # otherwise the libraries ask on stdin whether to run the model's code
LOAD_ERRORS = (OSError, ValueError, RuntimeError, ImportError, KeyError, SafetensorError)
# Characters per token at most: longer texts are cut before tokenization, which would be slow.
TOKEN_CHARACTERS = 100
# With fewer rows per thread, CPU matrix products take another path and round differently.
THREAD_ROWS = 8
# Full batches would make a single short query four times as slow on a CPU; long queries gain nothing from batching.
QUERY_TOKENS = 64

Tokens = Mapping[str, Sequence[Sequence[int]]]
Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Shape:
    """Batch shapes: width a multiple of `step`, about `tokens` tokens in total, padded with rows if `full`."""

    step: int
    tokens: int
    full: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """Positions of texts computed together, padded to `width` tokens and `height` rows."""

    places: list[int]
    width: int
    height: int


CPU_BULK = Shape(step=8, tokens=1 << 10, full=False)
# On a GPU, a new shape costs more than padding rows.
GPU_QUERIES = Shape(step=32, tokens=1 << 12, full=True)
GPU_BULK = Shape(step=32, tokens=1 << 15, full=True)


def batches(lengths: Sequence[int], longest: int, shape: Shape) -> Iterator[Batch]:
    """Assign every text to a batch, widest first; no width exceeds `longest`."""
    same_shape: dict[tuple[int, bool], list[int]] = defaultdict(list)
    for place, length in enumerate(lengths):
        width = min(longest, -(-length // shape.step) * shape.step)
        # A batch without padding is computed without a mask.
        same_shape[width, length == width].append(place)
    for (width, _), places in sorted(same_shape.items(), reverse=True):
        rows = -(-shape.tokens // width)
        for start in range(0, len(places), rows):
            members = places[start : start + rows]
            yield Batch(members, width, rows if shape.full else len(members))


class Network:
    """A model with its tokenizer, replicated on several devices. Not thread-safe."""

    def __init__(self, name: str, replicas: Sequence[torch.nn.Module], tokenizer: Any, output: str) -> None:
        self._name, self._tokenizer, self._output = name, tokenizer, output
        self._replicas = [replica.eval() for replica in replicas]
        self._devices = [next(replica.parameters()).device for replica in replicas]
        self._padding = {"input_ids": tokenizer.pad_token_id or 0, "token_type_ids": tokenizer.pad_token_type_id}

    def run_reproducibly(self, longest: int, *texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one row per text, bit-identical alone or in a batch; two lists of texts form pairs."""
        tokens = self._tokenize(longest, *texts)
        full_rows = Shape(step=8, tokens=max(QUERY_TOKENS, THREAD_ROWS * torch.get_num_threads()), full=True)
        shape = GPU_QUERIES if self._devices[0].type == "cuda" else full_rows
        planned = batches([len(row) for row in tokens["input_ids"]], longest, shape)
        return self._gather([(batch, self._run(tokens, batch, 0)) for batch in planned])

    def run_bulk(self, longest: int, texts: Sequence[str], advance: Advance) -> NDArray[np.float32]:
        """Return one row per text, computed on all devices; `advance` receives the number of newly finished texts."""
        tokens = self._tokenize(longest, texts)
        shape = GPU_BULK if self._devices[0].type == "cuda" else CPU_BULK
        planned = list(batches([len(row) for row in tokens["input_ids"]], longest, shape))
        found = []
        for batch, rows in self._run_on_all(tokens, planned):
            found.append((batch, rows))
            advance(len(batch.places))
        return self._gather(found)

    def _run_on_all(self, tokens: Tokens, planned: list[Batch]) -> Iterator[tuple[Batch, NDArray[np.float32]]]:
        """Distribute the batches over the devices, one thread each; yield results in order."""
        if len(self._replicas) == 1:
            yield from ((batch, self._run(tokens, batch, 0)) for batch in planned)
            return
        pools = [ThreadPoolExecutor(1) for _ in self._replicas]
        assigned = zip(planned, cycle(enumerate(pools)), strict=False)
        pending = [(batch, pool.submit(self._run, tokens, batch, number)) for batch, (number, pool) in assigned]
        try:
            yield from ((batch, future.result()) for batch, future in pending)
        finally:
            for pool in pools:
                pool.shutdown(cancel_futures=True)

    def _tokenize(self, longest: int, *texts: Sequence[str]) -> Tokens:
        # Lone surrogates, which tokenizers reject, become question marks.
        limit = longest * TOKEN_CHARACTERS
        cleaned = [[text[:limit].encode("utf-8", "replace").decode() for text in each] for each in texts]
        backend = self._tokenizer.backend_tokenizer
        backend.no_padding()
        backend.enable_truncation(longest, direction=self._tokenizer.truncation_side)
        encoded = backend.encode_batch_fast(cleaned[0] if len(cleaned) == 1 else list(zip(*cleaned, strict=True)))
        tokens = {"input_ids": [each.ids for each in encoded]}
        if len(cleaned) > 1 and "token_type_ids" in self._tokenizer.model_input_names:
            tokens["token_type_ids"] = [each.type_ids for each in encoded]
        return tokens

    @torch.inference_mode()
    def _run(self, tokens: Tokens, batch: Batch, number: int) -> NDArray[np.float32]:
        features = {}
        for name, rows in tokens.items():
            padded = np.full((batch.height, batch.width), self._padding[name], np.int64)
            for place, row in enumerate(rows[place] for place in batch.places):
                padded[place, : len(row)] = row
            padded[len(batch.places) :] = padded[0]
            features[name] = padded
        lengths = [len(tokens["input_ids"][place]) for place in batch.places]
        ends = np.array(lengths + lengths[:1] * (batch.height - len(lengths)))
        features["attention_mask"] = (np.arange(batch.width) < ends[:, None]).astype(np.int64)
        inputs = {name: torch.from_numpy(value).to(self._devices[number]) for name, value in features.items()}
        found: torch.Tensor = self._replicas[number](inputs)[self._output]
        return found[: len(batch.places)].float().cpu().numpy()

    def _gather(self, found: list[tuple[Batch, NDArray[np.float32]]]) -> NDArray[np.float32]:
        if not found:
            return np.empty(0, np.float32)
        places = np.concatenate([batch.places for batch, _ in found])
        gathered = np.concatenate([rows for _, rows in found])[np.argsort(places)]
        if not np.isfinite(gathered).all():
            raise InputError(f"{self._name} produced non-finite numbers on {self._devices[0]}; try device cpu")
        return gathered


class Encoder:
    """Encodes texts as vectors. Not thread-safe."""

    def __init__(self, settings: EncoderSettings, network: Network, dimensions: int, identity: str) -> None:
        self.settings, self.dimensions, self.fingerprint = settings, dimensions, identity
        self._network = network

    @classmethod
    def load(cls, settings: EncoderSettings, device: str | None = None) -> "Encoder":
        """Load the encoder, in half precision on GPUs; the first device in the setting encodes queries."""
        _silence_libraries()
        folder = model_folder(settings.model)
        if unsupported := sorted(set(module_names(folder)) - SUPPORTED_MODULES):
            raise InputError(f"{folder} has an unsupported module {unsupported[0]}; choose another encoder")
        _require_all_weights(folder, AutoModel, unused="pooler.")
        with _explain_load_errors(folder):
            replicas = [_sentence_encoder(folder, settings, place) for place in devices(device)]
        limit = _max_tokens(replicas[0])
        for name in ("query_tokens", "passage_tokens"):
            if (tokens := getattr(settings, name)) > limit:
                raise ConfigError(f"{name} is {tokens}, but {settings.model} accepts at most {limit}; reduce it")
        first: Any = replicas[0]
        network = Network(f"the encoder {settings.model}", replicas, first.tokenizer, "sentence_embedding")
        return cls(settings, network, int(first.transformers_model.config.hidden_size), fingerprint(folder))

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one row per query, bit-identical alone or in a batch."""
        prefixed = [self.settings.query_prefix + text for text in texts]
        return self._network.run_reproducibly(self.settings.query_tokens, prefixed).reshape(-1, self.dimensions)

    def encode_passages(self, texts: Sequence[str], advance: Advance = lambda _: None) -> NDArray[np.float16]:
        """Return one row per passage in half precision; `advance` receives the number of newly finished texts."""
        prefixed = [self.settings.passage_prefix + text for text in texts]
        found = self._network.run_bulk(self.settings.passage_tokens, prefixed, advance).reshape(-1, self.dimensions)
        with np.errstate(over="ignore"):
            halves = found.astype(np.float16)
        if not np.isfinite(halves).all():
            raise InputError(f"vectors of {self.settings.model} overflow half precision; set normalise")
        return halves


class PairScorer:
    """Scores (query, passage) pairs with a cross-encoder. Not thread-safe."""

    def __init__(self, network: Network, max_tokens: int, identity: str) -> None:
        self.fingerprint = identity
        self._network, self._max_tokens = network, max_tokens

    def score(self, queries: Sequence[str], passages: Sequence[str]) -> NDArray[np.float32]:
        """Return one score per pair, higher is better; bit-identical alone or in a batch."""
        return self._network.run_reproducibly(self._max_tokens, queries, passages).reshape(-1)


def load_cross_encoder(model: str, device: str | None = None) -> PairScorer:
    """Load a cross-encoder, given as a folder or a Hugging Face name, onto the first device in the setting."""
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
        raise InputError(f"{model} returns {loaded.num_labels} scores per pair, expected 1; choose another model")
    for parent in list(loaded.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, torch.nn.Linear) and layer.out_features == 1:
                setattr(parent, name, _SingleOutput(layer))
    max_tokens = min(PAIR_TOKENS, _max_tokens(loaded))
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
    """Assemble the modules that the settings describe, ignoring the module files of the model."""
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


def _max_tokens(model: Any) -> int:
    """Return the maximum input length of a model; RoBERTa's positions start after its padding index."""
    config, longest = model.transformers_model.config, int(model.tokenizer.model_max_length)
    positions = int(getattr(config, "max_position_embeddings", 0) or 0)
    if positions and "roberta" in config.model_type:
        positions -= config.pad_token_id + 1
    return min(longest, positions) if positions > 0 else longest


def _silence_libraries() -> None:
    """Suppress progress bars and warnings of the libraries; errors are still raised."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
