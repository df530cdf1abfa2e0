"""Stable integer hashing and invertible shuffles, so that everything about an entity is computed, never stored."""

from hashlib import blake2b

_MASK = (1 << 64) - 1


def key(*parts: object) -> int:
    """A 64-bit key for the parts, the same on every machine."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def mix(value: int) -> int:
    """A 64-bit hash of an integer: the finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    value = (value * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Permutation:
    """A shuffle of range(size) with its inverse, in constant memory.

    Odd multiplications and half-width shifts are bijections of the next power of two; results that
    fall outside range(size) are shuffled again (cycle walking), which keeps the map a bijection.
    """

    __slots__ = ("_add", "_back", "_factors", "_mask", "_shift", "size")

    def __init__(self, size: int, seed: int) -> None:
        bits = max(2, (size - 1).bit_length())
        self.size = size
        self._mask = (1 << bits) - 1
        self._shift = (bits + 1) // 2
        self._add = mix(seed) & self._mask
        # 5 modulo 8, where there is room: such factors have the longest cycles.
        self._factors = tuple((mix(seed + step) & ~7 | 5) & self._mask for step in range(1, 5))
        self._back = tuple(pow(factor, -1, 1 << bits) for factor in reversed(self._factors))

    def __call__(self, index: int) -> int:
        """Where `index` goes."""
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
        """Which index goes to `place`."""
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
