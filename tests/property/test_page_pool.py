"""Page pool invariants: requests read only what they computed, and no page is lost."""

from collections import Counter
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sleuth.engines.paged.page_pool import PAGE_SIZE, PagePool

COUNT = 12

# Texts out of few parts begin alike often, part at page borders and elsewhere, and fit into few pages.
PARTS = ((1,) * PAGE_SIZE, (2,) * PAGE_SIZE, (1,) * 5, (2,), (1, 2, 1))
TEXTS = st.lists(st.sampled_from(PARTS), min_size=1, max_size=5).map(lambda parts: [i for part in parts for i in part])
WHICH = st.integers(0, 99)


@dataclass
class Row:
    """A sequence on its way; `weights` made all of it, or at least its beginning."""

    ids: list[int]
    held: list[int]
    computed: int
    weights: int


class Rows(RuleBasedStateMachine):
    """Rows come, grow and go; `memory` is what the pages of a device would hold."""

    def __init__(self) -> None:
        super().__init__()
        self.pages = PagePool(COUNT)
        self.rows: list[Row] = []
        self.memory: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}
        self.weights = 0

    @rule(ids=TEXTS)
    def come(self, ids: list[int]) -> None:
        self.admit(ids)

    @precondition(lambda self: self.rows)
    @rule(which=WHICH, kept=st.integers(1, 4 * PAGE_SIZE), more=TEXTS | st.just([]))
    def come_alike(self, which: int, kept: int, more: list[int]) -> None:
        self.admit(self.rows[which % len(self.rows)].ids[:kept] + more)

    @precondition(lambda self: self.rows)
    @rule(which=WHICH, more=TEXTS)
    def grow(self, which: int, more: list[int]) -> None:
        row = self.rows[which % len(self.rows)]
        free = self.pages.free
        longer = row.ids + more
        if self.pages.allocate(row.held, len(longer)):
            row.ids = longer
            self.compute(row)
        else:
            assert -(-len(longer) // PAGE_SIZE) - len(row.held) > free == self.pages.free

    @precondition(lambda self: self.rows)
    @rule(which=WHICH, lost=st.sampled_from((0, 0, 1, 3, PAGE_SIZE, 99)))
    def go(self, which: int, lost: int) -> None:
        row = self.rows.pop(which % len(self.rows))
        self.pages.release(row.held, row.ids, max(0, row.computed - lost))

    @precondition(lambda self: self.rows)
    @rule(which=WHICH, more=TEXTS)
    def come_back(self, which: int, more: list[int]) -> None:
        """What was released just now is all found."""
        row = self.rows.pop(which % len(self.rows))
        self.pages.release(row.held, row.ids, row.computed)
        found = self.admit(row.ids + more)
        if row.weights == self.weights:
            assert found >= row.computed

    @rule()
    def forget(self) -> None:
        self.pages.invalidate()
        self.weights += 1

    @invariant()
    def no_page_is_lost(self) -> None:
        readers = Counter(page for row in self.rows for page in row.held)
        assert self.pages.in_use == len(readers)
        assert self.pages.free == COUNT - len(readers)

    @invariant()
    def everybody_reads_what_they_computed(self) -> None:
        """So no page that is written into has a second reader: the two would not read the same."""
        for row in self.rows:
            self.check(row)

    @invariant()
    def only_whole_pages_are_shared(self) -> None:
        readers = Counter(page for row in self.rows for page in row.held)
        for row in self.rows:
            assert all(readers[page] == 1 for page in row.held[row.computed // PAGE_SIZE :])

    def teardown(self) -> None:
        for row in self.rows:
            self.pages.release(row.held, row.ids, row.computed)
        assert (self.pages.in_use, self.pages.free) == (0, COUNT)
        assert self.pages.allocate([], COUNT * PAGE_SIZE)

    def admit(self, ids: list[int]) -> int:
        held, found = self.pages.match_prefix(ids)
        assert 0 <= found < len(ids)
        assert len(held) == -(-found // PAGE_SIZE)
        row = Row(ids, held, found, self.weights)
        self.check(row)
        if self.pages.allocate(held, len(ids)):
            self.rows.append(row)
            self.compute(row)
        else:
            self.pages.release(held, ids, found)
        return found

    def compute(self, row: Row) -> None:
        self.pages.register(row.held, row.ids, row.computed, len(row.ids))
        for place in range(row.computed, len(row.ids)):
            address = row.held[place // PAGE_SIZE], place % PAGE_SIZE
            self.memory[address] = row.weights, tuple(row.ids[: place + 1])
        row.computed = len(row.ids)

    def check(self, row: Row) -> None:
        for place in range(row.computed):
            address = row.held[place // PAGE_SIZE], place % PAGE_SIZE
            assert self.memory[address] == (row.weights, tuple(row.ids[: place + 1]))


TestRows = Rows.TestCase
TestRows.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
