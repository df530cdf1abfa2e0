"""Gold demonstrations: traces written from questions with gold passages or answers.

A demonstration searches for the question, then for names it has read, and answers; a model can learn to do the
same. A gold answer is the prompt of a single-turn method, with the retrieved documents, and the gold answer.

Some answerable questions can be written twice: once with their evidence, and once as if their documents were not in the
index, which ends in "I don't know". The pair teaches a model to decide by what it reads: the few unanswerable questions
of a training set can be learned by heart.
"""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from sleuth.agent import prompts
from sleuth.agent.methods import describe, write_answer
from sleuth.agent.protocol import Protocol
from sleuth.config.retrieval import RetrievalConfig
from sleuth.corpus import passages
from sleuth.errors import ConfigError, SearchUnavailable, UserError
from sleuth.records import THINK_OPEN, Answer, Hit, Passage, Question, ToolCall
from sleuth.retrieval.index import open_passages
from sleuth.retrieval.retriever import Retriever
from sleuth.reward.answers import ABSTENTION, cover_em, normalise
from sleuth.sft import gold_thoughts as thoughts
from sleuth.sft.demonstrations import Move, render_move
from sleuth.synthesis.cloze.lexicon import base_title
from sleuth.synthesis.cloze.spans import NAME, NOT_NAMES, QUOTED
from sleuth.synthesis.documents import document_of

BATCH = 256  # questions whose searches are batched
MAX_QUERY_WORDS = 8
MAX_VAIN_SEARCHES = 3  # searches before a demonstration abstains, drawn from 1 to this
WITHHELD_MARGIN = 50  # more hits to ask for if some will be withheld
POSSESSIVE = re.compile(r"['’]s\b")
TRAILING_POSSESSIVE = re.compile(r"['’]s$")
# Words that are capitalised at the start of a question or sentence but are not names.
NOT_LEADING = frozenset(
    """
    who whom whose what which when where why how is are was were do does did has have had can could in on at of from for
    to by with the a an and or but if as it its he his she her they their this that these those both during after before
    since while although however also name there
    """.split()  # noqa: SIM905 - read as lines
)
Find = Callable[[str], Passage | None]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A question for which no demonstration was written, and the reason."""

    question: Question
    reason: str


@dataclass(frozen=True, slots=True)
class GoldSearch:
    """A search and its hits; `name` is the topic searched for, `target` the relevant passage found."""

    query: str
    name: str | None
    target: Passage | None
    hits: tuple[Hit, ...]


@dataclass(frozen=True, slots=True)
class Demonstration:
    """The searches of a demonstration, and its row in the trace file."""

    question: Question
    searches: tuple[GoldSearch, ...]
    row: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SearchPath:
    """The searches for a question, and the relevant passages in reading order; none if the answer is a guess."""

    searches: tuple[GoldSearch, ...]
    evidence: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class GoldDemonstrator:
    """Writes demonstrations from gold passages; without a retriever, each search returns only the gold passage.

    With `quotes`, thoughts quote the relevant sentence. With `guesses`, questions are answered even if no search finds
    the answer. With `abstain`, the prompt allows "I don't know", which is the answer to unanswerable questions. With
    `withhold`, this fraction of the answerable questions is demonstrated again without their evidence.
    """

    find: Find
    retriever: Retriever | None
    protocol: Protocol
    prompt: str
    k: int
    searches: int
    seed: int
    quotes: bool = False
    guesses: bool = False
    abstain: bool = False
    withhold: float = 0.0

    async def demonstrate(self, questions: Sequence[Question]) -> AsyncIterator[Demonstration | Skipped]:
        """Yield one result per question, in order, and those without evidence after each batch."""
        for start in range(0, len(questions), BATCH):
            batch = questions[start : start + BATCH]
            again = choose_withheld(batch, self.withhold, self.seed)
            for result in await asyncio.gather(*map(self._demonstrate, [*batch, *again])):
                yield result

    async def _demonstrate(self, question: Question) -> Demonstration | Skipped:
        if question.answerable is False:
            path = await self._search_in_vain(question)
        else:
            path = await (self._follow_gold if question.supporting_ids else self._search_for_answer)(question)
        if isinstance(path, Skipped):
            return path
        if len(path.searches) > self.searches:
            return Skipped(question, f"need more than {self.searches} searches")
        moves = self._moves(question, path, random.Random(f"{self.seed}/{question.id}"))
        texts = [render_move(move, self.protocol.write) for move in moves]
        if any(self.protocol.parse(text) != move.action for text, move in zip(texts, moves, strict=True)):
            return Skipped(question, "quote text that parses as an action")
        observations = [self.protocol.observe(ToolCall.search(each.query), (each.hits,)) for each in path.searches]
        turns = self.protocol.to_messages(texts, observations)
        row = {
            **_row(question, [*prompts.messages(question, self.prompt, self.protocol, abstain=self.abstain), *turns]),
            "searches": len(path.searches),
            "found": bool(path.evidence),
        }
        return Demonstration(question, path.searches, row)

    async def _search_in_vain(self, question: Question) -> SearchPath | Skipped:
        """Search for an unanswerable question, and in most cases for names in it or read so far as well.

        A model that searches a second time must also have seen that this may find nothing.
        """
        if not self.abstain:
            return Skipped(question, "not answerable")
        if self.retriever is None:
            return Skipped(question, "not answerable, which only an index can show")
        query, name, hidden = _as_query(question), None, set[str]()
        limit = random.Random(f"{self.seed}/{question.id}/searches").randint(1, min(MAX_VAIN_SEARCHES, self.searches))
        searches: list[GoldSearch] = []
        while True:
            (found,) = await _search(self.retriever, [query], self.k + WITHHELD_MARGIN)
            hits = withhold_evidence(question, found, hidden)[: self.k]
            searches.append(GoldSearch(query, name, None, tuple(hits)))
            tried = {each.query.casefold() for each in searches}
            names = [each for each in candidate_names(question, _passages(searches)) if each.casefold() not in tried]
            if len(searches) == limit or not names:
                return SearchPath(tuple(searches), ())
            query, name = names[0], base_title(names[0])

    async def _follow_gold(self, question: Question) -> SearchPath | Skipped:
        """Search for the question, then for names read so far until all gold passages are found."""
        found = [self.find(passage_id) for passage_id in question.supporting_ids]
        gold = reading_order(question, [passage for passage in found if passage is not None])
        if len(gold) < len(found):
            return Skipped(question, "have passages that are not in the corpus")
        if self.retriever is None:
            named = [(base_title(passage.title), passage) for passage in gold]
            shown = tuple(GoldSearch(name, name, passage, (Hit(passage, 0.0),)) for name, passage in named)
            return SearchPath(shown, tuple(gold))
        searches = [await self._search_question(self.retriever, question, lambda passage: passage in gold)]
        while missing := _missing(question, gold, searches):
            further = await self._search_missing(self.retriever, question, missing, searches)
            if further is None:
                break
            searches.append(further)
        seen, golds = _passages(searches), _distinctive_answers(question)
        evidence = [passage for passage in gold if passage in seen]
        if not evidence and len(gold) == 1:  # other passages may state the same fact
            evidence = [passage for passage in seen if cover_em(passage.text, golds)]
        if not evidence or (missing and not any(cover_em(passage.text, golds) for passage in evidence)):
            return self._not_found(question, searches, "have passages that no search by a name read so far finds")
        return SearchPath(tuple(searches), tuple(evidence))

    async def _search_for_answer(self, question: Question) -> SearchPath | Skipped:
        """Search for the question, then for a name in it, until a hit contains the answer."""
        golds = _distinctive_answers(question)
        if self.retriever is None:
            return Skipped(question, "have no supporting passages, which needs an index")
        if not golds:
            return Skipped(question, "are yes/no questions without supporting passages")

        def has_answer(passage: Passage) -> bool:
            return bool(cover_em(passage.contents, golds))

        searches = [await self._search_question(self.retriever, question, has_answer)]
        if searches[0].target is None:
            further = await self._search_names(self.retriever, candidate_names(question, []), has_answer)
            if further is None:
                return self._not_found(question, searches, "have no hit with the answer")
            searches.append(further)
        return SearchPath(tuple(searches), tuple(each.target for each in searches if each.target is not None))

    def _not_found(self, question: Question, searches: Sequence[GoldSearch], reason: str) -> SearchPath | Skipped:
        return SearchPath(tuple(searches), ()) if self.guesses else Skipped(question, reason)

    async def _search_question(
        self, retriever: Retriever, question: Question, is_target: Callable[[Passage], bool]
    ) -> GoldSearch:
        query = _as_query(question)
        (hits,) = await _search(retriever, [query], self.k)
        target = next((hit.passage for hit in hits if is_target(hit.passage)), None)
        return GoldSearch(query, None, target, tuple(hits))

    async def _search_missing(
        self, retriever: Retriever, question: Question, missing: Sequence[Passage], searches: Sequence[GoldSearch]
    ) -> GoldSearch | None:
        """Search for a missing passage by its title if the title was read, otherwise by any name that was read."""
        seen, tried = _passages(searches), {each.query.casefold() for each in searches}
        for names in (mentioned_titles(question, missing, seen), candidate_names(question, seen)):
            untried = [name for name in names if name.casefold() not in tried]
            found = await self._search_names(retriever, untried, lambda passage: passage in missing)
            if found is not None:
                return found
        return None

    async def _search_names(
        self, retriever: Retriever, names: Sequence[str], is_target: Callable[[Passage], bool]
    ) -> GoldSearch | None:
        """Search for each name in turn; return the first search that finds a target."""
        for name, hits in zip(names, await _search(retriever, names, self.k), strict=True):
            if target := next((hit.passage for hit in hits if is_target(hit.passage)), None):
                return GoldSearch(name, base_title(name), target, tuple(hits))
        return None

    def _moves(self, question: Question, path: SearchPath, rng: random.Random) -> list[Move]:
        """Return the moves: each search with a thought before it, then the answer with a conclusion."""
        first, golds = path.searches[0], question.golden_answers
        moves = [Move(thoughts.first_search(first.name, rng), ToolCall.search(first.query))]
        for earlier, search in pairwise(path.searches):
            texts = []
            if self.quotes and earlier.target is not None:
                texts.append(thoughts.quote(earlier.target, (search.name or "", question.question), rng))
            texts.append(thoughts.next_search(search.name, rng))
            moves.append(Move(" ".join(texts), ToolCall.search(search.query)))
        if question.answerable is False:
            return [*moves, Move(rng.choice(thoughts.ABSTAIN), Answer(ABSTENTION))]
        if not path.evidence:
            return [*moves, Move(thoughts.conclude(golds[0], rng, thoughts.GUESS), Answer(golds[0]))]
        with_answer = [passage for passage in path.evidence if cover_em(passage.text, golds)]
        proof = (with_answer or path.evidence)[-1]
        answer = thoughts.answer_as_written(golds, [proof.text])
        reason = thoughts.explain_comparison(question, path.evidence)
        if reason is None and self.quotes:
            reason = thoughts.quote(proof, (*golds, question.question), rng)
        conclusion = thoughts.conclude(answer, rng)
        return [*moves, Move(conclusion if reason is None else f"{reason} {conclusion}", Answer(answer))]


@dataclass(frozen=True, slots=True)
class GoldAnswerWriter:
    """Writes traces for single-turn methods; without a retriever, the prompt has no documents.

    With `abstain`, the prompt allows "I don't know", which is the answer to unanswerable questions. With `withhold`,
    this fraction of the answerable questions is written again without their evidence.
    """

    retriever: Retriever | None
    k: int
    protocol: Protocol
    template: str
    seed: int = 0
    abstain: bool = False
    withhold: float = 0.0

    async def rows(self, questions: Sequence[Question]) -> AsyncIterator[dict[str, Any]]:
        """Yield one trace row per question, in order, and those without evidence after each batch."""
        for start in range(0, len(questions), BATCH):
            asked = questions[start : start + BATCH]
            batch = [*asked, *choose_withheld(asked, self.withhold, self.seed)]
            hits: Sequence[Sequence[Hit]] = [()] * len(batch)
            if self.retriever is not None:
                wide = self.k + WITHHELD_MARGIN if self.abstain else self.k
                hits = await _search(self.retriever, [question.question for question in batch], wide)
            for question, every in zip(batch, hits, strict=True):
                found = (withhold_evidence(question, every) if question.answerable is False else every)[: self.k]
                documents = describe(found, self.protocol) if self.retriever is not None else ""
                prompt = prompts.fill(question, self.template, self.protocol, documents, abstain=self.abstain)
                yield {
                    **_row(question, [*prompt, {"role": "assistant", "content": self._answer(question, found)}]),
                    "found": any(cover_em(hit.passage.contents, question.golden_answers) for hit in found),
                }

    def _answer(self, question: Question, hits: Sequence[Hit]) -> str:
        """Return the gold answer, preceded by a thought if the prompt requires one."""
        found = [hit.passage for hit in hits]
        if question.answerable is False:
            return write_answer(ABSTENTION, self.template, self.protocol, thoughts.ABSTAIN[0])
        answer = thoughts.answer_as_written(question.golden_answers, (passage.text for passage in found))
        if THINK_OPEN not in prompts.load_template(self.template):
            return write_answer(answer, self.template, self.protocol)
        reason = thoughts.explain_comparison(question, found)
        conclusion = thoughts.conclude(answer, random.Random(f"{self.seed}/{question.id}"))
        thought = conclusion if reason is None else f"{reason} {conclusion}"
        return write_answer(answer, self.template, self.protocol, thought)


def choose_withheld(questions: Sequence[Question], share: float, seed: int) -> list[Question]:
    """Return a fraction of the questions with known evidence, drawn by seed, as unanswerable ones."""
    return [
        replace(question, answerable=False)
        for question in questions
        if question.answerable is not False
        and question.supporting_ids
        and random.Random(f"{seed}/{question.id}/withhold").random() < share
    ]


def withhold_evidence(question: Question, hits: Sequence[Hit], hidden: set[str] | None = None) -> list[Hit]:
    """Return the hits an index without the question's documents would give; `hidden` collects these documents.

    Passages of other documents that contain the answer are left out as well.
    """
    documents = set[str]() if hidden is None else hidden
    documents |= {document_of(hit.passage) for hit in hits if hit.passage.id in question.supporting_ids}
    golds = _distinctive_answers(question)
    return [
        hit
        for hit in hits
        if document_of(hit.passage) not in documents and not (golds and cover_em(hit.passage.contents, golds))
    ]


def passage_finder(corpus: Path | None, index: str | None, wanted: set[str]) -> Find:
    """Return a function that looks up passages by id in an index folder or a corpus file."""
    if corpus is not None:
        found = {passage.id: passage for passage in passages.stream(corpus) if passage.id in wanted}
        return found.get
    if index is not None and RetrievalConfig(index=index).local:
        return open_passages(Path(index)).find
    if wanted:
        raise ConfigError(f"the questions have supporting passages, which {index} cannot look up by id; give --corpus")
    return lambda _: None


def reading_order(question: Question, gold: Sequence[Passage]) -> list[Passage]:
    """Order passages as a reader would find them: those named in the question, then those that earlier ones mention."""
    left, ordered = list(gold), list[Passage]()
    words = set(normalise(question.question).split())

    def rank(passage: Passage) -> tuple[bool, bool, int]:
        overlap = len(words & set(normalise(passage.contents).split()))
        is_named = cover_em(_readable_text(question, ordered), (base_title(passage.title),))
        return not is_named, bool(cover_em(passage.text, question.golden_answers)), -overlap

    while left:
        nearest = min(left, key=rank)
        left.remove(nearest)
        ordered.append(nearest)
    return ordered


def mentioned_titles(question: Question, missing: Sequence[Passage], read: Sequence[Passage]) -> list[str]:
    """Return the full or shortened titles of missing passages that the question or passages read so far mention."""
    text = _readable_text(question, read)
    bases = [(base_title(passage.title), passage.title) for passage in missing]
    names = (name for base, full in bases for name in (base, full, base.partition(",")[0]))
    return _distinct_queries(name for name in names if cover_em(text, (name,)))


def candidate_names(question: Question, read: Sequence[Passage]) -> list[str]:
    """Return the names in the question, then the titles and names of the passages read so far."""
    lines = [line for passage in read for line in passage.text.splitlines()]
    titles = (base_title(passage.title) for passage in read)
    return _distinct_queries([*_names([question.question]), *titles, *_names(lines)])


def _names(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from (found[1] for found in QUOTED.finditer(text))
        for found in NAME.finditer(text):
            words = TRAILING_POSSESSIVE.sub("", found[0]).split()
            while words and words[0].lower() in NOT_LEADING:
                words = words[1:]
            if words and not all(word in NOT_NAMES for word in words):
                yield " ".join(words)


def _readable_text(question: Question, read: Sequence[Passage]) -> str:
    return POSSESSIVE.sub("", " ".join([question.question, *(passage.contents for passage in read)]))


def _distinct_queries(queries: Iterable[str]) -> list[str]:
    kept: dict[str, str] = {}
    for query in queries:
        if query.strip() and len(query.split()) <= MAX_QUERY_WORDS:
            kept.setdefault(query.casefold(), query)
    return list(kept.values())


def _as_query(question: Question) -> str:
    return question.question.strip().rstrip("?").strip()


async def _search(retriever: Retriever, queries: Sequence[str], k: int) -> list[list[Hit]]:
    found = await retriever.search(queries, k) if queries else []
    results = [each for each in found if not isinstance(each, SearchUnavailable)]
    if failure := next((each for each in found if isinstance(each, SearchUnavailable)), None):
        raise UserError(f"{failure}; fix the search engine and run the command again")
    return results


def _row(question: Question, messages: list[dict[str, str]]) -> dict[str, Any]:
    return {
        "messages": messages,
        "question_id": question.id,
        "data_source": question.data_source,
        "golden_answers": list(question.golden_answers),
    }


def _missing(question: Question, gold: Sequence[Passage], searches: Sequence[GoldSearch]) -> list[Passage]:
    """Gold passages that no search found; if there is only one, a passage of its page with the answer also counts."""
    seen, golds = _passages(searches), _distinctive_answers(question)
    if len(gold) == 1 and any(each.title == gold[0].title and cover_em(each.text, golds) for each in seen):
        return []
    return [passage for passage in gold if passage not in seen]


def _passages(searches: Sequence[GoldSearch]) -> list[Passage]:
    return [hit.passage for search in searches for hit in search.hits]


def _distinctive_answers(question: Question) -> list[str]:
    """Return the gold answers other than yes and no, which prove nothing if they occur in a passage."""
    return [answer for answer in question.golden_answers if normalise(answer) not in ("yes", "no")]
