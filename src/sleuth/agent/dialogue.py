"""A protocol over chat messages: what the model said as the text of a turn, and the messages that go on from there."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sleuth.agent.cut import first_end
from sleuth.agent.observation import Observation
from sleuth.agent.protocol import Protocol
from sleuth.engines.remote import FunctionCall, Message, Reply
from sleuth.records import Access, Action, Search

EMPTY = "(empty)"  # servers refuse a message without words


@dataclass(frozen=True, slots=True)
class Said:
    """A turn: its text as it is written down, its action, whether it is formed, and itself as a message."""

    text: str
    action: Action
    formed: bool
    message: Message
    call: FunctionCall | None


def read(reply: Reply, protocol: Protocol) -> Said:
    """What a reply says in a grammar; thoughts that the server keeps apart are written down and not acted on."""
    words = closed(reply, protocol.stops)
    call = reply.call
    if call is not None:
        words = f"{words}\n{_written(call)}".lstrip("\n")
    action = protocol.parse(words)
    apart = bool(reply.reasoning.strip()) and "<think>" not in words
    formed = protocol.formed(f"<think></think>{words}" if apart else words, action) and reply.calls <= 1
    text = f"<think>{reply.reasoning.strip()}</think>\n{words}" if apart else words
    taken = call if isinstance(action, Search | Access) else None
    return Said(text, action, formed, _message(reply, words, taken), taken)


def shown(said: Said, observation: Observation) -> Message:
    """What is found as a message: of the tool where its call has a name, else of the user, which every server takes."""
    content = observation.text.strip()
    if said.call is None:
        return {"role": "user", "content": content}
    return {"role": "tool", "tool_call_id": said.call.id, "content": content}


def closed(reply: Reply, stops: Sequence[str]) -> str:
    """The words up to the first stop, with that stop: servers leave it out, and some do not stop there."""
    words = reply.content
    end = first_end(words, stops)
    if end is not None:
        return words[:end]
    if not reply.finished or reply.stop is None:
        return words
    if reply.stop in stops:
        return words + reply.stop
    return words + ("" if reply.stop else _open(words, stops))


def _open(words: str, stops: Sequence[str]) -> str:
    """The stop that closes the tag opened last; nothing where none is open."""
    opened = {words.rfind(stop.replace("</", "<", 1)): stop for stop in stops}
    return opened[max(opened)] if opened and max(opened) >= 0 else ""


def _written(call: FunctionCall) -> str:
    """A call as the protocol reads it; no argument can close its tag."""
    try:
        arguments = json.dumps(json.loads(call.arguments), ensure_ascii=False)
    except (ValueError, RecursionError):
        arguments = call.arguments
    inner = f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {arguments}}}'
    return "<tool_call>\n" + inner.replace("<", "\\u003c") + "\n</tool_call>"


def _message(reply: Reply, words: str, taken: FunctionCall | None) -> Message:
    """The turn as it is sent again; a call that could not be read is sent as words, for it can have no answer."""
    if taken is None:
        return {"role": "assistant", "content": words.strip() or EMPTY}
    function = {"name": taken.name, "arguments": taken.arguments}
    calls = [{"id": taken.id, "type": "function", "function": function}]
    return {"role": "assistant", "content": reply.content, "tool_calls": calls}
