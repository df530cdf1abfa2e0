"""The whole of a run's knobs, each declared once in its table; saved with the run as resolved."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from sleuth.config.agent import ACCESS, UNSEARCHED, AgentConfig
from sleuth.config.algorithm import GROUPED, AlgorithmConfig
from sleuth.config.engine import EngineConfig
from sleuth.config.evaluate import EvaluateConfig
from sleuth.config.guards import GuardsConfig
from sleuth.config.model import ModelConfig
from sleuth.config.retrieval import RetrievalConfig
from sleuth.config.reward import RewardConfig
from sleuth.config.section import Section
from sleuth.config.sources import DataConfig, WorldConfig
from sleuth.config.track import TrackConfig
from sleuth.config.train import TrainConfig

IN_FLIGHT = 4  # episodes for each slot of the engine where most of them wait for a server at any time
MOST_EPISODES = 1_000_000  # of one step
NAME_BYTES = 200  # of a run: a number comes after it, and file systems take 255


class Config(Section):
    """A whole run; the tables of a recipe are its fields."""

    name: Annotated[str, Field(description="names the run folder")] = "run"
    model: ModelConfig = ModelConfig()
    world: WorldConfig | None = None
    data: DataConfig = DataConfig()
    retrieval: RetrievalConfig = RetrievalConfig()
    agent: AgentConfig = AgentConfig()
    engine: EngineConfig = EngineConfig()
    reward: RewardConfig = RewardConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    guards: GuardsConfig = GuardsConfig()
    track: TrackConfig = TrackConfig()

    @property
    def remote_tools(self) -> bool:
        """Whether episodes wait for servers or the web."""
        searched = self.agent.method not in UNSEARCHED and self.retrieval.replay is None
        return searched and self.retrieval.remote

    @property
    def concurrency(self) -> int:
        """Episodes in flight at most."""
        waiting = self.remote_tools and self.engine.lockstep != "on"
        return self.agent.concurrency or self.engine.slots * (IN_FLIGHT if waiting else 1)

    @model_validator(mode="after")
    def _pages(self) -> Self:
        if self.agent.protocol == ACCESS:
            for name in ("record", "replay"):
                if getattr(self.retrieval, name):
                    raise ValueError(
                        f"retrieval.{name} knows searches alone, and agent.protocol = {ACCESS} opens pages too; "
                        "remove it, or choose tools"
                    )
        elif not self.agent.protocol.startswith("import:"):
            self.retrieval._without_effect(f"agent.protocol = {self.agent.protocol}", "pages", table="retrieval.")
        return self

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.engine.kind == "vllm" and self.model.lora.rank:
            raise ValueError(
                f"model.lora.rank = {self.model.lora.rank} trains adapters, and engine.kind = vllm is sent whole "
                "weights only; train the whole model, or choose engine.kind = paged"
            )
        return self

    @model_validator(mode="after")
    def _groups(self) -> Self:
        if self.train.samples == 1 and self.algorithm.advantage in GROUPED:
            raise ValueError(
                f"train.samples = 1 leaves algorithm.advantage = {self.algorithm.advantage} nothing to compare with; "
                "raise it to 2 or more, or choose reinforce"
            )
        return self

    @model_validator(mode="after")
    def _batches(self) -> Self:
        if self.algorithm.overlong == "shape" and self.algorithm.overlong_tokens >= self.agent.context_tokens:
            raise ValueError(
                f"algorithm.overlong_tokens = {self.algorithm.overlong_tokens} is not less than agent.context_tokens = "
                f"{self.agent.context_tokens}; lower it"
            )
        if (episodes := self.train.questions * self.train.samples) > MOST_EPISODES:
            raise ValueError(
                f"train.questions = {self.train.questions} x train.samples = {self.train.samples} are {episodes:,} "
                f"episodes a step, which are all held in memory; lower one until they are {MOST_EPISODES:,} at most"
            )
        if self.train.updates > self.train.questions:
            raise ValueError(
                f"train.updates = {self.train.updates} cuts the {self.train.questions} groups of a step into "
                "mini-batches smaller than a group; lower it, or raise train.questions"
            )
        return self

    @model_validator(mode="after")
    def _modes(self) -> Self:
        if self.train.mode == "ahead":
            if not self.algorithm.correction.chosen:
                raise ValueError(
                    "train.mode = ahead samples with weights one version old; choose algorithm.correction.level = token"
                )
            if self.engine.stale_cache == "keep":
                raise ValueError("engine.stale_cache = keep has no effect with train.mode = ahead; remove it")
        if self.train.keep_best and not self.evaluate.every:
            raise ValueError("train.keep_best has no effect with evaluate.every = 0; set it to a number of steps")
        if self.train.resample and self.algorithm.advantage not in GROUPED:
            raise ValueError(
                f"train.resample has no effect with algorithm.advantage = {self.algorithm.advantage}; remove it"
            )
        return self

    @model_validator(mode="after")
    def _sources(self) -> Self:
        plain = self.name.strip() and self.name.isprintable() and not set(self.name) & set("/\\")
        if not plain or self.name.startswith(".") or len(self.name.encode()) > NAME_BYTES:
            raise ValueError(
                f"name = {self.name[:60]!r} cannot be the name of a folder; leave out slashes, control characters and "
                f"a leading dot, {NAME_BYTES} bytes at most"
            )
        if self.world is not None:
            self.data._without_effect("a generated world", "corpus", "train", "test", table="data.")
            if self.retrieval.index is not None:
                raise ValueError("retrieval.index has no effect with a generated world; remove it")
            return self
        for name in ("train", "test"):
            if getattr(self.data, name) is None:
                raise ValueError(f"data.{name} is missing; give a questions file, or a [world] to generate one")
        named = (self.data.corpus is not None) + (self.retrieval.index is not None)
        if self.agent.method in UNSEARCHED:
            if named:
                raise ValueError(
                    f"data.corpus and retrieval.index have no effect with agent.method = {self.agent.method}, which "
                    "searches nothing; remove them"
                )
            return self
        if named == 2 or (named == 0 and self.retrieval.replay is None):
            raise ValueError("give either data.corpus or retrieval.index: an index names its own corpus")
        return self
