"""How a question is answered: the grammar, the method, and the lengths of an episode."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from sleuth.config.section import Episodes, Section, TokenCount

ACCESS = "tools-access"  # the protocol that opens pages
SINGLE = ("direct", "cot", "rag")  # methods of one turn, each with a prompt of its own name
UNSEARCHED = ("direct", "cot")  # and those that search nothing


class AgentConfig(Section):
    protocol: Annotated[
        str,
        Field(
            description="the grammar of actions: tags, tools (function calls through the model's chat template), "
            "tools-access (which opens pages too), or import:package.function"
        ),
    ] = "tags"
    method: Annotated[
        str,
        Field(
            description="how a question is answered: search (in turns), direct (the answer alone), cot (thought and "
            "answer), rag (with what a search for the question found), or import:package.function"
        ),
    ] = "search"
    prompt: Annotated[
        str | None,
        Field(
            description="the prompt by its name in agent/prompts.toml of the package, or FILE.toml:NAME; "
            "absent: that of the method, instruct for search"
        ),
    ] = None
    searches: Annotated[int, Field(ge=0, le=10_000, description="searches before the last turn, which must answer")] = 4
    turn_tokens: Annotated[TokenCount, Field(description="tokens sampled in one turn at most")] = 500
    observation_tokens: Annotated[TokenCount, Field(description="tokens of one observation at most")] = 500
    context_tokens: Annotated[TokenCount, Field(description="tokens of a whole episode at most, prompt included")] = (
        4096
    )

    concurrency: Annotated[
        Episodes | None,
        Field(
            description="episodes in flight at most, of each process; those waiting for a tool take no place in the "
            "engine; absent: engine.slots, or 4 times that where searches leave this process"
        ),
    ] = None

    @property
    def template(self) -> str:
        """The name of the prompt, also where none was chosen."""
        return self.prompt or (self.method if self.method in SINGLE else "instruct")

    @model_validator(mode="after")
    def _effective(self) -> Self:
        if self.method in SINGLE:
            self._without_effect(f"agent.method = {self.method}, which has one turn", "searches")
        if self.method in UNSEARCHED:
            self._without_effect(f"agent.method = {self.method}, which searches nothing", "observation_tokens")
        return self
