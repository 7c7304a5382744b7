"""The order of samples, as a pure function of (seed, epoch, index).

    index → Feistel network on the bits of the index → sample

A Feistel network is a permutation of 2^b numbers for any round function. Applying it again until the result is below n
gives a permutation of n numbers. Nothing is stored or replayed: sample 10⁹ of epoch 7 costs as much as sample 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chumoku.errors import UsageError

ROUNDS = 6
Indices = NDArray[np.int64]


class Permutation:
    """A random permutation of 0 … size − 1 that depends only on (size, seed, epoch)."""

    def __init__(self, size: int, *, seed: int, epoch: int) -> None:
        if size < 1:
            raise UsageError("There are no samples to shuffle.")
        self.size = size
        half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
        self._shift = np.uint64(half_bits)
        self._mask = np.uint64((1 << half_bits) - 1)
        self._keys = random_numbers(ROUNDS, seed, epoch, size)

    def __call__(self, indices: Indices) -> Indices:
        """The samples at these positions in the order."""
        if len(indices) and not 0 <= indices.min() <= indices.max() < self.size:
            raise UsageError(f"Positions {indices.min()} to {indices.max()} are not within the {self.size:,} samples.")
        numbers = indices.astype(np.uint64)
        result = self._scramble(numbers)
        while True:
            outside = result >= self.size
            if not outside.any():
                return result.astype(np.int64)
            result[outside] = self._scramble(result[outside])

    def _scramble(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = numbers >> self._shift, numbers & self._mask
        for key in self._keys:
            left, right = right, left ^ (mix_bits(right + key) & self._mask)
        return (left << self._shift) | right


def mix_bits(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finalizer: every input bit affects every output bit."""
    with np.errstate(over="ignore"):
        numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def random_numbers(count: int, *key: int) -> NDArray[np.uint64]:
    """`count` random numbers that depend only on the key."""
    return generator(*key).integers(0, 1 << 63, size=count, dtype=np.uint64)


def generator(*key: int) -> np.random.Generator:
    """A random generator that depends only on the key, such as (seed, epoch, index)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([part & (2**64 - 1) for part in key])))
