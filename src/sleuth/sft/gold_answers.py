"""Demonstrations of the methods of one turn: a question, what a search for it found, and its gold answer.

The documents are as retrieved, with the answer among them or not: what a model that is to answer from them will see.
"""

import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sleuth.agent import prompts
from sleuth.agent.one_turn import describe, write_answer
from sleuth.agent.protocol import Protocol
from sleuth.errors import SearchUnavailable, UserError
from sleuth.records import Hit, Question
from sleuth.retrieval.retriever import Retriever
from sleuth.reward.answers import cover_em
from sleuth.sft import gold_reasons, gold_words

AT_ONCE = 256  # questions whose searches go to the index together


@dataclass(frozen=True, slots=True)
class Answers:
    """Writes the rows of a trace file; without a retriever there are no documents."""

    retriever: Retriever | None
    k: int
    protocol: Protocol
    template: str
    seed: int = 0

    async def rows(self, questions: Sequence[Question]) -> AsyncIterator[dict[str, Any]]:
        """One for each question, in their order."""
        waiting = iter(questions)
        while some := list(islice(waiting, AT_ONCE)):
            for question, hits in zip(some, await self._found(some), strict=True):
                yield self._row(question, hits)

    async def _found(self, questions: Sequence[Question]) -> Sequence[Sequence[Hit]]:
        if self.retriever is None:
            return [()] * len(questions)
        found = await self.retriever.search([question.question for question in questions], self.k)
        failed = next((each for each in found if isinstance(each, SearchUnavailable)), None)
        if failed is not None:
            raise UserError(f"{failed}; mend the search engine and start again")
        return [each for each in found if not isinstance(each, SearchUnavailable)]

    def _row(self, question: Question, hits: Sequence[Hit]) -> dict[str, Any]:
        documents = describe(hits, self.protocol) if self.retriever is not None else ""
        return {
            "messages": [
                *prompts.fill(question, self.template, self.protocol, documents),
                {"role": "assistant", "content": self._said(question, hits)},
            ],
            "question_id": question.id,
            "data_source": question.data_source,
            "golden_answers": list(question.golden_answers),
            "found": any(cover_em(hit.passage.contents, question.golden_answers) for hit in hits),
        }

    def _said(self, question: Question, hits: Sequence[Hit]) -> str:
        """The answer, behind the reason of a comparison where the prompt asks for a thought."""
        dice, passages = random.Random(f"{self.seed}/{question.id}"), [hit.passage for hit in hits]
        answer = gold_words.as_read(question.golden_answers, (passage.text for passage in passages))
        if prompts.THOUGHT not in prompts.load_template(self.template):
            return write_answer(answer, self.template, self.protocol)
        why, said = gold_reasons.reason(question, passages), gold_words.last(answer, dice)
        return write_answer(answer, self.template, self.protocol, said if why is None else f"{why} {said}")
