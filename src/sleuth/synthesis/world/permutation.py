"""Stable hashes, invertible permutations, and relation maps built from them: facts are computed, never stored.

Relation maps take and return offsets within an id range (0 .. size - 1), so no fact can leave its split.
"""

from hashlib import blake2b
from typing import Protocol

_MASK = (1 << 64) - 1


def stable_hash(*parts: object) -> int:
    """Return a 64-bit hash of the parts, the same on every machine."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def mix64(value: int) -> int:
    """Return a 64-bit hash of an integer, with the finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    value = (value * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Permutation:
    """A pseudo-random permutation of range(size) and its inverse, in constant memory.

    Odd multiplications and half-width shifts are bijections of the next power of two; results
    outside range(size) are permuted again (cycle walking), which keeps the map a bijection.
    """

    def __init__(self, size: int, seed: int) -> None:
        bits = max(2, (size - 1).bit_length())
        self.size = size
        self._mask = (1 << bits) - 1
        self._shift = (bits + 1) // 2
        self._add = mix64(seed) & self._mask
        # Factors congruent to 5 modulo 8 have the longest cycles.
        self._factors = tuple((mix64(seed + step) & ~7 | 5) & self._mask for step in range(1, 5))
        self._back = tuple(pow(factor, -1, 1 << bits) for factor in reversed(self._factors))

    def __call__(self, index: int) -> int:
        """Permute `index`."""
        first, second, third, fourth = self._factors
        mask, shift = self._mask, self._shift
        while True:
            index = (index + self._add) * first & mask
            index ^= index >> shift
            index = index * second & mask
            index ^= index >> shift
            index = index * third & mask
            index ^= index >> shift
            index = (index + self._add) * fourth & mask
            index ^= index >> shift
            if index < self.size:
                return index

    def inverse(self, place: int) -> int:
        """Return the index that the permutation maps to `place`."""
        fourth, third, second, first = self._back
        mask, shift = self._mask, self._shift
        while True:
            place ^= place >> shift
            place = (place * fourth - self._add) & mask
            place ^= place >> shift
            place = place * third & mask
            place ^= place >> shift
            place = place * second & mask
            place ^= place >> shift
            place = (place * first - self._add) & mask
            if place < self.size:
                return place


class RelationMap(Protocol):
    """A total function from subject offsets to value offsets."""

    def value(self, subject: int) -> int: ...


class Blocks:
    """A random partition of range(size) into `count` blocks whose sizes differ by at most one."""

    def __init__(self, size: int, count: int, seed: int) -> None:
        self.size = size
        self.count = count
        self._order = Permutation(size, seed)

    def block(self, member: int) -> int:
        return self._order(member) * self.count // self.size

    def member(self, block: int, draw: int) -> int:
        """Return the member of a block selected by the random number `draw`."""
        start, stop = self._bounds(block)
        return self._order.inverse(start + draw % (stop - start))

    def sibling(self, member: int, draw: int) -> int:
        """Return another member of the same block, which must have at least two members."""
        place = self._order(member)
        start, stop = self._bounds(place * self.count // self.size)
        step = 1 + draw % (stop - start - 1)
        return self._order.inverse(start + (place - start + step) % (stop - start))

    def _bounds(self, block: int) -> tuple[int, int]:
        return -(-block * self.size // self.count), -(-(block + 1) * self.size // self.count)


class ManyToOne:
    """Maps blocks of at least `sharing` subjects to one value each; different blocks have different values."""

    def __init__(self, subjects: int, values: int, sharing: int, seed: int) -> None:
        self.blocks = Blocks(subjects, min(values, max(1, subjects // sharing)), seed)
        self.targets = Permutation(values, mix64(seed))

    def value(self, subject: int) -> int:
        return self.targets(self.blocks.block(subject))


class NextBlock:
    """Maps every member of a block to one member of the next block, so no subject is its own value."""

    def __init__(self, subjects: int, sharing: int, seed: int) -> None:
        self.blocks = Blocks(subjects, subjects // sharing, seed)
        self._seed = mix64(seed)

    def value(self, subject: int) -> int:
        following = (self.blocks.block(subject) + 1) % self.blocks.count
        return self.blocks.member(following, mix64(self._seed + following))


class Pairing:
    """A symmetric one-to-one map over an even number of subjects."""

    def __init__(self, subjects: int, seed: int) -> None:
        self._order = Permutation(subjects, seed)

    def value(self, subject: int) -> int:
        return self._order.inverse(self._order(subject) ^ 1)


class OneOfSharers:
    """Maps a value to one of the subjects that share it: a country's capital is one of its cities."""

    def __init__(self, members: ManyToOne, seed: int) -> None:
        self._members = members
        self._seed = seed

    def value(self, subject: int) -> int:
        block = self._members.targets.inverse(subject)
        return self._members.blocks.member(block, mix64(self._seed + subject))
