"""The check of an engine on this machine: its logprobs beside the trainer's, in each precision that is used here."""

import asyncio
import gc
from pathlib import Path

import torch

from sleuth.agent import prompts
from sleuth.agent.tags import Tags
from sleuth.config.engine import EngineConfig
from sleuth.doctor.environment import Finding, Verdict
from sleuth.engines.paged.engine import PagedEngine
from sleuth.errors import ConfigError, EngineFailure, SleuthError
from sleuth.model.policy import Policy
from sleuth.synthesis.world.world import World
from sleuth.train import parity
from sleuth.train.parity import Parity

# The mean difference that rounding alone explains.
ROUNDING = {"float32": 1e-4, "bfloat16": 5e-3}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CONTEXT = 1024
SLOTS = parity.PROMPTS * parity.SAMPLES


def device_of(wanted: str) -> torch.device:
    """The device a setting names; one that is not there is refused."""
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "auto":
        return torch.device("cuda" if there else "cpu")
    known = ["cpu", *(["cuda"] if there else []), *(f"cuda:{number}" for number in range(there))]
    if wanted not in known:
        raise ConfigError(f"--device {wanted} is not there; expected auto or one of {', '.join(known)}")
    return torch.device(wanted)


def dtypes_of(wanted: str | None, device: torch.device) -> list[torch.dtype]:
    """The precisions to check: the one asked for, or all that are used on the device."""
    if wanted is None:
        return [torch.float32] if device.type == "cpu" else [torch.bfloat16, torch.float32]
    if device.type == "cpu" and wanted != "float32":
        raise ConfigError(f"--dtype {wanted} ends the process on some CPUs; take float32 there, or --device cuda")
    return [DTYPES[wanted]]


def check(folder: Path, device: torch.device, dtype: torch.dtype, tokens: int = parity.TOKENS) -> Parity:
    """The parity of an engine for the model of a folder; an EngineFailure says what kept it from being measured."""
    try:
        return _measured(Policy.load(folder, device, dtype), tokens)
    except SleuthError:
        raise
    # Whatever compilers, drivers and full memory raise is what a doctor is asked about.
    except Exception as error:
        raise EngineFailure(f"{type(error).__name__}: {error}") from error
    finally:
        # The next precision needs the room of this one.
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _measured(policy: Policy, tokens: int) -> Parity:
    """Measured on questions of a generated world."""
    context = min(CONTEXT, policy.model.config.max_position_embeddings)
    engine = PagedEngine(policy.model, policy.tokens, slots=SLOTS, context=context + 1, lockstep=True)
    asked = [posed.question for posed in World(100, 0).questions("train", parity.PROMPTS)]
    rendered = [prompts.render(question, "instruct", Tags(), policy.tokens) for question in asked]

    async def measured() -> Parity:
        try:
            return await parity.measure(engine, policy, rendered, context=context, tokens=tokens)
        finally:
            await engine.close()

    return asyncio.run(measured())


def finding(found: Parity, limit: float | None = None) -> Finding:
    """A parity as a row: bad where no run would start, a warning where rounding does not explain it."""
    limit = EngineConfig().parity_limit if limit is None else limit
    explained = ROUNDING[found.dtype]
    what = f"{found.dtype} on {found.device}"
    figures = f"mean {found.mean:.2g}, max {found.maximum:.2g}, k3 {found.k3:.2g} over {found.tokens:,} tokens"
    if not found.within(limit):
        remedy = f"no run starts above engine.parity = {limit:g}: try another --dtype and model, and report it"
        return Finding(what, figures, Verdict.BAD, remedy)
    if not found.within(explained):
        remedy = f"rounding explains a mean of {explained:g}: try another model, and report it"
        return Finding(what, figures, Verdict.WARN, remedy)
    return Finding(what, figures)


def failed(device: torch.device, dtype: torch.dtype, failure: EngineFailure) -> Finding:
    """An engine that broke, as a row."""
    what = f"{str(dtype).removeprefix('torch.')} on {device.type}"
    told = " ".join(str(failure).split())
    return Finding(what, told, Verdict.BAD, "mend what it says, or try another --dtype, --device or model")
