"""An agent whose model runs on a chat-completions server, without access to tokens; for evaluation and `ask`."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import httpx

from sleuth.agent import methods, prompts
from sleuth.agent.chat_template import Function
from sleuth.agent.conversation import ModelTurn, OnText, Shown, end_of_first_stop
from sleuth.agent.episode import Method
from sleuth.agent.function_calls import RemoteFunctionCalls
from sleuth.agent.ledger import Ledger
from sleuth.agent.observation import Observation
from sleuth.agent.protocol import Protocol
from sleuth.agent.tags import RLinfTags, Tags
from sleuth.agent.task import Task
from sleuth.agent.tools import SEARCH, Tool, Toolbox
from sleuth.config.agent import AgentConfig
from sleuth.engines.base import Sampling
from sleuth.engines.remote import Endpoint, FunctionCall, Message, Reply, complete_chat
from sleuth.errors import ConfigError
from sleuth.records import THINK_CLOSE, THINK_OPEN, Question, ToolCall, Trajectory

CHARACTERS_PER_TOKEN = 4  # an estimate, used if the server does not count tokens
PROTOCOLS: dict[str, Callable[[Sequence[Tool]], Protocol]] = {
    "tags": Tags,
    "rlinf": RLinfTags,
    "tools": RemoteFunctionCalls,
}


def make_message_protocol(name: str, tools: Sequence[Tool] = (SEARCH,)) -> Protocol:
    """Build a protocol for messages; raises ConfigError for a user's protocol, which works on tokens."""
    if name not in PROTOCOLS:
        raise ConfigError(
            f"agent.protocol is {name!r}, which cannot be used with a server; expected {', '.join(PROTOCOLS)}"
        )
    return PROTOCOLS[name](tools)


@dataclass(frozen=True, slots=True)
class RemoteAgent:
    """A server with a protocol and tools; its trajectories have turns but no token ids."""

    endpoint: Endpoint
    protocol: Protocol
    tools: Toolbox
    config: AgentConfig
    method: Method

    @classmethod
    def of(
        cls, endpoint: Endpoint, tools: Toolbox, config: AgentConfig, shots: Sequence[Question] = ()
    ) -> "RemoteAgent":
        """Build the configured agent; raises ConfigError for a user's method, which works on tokens."""
        prompts.load_template(config.template)
        method = methods.make_method(config, shots)
        if isinstance(method, methods.UserMethod):
            raise ConfigError(
                f"agent.method is {config.method!r}, which cannot be used with a server; expected "
                f"{', '.join(methods.METHODS)}"
            )
        return cls(endpoint, make_message_protocol(config.protocol, tools.tools), tools, config, method)

    async def run(self, task: Task, order: int = 0, on_text: OnText | None = None) -> Trajectory:  # noqa: ARG002
        async with self.endpoint.client() as http:
            conversation = MessageConversation(self.endpoint, self.protocol, self.config.context_tokens, http, on_text)
            return await self.method(self, task, conversation)


@dataclass(slots=True)
class MessageConversation:
    """A conversation with a chat-completions server, message by message."""

    endpoint: Endpoint
    protocol: Protocol
    context_tokens: int
    http: httpx.AsyncClient
    on_text: OnText | None = None
    ledger: Ledger = field(default_factory=Ledger)
    _messages: list[Message] = field(default_factory=list)
    _functions: Sequence[Function] = ()
    _used: int = 0  # tokens so far, counted by the server or estimated
    _call: FunctionCall | None = None  # the call that the next observation answers

    @property
    def room(self) -> int:
        return self.context_tokens - self._used

    def begin(self, messages: Sequence[dict[str, str]], functions: Sequence[Function] = ()) -> None:
        self._functions = functions
        for message in messages:
            self._add(dict(message), message["content"])

    async def generate(self, sampling: Sampling) -> ModelTurn:
        reply = await complete_chat(self.http, self.endpoint, self._messages, sampling, self._functions)
        words = restore_stop(reply, self.protocol.stops)
        if reply.call is not None:
            words = f"{words}\n{_write_call(reply.call)}".lstrip("\n")
        action = self.protocol.parse(words)
        # Some servers return the reasoning separately: it is part of the text, but no action is parsed from it.
        thoughts = reply.reasoning.strip() if THINK_OPEN not in words else ""
        text = f"{THINK_OPEN}{thoughts}{THINK_CLOSE}\n{words}" if thoughts else words
        judged = f"{THINK_OPEN}{THINK_CLOSE}{words}" if thoughts else words
        well_formed = self.protocol.is_well_formed(judged, action) and reply.calls <= 1
        self._call = reply.call if isinstance(action, ToolCall) else None
        # An invalid call is sent back as text, because no tool message answers it; servers reject an empty message.
        message: Message = {"role": "assistant", "content": words.strip() or "(empty)"}
        if call := self._call:
            function = {"name": call.name, "arguments": call.arguments}
            calls = [{"id": call.id, "type": "function", "function": function}]
            message = {"role": "assistant", "content": reply.content, "tool_calls": calls}
        self._add(message, text)
        if reply.prompt_tokens + reply.completion_tokens:
            self._used = reply.prompt_tokens + reply.completion_tokens
        return ModelTurn(text, action, well_formed, reply.completion_tokens)

    def observe(self, observation: Observation, limit: int) -> Shown:
        body = self.truncate(observation.body, limit)
        content = replace(observation, body=body).text.strip()
        # A tool message needs the id of its call; without an id, the user role works with every server.
        message: Message = {"role": "user", "content": content}
        if self._call is not None:
            message = {"role": "tool", "tool_call_id": self._call.id, "content": content}
        self._add(message, f"\n\n{content}\n\n")
        return Shown(True, None if body == observation.body else body)

    def count(self, messages: Sequence[dict[str, str]]) -> int:
        return sum(len(message["content"]) // CHARACTERS_PER_TOKEN for message in messages)

    def truncate(self, text: str, limit: int) -> str:
        return text[: limit * CHARACTERS_PER_TOKEN]

    def _add(self, message: Message, text: str) -> None:
        self._messages.append(message)
        self._used += len(str(message["content"])) // CHARACTERS_PER_TOKEN
        if self.on_text is not None:
            self.on_text(text)


def restore_stop(reply: Reply, stops: Sequence[str]) -> str:
    """Return the reply up to and including the first stop string, even if the server omitted it or generated more."""
    words = reply.content
    end = end_of_first_stop(words, stops)
    if end is not None:
        return words[:end]
    if not reply.finished or reply.stop is None:
        return words
    if reply.stop in stops:
        return words + reply.stop
    if reply.stop:
        return words
    # The server does not report which stop string applied: assume the one that closes the last open tag.
    opened = {words.rfind(stop.replace("</", "<", 1)): stop for stop in stops}
    return words + (opened[max(opened)] if opened and max(opened) >= 0 else "")


def _write_call(call: FunctionCall) -> str:
    """Write a call in the protocol's format; no argument can close its tag."""
    try:
        arguments = json.dumps(json.loads(call.arguments), ensure_ascii=False)
    except (ValueError, RecursionError):
        arguments = call.arguments
    inner = f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {arguments}}}'
    return "<tool_call>\n" + inner.replace("<", "\\u003c") + "\n</tool_call>"
