"""Steps on a device: what a step needs is sent there, computed without waiting, and fetched in arrears.

Suffixes: N packed tokens, B lanes, M sampled rows, S slots, V vocabulary.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sleuth.engines.paged import gathered, plain, upload
from sleuth.engines.paged.batch import Batch
from sleuth.engines.paged.cache import Cache
from sleuth.engines.paged.chunk import Chunk
from sleuth.engines.paged.frame import Frame, frames, lanes_of
from sleuth.engines.paged.graphs import Graphs, filled_up
from sleuth.engines.paged.layout import Pagewise
from sleuth.engines.paged.sampler import uniform
from sleuth.engines.paged.schedule import Step
from sleuth.model import llama_family, lm_head
from sleuth.model.attention import AttentionShape, Tiles
from sleuth.model.kernel_patch import disable_split_k

if TYPE_CHECKING:
    from sleuth.engines.paged.decoder import Decoder

Backend = Literal["plain", "triton"]
# The largest uniform number below 1 that 32 bits hold.
BELOW_ONE = np.float32(1 - 2**-24)


class Drawn:
    """Tokens and logprobs of one step, on their way to the host; `places_M` are those of the rows that were sampled."""

    def __init__(self, results_2M: Tensor, places_M: np.ndarray) -> None:
        self._places_M = places_M
        self._host = results_2M.to("cpu", non_blocking=True, copy=True)
        self._done = torch.cuda.Event() if results_2M.is_cuda else None
        if self._done is not None:
            self._done.record()

    def wait(self) -> tuple[np.ndarray, np.ndarray]:
        if self._done is not None:
            self._done.synchronize()
        tokens_M, bits_M = self._host.numpy()[:, self._places_M]
        return tokens_M, bits_M.view(np.float32)


class Runner:
    """The model, the cache and what each slot needs to go on by itself: its newest token, length and settings."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        pages: int,
        slots: int,
        context: int,
        prefill_tokens: int,
        backend: Backend,
        graphs: bool,
    ) -> None:
        disable_split_k()
        parameter = next(model.parameters())
        self.device = parameter.device
        self.shape = AttentionShape.of(model.config, parameter.dtype)
        self.cache = Cache(self.shape, pages, slots, context, self.device)
        self._model = model
        self._projection = lm_head.output_projection(model)
        self._attention, self._inputs, self._sample = _computations(backend)
        self._decoder = _decoder(model, context) if backend == "triton" else None
        # What the modules of other models do (a copy from the host, a look at a value) a capture may not allow.
        capturable = self._decoder is not None or self.device.type == "cpu"
        self._graphs = Graphs(self._idle, self.device) if graphs and capturable else None
        self.stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self._tokens_S = torch.zeros(slots + 1, dtype=torch.int32, device=self.device)
        self._settings_S4 = torch.tensor([[1.0, 0.0, 1.0, 0.0]], device=self.device).repeat(slots + 1, 1)
        # Lanes with fillers, and rows whose segments end.
        width = max(filled_up(slots), lanes_of(slots)) + slots
        self._fixed_2M = torch.zeros(2, width, dtype=torch.int32, device=self.device)
        self._results_2M = torch.zeros(2, width, dtype=torch.int32, device=self.device)
        self._queries: int = self._attention.tile_queries(self.shape.heads, self.shape.kv_heads)
        self._frames = [] if self._graphs is None else frames(prefill_tokens, slots, self._queries, self.device)
        if self.stream is not None:
            # Zeros, joined weights and rotary tables were begun on the caller's stream.
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    @contextmanager
    def after_the_caller(self) -> Iterator[None]:
        """What the caller's stream was given before is done first; what is done here, before what it is given next."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        try:
            yield
        finally:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)

    @contextmanager
    def ready(self) -> Iterator[None]:
        """On the engine's own stream, without gradients, with dropout off; afterwards as the trainer left it."""
        # Only where it is needed: a model of many modules takes a millisecond to ask them all.
        training = [module for module in self._model.modules() if module.training] if self._model.training else []
        if training:
            self._model.eval()
        on_stream = torch.cuda.stream(self.stream) if self.stream is not None else nullcontext()
        try:
            with on_stream, torch.inference_mode():
                yield
        finally:
            for module in training:
                module.training = True

    def launch(self, step: Step, slots_M: np.ndarray, seeds_M: np.ndarray, draws_M: np.ndarray) -> Drawn:
        """Starts a step that samples for some slots; where the device is a GPU this returns long before it is done."""
        lanes = len(step.lanes_B)
        places_M = np.arange(len(slots_M))
        frame, replay = self._frame(step), None
        if self._graphs is not None:
            lanes = filled_up(lanes) if frame is None else lanes_of(lanes)
            places_M[len(step.lanes_B) :] += lanes - len(step.lanes_B)
            replay = self._prepared(frame, lanes)
        self._tell(step, slots_M, uniform(seeds_M, draws_M), places_M)
        if step.segments:
            self._prefill(step, lanes, len(slots_M), frame)
        if replay is not None:
            replay()
        elif not step.segments:
            self._decode(lanes)
        return Drawn(self._results_2M, places_M)

    def _prepared(self, frame: Frame | None, lanes: int) -> Callable[[], None]:
        assert self._graphs is not None  # noqa: S101  the caller looked
        if frame is None:
            return self._graphs.prepare("decode", lanes, self._decode)
        return self._graphs.prepare(f"beside {frame.tokens}", lanes, partial(self._filled, frame))

    def _frame(self, step: Step) -> Frame | None:
        """The smallest that holds the step's given tokens; None for lanes alone, and where nothing is captured."""
        given = sum(segment.end - segment.start for segment in step.segments)
        return next((each for each in self._frames if given and each.holds(given, len(step.segments))), None)

    def clear(self) -> None:
        """The state after a start; what is still under way would write afterwards, so that both are waited for."""
        with self.ready():
            self.cache.clear()
            self._tokens_S.zero_()
        if self.stream is not None:
            self.stream.synchronize()

    def moved(self) -> bool:
        """Whether the model's parameters are no longer where graphs and joined weights expect them."""
        return self._decoder is not None and self._decoder.moved()

    def _idle(self) -> None:
        """Every lane is nobody's, and the chunk holds no tokens: a rehearsal must not write into anybody's pages."""
        self._fixed_2M.fill_(self.cache.nobody)
        for frame in self._frames:
            frame.clear()

    def _tell(self, step: Step, slots_M: np.ndarray, uniform_M: np.ndarray, places_M: np.ndarray) -> None:
        """Slots and random numbers of the rows that are sampled, pages that were placed, settings of new rows."""
        width = self._fixed_2M.shape[1]
        fixed_2M = np.full((2, width), self.cache.nobody, dtype=np.int32)
        fixed_2M[0, places_M] = slots_M
        fixed_2M[1, places_M] = np.minimum(uniform_M.astype(np.float32), BELOW_ONE).view(np.int32)
        sent: list[np.ndarray] = [fixed_2M]
        if step.placed:
            sent += _entries(step, self.cache.table_SX.shape[1])
        if step.opened:
            sent += [np.array([row.slot for row in step.opened]), _settings(step)]
        fixed, *rest = upload.send(sent, self.device)
        self._fixed_2M.copy_(fixed.view(2, width))
        if step.placed:
            index, pages, *rest = rest
            self.cache.table_SX.view(-1).index_copy_(0, index.long(), pages)
        if step.opened:
            slots, settings = rest
            self._settings_S4.index_copy_(0, slots.long(), settings.view(torch.float32).view(-1, 4))

    def _prefill(self, step: Step, lanes: int, sampled: int, frame: Frame | None) -> None:
        """Given tokens beside the lanes: put where a captured step reads them, or computed at once."""
        chunk = Chunk.of(step.segments, lanes, self._queries)
        (ends_2G,) = upload.send([chunk.ends_2G], self.device)
        slots, lengths = ends_2G.view(2, -1)
        self.cache.lengths_S.index_copy_(0, slots.long(), lengths)
        if frame is not None:
            frame.write(chunk, lanes)
            return
        if self.stream is not None:
            # Few numbers of rows: products of others might be summed by kernels that no test has seen.
            chunk = chunk.padded(filled_up(len(chunk.ids_N)), chunk.tiles_4T.shape[1], len(chunk.last_M))
        ids_N, positions_N, addresses_N, tiles_4T, last_M = upload.send(chunk.arrays(), self.device)
        tiles = Tiles(*tiles_4T.view(4, -1))
        self._forward(Batch(ids_N, positions_N, addresses_N, self._fixed_2M[0, :lanes], tiles, last_M), sampled)

    def _filled(self, frame: Frame, lanes: int) -> None:
        """Given tokens beside lanes, read from fixed places alone: this is what graphs capture."""
        batch = frame.batch(self._fixed_2M[0, :lanes])
        self._forward(batch, lanes + frame.segments)

    def _decode(self, lanes: int) -> None:
        """A step of lanes alone; as above."""
        ids_N, positions_N, addresses_N = torch.empty(3, lanes, dtype=torch.int32, device=self.device)
        self._forward(Batch(ids_N, positions_N, addresses_N, self._fixed_2M[0, :lanes]), lanes)

    def _forward(self, batch: Batch, sampled: int) -> None:
        cache = self.cache
        if len(batch.slots_B):
            self._inputs(
                batch.slots_B, self._tokens_S, cache.lengths_S, cache.table_SX,
                batch.ids_N, batch.positions_N, batch.addresses_N,
            )  # fmt: skip
        hidden_NW = self._hidden(batch)
        if not sampled:
            return
        hidden_MW = hidden_NW if batch.last_M is None else hidden_NW.index_select(0, batch.last_M)
        logits_MV = lm_head.logits(hidden_MW, self._projection.weight, self._projection.bias)
        slots_M, uniform_M = self._fixed_2M[:, :sampled]
        out_M, logprob_M = self._results_2M[:, :sampled]
        self._sample(
            logits_MV, self._settings_S4, slots_M, uniform_M.view(torch.float32),
            self._tokens_S, out_M, logprob_M.view(torch.float32),
        )  # fmt: skip

    def _hidden(self, batch: Batch) -> Tensor:
        if self._decoder is not None:
            return self._decoder.hidden(batch, self.cache)
        layout = Pagewise(self._attention, batch, self.cache)
        hidden: Tensor = self._model.base_model(
            input_ids=batch.ids_N[None], position_ids=batch.positions_N[None], use_cache=False, layout=layout
        ).last_hidden_state[0]
        return hidden


def _decoder(model: PreTrainedModel, context: int) -> "Decoder | None":
    """The fused forward pass, where it knows the model; others run through their own modules."""
    from sleuth.engines.paged import decoder

    return decoder.Decoder(model, context) if llama_family.difference(model) is None else None


def _computations(backend: Backend) -> tuple[ModuleType, Callable[..., None], Callable[..., None]]:
    """Attention, inputs and sampler; Triton is imported only where it is used."""
    if backend == "plain":
        return gathered, plain.inputs, plain.sample
    from sleuth.engines.paged.kernels import pointwise, sampling
    from sleuth.model.kernels import attention

    return attention, pointwise.inputs, sampling.sample


def _entries(step: Step, width: int) -> list[np.ndarray]:
    """Places in a table so wide, row after row, and the pages that stand there from now on."""
    starts = [slot * width + first for slot, (first, _) in step.placed.items()]
    counts = np.array([len(pages) for _, pages in step.placed.values()])
    pages = np.array([page for _, pages in step.placed.values() for page in pages])
    return [np.repeat(starts - counts.cumsum() + counts, counts) + np.arange(len(pages)), pages]


def _settings(step: Step) -> np.ndarray:
    """Temperature, top_k, top_p, min_p of the new rows."""
    each = [row.sampling for row in step.opened]
    # Within what fp32 holds: a temperature that is not 0 stays so.
    warm = [min(max(one.temperature, 1e-30), 1e30) if one.temperature else 0.0 for one in each]
    kept = [(min(one.top_k, 2**24), one.top_p, one.min_p) for one in each]
    return np.array([(temperature, *rest) for temperature, rest in zip(warm, kept, strict=True)], dtype=np.float32)
