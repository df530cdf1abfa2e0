"""The maps from subjects to values: computed forwards and backwards, never searched.

Subjects and values are places in their halves (0 .. size - 1), so no map can lead out of a half.
"""

from typing import Protocol

from sleuth.synthesis.world.permutation import Permutation, mix


class Fact(Protocol):
    """A total function from the places of one half to the places of another (or the same) half."""

    def value(self, subject: int) -> int: ...


class Blocks:
    """Shuffles range(size) and cuts it into `count` blocks whose sizes differ by one at most."""

    __slots__ = ("_order", "count", "size")

    def __init__(self, size: int, count: int, seed: int) -> None:
        self.size = size
        self.count = count
        self._order = Permutation(size, seed)

    def block(self, member: int) -> int:
        return self._order(member) * self.count // self.size

    def member(self, block: int, draw: int) -> int:
        """A member of the block, chosen by the drawn number."""
        start, stop = self._bounds(block)
        return self._order.inverse(start + draw % (stop - start))

    def sibling(self, member: int, draw: int) -> int:
        """Another member of the same block, which must have two at least."""
        place = self._order(member)
        start, stop = self._bounds(place * self.count // self.size)
        step = 1 + draw % (stop - start - 1)
        return self._order.inverse(start + (place - start + step) % (stop - start))

    def _bounds(self, block: int) -> tuple[int, int]:
        return -(-block * self.size // self.count), -(-(block + 1) * self.size // self.count)


class Shared:
    """At least `sharing` subjects have the same value; subjects of different blocks have different values."""

    __slots__ = ("blocks", "targets")

    def __init__(self, subjects: int, values: int, sharing: int, seed: int) -> None:
        self.blocks = Blocks(subjects, min(values, max(1, subjects // sharing)), seed)
        self.targets = Permutation(values, mix(seed))

    def value(self, subject: int) -> int:
        return self.targets(self.blocks.block(subject))


class Succession:
    """A block shares one member of the next block, so no subject is its own value."""

    __slots__ = ("_seed", "blocks")

    def __init__(self, subjects: int, sharing: int, seed: int) -> None:
        self.blocks = Blocks(subjects, subjects // sharing, seed)
        self._seed = mix(seed)

    def value(self, subject: int) -> int:
        following = (self.blocks.block(subject) + 1) % self.blocks.count
        return self.blocks.member(following, mix(self._seed + following))


class Couples:
    """Each subject's value has that subject for its value; the number of subjects is even."""

    __slots__ = ("_order",)

    def __init__(self, subjects: int, seed: int) -> None:
        self._order = Permutation(subjects, seed)

    def value(self, subject: int) -> int:
        return self._order.inverse(self._order(subject) ^ 1)


class Representative:
    """Picks one of the subjects that have a thing for their value: a country's capital is one of its cities."""

    __slots__ = ("_members", "_seed")

    def __init__(self, members: Shared, seed: int) -> None:
        self._members = members
        self._seed = seed

    def value(self, subject: int) -> int:
        block = self._members.targets.inverse(subject)
        return self._members.blocks.member(block, mix(self._seed + subject))
