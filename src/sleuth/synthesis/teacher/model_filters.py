"""Filters that ask the teacher: closed book, several readings of the evidence, and whether both passages are needed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sleuth.engines.base import Sampling
from sleuth.records import THINK_CLOSE, Passage
from sleuth.reward.answers import comparable, cover_em, exact_match, f1
from sleuth.synthesis.candidate import Candidate
from sleuth.synthesis.filters import UNKNOWN
from sleuth.synthesis.teacher.calls import CallFailed, TeacherCalls
from sleuth.synthesis.teacher.prompts import Prompt

SHORT_ANSWER = Sampling(max_tokens=48, temperature=0.0, stops=("\n",))
# Sampled readings that must agree with the greedy one: an ambiguous question gets different answers.
READINGS = tuple(Sampling(max_tokens=48, temperature=1.0, stops=("\n",), seed=seed) for seed in (1, 2))
SAME_F1 = 0.6  # word F1 from which two answers are the same
LONGER = 8  # words that an answer which contains the gold answer may have besides

Verdict = bool | CallFailed  # True: the candidate passes


def same_answer(reply: str, answers: Sequence[str]) -> bool:
    """Whether a reply gives one of the answers: equal, mostly the same words, or a short text that contains it."""
    if exact_match(reply, answers) or f1(reply, answers) >= SAME_F1:
        return True
    extra = len(comparable(reply).split()) - min(len(comparable(answer).split()) for answer in answers)
    return extra <= LONGER and bool(cover_em(reply, answers))


@dataclass(frozen=True, slots=True)
class ModelFilters:
    """Asks the teacher about candidates; a failed call is returned as the verdict."""

    calls: TeacherCalls
    prompts: Mapping[str, Prompt]

    async def not_known(self, candidate: Candidate) -> Verdict:
        """Passes if the teacher does not know the answer without documents."""
        messages = self.prompts["closed_book"].messages(question=candidate.question)
        reply = await self.calls.ask("closed book", messages, SHORT_ANSWER)
        return reply if isinstance(reply, CallFailed) else not same_answer(first_line(reply), candidate.answers)

    async def round_trip(self, candidate: Candidate) -> Verdict:
        """Passes if the teacher gives the same answer from the evidence passages alone."""
        return await self._reads(candidate, _passages(candidate), "round trip")

    async def is_stable(self, candidate: Candidate) -> Verdict:
        """Passes if sampled readings of the evidence passages give the same answer too."""
        passages = _passages(candidate)
        for sampling in READINGS:
            verdict = await self._reads(candidate, passages, "stability", sampling)
            if verdict is not True:
                return verdict
        return True

    async def quote_suffices(self, candidate: Candidate) -> Verdict:
        """Passes if the teacher gives the same answer from the titles and the quotes alone."""
        quotes = [
            replace(each.passage, contents=f'"{each.passage.title}"\n{each.quote}') for each in candidate.evidence
        ]
        return await self._reads(candidate, quotes, "quote alone")

    async def needs_each(self, candidate: Candidate) -> Verdict:
        """Passes if no single evidence passage suffices for the answer; trivially so if there is only one."""
        passages = _passages(candidate)
        if len(passages) < 2:
            return True
        for passage in passages:
            verdict = await self._reads(candidate, [passage], "needs both")
            if isinstance(verdict, CallFailed) or verdict:
                return verdict if isinstance(verdict, CallFailed) else False
        return True

    async def _reads(
        self, candidate: Candidate, passages: Sequence[Passage], stage: str, sampling: Sampling = SHORT_ANSWER
    ) -> Verdict:
        text = "\n\n".join(passage.contents for passage in passages)
        messages = self.prompts["reader"].messages(passage=text, question=candidate.question)
        reply = await self.calls.ask(stage, messages, sampling)
        if isinstance(reply, CallFailed):
            return reply
        answer = first_line(reply)
        return not UNKNOWN.fullmatch(answer.strip(" .").lower()) and same_answer(answer, candidate.answers)


def _passages(candidate: Candidate) -> list[Passage]:
    """Return the passages of the evidence, each once."""
    return list({each.passage.id: each.passage for each in candidate.evidence}.values())


def first_line(reply: str) -> str:
    """Return the first line of a reply with text, without reasoning and a label such as "Answer:"."""
    lines = (line.strip() for line in reply.rpartition(THINK_CLOSE)[2].splitlines())
    line = next(filter(None, lines), "")
    return line.removeprefix("Answer:").strip(" \"'`")
