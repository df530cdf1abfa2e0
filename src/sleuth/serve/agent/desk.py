"""Where questions are read, begun and answered."""

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect

from sleuth.agent.episode import Agent, Task
from sleuth.http.requests import CancelOnDisconnect, read_body
from sleuth.http.responses import encode_json
from sleuth.serve.agent.admission import Admission
from sleuth.serve.agent.chat import prompt_tokens, question_of
from sleuth.serve.agent.completion import Message, Reply, failure
from sleuth.serve.agent.events import End
from sleuth.serve.agent.metrics import AgentFigures
from sleuth.serve.agent.problems import Denied
from sleuth.serve.agent.request import ChatRequest, read
from sleuth.serve.agent.show import Show, Wish
from sleuth.serve.agent.stream import Stream
from sleuth.serve.agent.terms import Facts, Terms

MAX_BODY_BYTES, MAX_BODY_SECONDS = 2**20, 30.0
CUTS = ("top_p", "top_k", "min_p")


@dataclass(frozen=True, slots=True)
class Desk:
    """The answers of a server, by path."""

    agent: Agent
    facts: Facts
    terms: Terms
    admission: Admission
    metrics: AgentFigures = field(default_factory=AgentFigures)
    _orders: "count[int]" = field(default_factory=count)

    def __post_init__(self) -> None:
        self.metrics.add_gauge("sleuth_under_way", "Questions being answered.", lambda: self.admission.taken)
        self.metrics.add_gauge("sleuth_places", "Questions answered at once at most.", lambda: self.admission.places)
        self.metrics.add_gauge("sleuth_waiting", "Questions waiting for a place.", lambda: self.admission.waiting)

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """The engine ends with the server."""
        yield
        await self.agent.engine.close()

    async def chat(self, request: Request) -> Response:
        """An answer, whole or as it comes."""
        body = await read_body(
            request.scope, request.receive, max_bytes=MAX_BODY_BYTES, seconds=MAX_BODY_SECONDS, remedy="shorten it"
        )
        wanted = read(body)
        if wanted.model not in (None, self.facts.name):
            raise self._unknown(str(wanted.model))
        wish, reply = self._wish(wanted), Reply(self.facts.name)
        try:
            async with CancelOnDisconnect(request.receive):
                give_back = await self._admitted()
            show = Show(self.agent, wish, next(self._orders), give_back, self.metrics.episode)
            if wanted.stream:
                counted = wanted.stream_options is not None and wanted.stream_options.include_usage
                return Stream(show, reply, counted=counted, left=self.metrics.left.inc)
            async with show, CancelOnDisconnect(request.receive):
                return await _whole(show, reply)
        except ClientDisconnect:
            self.metrics.left.inc()
            raise

    def _wish(self, wanted: ChatRequest) -> Wish:
        terms = self.terms
        question = question_of(wanted.messages, self.agent, terms.characters)
        context = self.agent.config.context_tokens
        tokens, most = prompt_tokens(question, self.agent), min(terms.prompt or context - 1, context - 1)
        if tokens > most:
            sentence = f"the question takes {tokens:,} tokens with its prompt, and {most:,} are served; shorten it"
            raise Denied(400, sentence, param="messages", code="context_length_exceeded")
        temperature = terms.temperature if wanted.temperature is None else wanted.temperature
        seed = secrets.randbits(32) if wanted.seed is None else wanted.seed
        bounds = [bound for bound in (terms.tokens, wanted.most) if bound is not None]
        cuts = {name: value for name in CUTS if (value := getattr(wanted, name)) is not None}
        return Wish(Task(question, seed=seed, temperature=temperature), min(bounds, default=None), cuts)

    async def _admitted(self) -> Callable[[], None]:
        try:
            return await self.admission.place()
        except Denied:
            self.metrics.overloaded.inc()
            raise

    async def models(self) -> Response:
        """The one model there is."""
        return _json({"object": "list", "data": [self._described()]})

    async def model(self, name: str) -> Response:
        """The model of this name."""
        if name != self.facts.name:
            raise self._unknown(name)
        return _json(self._described())

    async def health(self) -> Response:
        """Whether the process answers, and how busy it is."""
        busy = {"under_way": self.admission.taken, "places": self.admission.places, "waiting": self.admission.waiting}
        return _json({"status": "ok", **busy})

    async def figures(self) -> Response:
        """Counts and times, for Prometheus."""
        return self.metrics.response()

    def _described(self) -> dict[str, Any]:
        facts, config = self.facts, self.agent.config
        known = {"id": facts.name, "object": "model", "created": facts.created, "owned_by": "sleuth"}
        limits = {"searches": config.searches, "context_tokens": config.context_tokens, "max_tokens": self.terms.tokens}
        return {**known, "sleuth": {"index": facts.searches, "method": config.method, **limits}}

    def _unknown(self, name: str) -> Denied:
        sentence = f"there is no model {name!r} here; this server has {self.facts.name!r}"
        return Denied(404, sentence, param="model", code="model_not_found")


async def _whole(show: Show, reply: Reply) -> Response:
    """The answer of an episode when it is over."""
    message = Message()
    async for event in show.events():
        if isinstance(event, End):
            if failed := failure(event):
                raise failed
            return _json(reply.whole(message.ended(event), event))
        if event is not None:
            message.add(event)
    raise RuntimeError("an episode ended without an end")


def _json(content: object) -> Response:
    return Response(encode_json(content), media_type="application/json")
