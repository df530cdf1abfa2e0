"""Demonstrations from gold passages: the question is searched for, then what that did not show, and it is answered.

Every search shows what it found. Nothing is searched for that was not read of before: a model can learn to do the same.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

from sleuth.agent import prompts
from sleuth.agent.protocol import Protocol
from sleuth.errors import SearchUnavailable, UserError
from sleuth.records import Answer, Hit, Passage, Question, ToolCall
from sleuth.retrieval.retriever import Retriever
from sleuth.reward.answers import cover_em, normalise
from sleuth.sft import gold_queries, gold_reasons, gold_words
from sleuth.sft.demonstrations import Move, acted
from sleuth.sft.gold_queries import asked
from sleuth.synthesis.cloze.lexicon import base_title

AT_ONCE = 256  # questions whose searches go to the index together
EITHER = frozenset({"yes", "no"})


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A question of which no demonstration is made, and why."""

    question: Question
    why: str


@dataclass(frozen=True, slots=True)
class Shown:
    """A search with what it shows; `name` is what it is for, `target` the passage that it brought."""

    query: str
    name: str | None
    target: Passage | None
    hits: tuple[Hit, ...]


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A question's searches, and the row of its trace file."""

    question: Question
    searches: tuple[Shown, ...]
    row: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Way:
    """The searches of a question, and the passages that matter in the order they are read in: none for a guess."""

    shown: tuple[Shown, ...]
    read: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class Gold:
    """Writes demonstrations: `find` gives a passage by its id, `retriever` is searched where there is one.

    With `quotes` a thought repeats the sentence that it goes by. With `guesses` a question is answered even where no
    search shows the answer.
    """

    find: Callable[[str], Passage | None]
    retriever: Retriever | None
    protocol: Protocol
    prompt: str
    k: int
    searches: int
    seed: int
    quotes: bool = False
    guesses: bool = False

    async def demonstrate(self, questions: Sequence[Question]) -> AsyncIterator[Demonstration | LeftOut]:
        """One for each question, in their order."""
        waiting = iter(questions)
        while some := list(islice(waiting, AT_ONCE)):
            for each in await asyncio.gather(*map(self._one, some)):
                yield each

    async def _one(self, question: Question) -> Demonstration | LeftOut:
        dice = random.Random(f"{self.seed}/{question.id}")
        if question.answerable is False:
            return LeftOut(question, "not answerable")
        way = await (self._hops(question) if question.supporting_ids else self._luck(question))
        if isinstance(way, LeftOut):
            return way
        if len(way.shown) > self.searches:
            return LeftOut(question, f"that take more than {self.searches} searches")
        told = self._told(question, way, dice)
        if told is None:
            return LeftOut(question, "with passages that speak the grammar")
        row = {
            "messages": [*prompts.messages(question, self.prompt, self.protocol), *told],
            "question_id": question.id,
            "data_source": question.data_source,
            "golden_answers": list(question.golden_answers),
            "searches": len(way.shown),
            "found": bool(way.read),
        }
        return Demonstration(question, way.shown, row)

    async def _hops(self, question: Question) -> Way | LeftOut:
        """A search for the question, and further ones while passages are missing and a name that was read finds one."""
        passages = [self.find(name) for name in question.supporting_ids]
        wanted = [passage for passage in passages if passage is not None]
        if len(wanted) < len(passages):
            return LeftOut(question, "whose passages are not in the corpus")
        read = gold_queries.ordered(question, wanted)
        if self.retriever is None:
            return Way(tuple(_alone(passage) for passage in read), tuple(read))
        shown = [await self._first(question, lambda passage: passage in read)]
        while missing := _missing(question, read, shown):
            further = await self._further(question, missing, shown)
            if further is None:
                break
            shown.append(further)
        seen = _passages(shown)
        golds, held = _told_apart(question), [passage for passage in read if passage in seen]
        if not held and len(read) == 1:  # others may say the same as the one
            held = [passage for passage in seen if cover_em(passage.text, golds)]
        if not held or (missing and not any(cover_em(passage.text, golds) for passage in held)):
            return self._not_found(question, shown, "whose passages no search by a name read so far finds")
        return Way(tuple(shown), tuple(held))

    async def _luck(self, question: Question) -> Way | LeftOut:
        """A search for the question or for a name in it; a hit that holds an answer makes it a demonstration."""
        golds = _told_apart(question)
        if self.retriever is None:
            return LeftOut(question, "without supporting passages, which takes an index")
        if not golds:
            return LeftOut(question, "of yes or no without supporting passages")
        shown = [await self._first(question, lambda passage: bool(cover_em(passage.contents, golds)))]
        if shown[0].target is None:
            names = gold_queries.names(question, [])
            named = await self._naming(names, lambda passage: bool(cover_em(passage.contents, golds)))
            if named is None:
                return self._not_found(question, shown, "where no hit holds an answer")
            shown.append(named)
        return Way(tuple(shown), tuple(each.target for each in shown if each.target is not None))

    def _not_found(self, question: Question, shown: Sequence[Shown], why: str) -> Way | LeftOut:
        return Way(tuple(shown), ()) if self.guesses else LeftOut(question, why)

    async def _first(self, question: Question, wanted: Callable[[Passage], bool]) -> Shown:
        """The question as a query: easy to learn, and it finds as much as RAG."""
        (hits,) = await self._asked([asked(question)])
        return Shown(asked(question), None, _target(hits, wanted), tuple(hits))

    async def _further(self, question: Question, missing: Sequence[Passage], shown: Sequence[Shown]) -> Shown | None:
        """A search by the title of a missing passage, where that was read of; else by any name that was read."""
        seen, tried = _passages(shown), {each.query.casefold() for each in shown}
        for names in (gold_queries.titles(question, missing, seen), gold_queries.names(question, seen)):
            fresh = [name for name in names if name.casefold() not in tried]
            found = await self._naming(fresh, lambda passage: passage in missing)
            if found is not None:
                return found
        return None

    async def _naming(self, names: Sequence[str], wanted: Callable[[Passage], bool]) -> Shown | None:
        """The first of the names that finds a wanted passage."""
        for name, hits in zip(names, await self._asked(names), strict=True):
            target = _target(hits, wanted)
            if target is not None:
                return Shown(name, base_title(name), target, tuple(hits))
        return None

    async def _asked(self, queries: Sequence[str]) -> list[list[Hit]]:
        assert self.retriever is not None  # noqa: S101  the callers looked
        found = await self.retriever.search(queries, self.k) if queries else []
        for each in found:
            if isinstance(each, SearchUnavailable):
                raise UserError(f"{each}; mend the search engine and start again")
        return [each for each in found if not isinstance(each, SearchUnavailable)]

    def _told(self, question: Question, way: Way, dice: random.Random) -> list[dict[str, str]] | None:
        """What the assistant says and is shown; None where what is quoted would be read as an action."""
        moves = _moves(question, way, dice, quotes=self.quotes)
        texts = [acted(move, self.protocol) for move in moves]
        if any(self.protocol.parse(text) != move.action for text, move in zip(texts, moves, strict=True)):
            return None
        observed = [self.protocol.observe(ToolCall.search(each.query), (each.hits,)) for each in way.shown]
        return self.protocol.to_messages(texts, observed)


def _alone(passage: Passage) -> Shown:
    name = base_title(passage.title)
    return Shown(name, name, passage, (Hit(passage, 0.0),))


def _target(hits: Sequence[Hit], wanted: Callable[[Passage], bool]) -> Passage | None:
    return next((hit.passage for hit in hits if wanted(hit.passage)), None)


def _missing(question: Question, read: Sequence[Passage], shown: Sequence[Shown]) -> list[Passage]:
    """The passages that no search showed; a page's other passage with the answer does for a single one."""
    seen = _passages(shown)
    if len(read) == 1 and any(
        passage.title == read[0].title and cover_em(passage.text, _told_apart(question)) for passage in seen
    ):
        return []
    return [passage for passage in read if passage not in seen]


def _passages(shown: Sequence[Shown]) -> list[Passage]:
    return [hit.passage for each in shown for hit in each.hits]


def _told_apart(question: Question) -> list[str]:
    """The answers that tell a passage which holds one from others: not yes, not no."""
    return [answer for answer in question.golden_answers if normalise(answer) not in EITHER]


def _moves(question: Question, way: Way, dice: random.Random, *, quotes: bool) -> list[Move]:
    """What is thought and done: before each search what is needed, and at the end the answer."""
    shown = way.shown
    moves = [Move(gold_words.first(shown[0].name, dice), ToolCall.search(shown[0].query))]
    for earlier, each in pairwise(shown):
        leading = (each.name or "", question.question)
        quoted = [gold_words.found(earlier.target, leading, dice)] if quotes and earlier.target is not None else []
        moves.append(Move(" ".join([*quoted, gold_words.further(each.name, dice)]), ToolCall.search(each.query)))
    if not way.read:
        return [*moves, Move(gold_words.guess(question.golden_answers[0], dice), Answer(question.golden_answers[0]))]
    holding = [passage for passage in way.read if cover_em(passage.text, question.golden_answers)]
    proof = (holding or way.read)[-1]
    answer = gold_words.as_read(question.golden_answers, [proof.text])
    why = gold_reasons.reason(question, way.read)
    if why is None and quotes:
        why = gold_words.found(proof, (*question.golden_answers, question.question), dice)
    said = gold_words.last(answer, dice)
    moves.append(Move(said if why is None else f"{why} {said}", Answer(answer)))
    return moves
