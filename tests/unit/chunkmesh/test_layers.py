"""Layer ranges: both spellings, even splits, and what does not tile a model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkmesh.errors import ConfigError
from chunkmesh.layers import LayerRange, Tiling, check_tiling, partition


def _range(first: int, last: int) -> LayerRange:
    return LayerRange(first=first, last=last)


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [("15-29", 15, 30), ("15:30", 15, 30), ("0-0", 0, 1), ("0:1", 0, 1), (" 3-4 ", 3, 5)],
)
def test_parse(text: str, first: int, last: int) -> None:
    """A dash includes the last layer, a colon does not."""
    assert _range(first, last) == LayerRange.parse(text)


@pytest.mark.parametrize("text", ["", "5", "a-b", "-1-3", "3-1", "3:3", "1-2-3", "1,2"])
def test_parse_names_the_bad_text(text: str) -> None:
    """A wrong range is refused at start, with the text that was given."""
    with pytest.raises(ConfigError) as caught:
        LayerRange.parse(text)
    assert repr(text) in str(caught.value)


def test_an_empty_range_cannot_be_made() -> None:
    """A stage always holds a layer."""
    with pytest.raises(ConfigError):
        _range(3, 3)


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "sizes"),
    [
        (61, 4, [15, 15, 15, 16]),
        (61, 8, [7, 7, 7, 8, 8, 8, 8, 8]),
        (30, 2, [15, 15]),
        (10, 3, [3, 3, 4]),
        (7, 3, [2, 2, 3]),
        (5, 3, [1, 2, 2]),
        (4, 4, [1, 1, 1, 1]),
    ],
)
def test_partition_gives_the_remainder_to_later_stages(
    num_layers: int, num_stages: int, sizes: list[int]
) -> None:
    """The first stage also embeds, so it must not hold the extra layer (O23)."""
    assert sizes == [part.num_layers for part in partition(num_layers, num_stages)]


@pytest.mark.parametrize(("num_layers", "num_stages"), [(3, 4), (3, 0), (0, 1)])
def test_partition_refuses_an_empty_stage(num_layers: int, num_stages: int) -> None:
    """The text names both numbers."""
    with pytest.raises(ConfigError, match=f"{num_layers} layers .* {num_stages} stages"):
        partition(num_layers, num_stages)


@given(st.integers(1, 200), st.data())
def test_partition_always_tiles(num_layers: int, data: st.DataObject) -> None:
    """O23: whatever the sizes, every layer is held exactly once, and no stage has many more."""
    num_stages = data.draw(st.integers(1, num_layers))
    parts = partition(num_layers, num_stages)
    assert check_tiling(parts, num_layers).complete
    sizes = [part.num_layers for part in parts]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("ranges", "missing", "doubled", "text"),
    [
        ([(0, 4), (4, 10)], [], [], "every layer held once"),
        ([(4, 10), (0, 4)], [], [], "every layer held once"),
        ([(0, 4), (4, 8)], [(8, 10)], [], "layers 8-9 missing"),
        ([(0, 5), (4, 10)], [], [(4, 5)], "layers 4 held more than once"),
        ([(1, 3), (5, 8)], [(0, 1), (3, 5), (8, 10)], [], "layers 0, 3-4, 8-9 missing"),
        (
            [(0, 5), (4, 8)],
            [(8, 10)],
            [(4, 5)],
            "layers 8-9 missing; layers 4 held more than once",
        ),
        ([], [(0, 10)], [], "layers 0-9 missing"),
    ],
)
def test_check_tiling_names_the_layers(
    ranges: list[tuple[int, int]],
    missing: list[tuple[int, int]],
    doubled: list[tuple[int, int]],
    text: str,
) -> None:
    """An operator must read which layers a mesh of 10 layers still waits for."""
    tiling = check_tiling([_range(*pair) for pair in ranges], num_layers=10)
    expected = Tiling(
        missing=tuple(_range(*pair) for pair in missing),
        doubled=tuple(_range(*pair) for pair in doubled),
    )
    assert (expected, text) == (tiling, str(tiling))


def test_check_tiling_refuses_layers_past_the_model() -> None:
    """A worker started for another model is told so."""
    with pytest.raises(ConfigError, match="layers 8-10 reach past a model of 10 layers"):
        check_tiling([_range(8, 11)], num_layers=10)
