"""Random numbers must be the published generator's, on any machine and for ever."""

from __future__ import annotations

import pytest

from stage_worker.philox import Words, philox4x32, uniform

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (ONES, ONES, ONES, ONES),
            (ONES, ONES),
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(counter: Words, key: tuple[int, int], expected: Words) -> None:
    """The vectors that the Random123 library ships for philox4x32 with ten rounds."""
    assert expected == philox4x32(counter, key)


def test_uniform_covers_the_unit_interval() -> None:
    """Positions of one seed are spread evenly, so that sampling is fair."""
    numbers = [uniform(42, 0, position) for position in range(4000)]
    assert all(0 <= number < 1 for number in numbers)
    assert sum(numbers) / len(numbers) == pytest.approx(0.5, abs=0.02)
    tenths = [sum(int(number * 10) == tenth for number in numbers) for tenth in range(10)]
    assert min(tenths) > 330
    assert max(tenths) < 470


def test_uniform_uses_all_bits_of_seed_and_position() -> None:
    """Seeds that differ only in the high word are different seeds, and so are outputs."""
    assert len({uniform(seed, 0, 0) for seed in (1, 1 + 2**32, 1 + 2**63)}) == 3
    assert len({uniform(1, 0, position) for position in (1, 1 + 2**32)}) == 2
    assert len({uniform(1, child, 0) for child in range(100)}) == 100
