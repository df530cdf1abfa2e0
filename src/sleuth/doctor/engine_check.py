"""Engine check: compares logprobs of the embedded engine and the trainer, in each precision used on the device."""

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

# The mean difference explained by rounding alone.
ROUNDING = {"float32": 1e-4, "bfloat16": 5e-3}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CONTEXT = 1024
SLOTS = parity.PROMPTS * parity.SAMPLES


def choose_device(wanted: str) -> torch.device:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "auto":
        return torch.device("cuda" if gpus else "cpu")
    available = ["cpu", *(["cuda"] if gpus else []), *(f"cuda:{number}" for number in range(gpus))]
    if wanted not in available:
        raise ConfigError(f"--device {wanted} is not available; expected auto or one of {', '.join(available)}")
    return torch.device(wanted)


def choose_dtypes(wanted: str | None, device: torch.device) -> list[torch.dtype]:
    if wanted is None:
        return [torch.float32] if device.type == "cpu" else [torch.bfloat16, torch.float32]
    if device.type == "cpu" and wanted != "float32":
        raise ConfigError(f"--dtype {wanted} crashes some CPUs; use float32, or --device cuda")
    return [DTYPES[wanted]]


def check(folder: Path, device: torch.device, dtype: torch.dtype, tokens: int = parity.TOKENS) -> Parity:
    """Measure the parity of engine and trainer for a model, on questions of a generated world.

    Raises EngineFailure if the engine fails.
    """
    try:
        return _measure(Policy.load(folder, device, dtype), tokens)
    except SleuthError:
        raise
    except Exception as error:  # compilers, drivers and full memory raise their own types
        raise EngineFailure(f"{type(error).__name__}: {error}") from error
    finally:
        # The next precision needs the memory of this one.
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _measure(policy: Policy, tokens: int) -> Parity:
    context = min(CONTEXT, policy.model.config.max_position_embeddings)
    engine = PagedEngine(policy.model, policy.tokens, slots=SLOTS, context=context + 1, lockstep=True)
    questions = [generated.question for generated in World(100, 0).questions("train", parity.PROMPTS)]
    rendered = [prompts.render(question, "instruct", Tags(), policy.tokens) for question in questions]

    async def measure() -> Parity:
        try:
            return await parity.measure(engine, policy, rendered, context=context, tokens=tokens)
        finally:
            await engine.close()

    return asyncio.run(measure())


def finding(found: Parity, limit: float | None = None) -> Finding:
    """Rate a parity: bad if no run would start, a warning if the difference exceeds what rounding explains."""
    limit = EngineConfig().parity_limit if limit is None else limit
    rounding = ROUNDING[found.dtype]
    what = f"{found.dtype} on {found.device}"
    figures = f"mean {found.mean:.2g}, max {found.maximum:.2g}, k3 {found.k3:.2g} over {found.tokens:,} tokens"
    if not found.within(limit):
        remedy = f"no run starts above engine.parity = {limit:g}: try another --dtype or model, and report it"
        return Finding(what, figures, Verdict.BAD, remedy)
    if not found.within(rounding):
        remedy = f"rounding explains a mean of {rounding:g}: try another model, and report it"
        return Finding(what, figures, Verdict.WARN, remedy)
    return Finding(what, figures)


def failure_finding(device: torch.device, dtype: torch.dtype, failure: EngineFailure) -> Finding:
    what = f"{str(dtype).removeprefix('torch.')} on {device.type}"
    remedy = "fix the error shown, or try another --dtype, --device or model"
    return Finding(what, " ".join(str(failure).split()), Verdict.BAD, remedy)
