"""The config tree of a run: every setting, declared once."""

from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from sleuth.config.agent import OUTSIDE, SINGLE, TOOL_FILES, UNSEARCHED, AgentConfig
from sleuth.config.algorithm import GROUPED, AlgorithmConfig
from sleuth.config.cluster import ClusterConfig
from sleuth.config.data import DataConfig, WorldConfig
from sleuth.config.engine import EngineConfig
from sleuth.config.gateway import GatewayConfig
from sleuth.config.guards import GuardsConfig
from sleuth.config.retrieval import RetrievalConfig
from sleuth.config.reward import RewardConfig
from sleuth.config.section import Section
from sleuth.config.train import EvaluateConfig, ModelConfig, TrackConfig, TrainConfig
from sleuth.config.verl import retrieval_settings

EPISODES_PER_SLOT = 4  # because most episodes are waiting for a server at any time
MAX_EPISODES = 1_000_000  # per step, all held in memory
MAX_NAME_BYTES = 200  # a run number is appended, and file systems allow 255


class Config(Section):
    """All settings of a run; the tables of a recipe are its fields."""

    name: str = "run"
    """Name of the run folder."""
    model: ModelConfig = ModelConfig()
    world: WorldConfig | None = None
    data: DataConfig = DataConfig()
    retrieval: RetrievalConfig = RetrievalConfig()
    agent: AgentConfig = AgentConfig()
    gateway: GatewayConfig = GatewayConfig()
    engine: EngineConfig = EngineConfig()
    reward: RewardConfig = RewardConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    guards: GuardsConfig = GuardsConfig()
    track: TrackConfig = TrackConfig()
    cluster: ClusterConfig = ClusterConfig()

    @model_validator(mode="before")
    @classmethod
    def _read_tool_file(cls, tree: Any) -> Any:
        """Take the search server from a verl tool file, unless another source of search results is configured."""
        match tree:
            case {"world": dict()} | {"data": {"corpus": str()}} | {"retrieval": {"index": str()} | {"replay": str()}}:
                return tree
            case {"agent": {"tools": str() | [*_] as tools}}:
                tools = [tools] if isinstance(tools, str) else tools
                files = [tool for tool in tools if str(tool).endswith(TOOL_FILES)]
                if files:
                    given = tree.get("retrieval") or {}
                    return {**tree, "retrieval": {**retrieval_settings(Path(files[0])), **given}}
        return tree

    @model_validator(mode="before")
    @classmethod
    def _tell_that_abstaining_is_allowed(cls, tree: Any) -> Any:
        """Set `agent.abstain` with `reward.abstain`, unless it is given or another agent writes the prompts."""
        match tree:
            case {"reward": {"abstain": int() | float()}}:
                agent = tree.get("agent", {})
                if isinstance(agent, dict) and not agent.keys() & {"abstain", *OUTSIDE}:
                    return {**tree, "agent": {**agent, "abstain": True}}
        return tree

    @property
    def has_index(self) -> bool:
        """Whether there is something to search; an outside agent may do without."""
        given = (self.data.corpus, self.retrieval.index, self.retrieval.replay)
        return self.world is not None or any(each is not None for each in given)

    @property
    def remote_tools(self) -> bool:
        """Whether episodes wait for other processes, servers or the web."""
        if self.agent.is_outside:
            return True
        if self.agent.method in UNSEARCHED:
            return False
        return bool(self.agent.remote_tools) or (self.retrieval.replay is None and self.retrieval.remote)

    @property
    def concurrency(self) -> int:
        """Maximum number of episodes in flight."""
        waiting = self.remote_tools and self.engine.lockstep != "on"
        return self.agent.concurrency or self.agent.workers or self.engine.slots * (EPISODES_PER_SLOT if waiting else 1)

    @model_validator(mode="after")
    def _check_pages(self) -> Self:
        if "access" in self.agent.tools:
            for name in ("record", "replay"):
                if getattr(self.retrieval, name):
                    raise ValueError(
                        f"retrieval.{name} covers searches only, but agent.tools includes access; remove one of the two"
                    )
        elif not self.agent.protocol.startswith("import:"):
            self.retrieval._reject_unused(f"agent.tools = {self.agent.tools}", "pages", table="retrieval.")
        return self

    @model_validator(mode="after")
    def _check_reward(self) -> Self:
        agent, unused = self.agent, ""
        if agent.is_outside:
            unused = f"{agent.source}, because only the searches of Sleuth's own agent are counted"
        elif agent.method in SINGLE:
            unused = f"agent.method = {agent.method}, which makes no searches of its own"
        elif not agent.can_search:
            unused = f"agent.tools = {agent.tools} and agent.searches = {agent.searches}, which allow no searches"
        if unused:
            self.reward._reject_unused(unused, "useless_search", table="reward.")
        return self

    @model_validator(mode="after")
    def _check_algorithm(self) -> Self:
        train, algorithm = self.train, self.algorithm
        if train.samples == 1 and algorithm.advantage in GROUPED:
            raise ValueError(
                f"train.samples = 1 leaves algorithm.advantage = {algorithm.advantage} nothing to compare; raise it to "
                "2 or more, or use reinforce"
            )
        if algorithm.overlong == "shape" and algorithm.overlong_tokens >= self.agent.context_tokens:
            raise ValueError(
                f"algorithm.overlong_tokens = {algorithm.overlong_tokens} is not below agent.context_tokens = "
                f"{self.agent.context_tokens}; lower it"
            )
        if train.max_staleness and not algorithm.correction.enabled:
            versions = "one version" if train.max_staleness == 1 else f"up to {train.max_staleness} versions"
            raise ValueError(
                f"train.mode = {train.mode} samples with weights {versions} old; set algorithm.correction.level = token"
            )
        likelihood = algorithm.likelihood
        if likelihood.penalty != "none" and train.updates == 1 and not train.max_staleness:
            raise ValueError(
                f"algorithm.likelihood.penalty = {likelihood.penalty} has no effect with train.updates = 1 and "
                f"train.mode = {train.mode}, where each token is trained by the weights that sampled it; raise "
                "train.updates to 2 or more"
            )
        if train.resample and algorithm.advantage not in GROUPED:
            raise ValueError(
                f"train.resample has no effect with algorithm.advantage = {algorithm.advantage}; remove it"
            )
        return self

    @model_validator(mode="after")
    def _check_trees(self) -> Self:
        algorithm = self.algorithm
        if not self.train.tree.trees:
            if algorithm.advantage == "tree_grpo":
                raise ValueError("algorithm.advantage = tree_grpo compares the episodes of trees; set train.tree.trees")
            return self
        if self.agent.is_outside or self.agent.method != "search":
            source = "an outside agent" if self.agent.is_outside else f"agent.method = {self.agent.method}"
            raise ValueError(f"train.tree branches from the turns of agent.method = search, not of {source}; remove it")
        per_token = {
            "advantage = gae": algorithm.advantage == "gae",
            "kl.place = reward": algorithm.kl.place == "reward",
            "teacher.place = reward": algorithm.teacher.policy is not None and algorithm.teacher.place == "reward",
        }
        for name in (name for name, is_set in per_token.items() if is_set):
            raise ValueError(
                f"algorithm.{name} adds up rewards of single tokens, and with train.tree a branch has its first tokens "
                "in another trajectory; change one of the two"
            )
        return self

    @model_validator(mode="after")
    def _check_turn_credit(self) -> Self:
        algorithm, agent = self.algorithm, self.agent
        used = {"information_gain": algorithm.information_gain.coefficient, "step_groups": algorithm.step_groups}
        for name in (name for name, weight in used.items() if weight):
            if agent.is_outside or agent.method != "search":
                source = "an outside agent" if agent.is_outside else f"agent.method = {agent.method}"
                raise ValueError(
                    f"algorithm.{name} credits the turns of agent.method = search, not of {source}; remove it"
                )
        if algorithm.information_gain.coefficient and not agent.searches:
            raise ValueError(
                "algorithm.information_gain.coefficient has no effect with agent.searches = 0, which allows no "
                "searches; remove it"
            )
        if algorithm.step_groups and self.train.tree.trees:
            raise ValueError(
                "algorithm.step_groups compares turns in one state, as train.tree does with the branches of a turn; "
                "remove one of the two"
            )
        return self

    @model_validator(mode="after")
    def _check_outside(self) -> Self:
        if self.agent.is_outside:
            if self.engine.lockstep == "on":
                raise ValueError("engine.lockstep = on has no effect with an outside agent; remove it")
            return self
        self.gateway._reject_unused("Sleuth's own agent", "host", "port", table="gateway.")
        self.gateway.helper._reject_unused("Sleuth's own agent", "url", table="gateway.helper.")
        self.train._reject_unused("Sleuth's own agent, which has one role", "roles", table="train.")
        return self

    @model_validator(mode="after")
    def _check_steps(self) -> Self:
        train = self.train
        if (episodes := train.questions * train.samples) > MAX_EPISODES:
            raise ValueError(
                f"train.questions = {train.questions} x train.samples = {train.samples} are {episodes:,} episodes per "
                f"step, all held in memory; the maximum is {MAX_EPISODES:,}, lower one of the two"
            )
        if train.updates > train.questions:
            raise ValueError(
                f"train.updates = {train.updates} exceeds the {train.questions} groups of a step; lower it, or raise "
                "train.questions"
            )
        if train.curriculum != "none" and not self.data.shuffle:
            raise ValueError(
                f"train.curriculum = {train.curriculum} reorders questions, but data.shuffle = false keeps the file "
                "order; remove one of the two"
            )
        if train.curriculum != "none" and self.data.weights:
            raise ValueError(
                f"train.curriculum = {train.curriculum} asks every question once per epoch, data.weights does not; "
                "remove one of the two"
            )
        if train.keep_best and not self.evaluate.every:
            raise ValueError("train.keep_best has no effect with evaluate.every = 0; set it to a number of steps")
        return self

    @model_validator(mode="after")
    def _check_engine(self) -> Self:
        if self.train.mode == "ahead" and self.engine.stale_cache == "keep":
            raise ValueError("engine.stale_cache = keep has no effect with train.mode = ahead; remove it")
        if self.train.is_streaming and self.engine.lockstep == "on":
            raise ValueError(
                "engine.lockstep = on cannot repeat a run with train.mode = async, whose weights change while episodes "
                "run; remove it, or set train.staleness = 0"
            )
        if self.model.lora.rank and (self.engine.kind == "sglang" or self.engine.weights != "disk"):
            raise ValueError(
                f"model.lora.rank = {self.model.lora.rank} trains adapters, but engine.kind = {self.engine.kind} with "
                f"engine.weights = {self.engine.weights} takes full weights only; set engine.kind = vllm with "
                "engine.weights = disk, or engine.kind = paged, or model.lora.rank = 0"
            )
        return self

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        plain = self.name.strip() and self.name.isprintable() and not set(self.name) & set("/\\")
        if not plain or self.name.startswith(".") or len(self.name.encode()) > MAX_NAME_BYTES:
            raise ValueError(
                f"name = {self.name[:60]!r} cannot be a folder name; use no slashes, control characters or leading "
                f"dot, and at most {MAX_NAME_BYTES} bytes"
            )
        return self

    @model_validator(mode="after")
    def _check_data(self) -> Self:
        if self.world is not None:
            self.data._reject_unused("a generated world", "corpus", "train", "test", "weights", table="data.")
            if self.retrieval.index is not None:
                raise ValueError("retrieval.index has no effect with a generated world; remove it")
            return self
        for name in ("train", "test"):
            if not self.data.files(name):
                raise ValueError(f"data.{name} is missing; give a questions file, or a [world] to generate one")
            if not all(path.strip() for path in self.data.files(name)):
                raise ValueError(f"data.{name} holds an empty path; remove it")
        sources = (self.data.corpus is not None) + (self.retrieval.index is not None)
        if self.agent.method in UNSEARCHED:
            if sources:
                raise ValueError(
                    f"data.corpus and retrieval.index have no effect with agent.method = {self.agent.method}, which "
                    "never searches; remove them"
                )
        elif sources == 2 or (sources == 0 and self.retrieval.replay is None and not self.agent.is_outside):
            raise ValueError("give either data.corpus or retrieval.index, which has its own corpus")
        return self
