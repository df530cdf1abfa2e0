"""The model that is trained, whole or by adapters."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sleuth.config.section import Factor, Section


class LoRAConfig(Section):
    rank: Annotated[
        int, Field(ge=0, le=1024, description="of the adapters that are trained; 0: the whole model is")
    ] = 0
    alpha: Annotated[Factor, Field(description="adapters weigh alpha / rank")] = 32.0
    targets: Annotated[str, Field(description="layers that get one: all-linear, or names as q_proj,v_proj")] = (
        "all-linear"
    )

    @model_validator(mode="after")
    def _effective(self) -> Self:
        if not self.rank:
            self._without_effect("model.lora.rank = 0", "alpha", "targets")
        return self


class ModelConfig(Section):
    policy: Annotated[
        str, Field(description="'quickstart', a Hugging Face folder with model and tokenizer, or a name on the hub")
    ] = "quickstart"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        Field(description="of the weights in use; auto: bfloat16 on a GPU, with fp32 masters, float32 on a CPU"),
    ] = "auto"
    lora: LoRAConfig = LoRAConfig()
