"""No search engine, for methods that search nothing."""

from collections.abc import Sequence

from sleuth.errors import SearchUnavailable
from sleuth.records import Hit


class Absent:
    """See Retriever; whoever asks all the same is told that there is nobody."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit] | SearchUnavailable]:  # noqa: ARG002
        return [SearchUnavailable(query, "the method has no search engine") for query in queries]
