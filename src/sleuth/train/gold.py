"""Demonstrations from gold passages: a question's supporting passages are searched for one by one, and it is answered.

Questions without them are searched for themselves, and kept where a hit holds an answer.
"""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

from sleuth.agent import prompts
from sleuth.agent.protocol import Protocol
from sleuth.errors import SearchUnavailable, UserError
from sleuth.records import Answer, Hit, Passage, Question, Search
from sleuth.retrieval.base import Retriever
from sleuth.reward.answers import cover_em, normalise
from sleuth.train import gold_words
from sleuth.train.demonstrations import Move, acted

AT_ONCE = 256  # questions whose searches go to the index together
LOOKED_AT = 3  # hits at least among which a good query finds its passage
EITHER = frozenset({"yes", "no"})
OWNED = re.compile(r"['’]s\b")
ASIDE = re.compile(r"\s*\([^()]*\)\s*$")  # what tells titles apart: Winner (band)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A question of which no demonstration is made, and why."""

    question: Question
    why: str


@dataclass(frozen=True, slots=True)
class Shown:
    """A search with what it shows; `target` is the passage it was made for, `placed` where no query found that."""

    query: str
    title: str | None
    target: Passage
    hits: tuple[Hit, ...]
    placed: bool = False


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A question's searches, and the row of its trace file."""

    question: Question
    searches: tuple[Shown, ...]
    row: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Way:
    """The searches of a question, and the passages that matter in the order in which they are read."""

    shown: tuple[Shown, ...]
    read: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class Gold:
    """Writes demonstrations: `find` gives a passage by its id, `retriever` is searched where there is one.

    With `quotes` a thought repeats the sentence that it goes by.
    """

    find: Callable[[str], Passage | None]
    retriever: Retriever | None
    protocol: Protocol
    prompt: str
    distractors: int
    searches: int
    seed: int
    quotes: bool = False

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
        way = await (self._hops(question, dice) if question.supporting_ids else self._luck(question))
        if isinstance(way, LeftOut):
            return way
        told = self._told(question, way, dice)
        if told is None:
            return LeftOut(question, "with passages that speak the grammar")
        row = {
            "messages": [*prompts.messages(question, self.prompt, self.protocol), *told],
            "question_id": question.id,
            "data_source": question.data_source,
            "golden_answers": list(question.golden_answers),
            "searches": len(way.shown),
        }
        return Demonstration(question, way.shown, row)

    async def _hops(self, question: Question, dice: random.Random) -> Way | LeftOut:
        """A search for the question, where that finds some of the passages, and one for each that is not shown yet."""
        passages = [self.find(name) for name in question.supporting_ids]
        wanted = [passage for passage in passages if passage is not None]
        if len(wanted) < len(passages):
            return LeftOut(question, "whose passages are not in the corpus")
        read = ordered(question, wanted)
        shown = await self._first(question, read)
        for passage in read:
            if not any(passage.id == hit.passage.id for each in shown for hit in each.hits):
                shown.append(await self._search(question, passage, shown, dice))
        if len(shown) > self.searches:
            return LeftOut(question, f"that take more than {self.searches} searches")
        return Way(tuple(shown), tuple(read))

    async def _first(self, question: Question, wanted: Sequence[Passage]) -> list[Shown]:
        """The question as a query, where that finds one of the passages: easy to learn, and finds as much as RAG."""
        if self.retriever is None:
            return []
        (hits,) = await self._asked([_asked(question)], self.distractors + 1)
        ids = {hit.passage.id for hit in hits}
        target = next((passage for passage in wanted if passage.id in ids), None)
        return [] if target is None else [Shown(_asked(question), None, target, tuple(hits))]

    async def _search(
        self, question: Question, passage: Passage, before: Sequence[Shown], dice: random.Random
    ) -> Shown:
        """The first of the queries that finds the passage; where none does, it is put among the hits of the first."""
        seen = [hit.passage for each in before for hit in each.hits]
        tried = {each.query for each in before}
        queries = [each for each in _queries(question, passage, _read(question, seen)) if each[0] not in tried]
        if self.retriever is None:
            query, title = queries[0]
            return Shown(query, title, passage, (Hit(passage, 0.0),))
        answers = await self._asked([query for query, _ in queries], max(LOOKED_AT, self.distractors + 1))
        for (query, title), hits in zip(queries, answers, strict=True):
            if any(hit.passage.id == passage.id for hit in hits):
                return Shown(query, title, passage, self._chosen(hits, passage, dice))
        (query, title), hits = queries[0], answers[0]
        return Shown(query, title, passage, self._chosen(hits, passage, dice), placed=True)

    def _chosen(self, hits: Sequence[Hit], passage: Passage, dice: random.Random) -> tuple[Hit, ...]:
        """The best hits with the passage among them: at its own rank, or at any where it was not found so far up."""
        best = list(hits[: self.distractors + 1])
        if not any(hit.passage.id == passage.id for hit in best):
            kept = best[: self.distractors]
            kept.insert(dice.randint(0, len(kept)), Hit(passage, 0.0))
            return tuple(kept)
        return tuple(best)

    async def _luck(self, question: Question) -> Way | LeftOut:
        """The question itself as a query; a hit that holds an answer makes it a demonstration."""
        golds = [answer for answer in question.golden_answers if normalise(answer) not in EITHER]
        if self.retriever is None:
            return LeftOut(question, "without supporting passages, which takes an index")
        if not golds:
            return LeftOut(question, "of yes or no without supporting passages")
        query = _asked(question)
        (hits,) = await self._asked([query], self.distractors + 1)
        target = next((hit.passage for hit in hits if cover_em(hit.passage.contents, golds)), None)
        if target is None:
            return LeftOut(question, "where no hit holds an answer")
        return Way((Shown(query, None, target, tuple(hits)),), (target,))

    async def _asked(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        assert self.retriever is not None  # noqa: S101  the callers looked
        found = await self.retriever.search(queries, k)
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
        return self.protocol.told(texts, [self.protocol.observe(Search(each.query), [each.hits]) for each in way.shown])


def ordered(question: Question, passages: Sequence[Passage]) -> list[Passage]:
    """The passages as one would come upon them: what the question names first, then what those lead to."""
    left, taken = list(passages), list[Passage]()
    asked = set(normalise(question.question).split())

    def place(passage: Passage) -> tuple[bool, bool, int]:
        likeness = len(asked & set(normalise(passage.contents).split()))
        return (
            not _named(passage, _read(question, taken)),
            bool(cover_em(passage.text, question.golden_answers)),
            -likeness,
        )

    while left:
        nearest = min(left, key=place)
        left.remove(nearest)
        taken.append(nearest)
    return taken


def _moves(question: Question, way: Way, dice: random.Random, *, quotes: bool) -> list[Move]:
    """What is thought and done: before each search what is needed, and at the end the answer."""
    asked, shown = question.question, way.shown
    moves = [Move(gold_words.first(shown[0].title, dice), Search(shown[0].query))]
    for earlier, each in pairwise(shown):
        leading = (_plain(each.target.title), asked)
        quoted = [gold_words.found(earlier.target, leading, dice)] if quotes else []
        moves.append(Move(" ".join([*quoted, gold_words.further(each.title, dice)]), Search(each.query)))
    holding = [passage for passage in way.read if cover_em(passage.text, question.golden_answers)]
    proof = (holding or way.read)[-1]
    answer = gold_words.as_read(question.golden_answers, [proof.text])
    quoted = [gold_words.found(proof, (*question.golden_answers, asked), dice)] if quotes else []
    moves.append(Move(" ".join([*quoted, gold_words.last(answer, dice)]), Answer(answer)))
    return moves


def _queries(question: Question, passage: Passage, read: str) -> list[tuple[str, str | None]]:
    """Queries to try, with the title where it is what is searched for: one that was read of, or else the question."""
    title, asked = _plain(passage.title), _asked(question)
    named = [(title, title), (passage.title, title)]
    others: list[tuple[str, str | None]] = [(asked, None), (f"{title} {asked}", title)]
    tried = [*named, *others] if _named(passage, read) else [*others, *named]
    return [(query, about) for query, about in tried if query.strip()]


def _read(question: Question, passages: Sequence[Passage]) -> str:
    """All that one has read before a search."""
    return " ".join([question.question, *(passage.contents for passage in passages)])


def _named(passage: Passage, text: str) -> bool:
    return bool(cover_em(OWNED.sub("", text), (_plain(passage.title),)))


def _plain(title: str) -> str:
    return ASIDE.sub("", title) or title


def _asked(question: Question) -> str:
    return question.question.strip().rstrip("?").strip()
