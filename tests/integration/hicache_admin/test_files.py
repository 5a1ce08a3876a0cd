"""Pages to a file and back."""

from __future__ import annotations

import asyncio
import os
import pathlib

import pytest

from chunkmesh.stored_page import page_key
from hicache.admin.page_file import PageFileWriter
from tests.admin_forms import CHANGE, check_form
from tests.hicache_admin import LONG, LONG_PAGES, NUM_PAGES, PAGE_BYTES, Admin
from tests.valkey import Valkey


async def test_export_and_import(run: Admin, valkey: Valkey, tmp_path: pathlib.Path) -> None:
    """What was exported is there again after a clear, byte for byte, and only once."""
    file = tmp_path / "pages"
    with valkey.client() as client:
        before = {key: client.hgetall(key) for key in client.keys("cm:*")}
        exported = await run("export", str(file), "--json")
        check_form(exported.object, {"file": str, "num_pages": int, "num_bytes": int})
        assert NUM_PAGES == exported.object["num_pages"]
        assert NUM_PAGES * PAGE_BYTES == exported.object["num_bytes"]
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


@pytest.mark.parametrize("how", ["--dry-run", "--yes"])
async def test_a_file_without_pages_holds_nothing_to_import(
    run: Admin, tmp_path: pathlib.Path, how: str
) -> None:
    """It is whole and well used, so it is no mistake of the caller's; there is just nothing."""
    file = tmp_path / "pages"
    with PageFileWriter(file) as writer:
        writer.end()
    ended = await run("import", str(file), how)
    assert (3, "", True) == (ended.status, ended.output, "holds no page" in ended.errors)


async def test_what_was_just_evicted_can_be_imported(run: Admin, tmp_path: pathlib.Path) -> None:
    """Redis drops evicted pages some seconds later; the import waits for that."""
    file = tmp_path / "pages"
    await run("export", str(file), "--prefix", LONG_PAGES[2].hex())
    await run("evict", "--prefix", LONG_PAGES[2].hex(), "--yes")
    ended = await run("import", str(file), "--yes", "--json")
    assert (0, 3, 0) == (ended.status, ended.object["num_pages"], ended.object["num_refused"])
    looked = await run("lookup", "--text", LONG.decode(), "--json")
    assert 80 == looked.object["cached_tokens"]
