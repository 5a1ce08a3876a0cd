"""Import and export over a real Redis: every value is checked, nothing that is there changes."""

from __future__ import annotations

import grpc
import pytest

from chunkmesh.coverage import layer_mask
from chunkmesh.kv_store import KvStore
from chunkmesh.page_record import PageMemory, PageRecord, encode_layer, encode_record
from chunkmesh.stored_page import page_key
from chunkmesh.v1 import hicache_pb2 as pb
from tests.eventually import eventually
from tests.filled_hicache import ALL, DIGESTS, filled, hicache_at, state_of
from tests.page_samples import FORM, NAMESPACE, chain, encoded, layer_data
from tests.valkey import Valkey


async def test_an_import_that_breaks_off_is_in_the_log(valkey: Valkey) -> None:
    """Pages that were written before the caller went are a change by hand, too."""
    async with filled(valkey) as hicache:
        parts = [part async for part in hicache.Export(pb.ExportRequest(selection=ALL))]
        await hicache.Clear(pb.ClearRequest())
        call = hicache.Import()
        for part in parts:
            await call.write(pb.ImportRequest(digest=part.digest, fields=part.fields))

        async def begun() -> bool:
            return (await hicache.GetStats(pb.GetStatsRequest())).num_pages >= 1

        await eventually(begun)
        call.cancel()

        async def told() -> bool:
            entries = (await hicache.GetAuditLog(pb.GetAuditLogRequest())).entries
            return entries[0].method == "Import" and "broken off" in entries[0].request

        await eventually(told)


async def test_import_checks_every_value(valkey: Valkey) -> None:
    """Wrong record, layer, checksum, order, model or parent: refused; the rest is written."""
    orphan = chain(3, name="orphan")[2]
    good = page_parts(DIGESTS[0], NAMESPACE, 0)
    wrong_layer = page_parts(DIGESTS[1], DIGESTS[0], 1)
    wrong_layer.fields[1].name = b"2"
    no_record = page_parts(DIGESTS[1], DIGESTS[0], 1)
    del no_record.fields[0]
    of_another = page_parts(DIGESTS[1], DIGESTS[0], 1)
    of_another.digest = DIGESTS[2]
    beyond = page_parts(DIGESTS[1], DIGESTS[0], 1)
    beyond.fields[1].name = b"4"
    nameless = page_parts(DIGESTS[1], DIGESTS[0], 1)
    nameless.fields[1].name = b"x"
    empty = page_parts(DIGESTS[1], DIGESTS[0], 1)
    del empty.fields[1:]
    unparented = page_parts(orphan, DIGESTS[3], 2)
    bad = [wrong_layer, no_record, of_another, beyond, nameless, empty, unparented]
    async with hicache_at(valkey) as hicache:
        for page in bad:
            counts = await hicache.Import(iter([good, page]))
            assert 1 == counts.num_refused, page
        with valkey.client() as client:
            assert [page_key(DIGESTS[0])] == client.keys("cm:*")
        counts = await hicache.Import(iter([good, page_parts(DIGESTS[1], DIGESTS[0], 1)]))
        assert (1, 1, 0) == (counts.num_pages, counts.num_known, counts.num_refused)
        with pytest.raises(grpc.aio.AioRpcError, match="nothing"):
            await hicache.Import(iter([]))
        with pytest.raises(grpc.aio.AioRpcError, match="5 bytes"):
            await hicache.Import(iter([pb.ImportRequest(digest=b"short")]))


async def test_import_completes_a_page_and_changes_nothing(valkey: Valkey) -> None:
    """Layers that are there stay as they are; those that lack come; parts may be cut anywhere."""
    whole = page_parts(DIGESTS[0], NAMESPACE, 0)
    async with hicache_at(valkey) as hicache:
        half = pb.ImportRequest(digest=whole.digest, fields=whole.fields[:3])
        counts = await hicache.Import(iter([half]))
        assert (1, 2 * FORM.layer_bytes) == (counts.num_pages, counts.num_bytes)
        assert 0 == (await hicache.GetStats(pb.GetStatsRequest())).num_pages
        parts = [pb.ImportRequest(digest=whole.digest, fields=[field]) for field in whole.fields]
        counts = await hicache.Import(iter(parts))
        assert (1, 2 * FORM.layer_bytes) == (counts.num_pages, counts.num_bytes)
        state = await state_of(hicache)
        assert (1, layer_mask(0, 4)) == (state.num_pages, layer_mask(0, state.layers[0].last))


async def test_export_comes_in_small_messages(valkey: Valkey) -> None:
    """No message is over 4 MiB, however large a page is."""
    large = type(FORM)(
        model_layers=4,
        dtype=FORM.dtype,
        page_tokens=FORM.page_tokens,
        layer_bytes=3 << 20,
    )
    store = KvStore(valkey.url)
    store.write_pages(encoded(DIGESTS[:1], range(4), large))
    store.close()
    async with hicache_at(valkey) as hicache:
        parts = [part async for part in hicache.Export(pb.ExportRequest(selection=ALL))]
        assert 4 == len(parts)
        assert all(part.ByteSize() <= 4 << 20 for part in parts)
        assert [b"m", b"0", b"1", b"2", b"3"] == [f.name for part in parts for f in part.fields]


def page_parts(digest: bytes, parent: bytes, page_index: int) -> pb.ImportRequest:
    """Return a whole page as export sends it."""
    record = PageRecord(format=FORM, namespace=NAMESPACE, parent=parent, page_index=page_index)
    fields = [pb.PageField(name=b"m", value=encode_record(digest, record))]
    for layer in range(FORM.model_layers):
        value = encode_layer(digest, layer, layer_data(digest, layer), PageMemory())
        fields.append(pb.PageField(name=b"%d" % layer, value=bytes(value)))
    return pb.ImportRequest(digest=digest, fields=fields)
