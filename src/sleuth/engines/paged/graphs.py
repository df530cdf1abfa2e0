"""Steps as CUDA graphs: one launch instead of hundreds, for a few numbers of lanes."""

from collections.abc import Callable
from functools import partial

import torch

# Products are cut into tiles of this many rows anyway; fewer are no faster where sums are not split.
STRIDE = 64


def filled_up(lanes: int) -> int:
    """Lanes with the fillers that a captured step has."""
    return -(-lanes // STRIDE) * STRIDE


class Graphs:
    """Captured when first needed, one for each number of lanes; `idle` makes every lane nobody's.

    Without a GPU a step is rehearsed alike, and then run instead of replayed.
    """

    def __init__(self, idle: Callable[[], None], device: torch.device) -> None:
        self._idle = idle
        self._device = device
        self._ready: dict[tuple[str, int], Callable[[], None]] = {}
        self._memory = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def prepare(self, name: str, lanes: int, step: Callable[[int], None]) -> Callable[[], None]:
        """What replays the step of that name for so many lanes; to be called before its inputs are written."""
        if (name, lanes) not in self._ready:
            # Run once before, for nobody: kernels are compiled and libraries set up by that, which no capture allows.
            self._idle()
            step(lanes)
            self._ready[name, lanes] = self._capture(partial(step, lanes))
        return self._ready[name, lanes]

    def _capture(self, step: Callable[[], None]) -> Callable[[], None]:
        if self._memory is None:
            return step
        torch.cuda.current_stream(self._device).synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads (a retriever's encoder, say) may use the GPU meanwhile.
        graph.capture_begin(pool=self._memory, capture_error_mode="thread_local")
        try:
            step()
        finally:
            graph.capture_end()
        replay: Callable[[], None] = graph.replay
        return replay
