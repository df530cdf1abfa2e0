"""What samples the episodes: the embedded engine, or servers of vLLM."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sleuth.config.section import Factor, Section, TokenCount

STARTED = ("command", "memory", "prefill_tokens")  # settings of a server of vLLM that the run starts itself
APART = {"paged": 0.02, "vllm": 0.1}  # nats in the mean between logprobs of engine and trainer that a run starts with


class EngineConfig(Section):
    kind: Annotated[
        Literal["paged", "vllm"], Field(description="paged: the embedded engine; vllm: servers of vLLM (docs/vllm.md)")
    ] = "paged"
    url: Annotated[
        str | None,
        Field(
            description="vllm: addresses of servers, by commas; absent: one is started beside the trainer, and ended"
        ),
    ] = None
    command: Annotated[
        str, Field(description="vllm without url: what starts a server; after serve options of your own")
    ] = "vllm serve"
    weights: Annotated[
        Literal["disk", "device"],
        Field(
            description="vllm: new weights go through a folder, or the memory of a GPU that trainer and servers share"
        ),
    ] = "disk"
    exchange: Annotated[
        str | None,
        Field(description="vllm: that folder, which all servers read by the same name; absent: one in the run folder"),
    ] = None
    in_flight: Annotated[
        Literal["finish", "pause", "abort"],
        Field(
            description="vllm: requests of others at its servers when new weights come are finished by the old, wait "
            "and are gone on with by the new, or are ended"
        ),
    ] = "pause"
    slots: Annotated[int, Field(gt=0, le=65_536, description="sequences computed at once; vllm: by each server")] = 128
    memory: Annotated[
        float,
        Field(
            gt=0,
            lt=1,
            description="share of the device's memory for keys and values at most, taken at the start; vllm: for all "
            "that its server holds",
        ),
    ] = 0.3
    prefill_tokens: Annotated[
        TokenCount | None,
        Field(description="given tokens computed in one step at most; none: 16,384 on a GPU, 2,048 on a CPU"),
    ] = None
    lockstep: Annotated[
        Literal["auto", "on", "off"],
        Field(
            description="on: steps wait until every episode asks for tokens, so that a run on a CPU repeats bit for "
            "bit; auto: on for a CPU where every tool answers in this process"
        ),
    ] = "auto"
    stale_cache: Annotated[
        Literal["drop", "keep"],
        Field(description="keys and values of older weights: drop and compute again, or keep, which is not exact"),
    ] = "drop"
    parity: Annotated[
        Factor | None,
        Field(
            description="mean difference between logprobs of engine and trainer above which no run starts; absent: "
            "0.02, vllm: 0.1, for it is corrected",
        ),
    ] = None

    @property
    def addresses(self) -> tuple[str, ...]:
        """The servers named, in order; an API's own path behind them is not part of their address."""
        named = (each.strip().rstrip("/") for each in (self.url or "").split(","))
        return tuple(dict.fromkeys(each.removesuffix("/v1") for each in named if each))

    @property
    def apart(self) -> float:
        """How far apart logprobs may be in the mean."""
        return self.parity if self.parity is not None else APART[self.kind]

    @model_validator(mode="after")
    def _effective(self) -> Self:
        if self.kind == "paged":
            self._without_effect("engine.kind = paged", "url", "command", "weights", "exchange", "in_flight")
            return self
        self._without_effect("engine.kind = vllm, which always drops them", "stale_cache")
        self._without_effect("engine.kind = vllm, which never waits for callers", "lockstep")
        if self.weights == "device":
            self._without_effect("engine.weights = device", "exchange")
        if self.url is None:
            self._without_effect("a server of the run's own, which serves nobody else", "in_flight")
        else:
            self._without_effect("engine.url, whose servers were started with their own", *STARTED)
        return self

    @model_validator(mode="after")
    def _addressed(self) -> Self:
        if self.url is not None and not self.addresses:
            raise ValueError(f"url = {self.url!r} names no address; write it like http://127.0.0.1:8000, or remove it")
        if "serve" not in self.command.split():
            raise ValueError(f"command = {self.command!r} has no word serve; write it like env/bin/vllm serve")
        for each in self.addresses:
            if not each.startswith(("http://", "https://")):
                raise ValueError(f"url = {each!r} is no address; write it like http://127.0.0.1:8000")
        return self
