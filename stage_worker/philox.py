"""Counter-based random numbers: the same on every device, batch and run. Pure.

Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3,
https://www.thesalmons.org/john/random123/papers/random123sc11.pdf
"""

from __future__ import annotations

_MULTIPLIER_0 = 0xD2511F53
_MULTIPLIER_1 = 0xCD9E8D57
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_MASK = 0xFFFFFFFF
_ROUNDS = 10

Words = tuple[int, int, int, int]
"""Four unsigned 32-bit numbers."""


def philox4x32(counter: Words, key: tuple[int, int]) -> Words:
    """Return the block of four random words of a counter under a key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product_0 = _MULTIPLIER_0 * c0
        product_1 = _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (
            (product_1 >> 32) ^ c1 ^ k0,
            product_1 & _MASK,
            (product_0 >> 32) ^ c3 ^ k1,
            product_0 & _MASK,
        )
        k0 = (k0 + _WEYL_0) & _MASK
        k1 = (k1 + _WEYL_1) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, child: int, position: int) -> float:
    """Return a number in [0, 1) with 53 random bits for a position of one output of a request.

    0 <= seed < 2**64, 0 <= child < 2**32, 0 <= position < 2**64.
    """
    key = (seed & _MASK, seed >> 32)
    high, low, _, _ = philox4x32((position & _MASK, position >> 32, child, 0), key)
    return ((high >> 5) * 2.0**26 + (low >> 6)) * 2.0**-53
