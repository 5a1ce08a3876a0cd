"""O19: loads that end while their command is under way, behind a proxy that delays replies."""

from __future__ import annotations

import asyncio
import pathlib
import queue

import numpy as np

from chunkmesh.kv_store import KvStore
from chunkmesh.page_record import PageRecord, encode_page
from stage_worker.page_io import PageIO
from stage_worker.page_jobs import LoadResult, StoreResult
from tests.fault_proxy import FaultProxy
from tests.page_samples import FORM, NAMESPACE, chain
from tests.scripted_stage import Script, ScriptedStage
from tests.valkey import running_valkey

ROUNDS = 25
LAYERS = range(4)
PAGE_A, PAGE_B = chain(2)


def _fill(url: str) -> None:
    """Store page A, all 0xAA, and page B, all 0xBB."""
    store = KvStore(url)
    for index, (digest, byte) in enumerate(((PAGE_A, 0xAA), (PAGE_B, 0xBB))):
        record = PageRecord(format=FORM, namespace=NAMESPACE, parent=NAMESPACE, page_index=index)
        data = np.full(FORM.layer_bytes, byte, dtype=np.uint8)
        page = encode_page(digest, record, ((layer, data) for layer in LAYERS))
        assert store.write_pages([page]) == (True,)
    store.close()


async def test_o19_a_cancelled_load_never_answers_the_next_one(tmp_path: pathlib.Path) -> None:
    """One connection; A is cancelled or ended midway, and what B gets is B."""
    results: queue.Queue[LoadResult | StoreResult] = queue.Queue()
    crashes: list[BaseException] = []
    stage = ScriptedStage(0, 4, FORM.model_layers, Script())
    stage.allocate(num_pages=2, page_tokens=FORM.page_tokens)
    with running_valkey(tmp_path) as server:
        await asyncio.to_thread(_fill, server.url)
        async with FaultProxy(server.port).listening() as proxy:
            proxy.fault.delay_s = 0.03
            page_io = PageIO(
                [KvStore(proxy.url)], stage, LAYERS, report=results.put, crashed=crashes.append
            )
            page_io.join(FORM)
            num_in_time = 0
            for turn in range(ROUNDS):
                page_io.load(2 * turn, [PAGE_A])
                await asyncio.sleep(0.015)
                page_io.cancel(2 * turn)
                page_io.load(2 * turn + 1, [PAGE_B])
                result = await asyncio.to_thread(results.get, timeout=30)
                if result == LoadResult(load_id=2 * turn, num_pages=1, bad_digests=()):
                    num_in_time += 1  # A was read before it could be cancelled
                    result = await asyncio.to_thread(results.get, timeout=30)
                assert LoadResult(load_id=2 * turn + 1, num_pages=1, bad_digests=()) == result
                pages = page_io.take(2 * turn + 1)
                assert pages is not None
                assert {0xBB} == set(pages.ready[0].ravel().tolist())
            await asyncio.to_thread(page_io.close)
            assert proxy.num_connections == 1
    assert num_in_time < ROUNDS
    assert results.empty()
    assert crashes == []
