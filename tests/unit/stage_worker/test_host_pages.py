"""HostPages: what it is taken for, and copies of a stage's pages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chunkmesh.errors import ConfigError, InvariantViolated
from stage_worker import free_memory
from stage_worker.host_copies import LayerCopies
from stage_worker.host_pages import HostPages
from tests.page_samples import chain
from tests.scripted_stage import Script, ScriptedStage

DIGESTS = chain(4)
_RNG = np.random.default_rng(7)


def test_a_page_is_only_what_was_copied_to_it_last() -> None:
    """A scheduler that is wrong about it loses a hit, and nobody gets a wrong page."""
    host = HostPages(1000)
    host.begin_epoch(16)
    host.expect(DIGESTS[:3], (5, 6, 7))
    assert host.count(DIGESTS[:3], (5, 6, 7)) == 3
    assert host.count(DIGESTS, (5, 6)) == 2
    assert host.count(DIGESTS[:3], (5, 7, 6)) == 1
    assert host.count(DIGESTS[:1], (8,)) == 0
    host.expect(DIGESTS[3:], (6,))
    assert host.count(DIGESTS[:3], (5, 6, 7)) == 1


def test_contents_outlive_an_epoch_but_not_another_page_size() -> None:
    """Pages that are cut anew lie elsewhere."""
    host = HostPages(1000)
    host.begin_epoch(16)
    host.expect(DIGESTS[:1], (0,))
    host.begin_epoch(16)
    assert host.count(DIGESTS[:1], (0,)) == 1
    host.begin_epoch(32)
    assert host.count(DIGESTS[:1], (0,)) == 0


def test_pages_lie_apart_and_end_with_the_memory() -> None:
    """No copy may reach into another page or behind the last one."""
    host = HostPages(3 * 20 + 19)
    host.cut(range(2, 4), 10)
    for host_id in range(3):
        host.page(host_id).fill_(host_id)
    assert [host.page(host_id).numpy().tobytes() for host_id in range(3)] == [
        bytes([host_id] * 20) for host_id in range(3)
    ]
    assert host.read_page(3, 1).tobytes() == bytes([1] * 10)
    for host_id in (3, -1):
        with pytest.raises(InvariantViolated, match=f"host page {host_id} "):
            host.page(host_id)


def test_layers_come_back_as_they_were() -> None:
    """Of any stage that can read and write pages; other pages are left alone."""
    stage = ScriptedStage(2, 4, 4, Script())
    stage.allocate(num_pages=6, page_tokens=16)
    num_bytes = stage.page_layer_bytes()
    data = {
        (layer, page): _RNG.integers(0, 256, num_bytes, dtype=np.uint8)
        for layer in (2, 3)
        for page in (1, 4)
    }
    for (layer, page), each in data.items():
        stage.write_page(layer, page, each)
    host = HostPages(8 * 2 * num_bytes)
    host.cut(range(2, 4), num_bytes)
    pages = [host.page(7), host.page(0)]
    copies = LayerCopies(stage)
    copies.save_pages((1, 4), pages)
    copies.wait_saved()
    for layer, page in data:
        stage.write_page(layer, page, np.zeros(num_bytes, dtype=np.uint8))
    assert copies.restore_pages((2, 1), pages)() >= 0
    for layer in (2, 3):
        assert stage.read_page(layer, 2).tobytes() == data[layer, 1].tobytes()
        assert stage.read_page(layer, 1).tobytes() == data[layer, 4].tobytes()
        assert not stage.read_page(layer, 4).any()


MEMINFO = "MemTotal:       99 kB\nMemFree:        1 kB\nMemAvailable:         2 kB\nBuffers: 7 kB\n"


def test_more_memory_than_is_free_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel would let us have it, and end the worker when pages fill it."""
    told = tmp_path / "meminfo"
    monkeypatch.setattr(free_memory, "_MEMINFO", told)
    assert (free_memory.free_host_bytes(), HostPages(2049).num_bytes) == (None, 2049)
    told.write_text(MEMINFO)
    assert HostPages(2048).num_bytes == 2048
    with pytest.raises(
        ConfigError, match=r"^2049 bytes of host memory .* 2048 are free: --hicache"
    ):
        HostPages(2049)
    told.write_text("MemTotal: 1 kB\n")
    assert free_memory.free_host_bytes() is None
