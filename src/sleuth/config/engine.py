"""Settings of the rollout engine: embedded (paged), or vLLM or SGLang servers."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sleuth.config.section import PositiveFloat, Section, TokenCount

OWN_SERVER_SETTINGS = ("command", "memory", "prefill_tokens")  # of a server that the run starts itself
SERVER_PARITY = 0.1
PARITY_LIMIT = 0.02
COMMANDS = {"vllm": "vllm serve", "sglang": "python -m sglang.launch_server --enable-deterministic-inference"}
ENTRY_WORDS = {"vllm": ("serve",), "sglang": ("serve", "sglang.launch_server")}  # options come after them
InFlight = Literal["finish", "pause", "abort"]


class EngineConfig(Section):
    kind: Literal["paged", "vllm", "sglang"] = "paged"
    """paged: the embedded engine. vllm, sglang: servers (docs/vllm.md, docs/sglang.md)."""
    url: str | None = None
    """vllm, sglang: server addresses, separated by commas. Default: the run starts and stops its own."""
    command: str | None = None
    """vllm, sglang without url: command that starts a server; add options at its end. Default: vllm serve, or python -m
    sglang.launch_server --enable-deterministic-inference."""
    weights: Literal["disk", "device", "collective"] = "disk"
    """vllm, sglang: weight sync through a shared folder, through the memory of a shared GPU, or by broadcast in a
    process group (NCCL; sglang: gloo on CPUs)."""
    exchange: str | None = None
    """vllm, sglang: the shared folder, at the same path for all servers. Default: inside the run folder."""
    in_flight: InFlight | None = None
    """vllm, sglang: other clients' in-flight requests at a weight update: finish on the old weights, pause and resume
    on the new ones (vllm only), or abort. Default: pause; sglang: abort."""
    slots: Annotated[int, Field(gt=0, le=65536)] = 128
    """Sequences decoded at the same time; vllm, sglang: per server."""
    memory: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """Maximum fraction of device memory for the KV cache, allocated at the start; vllm, sglang: for the
    whole server."""
    prefill_tokens: TokenCount | None = None
    """Maximum prefill tokens per step. Default: 16,384 on a GPU, 2,048 on a CPU."""
    lockstep: Literal["auto", "on", "off"] = "auto"
    """on: decode only when every episode is waiting for tokens, so that CPU runs are bit-exact; auto: on for a CPU if
    all tools run in this process."""
    stale_cache: Literal["drop", "keep"] = "drop"
    """KV cache after a weight update: drop and recompute, or keep (faster, not exact)."""
    parity: PositiveFloat | None = None
    """Maximum mean |logprob difference| between engine and trainer at the start. Default: 0.02; vllm, sglang: 0.1,
    which is then corrected."""

    @property
    def is_server(self) -> bool:
        """Whether the model runs in servers outside the training process."""
        return self.kind != "paged"

    @property
    def addresses(self) -> tuple[str, ...]:
        """Server addresses in order, without duplicates, trailing slashes and `/v1`."""
        stripped = (address.strip().rstrip("/") for address in (self.url or "").split(","))
        return tuple(dict.fromkeys(address.removesuffix("/v1") for address in stripped if address))

    @property
    def parity_limit(self) -> float:
        """Maximum mean |logprob difference| in nats, engine against trainer."""
        return self.parity if self.parity is not None else SERVER_PARITY if self.is_server else PARITY_LIMIT

    @property
    def launch_command(self) -> str:
        return self.command if self.command is not None else COMMANDS[self.kind]

    @property
    def in_flight_mode(self) -> InFlight:
        return self.in_flight or ("abort" if self.kind == "sglang" else "pause")

    @model_validator(mode="after")
    def _check_unused(self) -> Self:
        if not self.is_server:
            self._reject_unused(f"engine.kind = {self.kind}", "url", "command", "weights", "exchange", "in_flight")
            return self
        self._reject_unused(f"engine.kind = {self.kind}, which always drops its cache", "stale_cache")
        self._reject_unused(f"engine.kind = {self.kind}, which never waits for callers", "lockstep")
        if self.weights != "disk":
            self._reject_unused(f"engine.weights = {self.weights}", "exchange")
        if self.url is None:
            self._reject_unused("a server that the run starts, which has no other clients", "in_flight")
        else:
            self._reject_unused("engine.url, because those servers are already running", *OWN_SERVER_SETTINGS)
        return self

    @model_validator(mode="after")
    def _check_addresses(self) -> Self:
        example = "write it like http://127.0.0.1:8000"
        if self.url is not None and not self.addresses:
            raise ValueError(f"url = {self.url!r} contains no address; {example}, or remove it")
        for address in self.addresses:
            if not address.startswith(("http://", "https://")):
                raise ValueError(f"url = {address!r} is not an HTTP address; {example}")
        if self.is_server and not set(self.launch_command.split()) & set(words := ENTRY_WORDS[self.kind]):
            raise ValueError(
                f"command = {self.command!r} lacks the word {' or '.join(words)}; write it like {COMMANDS[self.kind]}"
            )
        return self

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if self.kind == "sglang" and self.in_flight == "pause":
            raise ValueError(
                "in_flight = pause is for kind = vllm, because SGLang cannot drop the cache of paused requests; use "
                "finish or abort"
            )
        return self
