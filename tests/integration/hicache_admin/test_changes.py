"""Commands that change the cache: what goes, what stays."""

from __future__ import annotations

from chunkmesh.stored_page import page_key
from tests.admin_forms import QUOTAS, check_form
from tests.eventually import eventually
from tests.hicache_admin import (
    LONG,
    LONG_PAGES,
    NUM_PAGES,
    PAGE_BYTES,
    SHORT_PAGES,
    Admin,
)
from tests.page_samples import NAMESPACE
from tests.valkey import Valkey


async def test_evict_a_prefix(run: Admin, valkey: Valkey) -> None:
    """A page and what hangs below it go, in Redis too; what is above stays."""
    prefix = LONG_PAGES[3].hex()[:12]
    with valkey.client() as client:
        before = set(client.keys("cm:*"))
        dry = await run("evict", "--prefix", prefix, "--dry-run", "--json")
        assert dry.object == {
            "dry_run": True,
            "num_pages": 2,
            "num_bytes": 2 * PAGE_BYTES,
            "num_held_pages": 0,
        }
        assert before == set(client.keys("cm:*"))
        done = await run("evict", "--prefix", prefix, "--yes", "--json")
        assert dry.object | {"dry_run": False} == done.object
        gone = {page_key(digest) for digest in LONG_PAGES[3:]}
        await eventually(lambda: before - gone == set(client.keys("cm:*")))
    assert 3 == (await run("evict", "--prefix", prefix, "--yes")).status


async def test_evict_by_prompt_namespace_salt_and_age(run: Admin) -> None:
    """Each way to choose is counted right."""
    for choice, num_pages in (
        (("--text", LONG.decode()), 3),
        (("--namespace", NAMESPACE.hex()[:10]), NUM_PAGES),
        (("--salt", "mine"), NUM_PAGES),
        (("--older-than", "1ms"), NUM_PAGES),
    ):
        ended = await run("evict", *choice, "--dry-run", "--json")
        assert (0, num_pages) == (ended.status, ended.object["num_pages"]), choice
    for nothing in (("--salt", "other"), ("--older-than", "7d"), ("--text", "unknown" * 9)):
        ended = await run("evict", *nothing, "--dry-run", "--json")
        assert (3, 0) == (ended.status, ended.object["num_pages"]), nothing


async def test_pinned_pages_stay(run: Admin) -> None:
    """An eviction by hand passes over them, and says so; unpinned they go."""
    pinned = await run("pin", "--text", LONG.decode(), "--yes", "--json")
    assert (0, 5) == (pinned.status, pinned.object["num_pages"])
    assert 5 == (await run("ls", "--json")).object["namespaces"][0]["num_pinned_pages"]
    evicted = await run("evict", "--namespace", NAMESPACE.hex(), "--yes", "--json")
    assert (1, 5) == (evicted.object["num_pages"], evicted.object["num_held_pages"])
    held = await run("evict", "--namespace", NAMESPACE.hex(), "--yes", "--json")
    assert (0, 0) == (held.status, held.object["num_pages"])
    unpinned = await run("unpin", "--prefix", LONG_PAGES[4].hex(), "--yes", "--json")
    assert (0, 1) == (unpinned.status, unpinned.object["num_pages"])
    assert 3 == (await run("unpin", "--prefix", LONG_PAGES[4].hex(), "--yes")).status
    again = await run("evict", "--namespace", NAMESPACE.hex(), "--yes", "--json")
    assert (1, 4) == (again.object["num_pages"], again.object["num_held_pages"])


async def test_a_pin_ends_with_its_time(run: Admin) -> None:
    """--ttl: a pin for an experiment need not be remembered."""
    await run("pin", "--all", "--ttl", "200ms", "--yes")

    async def unpinned() -> bool:
        (state,) = (await run("ls", "--json")).object["namespaces"]
        return bool(state["num_pinned_pages"] == 0)

    await eventually(unpinned)


async def test_a_quota_is_kept(run: Admin) -> None:
    """What is over it goes at once; list shows it; unset ends it."""
    quota = f"{4 * PAGE_BYTES}"
    dry = await run("quota", "set", "mine", quota, "--dry-run", "--json")
    assert (2, 2 * PAGE_BYTES) == (dry.object["num_pages"], dry.object["num_bytes"])
    assert NUM_PAGES == (await run("stats", "--json")).object["num_pages"]
    done = await run("quota", "set", "mine", quota, "--yes", "--json")
    assert dry.object | {"dry_run": False} == done.object
    assert NAMESPACE.hex() == done.object["namespace"]
    assert 4 == (await run("stats", "--json")).object["num_pages"]
    listed = (await run("quota", "list", "--json")).object
    check_form(listed, QUOTAS)
    assert [4 * PAGE_BYTES] == [each["quota_bytes"] for each in listed["quotas"]]
    assert "4.0 KiB" in (await run("quota", "list")).output
    unset = await run("quota", "unset", NAMESPACE.hex()[:8], "--yes")
    assert (0, ["quota", "none"]) == (unset.status, unset.output.splitlines()[2].split())
    assert 3 == (await run("quota", "unset", NAMESPACE.hex()[:8], "--yes")).status
    assert [] == (await run("quota", "list", "--json")).object["quotas"]


async def test_verify_finds_and_forgets_bad_pages(run: Admin, valkey: Valkey) -> None:
    """A flipped byte, a truncated value and a lost layer; a dry run leaves them."""
    damaged, cut, lost = LONG_PAGES[4], LONG_PAGES[3], SHORT_PAGES[2]
    with valkey.client() as client:
        value = bytearray(client.hget(page_key(damaged), "1") or b"")
        value[40] ^= 1
        client.hset(page_key(damaged), "1", bytes(value))
        client.hset(page_key(cut), "2", b"short")
        client.hdel(page_key(lost), "3")
        dry = await run("verify", "--dry-run", "--json")
        assert (1, 1, 2) == (dry.status, dry.object["num_missing"], dry.object["num_damaged"])
        assert {damaged.hex(), cut.hex(), lost.hex()} == set(dry.object["bad_digests"])
        assert NUM_PAGES == (await run("stats", "--json")).object["num_pages"]
        done = await run("verify", "--yes", "--json")
        assert (1, NUM_PAGES) == (done.status, done.object["num_checked"])
        assert {cut.hex(), lost.hex()} <= set(done.object["bad_digests"])
        await eventually(lambda: len(client.keys("cm:*")) == 3)
    sound = await run("verify", "--yes", "--json")
    assert (0, 3, []) == (sound.status, sound.object["num_checked"], sound.object["bad_digests"])
    assert 3 * PAGE_BYTES == sound.object["num_bytes"]
    only = await run("verify", "--text", "unknown" * 9, "--yes", "--json")
    assert (3, 0) == (only.status, only.object["num_pages"])
