"""Changes need somebody's yes, and are written down."""

from __future__ import annotations

import pytest

from tests.admin_forms import AUDIT, check_form
from tests.eventually import eventually
from tests.hicache_admin import (
    LONG_PAGES,
    NUM_PAGES,
    PAGE_BYTES,
    SHORT_PAGES,
    Admin,
    Logs,
)
from tests.page_samples import NAMESPACE
from tests.valkey import Valkey


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
        ("warm", "no such file"),
        ("import", "no such file"),
    ],
)
async def test_without_a_terminal_changes_need_yes(
    run: Admin, valkey: Valkey, command: tuple[str, ...]
) -> None:
    """A script that forgot --yes must not hang on a question, nor change anything."""
    with valkey.client() as client:
        before = valkey.page_keys()
        ended = await run(*command)
        assert (2, "") == (ended.status, ended.output)
        assert "--yes" in ended.errors
        assert "--dry-run" in (await run(*command, "--yes", "--dry-run")).errors
        assert before == valkey.page_keys()
        assert 0 == client.exists("cm-audit", "cm-pins", "cm-quotas")


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
    assert all(entry["caller"] == entry["peer"] for entry in entries), "in plain text nobody knows"
    assert sorted((entry["unix_ms"] for entry in entries), reverse=True) == [
        entry["unix_ms"] for entry in entries
    ]
    told = [each["method"] for each in logs if each["event"] == "changed by hand"]
    assert ["Pin", "Unpin", "SetQuota", "Verify", "Clear"] == told
    assert 1 == len((await run("audit", "--limit", "1", "--json")).object["entries"])
    assert "all pages, for 7200 s" in (await run("audit")).output


async def test_wrong_usage(run: Admin) -> None:
    """Status 2, and the flag at fault is named."""
    for command, words in (
        (("evict", "--yes"), "--prefix"),
        (("evict",), "--prefix"),
        (("lookup", "--tokens", "ids.json", "--chat-role", "user"), "--chat-role"),
        (("ls", "--salt", "a", "--namespace", "12345678"), "--salt"),
        (("evict", "--prefix", "12", "--yes"), "--prefix"),
        (("evict", "--prefix", "xyz", "--yes"), "--prefix"),
        (("evict", "--prefix", "", "--yes"), "--prefix"),
        (("tree", "--prefix", ""), "--prefix"),
        (("tree", "--namespace", ""), "--namespace"),
        (("top", "--namespace", ""), "--namespace"),
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
    """Status 1 with the reason; nothing is half changed, and no dry run says that it could be."""
    valkey.stop()

    async def down() -> bool:
        return (await run("ping")).status == 1

    await eventually(down)
    changes = (
        ("pin", "--all"),
        ("unpin", "--all"),
        ("evict", "--older-than", "1ms"),
        ("quota", "set", NAMESPACE.hex(), "2KiB"),
        ("verify",),
        ("clear",),
    )
    for command in (
        *((*command, how) for command in changes for how in ("--yes", "--dry-run")),
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
