"""O29: what /metrics tells of known traffic, each metric by value or by the range it must be in.

Scheduler, stages and HiCache share this process and its metrics: each look shows them all.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from pathlib import Path

import grpc
import pytest

from chunkmesh.v1 import generation_pb2 as pb
from tests.bytes_tokenizer import write_bytes_folder
from tests.cached_mesh import cached_mesh
from tests.eventually import eventually
from tests.gate import Gate
from tests.mesh import Mesh, mesh
from tests.metrics_in_code import metrics_in_code
from tests.scrape import Scrape, scrape
from tests.scripted_stage import Script, scripted_stages
from tests.valkey import Valkey, running_valkey

PROMPT_TOKENS = 200
HIT_TOKENS = 192
NUM_PAGES = 12
PAGE_BYTES = 16 * 16
"""Of one layer, which is one stage."""
NEW_TOKENS = 3
GONE_TOKENS = 15
CHUNKS = (64, 64, 64, 8, 8, GONE_TOKENS)
NUM_MICROBATCHES = len(CHUNKS) + 2 * (NEW_TOKENS - 1)
STAGES = ("0", "1")
BEAT_S = 0.6
"""Stages tell their time at least so often."""


def model(folder: Path, num_stages: int) -> Path:
    """Write a model of one layer a stage."""
    return write_bytes_folder(folder / "model", config={"num_hidden_layers": num_stages})


def request(num_tokens: int, new_tokens: int = NEW_TOKENS) -> pb.GenerateRequest:
    """Return a request that ends by length."""
    return pb.GenerateRequest(
        input_ids=pb.TokenIds(ids=[97 + n % 26 for n in range(num_tokens)]),
        sampling_params=pb.SamplingParams(max_new_tokens=new_tokens, ignore_eos=True),
    )


async def ends(running: Mesh, asked: pb.GenerateRequest) -> pb.GenerateComplete:
    """Run a request to its end."""
    return [each async for each in running.stub.Generate(asked, timeout=60)][-1].complete


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """What was told of the traffic below."""

    held: Scrape
    """While the request that is cancelled later runs."""
    last: Scrape
    """At the end."""
    grown: Scrape
    """Since before the traffic."""
    wall_s: float
    epoch: int


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Send a cold prompt, the same warm, one that its client leaves, and one that is refused."""
    with running_valkey(tmp_path_factory.mktemp("v")) as server:
        return asyncio.run(send_traffic(tmp_path_factory.mktemp("metrics"), server))


async def send_traffic(folder: Path, server: Valkey) -> Seen:
    """Send the traffic to a mesh of two stages whose prefixes are all in Redis."""
    gate = Gate()
    gate.open()
    stages = scripted_stages(2, Script(gate=gate))
    async with cached_mesh(model(folder, 2), stages, server.url) as running:
        before, begun_s = await scrape(running.http_address), time.monotonic()
        for _ in ("cold", "warm"):
            await ends(running, request(PROMPT_TOKENS))
            await running.at_rest()
        gate.close()
        call = running.stub.Generate(request(GONE_TOKENS))
        loop = running.control_loop
        await eventually(lambda: loop.engine.snapshot().num_in_flight == 1)
        await asyncio.sleep(BEAT_S)
        held = await scrape(running.http_address)
        call.cancel()
        gate.open()
        await running.at_rest()
        with pytest.raises(grpc.aio.AioRpcError, match="empty"):
            await ends(running, request(0))
        await asyncio.sleep(BEAT_S)
        last = await scrape(running.http_address)
        return Seen(
            held=held,
            last=last,
            grown=last.since(before),
            wall_s=time.monotonic() - begun_s,
            epoch=loop.workers.registry.epoch,
        )


def test_requests_and_tokens(seen: Seen) -> None:
    """Each call counts once, by how it ended; each token once, as its client was told."""
    ended = {key: n for key, n in seen.grown.series("requests_total").items() if n}
    assert ended == {
        ("OK", "length"): 2,
        ("CANCELLED", "gone"): 1,
        ("INVALID_ARGUMENT", "InvalidRequest"): 1,
    }
    names = ("prompt_tokens_total", "cached_tokens_total", "output_tokens_total")
    assert [seen.grown.value(name) for name in names] == [
        2 * PROMPT_TOKENS + GONE_TOKENS,
        HIT_TOKENS,
        2 * NEW_TOKENS,
    ]


def test_who_runs_and_waits(seen: Seen) -> None:
    """One ran at the first look, none at the last."""
    running = [each.value("num_requests_running") for each in (seen.held, seen.last)]
    calls = [each.value("open_calls") for each in (seen.held, seen.last)]
    assert (running, calls) == ([1, 0], [1, 0])
    assert seen.held.series("num_requests_waiting") == dict.fromkeys(
        [("cache",), ("place",), ("route",)], 0
    )
    assert seen.last.value("tasks") > 0
    assert seen.grown.value("preemptions_total") == 0


def test_latencies_count_what_there_was(seen: Seen) -> None:
    """A first token for each that got one, a gap for each token behind it."""
    names = {
        "time_to_first_token": 2,
        "inter_token_latency": 2 * (NEW_TOKENS - 1),
        "e2e_request_latency": 2,
        "request_queue_time": 3,
    }
    told = {name: seen.grown.value(f"{name}_seconds_count") for name in names}
    sums_s = {name: seen.grown.value(f"{name}_seconds_sum") for name in names}
    assert told == names
    assert all(0 < seconds < seen.wall_s for seconds in sums_s.values())
    first_and_gaps_s = sums_s["time_to_first_token"] + sums_s["inter_token_latency"]
    assert first_and_gaps_s == pytest.approx(sums_s["e2e_request_latency"])
    assert seen.last.value("time_to_first_token_seconds_bucket", le="1800.0") >= 2


def test_prefixes_by_tier(seen: Seen) -> None:
    """Cold is no hit, not even of its own earlier chunks; what has no full page asks nobody."""
    asked = seen.grown.series("prefix_cache_query_tokens_total")
    found = seen.grown.series("prefix_cache_hit_tokens_total")
    all_tokens = 2 * PROMPT_TOKENS + GONE_TOKENS
    assert asked == {("device",): all_tokens, ("host",): 0, ("redis",): 2 * PROMPT_TOKENS}
    assert found == {("device",): 0, ("host",): 0, ("redis",): HIT_TOKENS}
    loads = {key: n for key, n in seen.grown.series("loads_total").items() if n}
    assert loads == {("complete",): 1}
    evicted = ("device_evicted", "host_evicted", "host_dropped", "unwritten")
    assert [seen.grown.value(f"{name}_pages_total") for name in evicted] == [0, 0, 0, 0]
    assert seen.grown.value("loads_timed_out_total") == 0


def test_pages_and_kv_fill(seen: Seen) -> None:
    """One page of 256 is in use while the short prompt runs; each stage has room for as many."""
    assert seen.held.series("device_pages") == {("in_use",): 1, ("cached",): 0, ("free",): 255}
    assert set(seen.held.series("host_pages").values()) == {0}
    for each, ratio in ((seen.held, 1 / 256), (seen.last, 0.0)):
        assert each.series("kv_cache_usage_ratio") == {("0", stage): ratio for stage in STAGES}


def test_loads_and_stores_of_both_stages(seen: Seen) -> None:
    """Pages, bytes and times of each stage, all of them in this process."""
    for verb in ("loaded", "stored"):
        assert seen.grown.value(f"pages_{verb}_total") == 2 * NUM_PAGES
        assert seen.grown.value(f"pages_{verb}_bytes_total") == 2 * NUM_PAGES * PAGE_BYTES
        assert not any(seen.grown.series(f"pages_not_{verb}_total").values())
    assert seen.grown.value("load_seconds_count") == 2
    assert 2 <= seen.grown.value("store_seconds_count") <= 2 * NUM_PAGES
    for verb in ("load", "store"):
        assert 0 < seen.grown.value(f"{verb}_seconds_sum") < 2 * seen.wall_s
    rates = seen.last.series("load_bytes_per_second")
    assert set(rates) == {("0", stage) for stage in STAGES}
    assert min(rates.values()) > 0
    assert min(seen.last.series("host_bytes_per_second").values()) > 0
    assert seen.grown.value("pages_restored_bytes_total") == 2 * NUM_PAGES * PAGE_BYTES
    assert 0 < seen.grown.value("pages_restored_seconds_total") < 2 * seen.wall_s


def test_the_index_and_redis(seen: Seen) -> None:
    """HiCache has what was stored, was asked by both long prompts, and found the second one's."""
    assert seen.last.series("hicache_pages") == {("complete",): NUM_PAGES, ("partial",): 0}
    assert seen.last.value("hicache_bytes") == 2 * NUM_PAGES * PAGE_BYTES
    assert seen.grown.value("hicache_queried_pages_total") == 2 * NUM_PAGES
    assert seen.grown.value("hicache_hit_pages_total") == NUM_PAGES
    names = ("hicache_leases", "hicache_budget_bytes", "redis_up", "hicache_evicts")
    assert [seen.last.value(name) for name in names] == [0, 0, 1, 1]
    assert not any(seen.grown.series("redis_faults_total").values())
    names = (
        "cache_faults",
        "hicache_evicted_pages",
        "hicache_event_gaps",
        "hicache_events_ignored",
    )
    assert not any(seen.grown.value(f"{name}_total") for name in names)
    assert seen.grown.value("hicache_events_ignored_total") == 0


def test_microbatches_and_chunks(seen: Seen) -> None:
    """Chunks are those that were cut, and each stage has computed each microbatch once."""
    assert seen.grown.value("chunk_tokens_count") == len(CHUNKS)
    assert seen.grown.value("chunk_tokens_sum") == sum(CHUNKS)
    assert seen.grown.value("chunk_tokens_bucket", le="16.0") == 3
    for stage in STAGES:
        measured = {"stage": stage, "kind": "measured"}
        assert seen.grown.value("microbatch_seconds_count", **measured) == NUM_MICROBATCHES
        assert 0 < seen.grown.value("microbatch_seconds_sum", **measured) < seen.wall_s
    in_flight = [each.value("microbatches_in_flight", route="0") for each in (seen.held, seen.last)]
    assert in_flight == [1, 0]
    assert seen.last.value("chunk_strategy", chunkmesh_chunk_strategy="fixed") == 1
    assert seen.last.value("chunk_strategy_fallback") == 1
    assert seen.last.series("latency_refits") == {("0", stage): 0 for stage in STAGES}


def test_the_link(seen: Seen) -> None:
    """Eight numbers of four bytes a token, of all tokens that were computed."""
    num_tokens = sum(CHUNKS) + 2 * (NEW_TOKENS - 1)
    assert seen.grown.value("activation_bytes_total", link="0-1", transport="memory") == (
        num_tokens * 8 * 4
    )
    link = {"link": "0-1", "transport": "memory"}
    assert seen.grown.value("activation_seconds_count", **link) == NUM_MICROBATCHES
    assert 0 < seen.grown.value("activation_seconds_sum", **link) < seen.wall_s


def test_the_time_of_each_stage_is_told_once(seen: Seen) -> None:
    """Busy and idle are all of the time; the last stage, which the gate has held, was busy then."""
    busy_s = [seen.grown.value("stage_busy_seconds_total", stage=stage) for stage in STAGES]
    for stage, busy in zip(STAGES, busy_s, strict=True):
        idle_s = [
            seen.grown.value("stage_idle_seconds_total", stage=stage, cause=cause)
            for cause in ("bubble", "starved", "blocked")
        ]
        assert all(seconds >= 0 for seconds in idle_s)
        assert busy + sum(idle_s) == pytest.approx(seen.wall_s, abs=BEAT_S)
    assert busy_s[1] - busy_s[0] > BEAT_S / 2
    ratios = seen.last.series("bubble_ratio")
    assert set(ratios) == {("0", stage) for stage in STAGES}
    assert all(0 <= ratio <= 1 for ratio in ratios.values())


def test_the_route(seen: Seen) -> None:
    """It stands, has all stages and its epoch, and nothing was lost."""
    assert seen.last.series("plan_epoch") == {("0",): seen.epoch}
    assert seen.last.series("stage_up") == dict.fromkeys([("0",), ("1",)], 1)
    assert seen.last.series("stage_fit_accepted") == dict.fromkeys([("0",), ("1",)], 0)
    workers = {("serving",): 2, ("joining",): 0, ("leaving",): 0, ("spare",): 0}
    assert seen.last.series("workers") == workers
    assert (seen.last.value("routes"), seen.last.value("leads")) == (1, 1)
    for name in ("lost_routes_total", "recovered_outputs_total", "recovery_seconds_count"):
        assert seen.grown.value(name) == 0
    for name in ("lost_workers_total", "recoveries_total"):
        assert not any(seen.grown.series(name).values())


async def test_o29_time_to_first_token_includes_the_queue(tmp_path: Path) -> None:
    """One at a time: 100, 200 and 300 ms, of which 0, 100 and 200 in the queue."""
    stages = scripted_stages(1, Script(prefill_delay_s=0.1))
    async with mesh(model(tmp_path, 1), stages, max_running_requests=1) as running:
        before = await scrape(running.http_address)
        begun_s = time.monotonic()

        async def ask(num_tokens: int) -> float:
            await ends(running, request(num_tokens, new_tokens=1))
            return time.monotonic() - begun_s

        clock_s = await asyncio.gather(*map(ask, (20, 30, 40)))
        await asyncio.sleep(BEAT_S)
        grown = (await scrape(running.http_address)).since(before)
    first = "time_to_first_token_seconds"
    queue = "request_queue_time_seconds"
    assert grown.value(f"{first}_count") == grown.value(f"{queue}_count") == 3
    assert grown.value(f"{first}_sum") == pytest.approx(0.6, rel=0.2)
    assert grown.value(f"{first}_sum") == pytest.approx(sum(clock_s), rel=0.2)
    assert [grown.value(f"{first}_bucket", le=le) for le in ("0.05", "0.25", "0.5")] == [0, 2, 3]
    assert grown.value(f"{queue}_sum") == pytest.approx(0.3, rel=0.2)
    assert [grown.value(f"{queue}_bucket", le=le) for le in ("0.05", "0.25")] == [1, 3]


async def test_preempted_outputs_and_their_waiting_are_told(tmp_path: Path) -> None:
    """Two that grow to four pages each share four: one of them waits again, and both end."""
    stages = scripted_stages(1, Script())
    async with mesh(model(tmp_path, 1), stages, kv_capacity_tokens=64) as running:
        before = await scrape(running.http_address)
        await asyncio.gather(*(ends(running, request(10 + n, new_tokens=40)) for n in range(2)))
        await asyncio.sleep(BEAT_S)
        grown = (await scrape(running.http_address)).since(before)
    assert grown.value("preemptions_total") == 1
    assert grown.value("requests_total", outcome="length", code="OK") == 2
    assert grown.value("output_tokens_total") == 80
    assert grown.value("request_queue_time_seconds_count") == 2
    assert grown.value("chunk_tokens_count") == 3


async def test_series_of_a_route_go_with_it(tmp_path: Path) -> None:
    """A lost stage is told as such; what was told of its route would be read as if it stood."""
    stages = scripted_stages(2, Script())
    async with mesh(model(tmp_path, 2), stages) as running:
        before = await scrape(running.http_address)
        workers = running.control_loop.workers
        worker_id = next(iter(workers.routes.values())).workers[1].worker_id
        workers.lose(worker_id, "a test")
        running.control_loop._show_engine()
        lost = await scrape(running.http_address)
    assert lost.series("stage_up") == {("0",): 1, ("1",): 0}
    for name in ("plan_epoch", "kv_cache_usage_ratio", "bubble_ratio", "latency_refits"):
        assert lost.series(name) == {}
    assert lost.since(before).series("lost_workers_total")[("ended",)] == 1


def test_every_metric_was_looked_at(request: pytest.FixtureRequest) -> None:
    """A new metric needs a value in a test above, or in one of the parts named here."""
    here = {item.name for item in request.session.items if item.path == request.path}
    if here != {name for name in globals() if name.startswith("test_")}:
        pytest.skip("only when the whole module runs")
    asked = {name.removesuffix(end) for name in Scrape.asked for end in ("_count", "_sum", "")}
    left = {metric.name for metric in metrics_in_code()} - asked
    assert {name for name in left if not name.startswith("chunkmesh_gateway_")} == {
        "chunkmesh_gpu_links_through_host_total",
        "chunkmesh_refused_calls_total",
        "chunkmesh_trust_reloads_total",
        "chunkmesh_predicted_over_measured_ratio",
        "chunkmesh_stage_fit_median_error_ratio",
    }
