"""Each command of hicache-admin against a HiCache in this process over a real Redis."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from typing import Any

import pytest
import structlog

from chunkmesh.stored_page import page_key
from hicache.admin import consent
from tests.hicache_admin import (
    INFO,
    PAGE_BYTES,
    Ended,
    admin,
    byte_tokenizer,
    hicache_over,
    prompt_digests,
    store_pages,
)
from tests.page_samples import NAMESPACE
from tests.valkey import Valkey, running_valkey

SHARED = b"s" * 32
"""Two pages that both prompts begin with."""
LONG = SHARED + b"a" * 48 + b"tail"
SHORT = SHARED + b"b" * 16
LONG_PAGES = prompt_digests(LONG)
SHORT_PAGES = prompt_digests(SHORT)
NUM_PAGES = 6

HEX = str
CHANGE = {"dry_run": bool, "num_pages": int, "num_bytes": int}
RUN = {
    "namespace": HEX,
    "first_digest": HEX,
    "last_digest": HEX,
    "first_page": int,
    "num_pages": int,
    "depth": int,
    "num_children": int,
    "num_bytes": int,
    "layers": [[int]],
    "visible": bool,
    "num_hits": int,
    "idle_ms": int,
    "num_leased_pages": int,
    "num_pinned_pages": int,
    "priority": int,
}

NEED_SCHEDULER = {"pin", "unpin", "evict", "verify", "export", "lookup", "set", "unset"}

Logs = list[MutableMapping[str, Any]]
Admin = Callable[..., Awaitable[Ended]]


@pytest.fixture(autouse=True)
def logs() -> Iterator[Logs]:
    """Keep the servers' log lines, which would else stand among what commands print."""
    with structlog.testing.capture_logs() as captured:
        yield captured


@pytest.fixture
def valkey(tmp_path: pathlib.Path) -> Iterator[Valkey]:
    """Run an empty server."""
    with running_valkey(tmp_path) as server:
        yield server


@pytest.fixture
async def hicache(valkey: Valkey) -> AsyncIterator[str]:
    """Run a HiCache that holds both prompts."""
    async with hicache_over(valkey) as address:
        await store_pages(valkey, address, LONG_PAGES)
        await store_pages(valkey, address, SHORT_PAGES)
        yield address


@pytest.fixture
async def run(hicache: str) -> AsyncIterator[Admin]:
    """Run commands against that HiCache and a scheduler that can tokenize."""
    async with byte_tokenizer() as scheduler:

        async def run_command(*arguments: str, answer: str = "") -> Ended:
            words = list(arguments)
            if NEED_SCHEDULER & set(words[:2]):
                words += ["--scheduler", scheduler]
            return await admin("--hicache", hicache, *words, answer=answer)

        yield run_command


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands believe that somebody can answer."""
    monkeypatch.setattr(consent, "has_terminal", lambda: True)


def check_form(value: object, form: object, place: str = "") -> None:
    """Check that a value has exactly these keys and types."""
    if isinstance(form, dict):
        assert isinstance(value, dict), place
        assert list(form) == list(value), place
        for key, part in form.items():
            check_form(value[key], part, f"{place}.{key}")
    elif isinstance(form, list):
        assert isinstance(value, list), place
        for index, item in enumerate(value):
            check_form(item, form[0], f"{place}[{index}]")
    else:
        assert form is type(value), place


STATS = {
    "num_pages": int,
    "num_partial_pages": int,
    "num_bytes": int,
    "num_leases": int,
    "num_queries": int,
    "num_queried_pages": int,
    "num_hit_pages": int,
    "num_evicted_pages": int,
    "budget_bytes": int,
    "redis_fault": str,
    "redis_version": str,
    "rebuilding": bool,
}
PING = {
    "round_trip_ms": float,
    "redis": str,
    "redis_fault": str,
    "redis_version": str,
    "rebuilding": bool,
}
NAMESPACES: dict[str, Any] = {
    "namespaces": [
        {
            "namespace": HEX,
            "known": bool,
            "fingerprint": HEX,
            "model": str,
            "kv_dtype": str,
            "page_tokens": int,
            "rope": str,
            "adapter": str,
            "salted": bool,
            "model_layers": int,
            "layers": [[int]],
            "num_pages": int,
            "num_partial_pages": int,
            "num_bytes": int,
            "num_pinned_pages": int,
            "quota_bytes": int,
            "num_hits": int,
        }
    ]
}
LOOKUP: dict[str, Any] = {
    "namespace": HEX,
    "num_tokens": int,
    "page_tokens": int,
    "num_pages": int,
    "cached_tokens": int,
    "hit_tokens": int,
    "layers": [{"first": int, "last": int, "cached_tokens": int}],
    "pages": [{"first": int, "last": int, "layers": [[int]], "visible": bool, "num_hits": int}],
}
QUOTA = {
    "dry_run": bool,
    "namespace": HEX,
    "quota_bytes": int,
    "num_pages": int,
    "num_bytes": int,
}
QUOTAS: dict[str, Any] = {
    "quotas": [
        {"namespace": HEX, "model": str, "salted": bool, "quota_bytes": int, "num_bytes": int}
    ]
}
VERIFIED = {
    "dry_run": bool,
    "num_pages": int,
    "num_checked": int,
    "num_bytes": int,
    "num_missing": int,
    "num_damaged": int,
    "bad_digests": [HEX],
}
AUDIT: dict[str, Any] = {
    "entries": [
        {
            "unix_ms": int,
            "peer": str,
            "method": str,
            "request": str,
            "num_pages": int,
            "num_bytes": int,
        }
    ]
}

CHANGED_LINE = {
    "unix_ms": int,
    "kind": str,
    "namespace": HEX,
    "num_pages": int,
    "num_queried_pages": int,
    "num_bytes": int,
    "digest": HEX,
    "text": str,
}


@pytest.mark.parametrize(
    ("command", "form"),
    [
        (("ping",), PING),
        (("stats",), STATS),
        (("ls",), NAMESPACES),
        (("tree",), {"runs": [RUN], "num_left_off": int}),
        (("top", "--by", "bytes"), {"runs": [RUN], "num_left_off": int}),
        (("lookup", "--text", LONG.decode()), LOOKUP),
        (("pin", "--all", "--ttl", "2h", "--yes"), CHANGE | {"ttl_ms": int}),
        (("evict", "--prefix", SHORT_PAGES[2].hex(), "--yes"), CHANGE | {"num_held_pages": int}),
        (("clear", "--yes"), CHANGE),
        (("quota", "set", NAMESPACE.hex(), "1MiB", "--yes"), QUOTA),
        (("verify", "--yes"), VERIFIED),
    ],
)
async def test_json_has_stable_keys(run: Admin, command: tuple[str, ...], form: object) -> None:
    """Scripts read keys and types that docs/hicache-admin.md promises; people read a table."""
    ended = await run(*command, "--json")
    assert (0, "") == (ended.status, ended.errors)
    check_form(ended.object, form)


@pytest.mark.parametrize(
    "form",
    [
        *(PING, STATS, CHANGE, CHANGE | {"ttl_ms": int}, CHANGE | {"num_held_pages": int}),
        *(CHANGE | {"num_known": int, "num_refused": int}, QUOTA, VERIFIED, CHANGED_LINE),
        *(NAMESPACES["namespaces"][0], RUN, QUOTAS["quotas"][0], AUDIT["entries"][0]),
        *(LOOKUP["layers"][0], LOOKUP["pages"][0]),
    ],
)
def test_the_guide_lists_the_keys(form: dict[str, object]) -> None:
    """What scripts may rely on is what the guide says."""
    guide = pathlib.Path(__file__).parents[2] / "docs" / "hicache-admin.md"
    assert f"`{' '.join(form)}`" in guide.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "command",
    [("ping",), ("stats",), ("ls",), ("tree",), ("top",), ("lookup", "--text", LONG.decode())],
)
async def test_people_get_tables(run: Admin, command: tuple[str, ...]) -> None:
    """Without --json nothing is JSON, and sizes have units."""
    ended = await run(*command)
    assert (0, "") == (ended.status, ended.errors)
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(ended.output)


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


async def test_top_ranks(run: Admin) -> None:
    """By bytes the longest run comes first; the limit holds."""
    ended = await run("top", "--by", "bytes", "--limit", "1", "--json")
    assert [3] == [each["num_pages"] for each in ended.object["runs"]]
    assert 2 == ended.object["num_left_off"]


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
    assert 0 == (await run("quota", "unset", NAMESPACE.hex()[:8], "--yes")).status
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
    only = await run("verify", "--text", "unknown" * 9, "--yes", "--json")
    assert (3, 0) == (only.status, only.object["num_pages"])


async def test_export_and_import(run: Admin, valkey: Valkey, tmp_path: pathlib.Path) -> None:
    """What was exported is there again after a clear, byte for byte, and only once."""
    file = tmp_path / "pages"
    with valkey.client() as client:
        before = {key: client.hgetall(key) for key in client.keys("cm:*")}
        exported = await run("export", str(file), "--json")
        check_form(exported.object, {"file": str, "num_pages": int, "num_bytes": int})
        assert NUM_PAGES == exported.object["num_pages"]
        assert 2 == (await run("export", str(file))).status
        await run("clear", "--yes")
        assert [] == client.keys("cm:*")
        dry = await run("import", str(file), "--dry-run", "--json")
        check_form(dry.object, CHANGE | {"num_known": int, "num_refused": int})
        assert (0, NUM_PAGES) == (dry.status, dry.object["num_pages"])
        assert [] == client.keys("cm:*")
        done = await run("import", str(file), "--yes", "--json")
        assert dry.object | {"dry_run": False} == done.object
        assert before == {key: client.hgetall(key) for key in client.keys("cm:*")}
        assert all(client.ttl(key) > 0 for key in before)
    again = (await run("import", str(file), "--yes", "--json")).object
    assert (0, NUM_PAGES, 0) == (again["num_pages"], again["num_known"], again["num_refused"])
    looked = await run("lookup", "--text", LONG.decode(), "--json")
    assert 80 == looked.object["cached_tokens"]


async def test_nothing_to_export_leaves_no_file(run: Admin, tmp_path: pathlib.Path) -> None:
    """An empty file would be taken for a backup."""
    file = tmp_path / "pages"
    before = await asyncio.to_thread(os.listdir, tmp_path)
    assert 3 == (await run("export", str(file), "--text", "unknown" * 9)).status
    assert before == await asyncio.to_thread(os.listdir, tmp_path)


async def test_import_refuses_what_is_damaged(
    run: Admin, valkey: Valkey, tmp_path: pathlib.Path
) -> None:
    """A page with a flipped byte is not written, nor what hangs below it; the rest is."""
    file = tmp_path / "pages"
    await run("export", str(file), "--prefix", LONG_PAGES[0].hex())
    data = bytearray(file.read_bytes())
    with valkey.client() as client:
        value = client.hget(page_key(LONG_PAGES[3]), "2")
    at = data.index(value or b"?")
    data[at + 50] ^= 1
    bad = tmp_path / "bad"
    bad.write_bytes(data)
    await run("clear", "--yes")
    ended = await run("import", str(bad), "--yes", "--json")
    counts = ended.object
    assert (1, 4, 2) == (ended.status, counts["num_pages"], counts["num_refused"])
    (tmp_path / "cut").write_bytes(file.read_bytes()[:-4])
    for name in ("cut", "prompt"):
        (tmp_path / "prompt").write_text("no pages")
        refused = await run("import", str(tmp_path / name), "--yes")
        assert (1, True) == (refused.status, str(tmp_path / name) in refused.errors)
    assert 2 == (await run("import", str(tmp_path / "nowhere"), "--yes")).status


@pytest.mark.parametrize(
    "command",
    [
        ("pin", "--all"),
        ("unpin", "--all"),
        ("evict", "--older-than", "1ms"),
        ("clear",),
        ("quota", "set", "mine", "1KiB"),
        ("quota", "unset", "mine"),
        ("verify",),
    ],
)
async def test_without_a_terminal_changes_need_yes(
    run: Admin, valkey: Valkey, command: tuple[str, ...]
) -> None:
    """A script that forgot --yes must not hang on a question, nor change anything."""
    with valkey.client() as client:
        before = client.dbsize()
        ended = await run(*command)
        assert (2, "") == (ended.status, ended.output)
        assert "--yes" in ended.errors
        assert "--dry-run" in (await run(*command, "--yes", "--dry-run")).errors
        assert before == client.dbsize()


async def test_a_question_with_the_count(run: Admin, terminal: None) -> None:
    """Default is no; the question says how much; --json stays clean of it."""
    asked = await run("clear", answer="\n")
    assert (1, True) == (asked.status, "Delete all 6 pages (6.0 KiB)?" in asked.errors)
    assert NUM_PAGES == (await run("stats", "--json")).object["num_pages"]
    assert 1 == (await run("quota", "set", "mine", "2KiB", answer="n\n")).status
    answered = await run("evict", "--prefix", SHORT_PAGES[2].hex(), "--json", answer="y\n")
    assert (0, 1) == (answered.status, answered.object["num_pages"])
    nothing = await run("evict", "--older-than", "7d")
    assert (3, "") == (nothing.status, nothing.errors)


async def test_every_change_is_in_the_audit_log(run: Admin, logs: Logs) -> None:
    """Who, when, what, how much; dry runs are none; every replica reads the same.

    The clear finds the page that the quota evicted a moment ago, which is unlinked later.
    """
    await run("pin", "--all", "--ttl", "2h", "--yes")
    await run("unpin", "--all", "--yes")
    await run("quota", "set", "mine", "5KiB", "--yes")
    await run("evict", "--prefix", LONG_PAGES[4].hex(), "--dry-run")
    await run("verify", "--yes")
    await run("clear", "--yes")
    ended = await run("audit", "--json")
    check_form(ended.object, AUDIT)
    entries = ended.object["entries"]
    short = NAMESPACE.hex()[:12]
    assert [
        ("Clear", "all pages", NUM_PAGES, NUM_PAGES * PAGE_BYTES),
        ("Verify", "all pages: 5 pages checked", 0, 0),
        ("SetQuota", f"namespace {short}: 5120 bytes", 1, PAGE_BYTES),
        ("Unpin", "all pages", NUM_PAGES, NUM_PAGES * PAGE_BYTES),
        ("Pin", "all pages, for 7200 s", NUM_PAGES, NUM_PAGES * PAGE_BYTES),
    ] == [(e["method"], e["request"], e["num_pages"], e["num_bytes"]) for e in entries]
    assert all(entry["peer"].startswith("ipv4:127.0.0.1:") for entry in entries)
    assert sorted((entry["unix_ms"] for entry in entries), reverse=True) == [
        entry["unix_ms"] for entry in entries
    ]
    told = [each["method"] for each in logs if each["event"] == "changed by hand"]
    assert ["Pin", "Unpin", "SetQuota", "Verify", "Clear"] == told
    assert 1 == len((await run("audit", "--limit", "1", "--json")).object["entries"])
    assert "all pages, for 7200 s" in (await run("audit")).output


async def test_a_watch_may_have_an_end(run: Admin) -> None:
    """Nothing happens, so nothing is shown."""
    ended = await run("watch", "--for", "100ms")
    assert (0, "", "") == (ended.status, ended.output, ended.errors)


async def test_wrong_usage(run: Admin) -> None:
    """Status 2, and the flag at fault is named."""
    for command, words in (
        (("evict", "--yes"), "--prefix"),
        (("evict", "--prefix", "12", "--yes"), "--prefix"),
        (("evict", "--prefix", "xyz", "--yes"), "--prefix"),
        (("evict", "--older-than", "soon", "--yes"), "--older-than"),
        (("pin", "--all", "--text", "a", "--yes"), "--text"),
        (("pin", "--all", "--ttl", "0s", "--yes"), "--ttl"),
        (("quota", "set", "mine", "much", "--yes"), "SIZE"),
        (("top", "--limit", "0"), "--limit"),
        (("watch", "--for", "ever"), "--for"),
    ):
        ended = await run(*command)
        assert (2, True) == (ended.status, words in ended.errors), command


async def test_changes_fail_while_redis_is_away(run: Admin, valkey: Valkey) -> None:
    """Status 1 with the reason; nothing is half changed."""
    valkey.stop()

    async def down() -> bool:
        return (await run("ping")).status == 1

    await eventually(down)
    for command in (
        ("pin", "--all", "--yes"),
        ("evict", "--older-than", "1ms", "--yes"),
        ("quota", "set", NAMESPACE.hex(), "2KiB", "--yes"),
        ("verify", "--yes"),
        ("audit",),
    ):
        ended = await run(*command)
        assert (1, True) == (ended.status, "Redis" in ended.errors), command
    (state,) = (await run("ls", "--json")).object["namespaces"]
    assert (NUM_PAGES, 0, 0) == (
        state["num_pages"],
        state["num_pinned_pages"],
        state["quota_bytes"],
    )


async def eventually(check: Callable[[], Any]) -> None:
    """Wait until the check, which may be a coroutine function, holds."""
    async with asyncio.timeout(10):
        while True:
            held = check()
            if await held if asyncio.iscoroutine(held) else held:
                return
            await asyncio.sleep(0.05)
