"""Settings of the gateway: the OpenAI-compatible endpoint for agents that were not written for Sleuth."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from sleuth.config.section import Section


class HelperConfig(Section):
    """A frozen model that agents may call besides the policy; its tokens are not trained."""

    url: str | None = None
    """Base URL of an OpenAI-compatible server, ending in /v1, with a frozen model for agents to call."""
    model: str | None = None
    """Name of the frozen model on that server; agents call it by this name through the gateway."""
    key_env: str | None = None
    """Environment variable that holds the key of that server."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.url is None) != (self.model is None):
            raise ValueError("helper needs both url and model; give the other one, or remove both")
        if self.url is None:
            self._reject_unused("gateway.helper.url missing", "key_env")
        return self


class GatewayConfig(Section):
    host: str = "127.0.0.1"
    """Address to listen on; the default accepts connections from this machine only."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port to listen on; 0 picks a free port."""
    helper: HelperConfig = HelperConfig()
