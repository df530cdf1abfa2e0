"""The page pool: finds pages by content (prefix caching), and evicts unused pages in LRU order."""

import itertools
from array import array
from collections import OrderedDict
from collections.abc import Sequence

from sleuth.errors import EngineFailure

PAGE_SIZE = 16  # tokens

# A page's content is all tokens up to its end. Content ids are never reused, so a lookup never
# continues from a new page to the successors of the page that it replaced.
Key = tuple[int, bytes]  # content id of the preceding page, and the page's own tokens
ID_BYTES = array("i").itemsize
BYTES = PAGE_SIZE * ID_BYTES
EMPTY = 0
UNKNOWN = -1


class PagePool:
    """Contents, reference counts and free list of the pages.

    A full page may have many readers; a partly filled page has a single reader, which also writes to it. A page without
    readers is either blank, or cached and found by its key until it is evicted.
    """

    def __init__(self, count: int) -> None:
        self._readers = [0] * count
        self._contents = [UNKNOWN] * count
        self._keys: list[Key | None] = [None] * count
        self._by_key: dict[Key, int] = {}
        self._is_owner = [False] * count  # whether `_by_key` maps the key of a page to this page
        self._blank = list(range(count))[::-1]
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._stale: set[int] = set()
        self._content_ids = itertools.count(EMPTY + 1)

    @property
    def free(self) -> int:
        """Pages without readers: blank or evictable."""
        return len(self._blank) + len(self._cached)

    @property
    def in_use(self) -> int:
        return len(self._readers) - self.free

    def match_prefix(self, ids: Sequence[int]) -> tuple[list[int], int]:
        """Claim pages that hold a prefix of `ids`; return the pages and the prefix length, at most `len(ids) - 1`.

        Full pages are shared; a partly filled page after them is claimed exclusively.
        """
        held: list[int] = []
        content, packed = EMPTY, _pack(ids)
        for end in range(BYTES, len(packed), BYTES):
            page = self._by_key.get((content, packed[end - BYTES : end]))
            if page is None:
                break
            held.append(page)
            content = self._contents[page]
        for page in held:
            self._claim(page)
        start = len(held) * PAGE_SIZE
        rest, most = packed[start * ID_BYTES :], len(ids) - 1 - start
        for size in range(min(len(ids) - start, PAGE_SIZE - 1), 0, -1):
            page = self._by_key.get((content, rest[: size * ID_BYTES]))
            if page is not None and most:
                self._forget(page)
                self._claim(page)
                return [*held, page], start + min(size, most)
        return held, start

    def allocate(self, held: list[int], tokens: int) -> bool:
        """Append free pages to `held` to fit `tokens` tokens; return False and change nothing if too few are free."""
        wanted = -(-tokens // PAGE_SIZE) - len(held)
        if wanted <= 0:
            return True
        if wanted > self.free:
            return False
        for _ in range(wanted):
            if self._blank:
                page = self._blank.pop()
            else:
                page, _ = self._cached.popitem(last=False)
                self._forget(page)
            self._readers[page] = 1
            held.append(page)
        return True

    def register(self, held: Sequence[int], ids: Sequence[int], start: int, computed: int) -> None:
        """Make the full pages of tokens `start` to `computed` findable by later requests.

        Steps run in order, so the pages are written before they are read. If another page already has the same content,
        that page stays registered.
        """
        first, last = start // PAGE_SIZE, computed // PAGE_SIZE
        if first == last or held[0] in self._stale:
            return
        while first and self._contents[held[first - 1]] == UNKNOWN:
            first -= 1
        content = self._contents[held[first - 1]] if first else EMPTY
        packed = _pack(ids[first * PAGE_SIZE : last * PAGE_SIZE])
        for place in range(first, last):
            page = held[place]
            key = self._keys[page]
            if key is None or key[0] != content:
                key = (content, packed[(place - first) * BYTES : (place - first + 1) * BYTES])
            elif (owner := self._by_key.get(key)) is not None:
                # Common case: the page is already registered.
                content = self._contents[page] = self._contents[owner]
                continue
            content = self._set_key(page, key)

    def release(self, held: Sequence[int], ids: Sequence[int], computed: int) -> None:
        """Release the pages `held`; pages with the first `computed` tokens of `ids` stay findable until evicted.

        Later pages are evicted before earlier ones. Pages beyond `computed` become blank unless others read them.
        """
        if held and held[0] in self._stale:
            computed = 0
        readers, is_owner = self._readers, self._is_owner
        full, partial = divmod(computed, PAGE_SIZE)
        # Most pages have been found or registered before, and only pages that another one replaces need more.
        found = next((place for place in range(full) if not is_owner[held[place]]), full)
        self.register(held, ids, found * PAGE_SIZE, computed)
        for place in range(len(held) - 1, -1, -1):
            page = held[place]
            if not readers[page]:
                raise EngineFailure(f"page {page} was released twice; expected it to have a reader")
            readers[page] -= 1
            if readers[page]:
                continue
            if place < full and is_owner[page]:
                self._cached[page] = None
                continue
            if place >= full:
                self._forget(page)
            if place == full and partial:
                content = self._contents[held[full - 1]] if full else EMPTY
                self._set_key(page, (content, _pack(ids[full * PAGE_SIZE : computed])))
            self._retire(page)

    def invalidate(self) -> None:
        """Drop all contents after a weight update; pages in use stay claimed but can no longer be matched."""
        pages = range(len(self._readers))
        self._contents = [UNKNOWN] * len(pages)
        self._keys = [None] * len(pages)
        self._by_key.clear()
        self._is_owner = [False] * len(pages)
        self._cached.clear()
        self._blank = [page for page in reversed(pages) if not self._readers[page]]
        # A running request has its first page here, so everything it computes depends on old contents.
        self._stale = {page for page in pages if self._readers[page]}

    def _claim(self, page: int) -> None:
        if not self._readers[page]:
            self._cached.pop(page, None)
        self._readers[page] += 1

    def _set_key(self, page: int, key: Key) -> int:
        """Register a page under its key, unless the key is taken, and return its content id."""
        if self._keys[page] != key:
            self._unregister(page)
            self._keys[page] = key
        owner = self._by_key.setdefault(key, page)
        self._is_owner[page] = owner == page
        if self._contents[owner] == UNKNOWN:
            self._contents[owner] = next(self._content_ids)
        self._contents[page] = self._contents[owner]
        return self._contents[page]

    def _forget(self, page: int) -> None:
        self._unregister(page)
        self._keys[page] = None
        self._contents[page] = UNKNOWN

    def _unregister(self, page: int) -> None:
        key = self._keys[page]
        if key is not None and self._is_owner[page]:
            self._is_owner[page] = False
            del self._by_key[key]

    def _retire(self, page: int) -> None:
        """Cache a page without readers if registered, else blank it; its content becomes the most recently used."""
        key = self._keys[page]
        owner = self._by_key.get(key) if key is not None else None
        if owner == page:
            self._cached[page] = None
            return
        if owner is not None and not self._readers[owner]:
            self._cached.move_to_end(owner)
        self._forget(page)
        self._stale.discard(page)
        self._blank.append(page)


def _pack(ids: Sequence[int]) -> bytes:
    """Token ids as bytes, which are hashed and compared faster than tuples; free for an array."""
    return array("i", ids).tobytes()
