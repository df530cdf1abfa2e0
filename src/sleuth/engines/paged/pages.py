"""Which pages hold what: a beginning seen before is found again, and what nobody reads is overwritten, oldest first."""

import itertools
from collections import OrderedDict
from collections.abc import Sequence

from sleuth.errors import EngineFailure

PAGE = 16

# A page's content is all tokens up to its end. Numbers stand for contents and are never given to another one, so what
# followed an evicted page is not found behind the page that takes its place.
Key = tuple[int, tuple[int, ...]]  # the content before a page, and the page's own tokens
EMPTY = 0
UNKNOWN = -1


class Pages:
    """Which page holds what, who reads it, and which may be taken next.

    A whole page may have many readers; one that is partly filled has one, who writes into it. A page nobody reads is
    blank, or cached: then it is found by its key until it is evicted.
    """

    def __init__(self, count: int) -> None:
        self._readers = [0] * count
        self._contents = [UNKNOWN] * count
        self._keys: list[Key | None] = [None] * count
        self._found: dict[Key, int] = {}
        self._blank = list(range(count))[::-1]
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._stale: set[int] = set()
        self._numbers = itertools.count(EMPTY + 1)

    @property
    def free(self) -> int:
        """Pages nobody reads now: never used, or cached and evictable."""
        return len(self._blank) + len(self._cached)

    @property
    def held(self) -> int:
        """Pages somebody reads now."""
        return len(self._readers) - self.free

    def begin(self, ids: Sequence[int]) -> tuple[list[int], int]:
        """Claims pages that already hold a beginning of `ids`; says how many tokens, at least one less than all.

        Whole pages are shared; a partly filled one that goes on after them is the caller's alone from now on.
        """
        held: list[int] = []
        content = EMPTY
        for end in range(PAGE, len(ids), PAGE):
            page = self._found.get((content, tuple(ids[end - PAGE : end])))
            if page is None:
                break
            held.append(page)
            content = self._contents[page]
        for page in held:
            self._claim(page)
        start = len(held) * PAGE
        page, tokens = self._tail(content, tuple(ids[start : start + PAGE]), len(ids) - 1 - start)
        if page is not None:
            self._drop(page)
            self._claim(page)
            held.append(page)
        return held, start + tokens

    def extend(self, held: list[int], tokens: int) -> bool:
        """Appends free pages until `held` has room for `tokens` tokens; False, with nothing changed, if too few are."""
        wanted = -(-tokens // PAGE) - len(held)
        if wanted <= 0:
            return True
        if wanted > self.free:
            return False
        held.extend(self._take() for _ in range(wanted))
        return True

    def fill(self, held: Sequence[int], ids: Sequence[int], start: int, computed: int) -> None:
        """Tokens `start` to `computed` of `ids` are in `held`, or will be before anybody admitted later reads them.

        Whole pages among them can be found from now on; where the same content is found already, that page stays.
        """
        first, last = start // PAGE, computed // PAGE
        if first == last or held[0] in self._stale:
            return
        while first and self._contents[held[first - 1]] == UNKNOWN:
            first -= 1
        content = self._contents[held[first - 1]] if first else EMPTY
        for place in range(first, last):
            page = held[place]
            key = self._keys[page]
            if key is None or key[0] != content:
                key = (content, tuple(ids[place * PAGE : (place + 1) * PAGE]))
            elif (owner := self._found.get(key)) is not None:
                # Most pages of most rows have their names.
                content = self._contents[page] = self._contents[owner]
                continue
            content = self._name(page, key)

    def release(self, held: Sequence[int], ids: Sequence[int], computed: int) -> None:
        """The caller reads `held` no more; what holds the first `computed` tokens of `ids` is found until evicted.

        Deeper pages are evicted before those they follow. Pages beyond `computed` become blank, unless others read
        them: who gives back what `begin` claimed, unused, passes the number of tokens it told.
        """
        if held and held[0] in self._stale:
            computed = 0
        self.fill(held, ids, 0, computed)
        whole, tail = divmod(computed, PAGE)
        for place in reversed(range(len(held))):
            page = held[place]
            if not self._leave(page):
                continue
            if place >= whole:
                self._drop(page)
            if place == whole and tail:
                content = self._contents[held[whole - 1]] if whole else EMPTY
                self._name(page, (content, tuple(ids[whole * PAGE : computed])))
            self._lay_down(page)

    def forget(self) -> None:
        """Drops all knowledge of contents, since other weights made them; held pages stay held and are never found."""
        pages = range(len(self._readers))
        self._contents = [UNKNOWN] * len(pages)
        self._keys = [None] * len(pages)
        self._found.clear()
        self._cached.clear()
        self._blank = [page for page in reversed(pages) if not self._readers[page]]
        # Of a caller who goes on, the first page is among these; whatever it computes later saw old contents.
        self._stale = {page for page in pages if self._readers[page]}

    def _tail(self, content: int, rest: tuple[int, ...], most: int) -> tuple[int | None, int]:
        """The fullest partly filled page that goes on with `rest`, and how many of at most `most` tokens it saves."""
        for size in range(min(len(rest), PAGE - 1), 0, -1):
            page = self._found.get((content, rest[:size]))
            if page is not None and most:
                return page, min(size, most)
        return None, 0

    def _claim(self, page: int) -> None:
        if not self._readers[page]:
            self._cached.pop(page, None)
        self._readers[page] += 1

    def _take(self) -> int:
        """A blank page, or else the one nobody has read for the longest time."""
        if self._blank:
            page = self._blank.pop()
        else:
            page, _ = self._cached.popitem(last=False)
            self._drop(page)
        self._readers[page] = 1
        return page

    def _name(self, page: int, key: Key) -> int:
        """Makes a page known by its key, unless another is; the number of its content."""
        if self._keys[page] != key:
            self._unfind(page)
            self._keys[page] = key
        owner = self._found.setdefault(key, page)
        if self._contents[owner] == UNKNOWN:
            self._contents[owner] = next(self._numbers)
        self._contents[page] = self._contents[owner]
        return self._contents[page]

    def _drop(self, page: int) -> None:
        self._unfind(page)
        self._keys[page] = None
        self._contents[page] = UNKNOWN

    def _unfind(self, page: int) -> None:
        key = self._keys[page]
        if key is not None and self._found.get(key) == page:
            del self._found[key]

    def _leave(self, page: int) -> bool:
        """One reader less; True for the last."""
        if not self._readers[page]:
            raise EngineFailure(f"page {page} was released, but nobody holds it; release what is held only once")
        self._readers[page] -= 1
        return not self._readers[page]

    def _lay_down(self, page: int) -> None:
        """A page without readers is cached if it can be found, else blank; its content was just used either way."""
        key = self._keys[page]
        owner = self._found.get(key) if key is not None else None
        if owner == page:
            self._cached[page] = None
            return
        if owner is not None and not self._readers[owner]:
            self._cached.move_to_end(owner)
        self._drop(page)
        self._stale.discard(page)
        self._blank.append(page)
