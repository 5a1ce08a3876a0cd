"""What commands print: stable keys for scripts, tables for people."""

from __future__ import annotations

import json
import pathlib

import pytest

from tests.admin_forms import (
    AUDIT,
    CHANGE,
    CHANGED,
    LOOKUP,
    NAMESPACES,
    PING,
    QUOTA,
    QUOTAS,
    RUN,
    STATS,
    VERIFIED,
    check_form,
)
from tests.hicache_admin import (
    LONG,
    NUM_PAGES,
    PAGE_BYTES,
    SHORT_PAGES,
    Admin,
    admin,
    hicache_over,
)
from tests.page_samples import NAMESPACE
from tests.valkey import Valkey


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
        *(CHANGE | {"num_known": int, "num_refused": int}, QUOTA, VERIFIED, CHANGED),
        *(NAMESPACES["namespaces"][0], RUN, QUOTAS["quotas"][0], AUDIT["entries"][0]),
        *(LOOKUP["layers"][0], LOOKUP["pages"][0]),
    ],
)
def test_the_guide_lists_the_keys(form: dict[str, object]) -> None:
    """What scripts may rely on is what the guide says."""
    guide = pathlib.Path(__file__).parents[3] / "docs" / "hicache-admin.md"
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


async def test_people_see_how_full_it_is(run: Admin, valkey: Valkey) -> None:
    """The first question of whoever runs it; without a budget there is no share to tell."""
    assert "no budget" in (await run("stats")).output.splitlines()[-1]
    async with hicache_over(valkey, max_bytes=2 * NUM_PAGES * PAGE_BYTES) as bounded:
        shown = await admin("--hicache", bounded, "stats")
    assert "50.0% of the budget" in shown.output.splitlines()[-1]
