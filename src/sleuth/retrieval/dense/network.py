"""A model on one or more devices: texts in, one row of numbers per text out.

The shape a text is computed in depends on its own length, never on the rest of the batch. Matrix products round
differently in different shapes, and attention differs with and without a mask. With full batches of fixed shapes a
query has the same vector, to the last bit, alone or in a batch.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sleuth.errors import ConfigError, InputError

# Characters per token at most: longer texts are cut before tokenization, which would be slow.
TOKEN_CHARACTERS = 100
# With fewer rows per thread, CPU matrix products take another path and round differently.
THREAD_ROWS = 8
# Single short queries would cost four times as much on a CPU; long ones gain nothing from batching.
QUERY_TOKENS = 64

Tokens = Mapping[str, Sequence[Sequence[int]]]
Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Shape:
    """How batches are formed: widths are multiples of `step`; about `tokens` per batch, padded with rows if `full`."""

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
# Each new shape costs a GPU more than padding rows do.
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


def ignore_progress(count: int) -> None:
    """Report no progress."""
    del count


class Network:
    """A model with its tokenizer, replicated on several devices. Not thread-safe."""

    def __init__(self, name: str, replicas: Sequence[torch.nn.Module], tokenizer: Any, output: str) -> None:
        self._name = name
        self._replicas = [replica.eval() for replica in replicas]
        self._devices = [next(replica.parameters()).device for replica in replicas]
        self._tokenizer = tokenizer
        self._output = output
        self._padding = {"input_ids": tokenizer.pad_token_id or 0, "token_type_ids": tokenizer.pad_token_type_id}

    def run_reproducibly(self, longest: int, *texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one row per text, bit-identical whatever the batch; two lists of texts are read as pairs."""
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
        """Token ids and, for pairs, token types."""
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
        """The rows in the order of the texts."""
        if not found:
            return np.empty(0, np.float32)
        places = np.concatenate([batch.places for batch, _ in found])
        gathered = np.concatenate([rows for _, rows in found])[np.argsort(places)]
        if not np.isfinite(gathered).all():
            raise InputError(f"{self._name} produced non-finite numbers on {self._devices[0]}; try device cpu")
        return gathered


def devices(wanted: str | None) -> list[str]:
    """The devices of a setting: auto, cpu, cuda (all GPUs) or a list such as cuda:0,cuda:1."""
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if wanted in (None, "auto"):
        return gpus or ["cpu"]
    chosen = gpus if wanted == "cuda" else [place.strip() for place in str(wanted).split(",")]
    if not chosen or set(chosen) - {"cpu", *gpus}:
        raise ConfigError(f"device = {wanted!r} is not available; choose from {', '.join(['cpu', *gpus])}")
    return chosen
