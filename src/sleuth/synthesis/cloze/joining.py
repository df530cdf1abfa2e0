"""Questions that take several passages, page by page: chains over what they name, and comparisons."""

from collections.abc import Callable, Iterator
from enum import StrEnum
from random import Random

from sleuth.synthesis.cloze import contrasts
from sleuth.synthesis.cloze.bridges import Chain, asked, links, longer, starts
from sleuth.synthesis.cloze.comparisons import compared
from sleuth.synthesis.cloze.facts import Relation
from sleuth.synthesis.cloze.ledger import Ledger
from sleuth.synthesis.cloze.lexicon import Lexicon
from sleuth.synthesis.cloze.makers import crosswise
from sleuth.synthesis.cloze.meetings import met
from sleuth.synthesis.cloze.pages import Page
from sleuth.synthesis.cloze.pools import Pools

TOO_COMMON = 8  # passages of one title: beyond that it says little
EACH = 4  # questions of one chain at most


class Sort(StrEnum):
    """How a question joins passages."""

    BRIDGE = "bridge"
    COMPARISON = "comparison"
    CROSSWISE = "bridge comparison"


class Joining:
    """Asks pages by row, and keeps what it makes in a ledger."""

    def __init__(self, page: Callable[[int], Page | None], lexicon: Lexicon, ledger: Ledger, dice: Random) -> None:
        self._page, self._lexicon, self._ledger, self._dice = page, lexicon, ledger, dice
        self._pools = Pools()
        self._made: dict[Relation, list[tuple[Page, Page]]] = {relation: [] for relation in contrasts.MAKERS}
        self._seen: set[str] = set()

    def bridge(self, page: Page) -> None:
        """Questions that begin at a page and are answered by another; what was read is kept for comparisons."""
        if not page.clear:
            return
        chain = starts(page, self._dice)
        first = page.id not in self._seen
        if first:
            self._seen.add(page.id)
            self._pools.add(page)
        for further in self._on(chain):
            if first:
                self._note(further)
            self._ask(further)
            self._meet(further)
            for third in self._on(further):
                self._ask(third)

    def compare(self, page: Page) -> None:
        """One comparison of a page with another that was read."""
        if page.id not in self._seen or self._ledger.taken(page):
            return
        found = compared(page, self._pools, self._dice)
        if found:
            self._ledger.joined(found.pages, found.pages, found.text, found.answers, Sort.COMPARISON)

    def cross(self, wanted: int) -> None:
        """So many questions over two works and their makers, or as many as their pairs give."""
        goal = len(self._ledger.questions) + wanted
        tries = 6 * wanted
        pairs = [(relation, each) for relation, found in self._made.items() for each in found]
        while pairs and tries and len(self._ledger.questions) < goal:
            tries -= 1
            relation, one = self._dice.choice(pairs)
            other = self._dice.choice(self._made[relation])
            found = crosswise(one, other, relation, self._dice)
            if found:
                self._ledger.joined(found.pages[:2], found.pages, found.text, found.answers, Sort.CROSSWISE)

    def _on(self, chain: Chain) -> Iterator[Chain]:
        """The chains with one page more."""
        for link in links(chain.pages[-1], self._lexicon):
            pages = tuple(page for page in map(self._page, link.rows[:TOO_COMMON]) if page)
            for page in pages:
                further = longer(chain, link, page, pages, self._dice)
                if further:
                    yield further

    def _ask(self, chain: Chain) -> None:
        ends, taken = (chain.pages[0], chain.pages[-1]), 0
        for draft in asked(chain, self._dice):
            if taken >= EACH or any(map(self._ledger.taken, ends)):
                return
            taken += self._ledger.joined(ends, chain.pages, draft.text, draft.answers, Sort.BRIDGE)

    def _meet(self, chain: Chain) -> None:
        draft = met(chain, self._dice)
        if draft:
            self._ledger.joined(chain.pages, chain.pages, draft.text, draft.answers, Sort.BRIDGE)

    def _note(self, chain: Chain) -> None:
        """Keeps a work with its maker."""
        relation = chain.relations[-1]
        if relation in self._made:
            self._made[relation].append((chain.pages[0], chain.pages[1]))
