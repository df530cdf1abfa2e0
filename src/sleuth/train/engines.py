"""From a config to its engine: embedded in this process, or vLLM servers."""

import asyncio
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from sleuth.config import recipe
from sleuth.config.hooks import IMPORT
from sleuth.config.tree import Config
from sleuth.engines.base import Engine
from sleuth.engines.paged.engine import PagedEngine
from sleuth.engines.vllm import server_process
from sleuth.engines.vllm.engine import VllmEngine
from sleuth.engines.vllm.server_process import ServerProcess
from sleuth.engines.vllm.weight_sync import (
    IPC_ENVIRONMENT,
    IPC_OPTIONS,
    CudaIpcTransport,
    DiskTransport,
    WeightTransport,
)
from sleuth.errors import EngineFailure, InputError, TrainingStopped
from sleuth.model.policy import Policy
from sleuth.model.tokens import Tokens
from sleuth.runs import checksums
from sleuth.train.learners import device_of, dtype_of, engine_policy
from sleuth.train.publish import Publisher, Sent
from sleuth.train.ranks import ALONE
from sleuth.train.step import Learner

LOG = "vllm.log"
EXCHANGE = "weights"  # the folder in that of a run through which weights go


@dataclass(frozen=True, slots=True)
class Lockstep:
    """Whether the engine waits for every episode before it steps, and why."""

    holds: bool
    reason: str
    repeats: bool

    @classmethod
    def of(cls, config: Config, device: str) -> "Lockstep":
        """What engine.lockstep comes to; `device` is the type of device that the engine runs on."""
        if config.engine.kind != "paged":
            return cls(False, f"engine.kind = {config.engine.kind}", False)
        off = _why_off(config, device)
        if config.engine.lockstep == "auto":
            return cls(off is None, off or "every tool answers in this process", off is None)
        holds = config.engine.lockstep == "on"
        return cls(holds, f"engine.lockstep = {config.engine.lockstep}", holds and off is None)

    def line(self, concurrent: int) -> str:
        """The whole of it in one line."""
        bits = "repeats bit for bit on this machine" if self.repeats else "may not repeat bit for bit"
        return (
            f"lockstep {'on' if self.holds else 'off'} ({self.reason}), {concurrent:,} episodes in flight at most: "
            f"with the same seed this run {bits}"
        )


def _why_off(config: Config, device: str) -> str | None:
    """Why callers should not be waited for, if they should not."""
    if device != "cpu":
        return f"the engine runs on {device}, whose sums differ from run to run"
    if config.agent.method.startswith(IMPORT):
        return f"agent.method = {config.agent.method} may depend on fewer workers than there are episodes"
    if config.agent.remote_tools:
        return f"tools run outside this process: {', '.join(config.agent.remote_tools)}"
    if config.remote_tools:
        return f"searches leave this process: retrieval.index = {config.retrieval.index}"
    return None


def learning(config: Config, learner: Learner, home: Path) -> tuple[Engine, Publisher]:
    """The engine of a run, and what brings it the weights of the one that learns; `home` is the folder of the run."""
    if config.engine.kind == "paged":
        generating, publisher = engine_policy(config, learner)
        engine = embedded(config, generating)
        return engine, publisher(engine)
    folder, tokens = recipe.resolve_policy(config.model.policy), learner.policy.tokens
    try:
        own = None if config.engine.url else _started(config, folder, home)
    except EngineFailure as failure:
        raise TrainingStopped(f"{failure}; mend what failed and resume the run") from failure
    servers = _connected(config, tokens, own, _way(config, home))
    _require_head(servers, learner.policy)
    return servers, Sent(servers, lambda: dict(learner.policy.parameters()))


def standing(config: Config, weights: Path, *, lockstep: bool | None = None) -> tuple[Engine, Tokens]:
    """An engine with the weights of a folder, which stay as they are, and their tokens.

    `lockstep` decides in place of the settings, where it is given.
    """
    if config.engine.kind == "paged":
        where = device_of(ALONE)
        policy = Policy.load(weights, where, dtype_of(config, where))
        return embedded(config, policy, lockstep=lockstep), policy.tokens
    checksums.verify_checkpoint(weights)
    tokens = Tokens.load(weights)
    try:
        own = None if config.engine.url else _started(config, weights, Path(mkdtemp(prefix="sleuth-vllm-")))
        servers = _connected(config, tokens, own, None)
        if own is None:
            # Whatever they were started with, or a run left there.
            servers.load(weights)
    except EngineFailure as failure:
        raise InputError(str(failure)) from failure
    return servers, tokens


def embedded(config: Config, policy: Policy, *, lockstep: bool | None = None) -> PagedEngine:
    """The policy in the embedded engine; `lockstep` decides in place of the settings, where it is given."""
    return PagedEngine(
        policy.model,
        policy.tokens,
        slots=config.engine.slots,
        context=config.agent.context_tokens + 1,
        memory=config.engine.memory,
        prefill_tokens=config.engine.prefill_tokens,
        lockstep=Lockstep.of(config, policy.device.type).holds if lockstep is None else lockstep,
    )


def _started(config: Config, model: Path, home: Path) -> ServerProcess:
    """A server of our own, which writes its log to the folder."""
    by_device = config.engine.weights == "device"
    return server_process.start(
        shlex.split(config.engine.command),
        model,
        home / LOG,
        context=config.agent.context_tokens,
        slots=config.engine.slots,
        dtype=str(dtype_of(config, device_of(ALONE))).removeprefix("torch."),
        options=[*_limits(config), *(IPC_OPTIONS if by_device else ())],
        environment=IPC_ENVIRONMENT if by_device else {},
    )


def _limits(config: Config) -> Sequence[str]:
    prefill = config.engine.prefill_tokens
    batched = () if prefill is None else ("--max-num-batched-tokens", str(prefill))
    return ("--gpu-memory-utilization", str(config.engine.memory), *batched)


def _connected(config: Config, tokens: Tokens, own: ServerProcess | None, way: WeightTransport | None) -> VllmEngine:
    connecting = VllmEngine.connect(
        config.engine.addresses if own is None else [own.address],
        tokens,
        context=config.agent.context_tokens,
        slots=config.engine.slots,
        eos_ids=[] if tokens.eos_id is None else [tokens.eos_id],
        transport=way,
        in_flight=config.engine.in_flight,
        process=own,
    )
    try:
        return asyncio.run(connecting)
    except EngineFailure as failure:
        raise InputError(str(failure)) from failure


def _require_head(servers: VllmEngine, policy: Policy) -> None:
    """A head that is the embedding itself must change with it."""
    if not policy.model.config.tie_word_embeddings:
        return
    weights, rows = dict(policy.parameters()), policy.model.get_input_embeddings().weight
    try:
        servers.require_tied_head(weights, next(name for name, weight in weights.items() if weight is rows))
    except EngineFailure as failure:
        raise InputError(str(failure)) from failure


def _way(config: Config, home: Path) -> WeightTransport:
    """How weights of a run travel."""
    if config.engine.weights == "device":
        return CudaIpcTransport()
    return DiskTransport(Path(config.engine.exchange) if config.engine.exchange is not None else home / EXCHANGE)
