"""Whether search finds the evidence of a question: the rank of its passages for queries made from the question."""

from collections.abc import Sequence

from sleuth.errors import SearchUnavailable
from sleuth.retrieval.retriever import Retriever
from sleuth.synthesis.candidate import Candidate
from sleuth.synthesis.vocabulary import STOPWORDS, words


def queries_of(candidate: Candidate) -> list[str]:
    """Return the queries: the question, its words without stop words, and for later hops the evidence found before."""
    keywords = " ".join(word for word in words(candidate.question) if word.lower() not in STOPWORDS)
    hops = [f"{keywords} {each.quote}" for each in candidate.evidence[:-1]]
    return [candidate.question, keywords or candidate.question, *hops]


async def evidence_rank(candidate: Candidate, retriever: Retriever, k: int) -> int | SearchUnavailable | None:
    """Return the rank, from 1, at which the last evidence passage is found; None if one is not among `k` hits."""
    outcomes = await retriever.search(queries_of(candidate), k)
    ranks: dict[str, int] = {}
    for outcome in outcomes:
        if isinstance(outcome, SearchUnavailable):
            return outcome
        for rank, hit in enumerate(outcome, start=1):
            ranks[hit.passage.id] = min(rank, ranks.get(hit.passage.id, rank))
    return worst_rank([each.passage.id for each in candidate.evidence], ranks)


def worst_rank(ids: Sequence[str], ranks: dict[str, int]) -> int | None:
    """Return the highest rank of the ids; None if one has no rank."""
    found = [ranks[name] for name in ids if name in ranks]
    return max(found) if len(found) == len(ids) and found else None
