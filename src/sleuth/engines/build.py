"""Builds the engine that a config describes: embedded in this process, or servers."""

import asyncio
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import torch

from sleuth.config.hooks import IMPORT
from sleuth.config.tree import Config
from sleuth.engines.base import Engine
from sleuth.engines.paged.engine import PagedEngine
from sleuth.engines.servers.engine import ServerEngine
from sleuth.engines.servers.process import ServerProcess, start
from sleuth.engines.servers.weights import DiskTransport, WeightTransport
from sleuth.engines.sglang.engine import SglangEngine
from sleuth.engines.vllm.engine import VllmEngine
from sleuth.errors import EngineFailure, InputError
from sleuth.model.lora import LoRA
from sleuth.model.policy import Policy, select_device, select_dtype
from sleuth.model.tokens import Tokens
from sleuth.runs import checksums

EXCHANGE = "weights"  # default folder, inside a run, for sending weights to servers


@dataclass(frozen=True, slots=True)
class Lockstep:
    """Whether the engine waits for every episode before it decodes, and why."""

    enabled: bool
    reason: str
    repeatable: bool

    @classmethod
    def resolve(cls, config: Config, device: str) -> "Lockstep":
        """Resolve `engine.lockstep` for an engine on this type of device."""
        if config.engine.is_server:
            return cls(False, f"engine.kind = {config.engine.kind}", False)
        obstacle = None
        if device != "cpu":
            obstacle = f"the engine runs on {device}, where sums differ from run to run"
        elif config.train.is_streaming:
            obstacle = "train.mode = async changes the weights while episodes run"
        elif config.agent.is_outside:
            obstacle = f"the agent runs outside the engine: {config.agent.source}"
        elif config.agent.method.startswith(IMPORT):
            obstacle = f"agent.method = {config.agent.method} may use fewer workers than there are episodes"
        elif config.agent.remote_tools:
            obstacle = f"tools run outside this process: {', '.join(config.agent.remote_tools)}"
        elif config.remote_tools:
            obstacle = f"searches leave this process: retrieval.index = {config.retrieval.index}"
        if config.engine.lockstep == "auto":
            return cls(obstacle is None, obstacle or "every tool answers in this process", obstacle is None)
        enabled = config.engine.lockstep == "on"
        return cls(enabled, f"engine.lockstep = {config.engine.lockstep}", enabled and obstacle is None)

    def line(self, concurrency: int) -> str:
        bits = "is repeatable bit for bit on this machine" if self.repeatable else "may not be repeatable bit for bit"
        return (
            f"lockstep {'on' if self.enabled else 'off'} ({self.reason}), at most {concurrency:,} episodes in flight: "
            f"with the same seed this run {bits}"
        )


def embed_policy(config: Config, policy: Policy, *, lockstep: bool | None = None) -> PagedEngine:
    """Create the embedded engine on a policy's weights; `lockstep` overrides `engine.lockstep`."""
    return PagedEngine(
        policy.model,
        policy.tokens,
        slots=config.engine.slots,
        context=config.agent.context_tokens + 1,
        memory=config.engine.memory,
        prefill_tokens=config.engine.prefill_tokens,
        lockstep=Lockstep.resolve(config, policy.device.type).enabled if lockstep is None else lockstep,
    )


def load_engine(config: Config, weights: Path, *, lockstep: bool | None = None) -> tuple[Engine, Tokens]:
    """Load a model folder into an engine, for inference only; `lockstep` overrides `engine.lockstep`."""
    if not config.engine.is_server:
        device = select_device()
        policy = Policy.load(weights, device, select_dtype(config.model, device))
        return embed_policy(config, policy, lockstep=lockstep), policy.tokens
    checksums.verify_checkpoint(weights)
    tokens = Tokens.load(weights)
    try:
        servers = connect_servers(
            config, tokens, weights, Path(mkdtemp(prefix=f"sleuth-{config.engine.kind}-")), training=False
        )
        if config.engine.url:
            servers.load(weights)  # the servers may hold other weights
    except EngineFailure as failure:
        raise InputError(str(failure)) from failure
    return servers, tokens


def connect_servers(
    config: Config,
    tokens: Tokens,
    model: Path,
    folder: Path,
    *,
    training: bool,
    addresses: Sequence[str] = (),
    worker: int | None = None,
    adapter: LoRA | None = None,
) -> ServerEngine:
    """Connect to servers of `engine.kind` at `addresses` or `engine.url`, or start one with its log in `folder`.

    With `training`, the engine can publish weights, or an `adapter` alone. `worker` is the number of the rollout worker
    that owns the server, which then uses all GPUs of the worker. Raises EngineFailure if a server does not start.
    """
    settings, kind, context = config.engine, SERVER_ENGINES[config.engine.kind], config.agent.context_tokens
    label = "" if worker is None else f"-{worker}"
    transport: WeightTransport | None = None
    if training and settings.weights == "disk":
        exchange = Path(settings.exchange) if settings.exchange is not None else folder / EXCHANGE
        transport = DiskTransport(exchange if worker is None else exchange / f"worker{label}", adapter)
    elif training:
        transport = kind.transports[settings.weights]()
    addresses = addresses or settings.addresses
    process = None
    if not addresses:
        log = folder / f"{settings.kind}{label}.log"
        process = _start_server(config, kind, model, log, transport, 1 if worker is None else torch.cuda.device_count())
    engine = kind(
        addresses if process is None else [process.address],
        tokens,
        context=context,
        slots=settings.slots,
        eos_ids=[] if tokens.eos_id is None else [tokens.eos_id],
        transport=transport,
        in_flight=settings.in_flight_mode,
        process=process,
        adapter=adapter is not None,
    )
    try:
        return asyncio.run(engine.connect())
    except BaseException as error:
        if process is not None:
            process.stop()
        if isinstance(error, EngineFailure):
            raise InputError(str(error)) from error
        raise


def _start_server(
    config: Config, kind: type[ServerEngine], model: Path, log: Path, transport: WeightTransport | None, gpus: int
) -> ServerProcess:
    settings, dialect = config.engine, kind.dialect
    options = [dialect.memory_option, str(settings.memory), *(transport.options if transport else ())]
    if settings.prefill_tokens is not None:
        options += [dialect.prefill_option, str(settings.prefill_tokens)]
    if gpus > 1:
        options += [dialect.parallel_option, str(gpus)]
    if config.model.lora.rank and transport is not None:
        options += dialect.adapter_options(config.model.lora.rank)
    return start(
        dialect,
        shlex.split(settings.launch_command),
        model,
        log,
        context=config.agent.context_tokens,
        slots=settings.slots,
        dtype=str(select_dtype(config.model, select_device())).removeprefix("torch."),
        options=options,
        environment=transport.environment if transport else {},
    )


# Keyed by engine.kind. A new kind needs an engine class, an entry here, and settings in config/engine.py.
SERVER_ENGINES: dict[str, type[ServerEngine]] = {"vllm": VllmEngine, "sglang": SglangEngine}
