"""Commands that look into the cache."""

from __future__ import annotations

from tests.hicache_admin import INFO, LONG, LONG_PAGES, NUM_PAGES, PAGE_BYTES, Admin
from tests.page_samples import NAMESPACE


async def test_ls_says_whose_pages_are_cached(run: Admin) -> None:
    """O17: fingerprint, dtype, layers and page size of each namespace."""
    (state,) = (await run("ls", "--json")).object["namespaces"]
    assert state == {
        "namespace": NAMESPACE.hex(),
        "known": True,
        "fingerprint": INFO.fingerprint.hex(),
        "model": "tiny",
        "kv_dtype": "float32",
        "page_tokens": 16,
        "rope": "default 10000",
        "adapter": "",
        "salted": False,
        "model_layers": 4,
        "layers": [[0, 4]],
        "num_pages": NUM_PAGES,
        "num_partial_pages": 0,
        "num_bytes": NUM_PAGES * PAGE_BYTES,
        "num_pinned_pages": 0,
        "quota_bytes": 0,
        "num_hits": 0,
    }
    table = (await run("ls")).output
    for words in (NAMESPACE.hex()[:12], "000102030405", "tiny", "float32", "0-3 of 4", "6.0 KiB"):
        assert words in table
    assert 0 == (await run("ls", "--namespace", NAMESPACE.hex()[:8])).status
    assert 3 == (await run("ls", "--namespace", "00" * 4)).status


async def test_tree_shows_the_branch(run: Admin) -> None:
    """Two prompts that share a beginning are three runs."""
    runs = (await run("tree", "--json")).object["runs"]
    shown = [(run["depth"], run["first_page"], run["num_pages"]) for run in runs]
    assert [(0, 0, 2), (1, 2, 3), (1, 2, 1)] == shown
    assert LONG_PAGES[0].hex() == runs[0]["first_digest"]
    below = await run("tree", "--prefix", LONG_PAGES[2].hex()[:12], "--json")
    assert [3] == [each["num_pages"] for each in below.object["runs"]]
    roots = await run("tree", "--depth", "1", "--json")
    assert [2] == [each["num_pages"] for each in roots.object["runs"]]
    assert 3 == (await run("tree", "--prefix", "00" * 4)).status
    limited = await run("tree", "--limit", "1")
    assert "2 more" in limited.output


async def test_lookup_calls_a_single_page_by_its_number(run: Admin) -> None:
    """As tree does; 0-0 looks like none."""
    shown = (await run("lookup", "--text", LONG.decode()[:17])).output
    assert [["0", "0-3", "yes", "0"]] == [
        line.split() for line in shown.splitlines() if line.split()[-2:] == ["yes", "0"]
    ]
    several = (await run("lookup", "--text", LONG.decode()[:33])).output
    assert any(line.split() == ["0-1", "0-3", "yes", "0"] for line in several.splitlines())


async def test_top_ranks(run: Admin) -> None:
    """By bytes the longest run comes first; the limit holds."""
    ended = await run("top", "--by", "bytes", "--limit", "1", "--json")
    assert [3] == [each["num_pages"] for each in ended.object["runs"]]
    assert 2 == ended.object["num_left_off"]


async def test_a_watch_may_have_an_end(run: Admin) -> None:
    """Nothing happens, so nothing is shown."""
    ended = await run("watch", "--for", "100ms")
    assert (0, "", "") == (ended.status, ended.output, ended.errors)
