"""Decode steps as CUDA graphs: one launch instead of hundreds, for a few numbers of lanes."""

from bisect import bisect_left
from collections.abc import Callable

import torch

# Products are cut into tiles of this many rows anyway; fewer are no faster where sums are not split.
STRIDE = 64


class Graphs:
    """Captured when first needed; lanes are filled up to the next number a graph was captured for."""

    def __init__(
        self, decode: Callable[[int], None], idle: Callable[[], None], lanes: int, device: torch.device
    ) -> None:
        self._sizes: list[int] = [*range(STRIDE, lanes + STRIDE, STRIDE)]
        self._decode = decode
        self._idle = idle
        self._device = device
        self._captured: dict[int, torch.cuda.CUDAGraph] = {}
        self._memory = torch.cuda.graph_pool_handle()

    @property
    def most(self) -> int:
        """The largest number of lanes there is a graph for."""
        return self._sizes[-1]

    def of(self, lanes: int) -> torch.cuda.CUDAGraph:
        """The graph of the smallest number of lanes that holds these."""
        size = self._sizes[bisect_left(self._sizes, lanes)]
        if size not in self._captured:
            self._captured[size] = self._capture(size)
        return self._captured[size]

    def _capture(self, size: int) -> torch.cuda.CUDAGraph:
        # Run once before, for nobody: kernels are compiled and libraries set up by that, which capture does not allow.
        self._idle()
        self._decode(size)
        torch.cuda.current_stream(self._device).synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads (a retriever's encoder, say) may use the GPU meanwhile.
        graph.capture_begin(pool=self._memory, capture_error_mode="thread_local")
        try:
            self._decode(size)
        finally:
            graph.capture_end()
        return graph
