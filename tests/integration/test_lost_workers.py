"""Workers that are killed under running requests: a pause, no token twice, the same ids."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import grpc
import pytest
from prometheus_client import REGISTRY

from chunkmesh.errors import StageUnavailable
from chunkmesh.status import from_rpc_error
from tests.loss_mesh import LAYERS, PARAMS, Heard, KillOnce, loss_mesh, make_prompt
from tests.valkey import Valkey

_KILLS = {
    False: ((0, "prefill"), (1, "decode"), (2, "prefill")),
    True: ((0, "decode"), (1, "prefill"), (2, "decode")),
}
"""Stages and moments, without and with HiCache."""
SILENCE_S = 1.0
"""What --worker-timeout is by default."""


def _recovery_s() -> float:
    """Return the seconds of all recoveries so far."""
    return REGISTRY.get_sample_value("chunkmesh_recovery_seconds_sum") or 0.0


@pytest.mark.parametrize("cached", [False, True], ids=["no cache", "hicache"])
async def test_o27_a_spare_takes_over(
    tiny: Path, tmp_path: Path, request: pytest.FixtureRequest, *, cached: bool
) -> None:
    """Stages are killed in prefill and in decode; no answer differs, no token comes twice."""
    valkey: Valkey | None = request.getfixturevalue("valkey") if cached else None
    async with loss_mesh(tiny, tmp_path, valkey) as mesh:
        mesh.start(*LAYERS)
        await mesh.attached(3)
        for seed, (stage, moment) in enumerate(_KILLS[cached], start=3):
            mesh.start(LAYERS[stage])
            await mesh.attached(4)
            before_s, counts = _recovery_s(), mesh.loop.engine.recoveries.counts.outputs
            kill = KillOnce(mesh, stage, moment)
            disturbed = await mesh.all_answers(make_prompt(seed), kill)
            assert kill.is_done
            await mesh.at_rest()
            assert mesh.loop.engine.recoveries.counts.outputs > counts
            await asyncio.sleep(0.15)
            took_s, cache = _recovery_s() - before_s, mesh.loop.engine.snapshot().cache
            hits = cache.device_hit_tokens, cache.redis_hit_tokens
            print(f"stage {stage} in {moment}: recovered in {took_s:.3f} s, hits so far {hits}")
            await mesh.attached(3)
            assert disturbed == await mesh.all_answers(make_prompt(seed))
            await mesh.at_rest()


@pytest.mark.alone
async def test_o27_nobody_takes_over_until_somebody_comes(tiny: Path, tmp_path: Path) -> None:
    """Clients hear within 2 s that and when to try again; the mesh heals by itself.

    With a second route nothing of that happens: what ran on the lost one goes on there, and the
    others do not notice.
    """
    async with loss_mesh(tiny, tmp_path, None) as mesh:
        mesh.start(*LAYERS)
        await mesh.attached(3)
        expected = await mesh.all_answers(make_prompt(2))
        killed_s: list[float] = []

        def kill(heard: Heard) -> None:
            if len(heard.ids.get(0, ())) >= 10 and not killed_s:
                killed_s.append(time.monotonic())
                mesh.kill(1)

        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await mesh.hear(make_prompt(2), PARAMS[0], kill)
        assert time.monotonic() - killed_s[0] < 2.0
        _check_unavailable(failed.value)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await mesh.hear(make_prompt(2), PARAMS[0], kill)
        _check_unavailable(refused.value)
        await mesh.at_rest()
        mesh.start(LAYERS[1])
        await mesh.attached(3)
        assert expected == await mesh.all_answers(make_prompt(2))

        mesh.start(*LAYERS)
        await mesh.attached(6, num_routes=2)
        once = KillOnce(mesh, 2, "decode")
        assert expected == await mesh.all_answers(make_prompt(2), once)
        assert once.is_done
        counts = mesh.loop.engine.recoveries.counts
        assert 0 < counts.outputs < 5 + 4
        assert len(mesh.loop.workers.routes) == 1
        await mesh.at_rest()


async def test_o27_a_stopped_worker_without_a_spare_is_waited_for_by_nobody(
    tiny: Path, tmp_path: Path
) -> None:
    """Both streams end within its silence and the wait; awake it serves, the others as they were.

    Health and new requests say meanwhile that nobody serves.
    """
    async with loss_mesh(tiny, tmp_path, None) as mesh:
        mesh.start(*LAYERS)
        await mesh.attached(3)
        expected = await mesh.all_answers(make_prompt(2))
        (live,) = mesh.loop.workers.routes.values()
        stopped = mesh.workers.at(live.workers[1].data_address)
        stopped_s: list[float] = []

        def stop(heard: Heard) -> None:
            if len(heard.ids.get(0, ())) >= 10 and not stopped_s:
                stopped_s.append(time.monotonic())
                stopped.send(signal.SIGSTOP)

        ends = await asyncio.gather(
            *(mesh.hear(make_prompt(2), params, stop) for params in PARAMS[:2]),
            return_exceptions=True,
        )
        assert time.monotonic() - stopped_s[0] < SILENCE_S + 2.0
        for end in ends:
            assert isinstance(end, grpc.aio.AioRpcError)
            _check_unavailable(end)
        assert not await mesh.serves()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await mesh.hear(make_prompt(2), PARAMS[0], stop)
        _check_unavailable(refused.value)
        await mesh.at_rest()
        stopped.send(signal.SIGCONT)
        await mesh.attached(3)
        assert await mesh.serves()
        assert expected == await mesh.all_answers(make_prompt(2))
        await mesh.at_rest()
        snapshot = mesh.loop.engine.snapshot()
        assert snapshot.num_pages == snapshot.num_free_pages


def _check_unavailable(error: grpc.aio.AioRpcError) -> None:
    """The status says that trying again may help, and when."""
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    told = from_rpc_error(error)
    assert isinstance(told, StageUnavailable)
    assert told.retry_after_s
