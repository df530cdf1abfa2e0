"""The steps of a run: their size, the optimiser, and what is kept."""

from typing import Annotated, Literal

from pydantic import Field

from sleuth.config.section import LARGEST, Episodes, Factor, Positive, Section, Seed, Share, TokenCount


class TrainConfig(Section):
    steps: Annotated[Positive, Field(description="optimiser rounds: questions x samples episodes each")] = 100
    questions: Annotated[Episodes, Field(description="questions a step")] = 16
    samples: Annotated[Episodes, Field(description="episodes a question: the group")] = 8
    temperature: Annotated[Factor, Field(description="of sampling, and of the logprobs trained on")] = 1.0
    mode: Annotated[
        Literal["sync", "ahead"],
        Field(description="ahead: the next episodes are sampled while this step trains, by weights one version old"),
    ] = "sync"
    resample: Annotated[
        int,
        Field(
            ge=0, le=10_000, description="rounds in which groups without spread are replaced by new questions at most"
        ),
    ] = 0
    updates: Annotated[Positive, Field(description="mini-batches a step; 1 is on-policy")] = 1
    optimiser: Annotated[Literal["adamw", "adamw8bit"], Field(description="adamw8bit keeps its moments in 8 bits")] = (
        "adamw"
    )
    offload: Annotated[bool, Field(description="masters and moments of the optimiser in host memory")] = False
    recompute: Annotated[
        Share, Field(description="share of the layers whose states are computed again backwards, to save memory")
    ] = 0.0
    learning_rate: Annotated[Factor, Field(description="of AdamW, at its highest")] = 1e-6
    warmup: Annotated[Share, Field(description="share of the steps over which the rate rises")] = 0.0
    decay: Annotated[
        Share, Field(description="share of the steps, the last ones, over which the rate falls to zero")
    ] = 0.0
    weight_decay: Annotated[float, Field(ge=0, le=LARGEST, description="of AdamW")] = 0.01
    gradient_clip: Annotated[float, Field(gt=0, le=1e12, description="norm the gradient is scaled down to")] = 1.0
    pack_tokens: Annotated[TokenCount, Field(description="tokens of one packed forward pass")] = 16384
    save_every: Annotated[Positive, Field(description="steps between checkpoints")] = 20
    keep: Annotated[Positive, Field(description="checkpoints kept, the newest")] = 2
    keep_best: Annotated[bool, Field(description="and the one whose evaluation was best; needs evaluate.every")] = False
    threads: Annotated[int, Field(ge=0, le=1024, description="CPU threads of the run; 0 takes what torch takes")] = 0
    seed: Annotated[Seed, Field(description="of questions and sampling")] = 0
