"""Settings of a run on a Ray cluster: how many actors of each role, and what each of them occupies."""

from typing import Annotated

from pydantic import AfterValidator, Field

from sleuth.config.section import NonNegativeInt, PositiveInt, Section


def _whole_above_one(gpus: float) -> float:
    if gpus > 1 and not gpus.is_integer():
        raise ValueError(f"{gpus:g} GPUs are more than one and not a whole number, as Ray requires; round it")
    return gpus


GpuShare = Annotated[float, Field(ge=0, le=1)]
ServerGpus = Annotated[float, Field(ge=0, le=64), AfterValidator(_whole_above_one)]
Actors = Annotated[int, Field(gt=0, le=4096)]


class ClusterConfig(Section):
    trainers: Actors = 1
    """Trainer ranks, which share one sharded model (FSDP2)."""
    rollouts: Actors = 1
    """Rollout workers, each with an engine and a copy of the weights."""
    retrievers: Annotated[int, Field(ge=0, le=4096)] = 0
    """Retriever replicas, each with the index; 0: every rollout worker opens the index itself."""
    trainer_gpus: GpuShare = 1.0
    """GPU share of a trainer rank; below 1, others share its GPU. Ignored on a cluster without GPUs."""
    rollout_gpus: ServerGpus = 1.0
    """GPU share of a rollout worker; with engine.kind = vllm or sglang also several, which its server uses by tensor
    parallelism. Ignored on a cluster without GPUs."""
    retriever_gpus: GpuShare = 0.0
    """GPU share of a retriever replica. Ignored on a cluster without GPUs."""
    cpus: Annotated[float, Field(gt=0, le=1024)] = 1.0
    """CPUs that each actor occupies."""
    restarts: NonNegativeInt = 10
    """Times that Ray restarts a rollout worker or a retriever replica before it is left out."""
    patience: PositiveInt = 300
    """Seconds to wait for free resources at the start, and for a worker or replica while all of its role are down."""
    silence: PositiveInt = 60
    """Seconds after which a rollout worker or retriever replica whose process does not answer is killed."""
