"""A model on its devices: texts in, one row of numbers a text out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sleuth.errors import ConfigError, InputError
from sleuth.retrieval.dense.batches import Batch, Shape, batches

# No token of a text worth reading is longer; of a text with more characters the tokenizer would not reach the end.
TOKEN_CHARACTERS = 100
# With fewer rows a thread, matrix products on CPU take another path and round differently.
THREAD_ROWS = 8
# Short queries one by one would cost four times as much on CPU, and long ones gain nothing from company.
QUERY_TOKENS = 64
CPU_BULK = Shape(step=8, tokens=1 << 10, full=False)
# Every new shape costs a GPU more than the rows that nobody reads.
GPU_STEADY = Shape(step=32, tokens=1 << 12, full=True)
GPU_BULK = Shape(step=32, tokens=1 << 15, full=True)

Tokens = Mapping[str, Sequence[Sequence[int]]]
Advance = Callable[[int], None]


def unheard(count: int) -> None:
    """Nobody asks how far the work is."""
    del count


class Network:
    """One model on one device or several, with its tokenizer; called by one thread at a time."""

    def __init__(self, name: str, replicas: Sequence[torch.nn.Module], tokenizer: Any, output: str) -> None:
        self._name = name
        self._replicas = [replica.eval() for replica in replicas]
        self._devices = [next(replica.parameters()).device for replica in replicas]
        self._tokenizer = tokenizer
        self._output = output
        self._fillers = {"input_ids": tokenizer.pad_token_id or 0, "token_type_ids": tokenizer.pad_token_type_id}

    def steady(self, longest: int, *texts: Sequence[str]) -> NDArray[np.float32]:
        """One row a text, the same bits whatever else is asked; two lists of texts are read as pairs."""
        tokens = self._tokens(longest, *texts)
        planned = batches(_lengths(tokens), longest, _steady(self._devices[0]))
        return self._gathered([(batch, self._run(tokens, batch, 0)) for batch in planned])

    def bulk(self, longest: int, texts: Sequence[str], advance: Advance) -> NDArray[np.float32]:
        """One row a text, on all devices; `advance` hears how many more are done."""
        tokens = self._tokens(longest, texts)
        planned = list(batches(_lengths(tokens), longest, _bulk(self._devices[0])))
        found = []
        for batch, rows in self._spread(tokens, planned):
            found.append((batch, rows))
            advance(len(batch.places))
        return self._gathered(found)

    def _spread(self, tokens: Tokens, planned: list[Batch]) -> Iterator[tuple[Batch, NDArray[np.float32]]]:
        """The batches in their order, dealt out to the devices, which have a thread each."""
        if len(self._replicas) == 1:
            yield from ((batch, self._run(tokens, batch, 0)) for batch in planned)
            return
        pools = [ThreadPoolExecutor(1) for _ in self._replicas]
        dealt = zip(planned, cycle(enumerate(pools)), strict=False)
        waiting = [(batch, pool.submit(self._run, tokens, batch, number)) for batch, (number, pool) in dealt]
        try:
            yield from ((batch, future.result()) for batch, future in waiting)
        finally:
            for pool in pools:
                pool.shutdown(cancel_futures=True)

    def _tokens(self, longest: int, *texts: Sequence[str]) -> Tokens:
        """The numbers of the tokens, and for pairs which of the two a token is of."""
        cleaned = [[_clean(text, longest) for text in each] for each in texts]
        backend = self._tokenizer.backend_tokenizer
        backend.no_padding()
        backend.enable_truncation(longest, direction=self._tokenizer.truncation_side)
        read = backend.encode_batch_fast(cleaned[0] if len(cleaned) == 1 else list(zip(*cleaned, strict=True)))
        tokens = {"input_ids": [each.ids for each in read]}
        if len(cleaned) > 1 and "token_type_ids" in self._tokenizer.model_input_names:
            tokens["token_type_ids"] = [each.type_ids for each in read]
        return tokens

    @torch.inference_mode()
    def _run(self, tokens: Tokens, batch: Batch, number: int) -> NDArray[np.float32]:
        features = {
            name: _padded([rows[place] for place in batch.places], batch, self._fillers[name])
            for name, rows in tokens.items()
        }
        features["attention_mask"] = _mask([len(tokens["input_ids"][place]) for place in batch.places], batch)
        placed = {name: value.to(self._devices[number]) for name, value in features.items()}
        found: torch.Tensor = self._replicas[number](placed)[self._output]
        return found[: len(batch.places)].float().cpu().numpy()

    def _gathered(self, found: list[tuple[Batch, NDArray[np.float32]]]) -> NDArray[np.float32]:
        """The rows in the order of the texts."""
        if not found:
            return np.empty(0, np.float32)
        places = np.concatenate([batch.places for batch, _ in found])
        gathered = np.concatenate([rows for _, rows in found])[np.argsort(places)]
        if not np.isfinite(gathered).all():
            raise InputError(f"{self._name} computes numbers that are not finite on {self._devices[0]}; try device cpu")
        return gathered


def devices(wanted: str | None) -> list[str]:
    """The devices of a setting: auto, cpu, cuda (all GPUs) or a list like cuda:0,cuda:1."""
    there = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if wanted in (None, "auto"):
        return there or ["cpu"]
    chosen = there if wanted == "cuda" else [place.strip() for place in str(wanted).split(",")]
    if not chosen or set(chosen) - {"cpu", *there}:
        raise ConfigError(
            f"device = {wanted!r}, and there is cpu{''.join(f', {gpu}' for gpu in there)}; choose of these"
        )
    return chosen


def _steady(device: torch.device) -> Shape:
    if device.type == "cuda":
        return GPU_STEADY
    return Shape(step=8, tokens=max(QUERY_TOKENS, THREAD_ROWS * torch.get_num_threads()), full=True)


def _bulk(device: torch.device) -> Shape:
    return GPU_BULK if device.type == "cuda" else CPU_BULK


def _clean(text: str, longest: int) -> str:
    """Half a surrogate pair, which tokenizers refuse, becomes a question mark."""
    return text[: longest * TOKEN_CHARACTERS].encode("utf-8", "replace").decode()


def _lengths(tokens: Tokens) -> list[int]:
    return [len(row) for row in tokens["input_ids"]]


def _padded(rows: Sequence[Sequence[int]], batch: Batch, filler: int) -> torch.Tensor:
    filled = np.full((batch.height, batch.width), filler, np.int64)
    for place, row in enumerate(rows):
        filled[place, : len(row)] = row
    filled[len(rows) :] = filled[0]
    return torch.from_numpy(filled)


def _mask(lengths: Sequence[int], batch: Batch) -> torch.Tensor:
    ends = np.full(batch.height, lengths[0])
    ends[: len(lengths)] = lengths
    return torch.from_numpy((np.arange(batch.width) < ends[:, None]).astype(np.int64))
