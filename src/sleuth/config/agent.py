"""Settings of the agent: protocol, method, prompt, tools and the limits of an episode."""

import sys
from functools import lru_cache
from typing import Annotated, Any, Self

from pydantic import BaseModel, Field, model_validator

from sleuth.config.section import EpisodeCount, PositiveFloat, Section, TokenCount

BUILT_IN_TOOLS = ("search", "access")
TOOL_FILES = (".yaml", ".yml")  # verl's tool configuration
TOOL_SOURCES = ("import:", "mcp:http://", "mcp:https://")
SINGLE = ("direct", "cot", "rag")  # single-turn methods; each has a prompt of the same name
UNSEARCHED = ("direct", "cot")  # methods that never search
OUTSIDE = ("run", "command")  # settings that select an agent not written for Sleuth, which makes the next ones unused
REMOTE = "worker"  # agent.run of attempts that wait for `sleuth worker` processes
MULTI_TURN = ("searches", "turns", "tools", "tool_limits")  # settings that a single-turn method makes unused
OWN_AGENT = ("protocol", "prompt", "abstain", "tools", "tool_limits", "searches", "observation_tokens")


class ToolLimits(BaseModel):
    """Limits of one tool."""

    model_config = Section.model_config

    calls: Annotated[int | None, Field(ge=0, le=10000)] = None
    """Maximum calls per episode."""
    concurrency: Annotated[int, Field(gt=0, le=10000)] = 64
    """Maximum calls in flight."""
    rate: PositiveFloat | None = None
    """Maximum calls per second."""
    deadline: PositiveFloat = 30.0
    """Seconds per call; a slower call makes the episode unusable."""


class AgentConfig(Section):
    protocol: str = "tags"
    """Action grammar: tags, rlinf (tags with RLinf's wording of results), tools (function calls through the model's
    chat template), or import:package.function."""
    method: str = "search"
    """How to answer: search (multi-turn), direct (answer only), cot (reason, then answer), rag (one search, then
    answer), or import:package.function."""
    run: str | None = None
    """An agent not written for Sleuth: import:package.function, verifiers:ENVIRONMENT, or worker (tasks wait for
    `sleuth worker` processes); see docs/agents.md."""
    command: str | None = None
    """A program that is started for each attempt and calls the model through the gateway."""
    workers: Annotated[int, Field(ge=0, le=4096)] = 0
    """Processes on this machine that execute agent.run; 0 runs it inside the training process."""
    deadline: PositiveFloat = 600.0
    """Seconds per attempt of agent.run or agent.command; a slower attempt is unusable."""
    prompt: str | None = None
    """Prompt template: a name from agent/prompts.toml, or FILE.toml:NAME. Default: the method's own, instruct for
    search."""
    abstain: bool | None = None
    """Say in the prompt that the model may answer "I don't know". Default: if reward.abstain is set."""
    tools: list[str] = ["search"]  # noqa: RUF012  pydantic copies it
    """Tools the model may call: search, access (opens pages), import:package.function, mcp:http://HOST/PATH (all tools
    of an MCP server), or a verl tool file (.yaml)."""
    tool_limits: dict[str, ToolLimits] = {}  # noqa: RUF012  pydantic copies it
    """Limits by tool name: calls, concurrency, rate and deadline; see docs/tools.md."""
    searches: Annotated[int, Field(ge=0, le=10000)] = 4
    """Maximum number of searches; the turn after the last search must answer."""
    turns: Annotated[int | None, Field(gt=0, le=20000)] = None
    """Maximum turns per episode, or calls of an outside agent. Default: agent.searches + 1, outside: none."""
    turn_tokens: TokenCount = 500
    """Maximum tokens sampled per turn."""
    observation_tokens: TokenCount = 500
    """Maximum tokens per observation."""
    context_tokens: TokenCount = 4096
    """Maximum tokens per episode, including the prompt."""
    concurrency: EpisodeCount | None = None
    """Maximum episodes in flight per process; an episode waiting for a tool occupies no slot. Default:
    agent.workers if set, else engine.slots, or 4 times that if searches leave this process."""

    @property
    def is_outside(self) -> bool:
        """Whether the episodes are run by an agent that calls the model through the gateway."""
        return self.run is not None or self.command is not None

    @property
    def source(self) -> str:
        """The setting that selects the outside agent, with its value."""
        return f"agent.run = {self.run}" if self.run is not None else f"agent.command = {self.command}"

    @property
    def template(self) -> str:
        """Name of the prompt template in use."""
        return self.prompt or (self.method if self.method in SINGLE else "instruct")

    @property
    def max_turns(self) -> int:
        """Maximum number of turns per episode."""
        return self.turns or self.searches + 1

    @property
    def can_search(self) -> bool:
        """Whether the model may call the tool search; a verl tool file provides it too."""
        return self.searches > 0 and any(tool == "search" or tool.endswith(TOOL_FILES) for tool in self.tools)

    @property
    def remote_tools(self) -> tuple[str, ...]:
        """Tools other than search that run outside this process."""
        return tuple(tool for tool in self.tools if tool.startswith("mcp:"))

    @model_validator(mode="before")
    @classmethod
    def _read_other_forms(cls, table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        if isinstance(table.get("tools"), str):
            table = {**table, "tools": [table["tools"]]}
        if table.get("protocol") == "tools-access":
            _notify('agent.protocol = "tools-access" is now "tools" with agent.tools = ["search", "access"]')
            table = {"tools": list(BUILT_IN_TOOLS), **table, "protocol": "tools"}
        return table

    @model_validator(mode="after")
    def _check_tools(self) -> Self:
        for tool in self.tools:
            if tool not in BUILT_IN_TOOLS and not tool.startswith(TOOL_SOURCES) and not tool.endswith(TOOL_FILES):
                raise ValueError(
                    f"tools has {tool!r}; expected search, access, import:package.function, mcp:http://HOST/PATH or a "
                    ".yaml file"
                )
        if not self.tools or len(set(self.tools)) < len(self.tools):
            raise ValueError(f"tools = {self.tools} is empty or has duplicates; name each tool once")
        for name in BUILT_IN_TOOLS:
            if name in self.tool_limits:
                raise ValueError(f"tool_limits.{name} is not supported; use agent.searches and retrieval.service")
        return self

    @model_validator(mode="after")
    def _check_outside(self) -> Self:
        if not self.is_outside:
            self._reject_unused("Sleuth's own agent; set agent.run or agent.command as well", "workers", "deadline")
            return self
        chosen = [name for name in OUTSIDE if getattr(self, name) is not None]
        chosen += ["method"] if "method" in self.model_fields_set else []
        if len(chosen) > 1:
            names = " and ".join(f"agent.{name}" for name in chosen)
            raise ValueError(f"{names} exclude each other, because each of them runs the episodes; keep one")
        given = f"agent.{chosen[0]}"
        self._reject_unused(f"{given}, which has its own prompts and tools", *OWN_AGENT)
        if self.command is not None and not self.command.strip():
            raise ValueError("command is empty; write it like node agent.js")
        if self.run is None or self.run == "worker":
            self._reject_unused(f"{given} = {self.run or self.command}", "workers")
        elif not self.run.startswith(("import:", "verifiers:")):
            raise ValueError(f"run = {self.run!r}; expected import:package.function, verifiers:ENVIRONMENT or worker")
        return self

    @model_validator(mode="after")
    def _check_unused(self) -> Self:
        if self.method in SINGLE:
            self._reject_unused(f"agent.method = {self.method}, which has one turn", *MULTI_TURN)
        if self.method in UNSEARCHED:
            self._reject_unused(f"agent.method = {self.method}, which never searches", "observation_tokens")
        return self


@lru_cache(maxsize=16)
def _notify(sentence: str) -> None:
    """Print a notice about an old name, once per process."""
    sys.stderr.write(f"sleuth: {sentence}\n")
