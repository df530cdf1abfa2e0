"""Pages that an agent opens by their url: of a file here, or of a retrieval server."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from sleuth.config.retrieval import RetrievalConfig
from sleuth.corpus.pages import PageStore
from sleuth.errors import ConfigError, SearchUnavailable
from sleuth.records import Passage
from sleuth.retrieval.base import Pages


class Stored:
    """The pages of a JSONL file."""

    def __init__(self, path: Path) -> None:
        self._store = PageStore(path)

    async def access(self, urls: Sequence[str]) -> list[Passage | SearchUnavailable | None]:
        """See Pages."""
        return await asyncio.to_thread(lambda: [self._page(url) for url in urls])

    def _page(self, url: str) -> Passage | None:
        page = self._store.get(url)
        return None if page is None else Passage(url, page["contents"])


def opened_pages(config: RetrievalConfig) -> Pages:
    """The pages of a run: those of its file, or of the server that it searches."""
    if config.pages is not None:
        return Stored(Path(config.pages))
    if config.index is None or not config.index.startswith(("http://", "https://")):
        raise ConfigError(
            "agent.protocol = tools-access opens pages, and there are none; name a file of them with retrieval.pages, "
            "or search a server that has some"
        )
    from sleuth.retrieval.opened import server_token
    from sleuth.retrieval.service.page_client import PageClient

    service = config.service
    return PageClient(
        config.index,
        concurrency=service.concurrency,
        rate=service.rate,
        deadline=service.deadline,
        token=server_token(service),
        proxy=service.proxy,
    )
