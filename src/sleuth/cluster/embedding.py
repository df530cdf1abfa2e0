"""Encode a corpus on a Ray cluster: Ray Data hands blocks of passages to encoders and streams their vectors back."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sleuth.cluster import ray_libraries
from sleuth.cluster.ray_client import own_address
from sleuth.cluster.replicas import connected_nodes, plan_replicas
from sleuth.errors import InputError, UserError
from sleuth.retrieval.dense.vectors import CorpusBlocks, EncodeBlocks

if TYPE_CHECKING:
    from sleuth.retrieval.dense.encoder import Advance, Encoder


class BlockEncoder:
    """Encodes whole blocks of a corpus, in an actor; a user's error is returned as a value."""

    def __init__(self, blocks: CorpusBlocks, device: str) -> None:
        self._blocks, self._device = blocks, device
        self._encoder: Encoder | None = None

    def __call__(self, batch: Mapping[str, Sequence[int]]) -> dict[str, list[Any]]:
        (first,) = map(int, batch["first"])
        try:
            rows, error = self._encode(first).tobytes(), ""
        except UserError as problem:
            rows, error = b"", f"on the node {own_address()}: {problem}"
        return {"first": [first], "rows": [rows], "error": [error]}

    def _encode(self, first: int) -> NDArray[np.float16]:
        from sleuth.retrieval.dense.encoder import Encoder

        blocks = self._blocks
        for path in (blocks.corpus, blocks.offsets):
            if not path.exists():
                raise InputError(f"{path} does not exist; put corpus and index on a file system that all nodes share")
        if self._encoder is None:
            encoder = Encoder.load(blocks.encoder, self._device)
            if encoder.fingerprint != blocks.fingerprint:
                raise InputError(f"the weights of {blocks.encoder.model} differ from those of the driver; copy them")
            self._encoder = encoder
        return self._encoder.encode_passages(blocks.read(first))


@contextmanager
def cluster_encoder(address: str, replicas: int | None, device: str) -> Iterator[EncodeBlocks]:
    """Connect to a cluster and yield the function that encodes blocks on it; by default, one replica per GPU or CPU."""
    with connected_nodes(address) as nodes:
        plan = plan_replicas(replicas, device, nodes)

        def encode(
            blocks: CorpusBlocks, firsts: Sequence[int], advance: "Advance"
        ) -> Iterator[tuple[int, NDArray[np.float16]]]:
            if not firsts:
                return
            found = ray_libraries.map_on_actors(
                BlockEncoder,
                (blocks, plan.device),
                [{"first": first} for first in firsts],
                actors=min(plan.count, len(firsts)),
                needs=plan.needs,
            )
            for row in found:
                if row["error"]:
                    raise InputError(row["error"])
                first, halves = row["first"], np.frombuffer(row["rows"], np.float16)
                vectors = halves.reshape(min(blocks.size, blocks.passages - first), -1)
                yield first, vectors
                advance(len(vectors))

        yield encode
