"""One attempt of an outside agent: its calls to the policy become segments of one trajectory.

The prompt of a call continues the stored tokens of the longest prefix that the rollout has seen, so that sampled tokens
are never decoded and encoded again. A call that continues no such prefix, or not its newest end, starts a new segment.
"""

import asyncio
import hashlib
import json
import secrets
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from sleuth.agent.conversation import TextStream, trim_at_stop
from sleuth.agent.ledger import Ledger
from sleuth.agent.tags import Tags
from sleuth.agent.task import Task
from sleuth.config.agent import AgentConfig
from sleuth.engines.base import Completion, Engine, Finish, Sampling, Session
from sleuth.errors import EngineFailure
from sleuth.gateway.api import ApiError
from sleuth.gateway.calls import Call, Choice, FinishReason, FunctionCall, Message, OnContent, Reply, count_forks
from sleuth.gateway.prompting import ChatPrompts, ContentStream, merge_assistant
from sleuth.model.tokens import Tokens, common_prefix
from sleuth.records import (
    THINK_CLOSE,
    Answer,
    Hit,
    Malformed,
    Outcome,
    Score,
    Segment,
    StopReason,
    ToolCall,
    Trajectory,
    Turn,
)
from sleuth.reward.rubric import RESERVED_PARTS

TAGS = Tags()
_NO_CALLS: tuple[FunctionCall, ...] = ()
CLOSED = "this attempt has ended: its agent returned, it passed its deadline (agent.deadline), or its worker was lost"
ChatKey = tuple[str, bytes]  # the role, and a digest of the functions and messages
ReplyKey = tuple[ChatKey, bytes]  # a chat, and what identifies a reply to it


@dataclass(frozen=True, slots=True)
class Policy:
    """The trained model as the rollouts see it; `prompts` caches what depends only on its tokenizer."""

    engine: Engine
    tokens: Tokens
    config: AgentConfig
    prompts: ChatPrompts

    @classmethod
    def of(cls, engine: Engine, tokens: Tokens, config: AgentConfig) -> "Policy":
        return cls(engine, tokens, config, ChatPrompts(tokens))


@dataclass(slots=True)
class Strand:
    """A segment that still grows."""

    ledger: Ledger
    role: str
    parent: int | None = None
    shared: int = 0
    calls: list[tuple[int, int]] = field(default_factory=list)
    temperatures: list[float] = field(default_factory=list)

    def segment(self, temperature: float) -> Segment:
        ledger = self.ledger
        other = tuple(self.temperatures) if set(self.temperatures) - {temperature} else ()
        return Segment(
            ledger.ids,
            ledger.origin,
            ledger.logprobs,
            ledger.versions,
            self.role,
            self.parent,
            self.shared,
            tuple(self.calls),
            other,
        )


@dataclass(frozen=True, slots=True)
class Place:
    """The first `length` tokens of a strand; `reply` is the message or text that was sent to the client there."""

    strand: int
    length: int
    reply: Message | str | None = None
    turn_ended: bool = False
    stop: str = ""  # the stop string that ended the reply, if the client was not shown it


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens of a call: the shared ones at `place`, and the given ones after them."""

    place: Place | None
    shared: tuple[int, ...]
    given: tuple[int, ...]
    opening: str = ""  # the part of the reply that was given to force a function call
    chat: ChatKey | None = None

    @property
    def ids(self) -> tuple[int, ...]:
        return self.shared + self.given


@dataclass(slots=True)
class Counts:
    """What an attempt did; a rewritten message is one that the client changed without changing its meaning."""

    calls: int = 0
    rewritten: int = 0
    searches: int = 0
    helper_calls: int = 0


@dataclass(slots=True)
class CallTimes:
    """Seconds of calls by part: `wait` is the time between two threads and in the three parts in the engine's loop."""

    parse: float = 0.0
    wait: float = 0.0
    prompt: float = 0.0
    generate: float = 0.0
    record: float = 0.0
    encode: float = 0.0

    def add(self, other: "CallTimes") -> None:
        for name in CallTimes.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Rollout:
    """The state of one attempt; used only in the event loop of the engine."""

    def __init__(self, policy: Policy, task: Task, session: Session | None = None) -> None:
        self.id, self.key = secrets.token_hex(8), secrets.token_urlsafe(24)
        self.task, self.counts, self.times = task, Counts(), CallTimes()
        self.reward: Score | None = None
        self.failure: str | None = None  # of the engine
        self.limit: StopReason | None = None  # the limit of the policy that a call has exceeded
        self.closed = False
        self.policy, self._session = policy, session
        self._strands: list[Strand] = []
        self._turns: list[Turn] = []
        self._chats: dict[ChatKey, Place] = {}
        self._replies: dict[ReplyKey, list[Place]] = {}
        self._texts: dict[tuple[str, str], Place] = {}
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def forks(self) -> int:
        """The number of segments after the first of each role."""
        return count_forks([strand.role for strand in self._strands])

    @property
    def turns(self) -> tuple[Turn, ...]:
        return tuple(self._turns)

    async def complete(self, call: Call, on_content: OnContent | None = None) -> Reply:
        """Sample the choices of a call and record them; raises ApiError, or EngineFailure if generation fails."""
        self._require_open()
        if self.reward is not None and self.reward.turns:
            message = "the attempt has a reward for each of its calls; post it after the last call"
            raise ApiError(409, message, code="reward_exists")
        first, limit = self.counts.calls, self.policy.config.turns
        if limit is not None and first + call.n > limit:
            self.limit = self.limit or StopReason.OUT_OF_TURNS
            message = f"the attempt has made {first} of at most {limit} calls (agent.turns); end it"
            raise ApiError(400, message, code="max_calls_exceeded")
        started = perf_counter()
        prompt = self._prompt(call)
        room = self.policy.config.context_tokens - len(prompt.ids)
        if room <= 0:
            self.limit = self.limit or StopReason.OUT_OF_TOKENS
            raise ApiError(
                400,
                f"the prompt has {len(prompt.ids):,} tokens; the maximum context length is "
                f"{self.policy.config.context_tokens:,} tokens including the reply (agent.context_tokens)",
                param="messages" if isinstance(call.prompt, tuple) else "prompt",
                code="context_length_exceeded",
            )
        self.counts.calls += call.n
        samplings = [self._sampling(call, first + number, room) for number in range(call.n)]
        streams = [self._stream(call, number, on_content) for number in range(call.n)]
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  a coroutine runs in a task
        self._running.add(task)
        prompted = perf_counter()
        try:
            completions = await _gather(
                self._generate(prompt, sampling, stream) for sampling, stream in zip(samplings, streams, strict=True)
            )
        except EngineFailure as failure:
            self.failure = str(failure)
            raise
        finally:
            self._running.discard(task)
        self._require_open()
        self.limit = None  # the agent has shortened its prompt
        generated = perf_counter()
        choices = []
        for completion, sampling, stream in zip(completions, samplings, streams, strict=True):
            number = self._strand_for(prompt, call.role)
            choices.append(self._record(call, prompt, number, completion, sampling.temperature))
            # Of the other choices.
            prompt = replace(prompt, place=Place(number, len(prompt.ids)), shared=prompt.ids, given=())
            if stream is not None:
                stream.finish(choices[-1].content)
        self.times.prompt += prompted - started
        self.times.generate += generated - prompted
        self.times.record += perf_counter() - generated
        return Reply(prompt.ids, tuple(choices))

    def set_reward(self, reward: Score) -> None:
        """Set the reward of the attempt; raises ApiError if it has one already."""
        self._require_open()
        if self.reward is not None:
            message = f"the attempt already has the reward {self.reward.total:g}; post it once"
            raise ApiError(409, message, param="reward", code="reward_exists")
        if clash := set(reward.parts).intersection(RESERVED_PARTS):
            message = f"the part name {min(clash)!r} is reserved, as are {', '.join(RESERVED_PARTS)}; rename it"
            raise ApiError(400, message, param="parts")
        calls = sum(turn.segment is not None for turn in self._turns)
        if reward.turns and self._running:
            message = (
                f"{len(self._running)} calls of the attempt are not finished; post a reward per call after the last"
            )
            raise ApiError(409, message, param="turns")
        if reward.turns and len(reward.turns) != calls:
            message = f"the reward has {len(reward.turns)} turns, but the attempt made {calls} calls; send one for each"
            raise ApiError(400, message, param="turns")
        self.reward = reward

    def record_search(self, queries: Sequence[str], hits: Sequence[Sequence[Hit]]) -> None:
        """Attach the hits of a search to the last turn of the policy, preferably one that calls a function."""
        self.counts.searches += len(queries)
        places = [place for place, turn in enumerate(self._turns) if turn.segment is not None]
        calls = [place for place in places if isinstance(self._turns[place].action, ToolCall)]
        for place in (calls or places)[-1:]:
            turn = self._turns[place]
            outcome = Outcome.FOUND if calls else turn.outcome
            found = tuple(hit for each in hits for hit in each)
            counts = (*turn.counts, *map(len, hits))
            self._turns[place] = replace(turn, hits=turn.hits + found, counts=counts, outcome=outcome)

    def record_helper(self, text: str) -> None:
        """Record a reply of the frozen helper model, which is not trained."""
        self.counts.helper_calls += 1
        self._turns.append(Turn(text, Answer(text), Outcome.ANSWERED, 0, segment=None))

    def close(self) -> None:
        """Refuse further requests and cancel those in flight."""
        self.closed = True
        for task in self._running:
            task.cancel()

    def finish(self, stop: StopReason, failure: str | None = None) -> Trajectory:
        """Close the attempt and return its trajectory."""
        self.close()
        task, reward = self.task, self.reward
        if reward is not None and reward.turns:
            values = iter(reward.turns)
            turns = tuple(0.0 if turn.segment is None else next(values) for turn in self._turns)
            reward = replace(reward, turns=turns)
        segments = tuple(strand.segment(task.temperature) for strand in self._strands)
        trajectory = task.trajectory(stop, self._turns, failure)
        return replace(trajectory, segments=segments, reward=reward)

    def describe(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        segments = [
            {"role": each.role, "parent": each.parent, "shared": each.shared, "tokens": len(each.ledger)}
            for each in self._strands
        ]
        reward = None if self.reward is None else self.reward.episode_return
        counts = {name: getattr(self.counts, name) for name in Counts.__slots__}
        state = {"id": self.id, "state": "closed" if self.closed else "open", "reward": reward}
        return {**state, **counts, "forks": self.forks, "segments": segments}

    def _require_open(self) -> None:
        if self.closed:
            raise ApiError(410, CLOSED, code="rollout_closed")

    def _prompt(self, call: Call) -> Prompt:
        match call.prompt:
            case str(text):
                return self._text_prompt(text, call.role)
            case (int(), *_):
                return self._ids_prompt(call.prompt, call.role)  # type: ignore[arg-type]
            case ():
                raise ApiError(400, "the prompt is empty; send at least one message or token", param="messages")
        return self._chat_prompt(merge_assistant(call.prompt), call)  # type: ignore[arg-type]

    def _chat_prompt(self, messages: tuple[Message, ...], call: Call) -> Prompt:
        prompts = self.policy.prompts
        opening = prompts.opening(call.tool_choice) if call.functions else ""
        opened = tuple(self.policy.tokens.encode(opening)) if opening else ()
        chat, replies = self._find_replies(messages, call)
        if chat in self._chats:  # the same request again
            place = self._chats[chat]
            return Prompt(place, self._tokens_at(place), opened, opening, chat)
        for known, place in reversed(replies):
            if known == len(messages):
                continue  # the conversation ends with the model's own turn: nothing to add
            self.counts.rewritten += messages[known - 1] != place.reply
            after = prompts.encode_after(messages, call.functions, known, turn_ended=place.turn_ended)
            return Prompt(place, self._tokens_at(place), (*after, *opened), opening, chat)
        return Prompt(None, (), (*prompts.encode(messages, call.functions), *opened), opening, chat)

    def _find_replies(self, messages: Sequence[Message], call: Call) -> tuple[ChatKey, list[tuple[int, Place]]]:
        """Return the key of a chat, and the places of the model's own replies in it with their numbers of messages.

        In the key, such a reply stands for the tokens at its place, however the client has rewritten it.
        """
        functions = json.dumps(list(call.functions), sort_keys=True).encode() if call.functions else b""
        digest, found = hashlib.blake2b(functions, digest_size=16), list[tuple[int, Place]]()
        for number, message in enumerate(messages, 1):
            chat = call.role, digest.digest()
            place = None
            if message.role == "assistant":
                place = _closest(self._replies.get((chat, _canonical_reply(message)), ()), message)
            if place is not None:
                found.append((number, place))
                digest.update(f"{place.strand}/{place.length};".encode())
            else:
                calls = [[each.name, each.arguments] for each in message.tool_calls]
                digest.update(json.dumps([message.role, message.content, calls]).encode())
        return (call.role, digest.digest()), found

    def _tokens_at(self, place: Place) -> tuple[int, ...]:
        return self._strands[place.strand].ledger.ids[: place.length]

    def _text_prompt(self, text: str, role: str) -> Prompt:
        known = [(seen, place) for (of, seen), place in self._texts.items() if of == role and text.startswith(seen)]
        if not known:
            ids = (*self.policy.tokens.prefix_ids, *self.policy.tokens.encode(text))
            if not ids:
                raise ApiError(400, "the prompt is empty; send some text", param="prompt")
            return Prompt(None, (), ids)
        seen, place = max(known, key=lambda each: len(each[0]))
        rest = text[len(seen) :]
        rest = rest.removeprefix(place.stop) if place.stop else rest
        return Prompt(place, self._tokens_at(place), tuple(self.policy.tokens.encode(rest)) if rest else ())

    def _ids_prompt(self, ids: tuple[int, ...], role: str) -> Prompt:
        """Continue the strand that shares the longest prefix with the given ids."""
        size = len(self.policy.tokens.tokenizer)
        if (unknown := next((token for token in ids if not 0 <= token < size), None)) is not None:
            message = f"the prompt has the token {unknown}; expected tokens from 0 to {size - 1}"
            raise ApiError(400, message, param="prompt")
        best: Place | None = None
        for number, strand in enumerate(self._strands):
            length = common_prefix(strand.ledger.ids, ids)
            if strand.role == role and length and (best is None or length > best.length):
                best = Place(number, length)
        if best is None:
            return Prompt(None, (), ids)
        return Prompt(best, ids[: best.length], ids[best.length :])

    def _sampling(self, call: Call, number: int, room: int) -> Sampling:
        task, config = self.task, self.policy.config
        try:
            return Sampling(
                max_tokens=min(call.max_tokens or config.turn_tokens, room),
                temperature=task.temperature if call.temperature is None else call.temperature,
                stops=call.stops,
                seed=task.turn_seed(number, call.seed),
                top_p=task.top_p if call.top_p is None else call.top_p,
                top_k=task.top_k if call.top_k is None else call.top_k,
                min_p=call.min_p or 0.0,
            )
        except ValueError as error:
            raise ApiError(400, str(error)) from error

    def _stream(self, call: Call, number: int, on_content: OnContent | None) -> ContentStream | None:
        if on_content is None:
            return None
        calls = (self.policy.prompts.call_format.opening,) if call.functions and call.tool_choice != "none" else ()
        return ContentStream((*call.stops, *calls), lambda text: on_content(number, text))

    async def _generate(self, prompt: Prompt, sampling: Sampling, stream: ContentStream | None) -> Completion:
        on_tokens = None
        if stream is not None and not prompt.opening:
            on_tokens = TextStream(self.policy.tokens, stream.add).add
        return await self.policy.engine.generate(prompt.ids, sampling, self._session, on_tokens)

    def _record(self, call: Call, prompt: Prompt, number: int, completion: Completion, temperature: float) -> Choice:
        """Append a completion to a strand, remember where to continue, and return what the client gets."""
        completion, text = trim_at_stop(completion, call.stops, self.policy.tokens)
        stop = (
            next((each for each in call.stops if text.endswith(each)), "") if completion.finish == Finish.STOP else ""
        )
        sent = text if call.include_stop else text.removesuffix(stop)
        content, calls = sent, _NO_CALLS
        if call.functions and call.tool_choice != "none":
            content, calls = self.policy.prompts.parse(prompt.opening + sent)
            calls = calls if call.parallel_calls else calls[:1]
        strand, turn = self._strands[number], len(self._turns)
        before = len(strand.ledger)
        if temperature == 0 < self.task.temperature:
            strand.ledger.given(completion.ids)  # greedy tokens were not sampled from the policy
        else:
            strand.ledger.sampled(completion)
            strand.calls.append((turn, len(completion.ids)))
            strand.temperatures += [temperature] * len(completion.ids)
        self._turns.append(_turn(prompt.opening + text, content, calls, len(completion.ids), number))
        ended = completion.finish in (Finish.STOP, Finish.END)
        ended = ended and bool(completion.ids) and completion.ids[-1] in self.policy.tokens.special_ids
        end = Place(number, len(strand.ledger), sent, ended, stop)
        self._remember(call, prompt.chat, Place(number, before), end, Message("assistant", content, calls))
        finish = FinishReason.STOP if completion.finish in (Finish.STOP, Finish.END) else FinishReason.LENGTH
        finish = FinishReason.TOOL_CALLS if calls else finish
        return Choice(content, calls, finish, completion.ids, completion.logprobs)

    def _strand_for(self, prompt: Prompt, role: str) -> int:
        """Return the strand that the prompt continues, with the given tokens appended; a new one for a fork."""
        place = prompt.place
        if place is not None and len(self._strands[place.strand].ledger) == place.length:
            self._strands[place.strand].ledger.given(prompt.given)
            return place.strand
        ledger = Ledger()
        ledger.given(prompt.ids)
        shared = (None, 0) if place is None else (place.strand, place.length)
        self._strands.append(Strand(ledger, role, *shared))
        return len(self._strands) - 1

    def _remember(self, call: Call, chat: ChatKey | None, start: Place, end: Place, reply: Message) -> None:
        if isinstance(call.prompt, str):
            self._texts.setdefault((call.role, call.prompt), start)
            self._texts[call.role, f"{call.prompt}{end.reply}"] = replace(end, stop="") if call.include_stop else end
        elif chat is not None:
            if call.tool_choice in ("auto", "none"):
                self._chats.setdefault(chat, start)
            # Some clients drop the content of a reply with function calls.
            replies = [reply, replace(reply, content="")] if reply.tool_calls else [reply]
            for each in replies:
                self._replies.setdefault((chat, _canonical_reply(each)), []).append(replace(end, reply=reply))


def _turn(text: str, content: str, calls: tuple[FunctionCall, ...], tokens: int, segment: int) -> Turn:
    """Describe a call for the rubric and the viewer: its first function call, or its content as an answer."""
    if calls:
        action: ToolCall | Answer = ToolCall(calls[0].name, json.loads(calls[0].arguments))
        return Turn(text, action, Outcome.RETURNED, tokens, segment=segment)
    parsed = TAGS.parse(text)
    if isinstance(parsed, ToolCall):
        return Turn(text, parsed, Outcome.RETURNED, tokens, segment=segment)
    if isinstance(parsed, Malformed):
        parsed = Answer(content.rpartition(THINK_CLOSE)[2].strip())
    return Turn(text, parsed, Outcome.ANSWERED, tokens, segment=segment)


def _closest(places: Sequence[Place], message: Message) -> Place | None:
    """Return the place whose reply is the message; else the one with its function calls; else the newest."""

    def likeness(place: Place) -> tuple[bool, bool]:
        reply = place.reply
        calls = isinstance(reply, Message) and bool(reply.tool_calls) and reply.tool_calls == message.tool_calls
        return reply == message, calls

    return max(reversed(places), key=likeness, default=None)


async def _gather(work: Iterable[Coroutine[Any, Any, Completion]]) -> list[Completion]:
    """Like `asyncio.gather`, but if one fails, the others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _canonical_reply(message: Message) -> bytes:
    """Encode what identifies a reply of the model; client libraries change white space and the order of JSON."""
    calls = [[each.name, _canonical_json(each.arguments)] for each in message.tool_calls]
    return json.dumps([" ".join(message.content.split()), calls]).encode()


def _canonical_json(text: str) -> str:
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text
