"""Settings of the agent: protocol, method, prompt and the limits of an episode."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from sleuth.config.section import EpisodeCount, Section, TokenCount

ACCESS = "tools-access"  # the protocol that can also open pages
SINGLE = ("direct", "cot", "rag")  # single-turn methods; each has a prompt of the same name
UNSEARCHED = ("direct", "cot")  # methods that never search


class AgentConfig(Section):
    protocol: Annotated[
        str,
        Field(
            description="Action grammar: tags, tools (function calls through the model's chat template), "
            "tools-access (can also open pages), or import:package.function."
        ),
    ] = "tags"
    method: Annotated[
        str,
        Field(
            description="How to answer: search (multi-turn), direct (answer only), cot (reason, then answer), "
            "rag (one search, then answer), or import:package.function."
        ),
    ] = "search"
    prompt: Annotated[
        str | None,
        Field(
            description="Prompt template: a name from agent/prompts.toml, or FILE.toml:NAME. "
            "Default: the method's own, instruct for search."
        ),
    ] = None
    searches: Annotated[
        int, Field(ge=0, le=10_000, description="Maximum number of searches; the turn after the last must answer.")
    ] = 4
    turn_tokens: Annotated[TokenCount, Field(description="Maximum tokens sampled per turn.")] = 500
    observation_tokens: Annotated[TokenCount, Field(description="Maximum tokens per observation.")] = 500
    context_tokens: Annotated[TokenCount, Field(description="Maximum tokens per episode, including the prompt.")] = 4096
    concurrency: Annotated[
        EpisodeCount | None,
        Field(
            description="Maximum episodes in flight per process; one that waits for a tool occupies no engine slot. "
            "Default: engine.slots, or 4 times that if searches leave this process."
        ),
    ] = None

    @property
    def template(self) -> str:
        """Name of the prompt template in use."""
        return self.prompt or (self.method if self.method in SINGLE else "instruct")

    @model_validator(mode="after")
    def _check_unused(self) -> Self:
        if self.method in SINGLE:
            self._reject_unused(f"agent.method = {self.method}, which has one turn", "searches")
        if self.method in UNSEARCHED:
            self._reject_unused(f"agent.method = {self.method}, which never searches", "observation_tokens")
        return self
