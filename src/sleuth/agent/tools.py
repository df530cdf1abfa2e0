"""The tool the agent has: a search engine."""

from dataclasses import dataclass

from sleuth.errors import SearchUnavailable
from sleuth.records import Hit
from sleuth.retrieval.base import Retriever


@dataclass(frozen=True, slots=True)
class SearchTool:
    """Asks a retriever for the best `k` passages."""

    retriever: Retriever
    k: int

    async def search(self, query: str) -> tuple[Hit, ...] | SearchUnavailable:
        """The hits of one query, or why there are none to be had."""
        (found,) = await self.retriever.search([query], self.k)
        return found if isinstance(found, SearchUnavailable) else tuple(found)
