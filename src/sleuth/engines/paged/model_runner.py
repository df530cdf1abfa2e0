"""The model runner: uploads a step's inputs, computes without waiting, and fetches results later.

Suffixes: N packed tokens, B lanes, M sampled slots, S slots, V vocabulary.
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

from sleuth.engines.paged import torch_backend
from sleuth.engines.paged.batch import (
    Batch,
    PackedPrefill,
    PrefillBuffers,
    pad_decode_lanes,
    pad_mixed_lanes,
    uniform,
    upload,
)
from sleuth.engines.paged.kv_cache import KVCache, PagedLayout
from sleuth.engines.paged.scheduler import StepPlan
from sleuth.model import llama_family, lm_head
from sleuth.model.attention import AttentionShape, Tiles
from sleuth.model.kernel_patch import disable_split_k

if TYPE_CHECKING:
    from sleuth.engines.paged.decoder import Decoder

Backend = Literal["torch", "triton"]
BELOW_ONE = np.float32(1 - 2**-24)  # the largest fp32 number below 1


class PendingSamples:
    """Tokens and logprobs of a step, being copied to the host; `places_M` selects entries that are not padding."""

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


class GraphCache:
    """CUDA graphs of steps, captured at first use; `clear_inputs` must turn every lane into padding.

    Without a GPU, a step is warmed up in the same way and then run instead of replayed.
    """

    def __init__(self, clear_inputs: Callable[[], None], device: torch.device) -> None:
        self._clear_inputs = clear_inputs
        self._device = device
        self._replays: dict[tuple[str, int], Callable[[], None]] = {}
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def prepare(self, name: str, lanes: int, step: Callable[[int], None]) -> Callable[[], None]:
        """Return a function that replays a step for this many lanes; call `prepare` before writing the inputs."""
        if (name, lanes) not in self._replays:
            # A warm-up on padding compiles kernels and initialises libraries, which a capture does not allow.
            self._clear_inputs()
            step(lanes)
            self._replays[name, lanes] = self._capture(partial(step, lanes))
        return self._replays[name, lanes]

    def _capture(self, step: Callable[[], None]) -> Callable[[], None]:
        if self._pool is None:
            return step
        torch.cuda.current_stream(self._device).synchronize()
        graph = torch.cuda.CUDAGraph()
        # thread_local: other threads, such as a retriever's encoder, may use the GPU meanwhile.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            step()
        finally:
            graph.capture_end()
        replay: Callable[[], None] = graph.replay
        return replay


class ModelRunner:
    """The model, its cache, and per slot the newest token, length and sampling settings."""

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
        self.cache = KVCache(self.shape, pages, slots, context, self.device)
        self._model = model
        self._projection = lm_head.output_projection(model)
        self._decoder: Decoder | None = None
        self._attention: ModuleType = torch_backend
        steps: ModuleType = torch_backend
        if backend == "triton":  # an optional library
            from sleuth.engines.paged import decoder, triton_backend
            from sleuth.model.kernels import attention

            self._attention, steps = attention, triton_backend
            if llama_family.difference(model) is None:
                self._decoder = decoder.Decoder(model, context)
        self._next_inputs, self._sample = steps.next_inputs, steps.sample
        # Forward passes of other models may do what a capture forbids (host copies, reads of values).
        capturable = self._decoder is not None or self.device.type == "cpu"
        self._graphs = GraphCache(self._clear_inputs, self.device) if graphs and capturable else None
        self.stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self._tokens_S = torch.zeros(slots + 1, dtype=torch.int32, device=self.device)
        self._settings_S4 = torch.tensor([[1.0, 0.0, 1.0, 0.0]], device=self.device).repeat(slots + 1, 1)
        # Room for padded lanes, and for requests whose prefill ends.
        width = max(pad_decode_lanes(slots), pad_mixed_lanes(slots)) + slots
        self._inputs_2M = torch.zeros(2, width, dtype=torch.int32, device=self.device)
        self._results_2M = torch.zeros(2, width, dtype=torch.int32, device=self.device)
        self._queries: int = self._attention.tile_queries(self.shape.heads, self.shape.kv_heads)
        self._buffers: list[PrefillBuffers] = []
        if self._graphs is not None:
            self._buffers = PrefillBuffers.allocate_all(prefill_tokens, slots, self._queries, self.device)
        if self.stream is not None:
            # Zeros, fused weights and rotary tables were queued on the caller's stream.
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    @contextmanager
    def ordered_with_caller(self) -> Iterator[None]:
        """Order the enclosed work after earlier work of the caller's stream and before its later work."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        try:
            yield
        finally:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)

    @contextmanager
    def inference(self) -> Iterator[None]:
        """Use the engine's stream, without gradients and dropout; restore the trainer's modes afterwards."""
        # Only if needed: asking all modules of a large model takes a millisecond.
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

    def launch(self, plan: StepPlan, slots_M: np.ndarray, seeds_M: np.ndarray, draws_M: np.ndarray) -> PendingSamples:
        """Start a step that samples for these slots; on a GPU, return before the step is done."""
        lanes = len(plan.lanes_B)
        places_M = np.arange(len(slots_M))
        tokens = sum(chunk.end - chunk.start for chunk in plan.chunks)
        buffers = next((each for each in self._buffers if tokens and each.fits(tokens, len(plan.chunks))), None)
        replay = None
        if self._graphs is not None:
            lanes = pad_decode_lanes(lanes) if buffers is None else pad_mixed_lanes(lanes)
            places_M[len(plan.lanes_B) :] += lanes - len(plan.lanes_B)
            if buffers is None:
                replay = self._graphs.prepare("decode", lanes, self._decode)
            else:
                replay = self._graphs.prepare(f"mixed {buffers.tokens}", lanes, partial(self._mixed, buffers))
        self._upload(plan, slots_M, uniform(seeds_M, draws_M), places_M)
        if plan.chunks:
            self._prefill(plan, lanes, len(slots_M), buffers)
        if replay is not None:
            replay()
        elif not plan.chunks:
            self._decode(lanes)
        return PendingSamples(self._results_2M, places_M)

    def reset(self) -> None:
        """Wait for steps in flight, then reset to the initial state."""
        with self.inference():
            self.cache.clear()
            self._tokens_S.zero_()
        if self.stream is not None:
            self.stream.synchronize()

    def parameters_moved(self) -> bool:
        """Whether parameters have moved from the addresses that graphs and fused weights use."""
        return self._decoder is not None and self._decoder.parameters_moved()

    def _clear_inputs(self) -> None:
        """Turn every lane and prefill token into padding, so that a warm-up does not write to any request's pages."""
        self._inputs_2M.fill_(self.cache.padding_slot)
        for buffers in self._buffers:
            buffers.clear()

    def _upload(self, plan: StepPlan, slots_M: np.ndarray, uniform_M: np.ndarray, places_M: np.ndarray) -> None:
        """Upload slots, random numbers, page table entries, and the settings of admitted requests."""
        width = self._inputs_2M.shape[1]
        inputs_2M = np.full((2, width), self.cache.padding_slot, dtype=np.int32)
        inputs_2M[0, places_M] = slots_M
        inputs_2M[1, places_M] = np.minimum(uniform_M.astype(np.float32), BELOW_ONE).view(np.int32)
        arrays: list[np.ndarray] = [inputs_2M]
        if plan.page_updates:
            # Indices into the flattened page table, and the pages to write there.
            row = self.cache.table_SX.shape[1]
            starts = [slot * row + first for slot, (first, _) in plan.page_updates.items()]
            counts = np.array([len(pages) for _, pages in plan.page_updates.values()])
            new_pages = np.array([page for _, pages in plan.page_updates.values() for page in pages])
            arrays += [np.repeat(starts - counts.cumsum() + counts, counts) + np.arange(len(new_pages)), new_pages]
        if plan.admitted:
            arrays += [np.array([request.slot for request in plan.admitted]), _sampling_settings(plan)]
        sent, *rest = upload(arrays, self.device)
        self._inputs_2M.copy_(sent.view(2, width))
        if plan.page_updates:
            index, pages, *rest = rest
            self.cache.table_SX.view(-1).index_copy_(0, index.long(), pages)
        if plan.admitted:
            slots, settings = rest
            self._settings_S4.index_copy_(0, slots.long(), settings.view(torch.float32).view(-1, 4))

    def _prefill(self, plan: StepPlan, lanes: int, sampled: int, buffers: PrefillBuffers | None) -> None:
        """Write chunks to the buffers of a captured step or, without buffers, compute them immediately."""
        prefill = PackedPrefill.of(plan.chunks, lanes, self._queries)
        (ends_2G,) = upload([prefill.ends_2G], self.device)
        slots, lengths = ends_2G.view(2, -1)
        self.cache.lengths_S.index_copy_(0, slots.long(), lengths)
        if buffers is not None:
            buffers.write(prefill, lanes)
            return
        if self.stream is not None:
            # Restricts the row counts of matrix products to those that tests cover.
            rows = pad_decode_lanes(len(prefill.ids_N))
            prefill = prefill.padded(rows, prefill.tiles_4T.shape[1], len(prefill.last_M))
        ids_N, positions_N, addresses_N, tiles_4T, last_M = upload(prefill.arrays(), self.device)
        tiles = Tiles(*tiles_4T.view(4, -1))
        self._forward(Batch(ids_N, positions_N, addresses_N, self._inputs_2M[0, :lanes], tiles, last_M), sampled)

    def _mixed(self, buffers: PrefillBuffers, lanes: int) -> None:
        """Run a step with prefill that reads only static memory, as graph capture requires."""
        self._forward(buffers.batch(self._inputs_2M[0, :lanes]), lanes + buffers.chunks)

    def _decode(self, lanes: int) -> None:
        """Run a step without prefill that reads only static memory, as graph capture requires."""
        ids_N, positions_N, addresses_N = torch.empty(3, lanes, dtype=torch.int32, device=self.device)
        self._forward(Batch(ids_N, positions_N, addresses_N, self._inputs_2M[0, :lanes]), lanes)

    def _forward(self, batch: Batch, sampled: int) -> None:
        cache = self.cache
        if len(batch.slots_B):
            self._next_inputs(
                batch.slots_B, self._tokens_S, cache.lengths_S, cache.table_SX,
                batch.ids_N, batch.positions_N, batch.addresses_N,
            )  # fmt: skip
        if self._decoder is not None:
            hidden_NW = self._decoder.hidden_states(batch, cache)
        else:
            layout = PagedLayout(self._attention, batch, cache)
            hidden_NW = self._model.base_model(
                input_ids=batch.ids_N[None], position_ids=batch.positions_N[None], use_cache=False, layout=layout
            ).last_hidden_state[0]
        if not sampled:
            return
        hidden_MW = hidden_NW if batch.last_M is None else hidden_NW.index_select(0, batch.last_M)
        logits_MV = lm_head.logits(hidden_MW, self._projection.weight, self._projection.bias)
        slots_M, uniform_M = self._inputs_2M[:, :sampled]
        out_M, logprob_M = self._results_2M[:, :sampled]
        self._sample(
            logits_MV, self._settings_S4, slots_M, uniform_M.view(torch.float32),
            self._tokens_S, out_M, logprob_M.view(torch.float32),
        )  # fmt: skip


def _sampling_settings(plan: StepPlan) -> np.ndarray:
    """Temperature, top_k, top_p and min_p of admitted requests, clipped to the range of fp32."""
    settings = []
    for sampling in (request.sampling for request in plan.admitted):
        temperature = min(max(sampling.temperature, 1e-30), 1e30) if sampling.temperature else 0.0
        settings.append((temperature, min(sampling.top_k, 2**24), sampling.top_p, sampling.min_p))
    return np.array(settings, dtype=np.float32)
