"""Workers that are killed while something else is under way: a resumption, a store, a load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from chunkmesh.v1 import generation_pb2 as pb
from tests.fault_proxy import FaultProxy
from tests.loss_mesh import (
    LAYERS,
    NEW_TOKENS,
    PARAMS,
    PROMPT_TOKENS,
    Heard,
    KillOnce,
    LossMesh,
    loss_mesh,
    make_prompt,
)
from tests.valkey import Valkey

_GREEDY = PARAMS[0]
_ROUNDING = 1e-4
"""Of log-probabilities: what is computed anew runs in chunks, and not token by token."""


async def _soon(reached: Callable[[], bool]) -> None:
    """Wait for what does not last long."""
    async with asyncio.timeout(20):
        while not reached():
            await asyncio.sleep(0.001)


def _setbacks(mesh: LossMesh) -> list[int]:
    """Return how often each output that lives was resumed."""
    live = mesh.loop.engine._live
    outputs = [output for each in live.request_ids() for output in live.of(each)]
    return [output.setbacks.num_recoveries for output in outputs]


async def test_a_second_loss_during_the_resumption_of_the_first(tiny: Path, tmp_path: Path) -> None:
    """Another stage is killed as soon as the outputs are computed anew; no answer differs."""
    async with loss_mesh(tiny, tmp_path, None) as mesh:
        mesh.start(*LAYERS, *LAYERS[1:])
        await mesh.attached(5)
        expected = await mesh.all_answers(make_prompt(4))
        resumed: list[int] = []

        async def kill_again() -> None:
            await mesh.recovered(1)
            await _soon(lambda: mesh.loop.engine.snapshot().num_in_flight > 0)
            assert mesh.loop.engine.recoveries.is_open
            num_before = mesh.loop.engine.recoveries.counts.outputs
            mesh.kill(2)
            await mesh.recovered(1 + num_before)
            resumed.extend(_setbacks(mesh))

        again = asyncio.create_task(kill_again())
        kill = KillOnce(mesh, 1, "decode")
        assert expected == await mesh.all_answers(make_prompt(4), kill)
        await again
        assert 2 == max(resumed)
        await mesh.at_rest()


async def test_a_loss_while_pages_are_stored(tiny: Path, tmp_path: Path, valkey: Valkey) -> None:
    """What was stored in part is no hit that lies, and what was not is stored by the next."""
    proxy = FaultProxy(valkey.port)
    async with (
        proxy.listening(),
        loss_mesh(
            tiny, tmp_path, valkey, worker_redis_url=proxy.url, enable_prefix_caching=False
        ) as mesh,
    ):
        mesh.start(*LAYERS, LAYERS[1])
        await mesh.attached(4)
        proxy.fault.delay_s = 0.2
        killed: list[int] = []

        def kill(_heard: Heard) -> None:
            num_stores = mesh.loop.engine.snapshot().num_stores
            if num_stores and not killed:
                killed.append(num_stores)
                mesh.kill(1)

        first = await mesh.hear(make_prompt(5), _GREEDY, kill)
        assert killed
        assert 1 == mesh.loop.engine.recoveries.counts.outputs
        proxy.fault.delay_s = 0.0
        await mesh.at_rest()
        for _ in range(2):
            again = await mesh.hear(make_prompt(5), _GREEDY, lambda _heard: None)
            assert first.ids == again.ids
            await mesh.at_rest()
        assert PROMPT_TOKENS - 16 <= again.ends[0].cached_tokens


async def test_a_loss_while_pages_are_loaded(tiny: Path, tmp_path: Path, valkey: Valkey) -> None:
    """The load ends with the route; the other stages must not wait for it, nor keep its pages."""
    proxy = FaultProxy(valkey.port)
    async with (
        proxy.listening(),
        loss_mesh(
            tiny,
            tmp_path,
            valkey,
            worker_redis_url=proxy.url,
            enable_prefix_caching=False,
            load_policy="wait_complete",
        ) as mesh,
    ):
        mesh.start(*LAYERS, LAYERS[2])
        await mesh.attached(4)
        first = await mesh.hear(make_prompt(6), _GREEDY, lambda _heard: None)
        await mesh.at_rest()
        proxy.fault.delay_s = 0.5
        asked = asyncio.create_task(mesh.hear(make_prompt(6), _GREEDY, lambda _heard: None))
        await _soon(lambda: mesh.loop.engine.snapshot().num_loads > 0)
        mesh.kill(2)
        await _soon(lambda: not mesh.loop.workers.routes)
        proxy.fault.delay_s = 0.0
        again = await asked
        assert first.ids == again.ids
        assert 1 == mesh.loop.engine.recoveries.counts.outputs
        await mesh.at_rest()


def _told(heard: Heard) -> tuple[list[int], list[float], list[int], list[float]]:
    """Return ids, log-probabilities, and those of the most likely ids."""
    return (
        heard.ids[0],
        [value for part in heard.logprobs for value in part.logprobs],
        [value for part in heard.logprobs for value in part.top_ids],
        [value for part in heard.logprobs for value in part.top_logprobs],
    )


async def test_stop_strings_and_log_probabilities_across_a_loss(tiny: Path, tmp_path: Path) -> None:
    """Text that is held back for a stop string, and what was told of tokens, go on as they were."""
    params = _GREEDY | {"logprobs": True, "top_logprobs": 3, "temperature": 1.0, "seed": 3}
    async with loss_mesh(tiny, tmp_path, None) as mesh:
        mesh.start(*LAYERS, LAYERS[1], LAYERS[0])
        await mesh.attached(5)
        whole = await mesh.hear(make_prompt(7), params, lambda _heard: None)
        text = whole.text[0]
        stop = text[len(text) * 2 // 3 :][:6]
        cut = text[: text.index(stop)]
        for stage, wanted in ((1, []), (0, [stop])):
            kill = KillOnce(mesh, stage, "decode")
            heard = await mesh.hear(make_prompt(7), params | {"stop": wanted}, kill)
            assert kill.is_done
            num_ids = len(heard.ids[0])
            assert (cut if wanted else text) == heard.text[0]
            assert ("stop" if wanted else "length") == _reason(heard)
            ids, logprobs, top_ids, top_logprobs = _told(heard)
            expected = _told(whole)
            assert expected[0][:num_ids] == ids
            assert num_ids == len(logprobs)
            assert pytest.approx(expected[1][:num_ids], abs=_ROUNDING) == logprobs
            assert expected[2][: 3 * num_ids] == top_ids
            assert pytest.approx(expected[3][: 3 * num_ids], abs=_ROUNDING) == top_logprobs
            await mesh.at_rest()
        assert 2 == mesh.loop.engine.recoveries.counts.outputs


def _reason(heard: Heard) -> str:
    return pb.FinishReason.Name(heard.ends[0].finish_reason).rpartition("_")[2].lower()


@pytest.mark.parametrize(("new_tokens", "moment"), [(1, "prefill"), (NEW_TOKENS, "decode")])
async def test_a_full_context_across_a_loss(
    tiny: Path, tmp_path: Path, new_tokens: int, moment: str
) -> None:
    """Prompt and output fill the context to its last token, as does what is computed anew."""
    limit = PROMPT_TOKENS + new_tokens
    params = _GREEDY | {"max_new_tokens": new_tokens}
    async with loss_mesh(tiny, tmp_path, None, context_length=limit) as mesh:
        mesh.start(*LAYERS, LAYERS[1])
        await mesh.attached(4)
        prompt = make_prompt(8)
        expected = await mesh.hear(prompt, params, lambda _heard: None)
        kill = KillOnce(mesh, 1, moment)
        heard = await mesh.hear(prompt, params, kill)
        assert kill.is_done
        assert (expected.ids, limit) == (heard.ids, len(prompt) + len(heard.ids[0]))
        with pytest.raises(grpc.aio.AioRpcError, match="context"):
            await mesh.hear([*prompt, *([1] * new_tokens)], params, lambda _heard: None)
        await mesh.at_rest()


@pytest.mark.parametrize("has_spare", [True, False], ids=["a spare", "nobody"])
async def test_no_wait_for_a_take_over(tiny: Path, tmp_path: Path, *, has_spare: bool) -> None:
    """With --takeover-wait 0 requests still go on with who is there, and else end at once."""
    async with loss_mesh(tiny, tmp_path, None, takeover_wait=0.0) as mesh:
        mesh.start(*LAYERS, *(LAYERS[1:2] if has_spare else ()))
        await mesh.attached(3 + has_spare)
        expected = await mesh.hear(make_prompt(9), _GREEDY, lambda _heard: None)
        kill = KillOnce(mesh, 1, "decode")
        if has_spare:
            assert expected.ids == (await mesh.hear(make_prompt(9), _GREEDY, kill)).ids
        else:
            with pytest.raises(grpc.aio.AioRpcError, match="no worker holds layers 1") as failed:
                await mesh.hear(make_prompt(9), _GREEDY, kill)
            assert grpc.StatusCode.UNAVAILABLE is failed.value.code()
        assert kill.is_done
        await mesh.at_rest()
