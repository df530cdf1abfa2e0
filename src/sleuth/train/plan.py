"""The memory planner: whether a run fits on a device, what to set if it does not, and the seconds of a step."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PretrainedConfig

from sleuth.config import recipe
from sleuth.config.tree import Config
from sleuth.errors import ConfigError
from sleuth.model.memory import device_memory
from sleuth.model.shapes import shape_of_folder
from sleuth.train import accelerators
from sleuth.train.accelerators import GIB, Accelerator
from sleuth.train.footprint import Engine, Footprint, ModelSize, Setup, default_pack_tokens, predict
from sleuth.train.step_time import Episodes, StepTime, predict_seconds

# A typical Search-R1 episode, within the limits of the recipe.
TYPICAL = {"turns": 3, "prompt": 180, "turn": 80, "observation": 240}
LORA_RANK = 32
MIN_PACK, MIN_SHARE = 1024, 0.02
UNKNOWN_GPU = replace(accelerators.GPUS["a100-80"], name="gpu")  # for the speed; the memory is what the driver reports
TIGHT = 0.95  # of the memory: above this, a run may still fail for fragmentation


@dataclass(frozen=True, slots=True)
class Change:
    """Settings to change, by key, and what the change costs."""

    settings: dict[str, Any]
    cost: str


@dataclass(frozen=True, slots=True)
class Option:
    """A set of changes with which the run fits."""

    settings: dict[str, Any]
    cost: str
    footprint: Footprint
    seconds: StepTime

    @property
    def line(self) -> str:
        return " ".join(f"--set {key}={str(value).lower()}" for key, value in self.settings.items())


@dataclass(frozen=True, slots=True)
class Plan:
    """The prediction for one device; `options` are alternatives that fit, the cheapest first."""

    model: str
    setup: Setup
    episodes: Episodes
    longest: Episodes
    footprint: Footprint
    seconds: StepTime
    upper_bound: StepTime
    capacity: int
    options: tuple[Option, ...]

    @property
    def fits(self) -> bool:
        return self.footprint.needed <= self.capacity

    @property
    def verdict(self) -> str:
        if not self.fits:
            return "does not fit"
        return "fits" if self.footprint.needed <= TIGHT * self.capacity else "fits barely"

    @property
    def warnings(self) -> tuple[str, ...]:
        device, found = self.setup.device, []
        if self.setup.half and not device.bf16:
            found.append(f"{device.name} has no bfloat16 arithmetic: set model.dtype=float32")
        if self.setup.ranks > 1:
            found.append("the seconds are those of one GPU; several share the episodes and the packs")
        return tuple(found)


def make_plan(
    config: Config, device: Accelerator, models: "Models", *, ranks: int = 1, capacity: int | None = None
) -> Plan:
    """Plan a run on a device, of whose memory `capacity` bytes are free; default: all."""
    episodes, longest = typical_episodes(config), longest_episodes(config)
    capacity = device.memory if capacity is None else capacity
    setup = describe(config, device, models, longest, ranks)
    footprint = predict(setup)
    return Plan(
        model=config.model.policy,
        setup=setup,
        episodes=episodes,
        longest=longest,
        footprint=footprint,
        seconds=predict_seconds(setup, episodes),
        upper_bound=predict_seconds(setup, longest),
        capacity=capacity,
        options=() if footprint.needed <= capacity else tuple(find_options(setup, episodes, capacity)),
    )


@dataclass(frozen=True, slots=True)
class Models:
    """Sizes of the policy, of the critic, if it is another model, and of the teacher, if there is one."""

    policy: ModelSize
    critic: ModelSize | None = None
    teacher: ModelSize | None = None

    @classmethod
    def of(cls, config: Config, shape_of: Callable[[str], PretrainedConfig]) -> "Models":
        """Count the models that a config names."""
        algorithm = config.algorithm
        critic = algorithm.critic.policy if algorithm.advantage == "gae" else None
        others = (None if name is None else ModelSize.of(shape_of(name)) for name in (critic, algorithm.teacher.policy))
        return cls(ModelSize.of(shape_of(config.model.policy)), *others)


def pack_tokens(config: Config, device: Accelerator, policy: ModelSize) -> int:
    """Tokens of a pack on a device."""
    return config.train.pack_tokens or default_pack_tokens(policy.config, device.memory if device.is_gpu else 0)


def describe(config: Config, device: Accelerator, models: Models, episodes: Episodes, ranks: int = 1) -> Setup:
    """Translate the settings of a run whose episodes have these lengths."""
    train, lora, algorithm, policy = config.train, config.model.lora, config.algorithm, models.policy
    batch = max(1, episodes.count // episodes.updates // ranks) * episodes.tokens
    tree = train.tree.leaves_per_tree
    pack = min(max(pack_tokens(config, device, policy), tree * episodes.tokens), batch)
    critic = (models.critic or policy) if algorithm.advantage == "gae" else None
    return Setup(
        policy=policy,
        device=device,
        pack=pack,
        scored=pack * episodes.sampled // episodes.tokens,
        context=config.agent.context_tokens,
        slots=config.engine.slots,
        share=config.engine.memory,
        prefill=config.engine.prefill_tokens,
        half=device.is_gpu and config.model.dtype != "float32",
        rank=lora.rank,
        targets=lora.targets,
        optimiser=train.optimiser,
        offload=train.offload,
        recompute=train.recompute,
        reference=algorithm.kl.place != "none",
        teacher=models.teacher,
        critic=critic,
        scores_old=algorithm.recomputes,
        information_gain=algorithm.information_gain.coefficient > 0,
        tree=tree,
        engine=_engine(config, ranks),
        ranks=ranks,
    )


def _engine(config: Config, ranks: int) -> Engine:
    if config.engine.is_server:
        return "elsewhere" if config.engine.url else "server"
    return "shared" if config.train.max_staleness == 0 and ranks == 1 else "copy"


def longest_episodes(config: Config) -> Episodes:
    """Every turn uses all its tokens, within the context."""
    agent, train = config.agent, config.train
    searches = 0 if agent.max_turns == 1 else agent.max_turns - 1
    prompt = min(TYPICAL["prompt"], agent.context_tokens // 2)
    room = agent.context_tokens - prompt
    turn = min(agent.turn_tokens, room // agent.max_turns)
    observation = min(agent.observation_tokens, (room - agent.max_turns * turn) // searches) if searches else 0
    count = train.questions * train.samples
    return Episodes(count, train.samples, train.updates, agent.max_turns, prompt, max(1, turn), observation)


def typical_episodes(config: Config) -> Episodes:
    """Episodes as those of Search-R1, where the limits of the recipe allow them."""
    longest = longest_episodes(config)
    limits = {name: min(value, getattr(longest, name)) for name, value in TYPICAL.items()}
    return replace(longest, **limits)


def find_options(setup: Setup, episodes: Episodes, capacity: int) -> Iterator[Option]:
    """Yield for each kind of saving, the cheapest first, the least change with which the run fits."""
    for change in _costly_changes(setup):
        base = _apply(setup, change.settings)
        for light in _light_changes(base):
            changed = _apply(base, light)
            footprint = predict(changed)
            if footprint.needed <= TIGHT * capacity:
                settings = {**change.settings, **light}
                yield Option(settings, change.cost, footprint, predict_seconds(changed, episodes))
                break


def _costly_changes(setup: Setup) -> Iterator[Change]:
    """Yield savings in the order of what they cost: time first, then exactness, then what is trained."""
    memory = {"train.recompute": 1.0}
    yield Change({}, "smaller packs or fewer pages: hardly slower")
    if setup.recompute < 1:
        yield Change({"train.recompute": 0.5}, "half of the layers run forward twice")
        yield Change(memory, "all layers run forward twice")
    if setup.device.is_gpu and setup.ranks == 1 and not setup.rank:
        if setup.optimiser == "adamw":
            yield Change({"train.optimiser": "adamw8bit"}, "moments in 8 bits; needs the extra bitsandbytes")
            yield Change({"train.optimiser": "adamw8bit", **memory}, "8-bit moments, and layers run forward twice")
        if not setup.offload:
            yield Change({"train.offload": True, **memory}, "AdamW runs in host memory, and layers run forward twice")
    if not setup.rank and setup.engine != "server":
        yield Change({"model.lora.rank": LORA_RANK}, "trains an adapter instead of all weights")
        yield Change({"model.lora.rank": LORA_RANK, **memory}, "an adapter, and layers run forward twice")


def _light_changes(setup: Setup) -> Iterator[dict[str, Any]]:
    """Yield smaller packs and KV caches, from none to the smallest."""
    packs: list[int | None] = [None]
    size, least = setup.pack // 2, max(MIN_PACK, setup.tree * setup.context)  # an episode or tree is never split
    while size > least:
        packs.append(size)
        size //= 2
    packs += [least] if least < setup.pack else []
    shares: list[float | None] = [None]
    if setup.has_engine or setup.engine == "server":
        shares += [share for share in (0.2, 0.1, 0.05, MIN_SHARE) if share < setup.share]
    slots = [None, *(each for each in (64, 32) if each < setup.slots and setup.has_engine)]
    for slot in slots:
        for share in shares:
            for pack in packs:
                found = {"train.pack_tokens": pack, "engine.memory": share, "engine.slots": slot}
                light = {key: value for key, value in found.items() if value is not None}
                if _holds_a_context(_apply(setup, light)):
                    yield light


def _holds_a_context(setup: Setup) -> bool:
    if not setup.has_engine:
        return True
    needed = setup.policy.attention(setup.dtype).bytes_per_token * (setup.context + 16)
    return needed <= setup.share * setup.device.memory


# How a setting changes the setup.
_FIELDS: dict[str, Callable[[Setup, Any], Setup]] = {
    "train.recompute": lambda setup, value: replace(setup, recompute=value),
    "train.optimiser": lambda setup, value: replace(setup, optimiser=value),
    "train.offload": lambda setup, value: replace(setup, offload=value),
    "model.lora.rank": lambda setup, value: replace(setup, rank=value),
    "engine.memory": lambda setup, value: replace(setup, share=value),
    "engine.slots": lambda setup, value: replace(setup, slots=value),
    "train.pack_tokens": lambda setup, value: _with_pack(setup, value),
}


def _apply(setup: Setup, settings: dict[str, Any]) -> Setup:
    for key, value in settings.items():
        setup = _FIELDS[key](setup, value)
    return setup


def _with_pack(setup: Setup, tokens: int) -> Setup:
    return replace(setup, pack=tokens, scored=tokens * setup.scored // setup.pack)


def require_fits(config: Config, device: torch.device, ranks: int = 1) -> str | None:
    """Raise ConfigError if a run cannot fit on a device, before any weights are loaded.

    Returns a warning if it fits only without long episodes or fragmentation.
    """
    sheet, free = local_device(device)
    models = Models.of(config, lambda name: shape_of_folder(recipe.resolve_policy(name)))
    return check_plan(config, make_plan(config, sheet, models, ranks=ranks, capacity=free), models)


def local_device(device: torch.device) -> tuple[Accelerator, int]:
    """Return the data sheet of a device of this machine, and its free memory."""
    total, free = device_memory(device)
    sheet = accelerators.identify(device) or replace(UNKNOWN_GPU, label=torch.cuda.get_device_name(device))
    return replace(sheet, memory=total), free


def check_plan(config: Config, plan: Plan, models: "Models") -> str | None:
    """Raise ConfigError if a planned run cannot fit; return a warning if only long episodes might not."""
    certain = predict(describe(config, plan.setup.device, models, plan.episodes, plan.setup.ranks))
    if certain.peak > plan.capacity:
        raise ConfigError(_refusal(plan, certain))
    if plan.footprint.needed <= plan.capacity:
        return None
    remedy = f"; it fits with {plan.options[0].line}" if plan.options else ""
    return (
        f"memory may run out: long episodes need {plan.footprint.needed / GIB:.1f} GiB, "
        f"{plan.capacity / GIB:.1f} are free{remedy}"
    )


def _refusal(plan: Plan, certain: Footprint) -> str:
    """Say that a run cannot fit, with the cheapest settings that would."""
    device = plan.setup.device
    problem = (
        f"{plan.model} needs {certain.peak / GIB:.1f} GiB in the phase {certain.largest_phase}, but "
        f"{plan.capacity / GIB:.1f} of {device.memory / GIB:.1f} GiB are free on {device.label or 'this machine'}"
    )
    if not plan.options:
        return f"{problem}; choose a smaller model, a larger GPU, or several GPUs (sleuth plan shows what needs it)"
    return f"{problem}; it fits with {plan.options[0].line} (sleuth plan lists other ways)"
