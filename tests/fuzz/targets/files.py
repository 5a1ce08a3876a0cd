"""Files that users give or that earlier runs have left: settings, latencies, profiles, results."""

from __future__ import annotations

import json
from typing import Any

import typer

from chunkmesh.bench.comparison import compare, differences
from chunkmesh.bench.prompt_file import parse_prompts
from chunkmesh.bench.result import BenchResult
from chunkmesh.cli.generate_request import read_input_ids
from chunkmesh.cli.partition import read_num_layers
from chunkmesh.cli.readiness import read_answer
from chunkmesh.config import load
from chunkmesh.demo_model.manifest import MANIFEST_FILE, find_damage
from chunkmesh.errors import ConfigError
from chunkmesh.layers import LayerRange
from chunkmesh.v1 import hicache_pb2
from hicache.admin.page_file import check_page_file, read_page_file
from hicache.admin.warm_file import read_warm_file
from hicache.settings import HiCacheSettings
from scheduler.latency_file import LatencyFile, SavedStage, parse_latency_file
from scheduler.latency_model import StageLatency
from scheduler.settings import SchedulerSettings
from scheduler.size_ratios import SizeRatios
from stage_worker.profile_file import ProfileSubject, read_profile, write_profile
from stage_worker.profile_plan import ProfileLimits, ProfilePoint, ProfileShape
from stage_worker.settings import WorkerSettings
from tests.bench_records import record, result, run
from tests.fuzz.json_mutation import mutated_json
from tests.fuzz.mutation import mutated
from tests.fuzz.scratch import scratch_folder
from tests.fuzz.target import Target, refused
from tests.scripted_stage import Script, ScriptedStage

_FOLDER = scratch_folder()
_LATENCY = StageLatency(
    floor_ms=5.0,
    fixed_ms=1.5,
    ms_per_token=0.01,
    ms_per_pair=1e-8,
    size_ratios=SizeRatios(tokens=(512, 4096), ratios=(0.95, 1.01)),
)
_LATENCIES = LatencyFile(
    model="m",
    device="cpu",
    threads=1,
    stages=(
        SavedStage.of(LayerRange(first=0, last=15), _LATENCY),
        SavedStage.of(LayerRange(first=15, last=30), _LATENCY),
    ),
).to_json()
_LIMITS = ProfileLimits(max_chunk_tokens=64, max_prefix_tokens=256, max_rows=8, budget_ms=18_000.0)
_SUBJECT = ProfileSubject.of(
    ScriptedStage(0, 2, 4, Script()).description, _LIMITS, runtime="torch 1", threads=1
)
_POINTS = (
    ProfilePoint(shape=ProfileShape(prefix_tokens=256, chunk_tokens=64), compute_us=1234),
    ProfilePoint(shape=ProfileShape(prefix_tokens=16, num_rows=8), compute_us=56),
)
_BASE = result(
    run({"output_throughput": 5.5, "median_ttft_ms": 3.0}, records=(record(), record(1)))
)
_RESULT: dict[str, Any] = _BASE.as_json(with_records=True)
_RESULT = json.loads(json.dumps(_RESULT))


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _check_latency(data: bytes) -> bool:
    """What is accepted gives finite times for the longest chunk."""
    try:
        file = parse_latency_file(_text(data), name="f.json")
    except ConfigError as error:
        return refused(error)
    for stage in file.stages:
        assert 0 <= stage.latency.chunk_ms(1 << 23, 1 << 24) < float("inf")
    assert file == parse_latency_file(file.to_json(), name="f.json")
    return True


def _check_profile(data: bytes) -> bool:
    (_FOLDER / _SUBJECT.file_name).write_bytes(data)
    points = read_profile(_FOLDER, _SUBJECT)
    if points is None:
        return False
    assert all(0 < point.compute_us < 1 << 32 for point in points)
    return True


def _check_settings(data: bytes) -> bool:
    path = _FOLDER / "settings.toml"
    path.write_bytes(data)
    taken = []
    for kind, flags in (
        (SchedulerSettings, ()),
        (WorkerSettings, ("--layers=0-3",)),
        (HiCacheSettings, ()),
    ):
        try:
            loaded = load(kind, [f"--config={path}", *flags], {})
        except ConfigError as error:
            refused(error)
        else:
            taken.append(loaded.describe())
    return len(taken) == 3


def _check_result(data: bytes) -> bool:
    """What is accepted can be held against another result and written again."""
    try:
        read = BenchResult.from_text(_text(data), "r.json")
        compare(_BASE, read)
        differences(_BASE.workload, read.workload)
    except ConfigError as error:
        return refused(error)
    for each in read.runs:
        each.lag.warning(median_ttft_ms=1.0, median_itl_ms=None)
        for kept in each.records or ():
            _ = kept.ttft_ms, kept.e2el_ms, kept.tpot_ms, kept.itls_ms
    json.dumps(read.as_json(with_records=True))
    return True


def _check_prompts(data: bytes) -> bool:
    try:
        prompts = parse_prompts(_text(data), output_tokens=4, name="p.jsonl")
    except ConfigError as error:
        return refused(error)
    for prompt in prompts:
        assert 1 <= prompt.output_tokens < 1 << 32
        if isinstance(prompt.content, str):
            prompt.content.encode()
    return True


def _check_ids(data: bytes) -> bool:
    path = _FOLDER / "ids.json"
    path.write_bytes(data)
    try:
        return len(read_input_ids(path)) % 4 == 0
    except ConfigError as error:
        return refused(error)


def _check_num_layers(data: bytes) -> bool:
    (_FOLDER / "config.json").write_bytes(data)
    try:
        return read_num_layers(_FOLDER) > 0
    except ConfigError as error:
        return refused(error)


def _check_answer(data: bytes) -> bool:
    answer = read_answer(503, data)
    assert answer.progress is None or 0 <= answer.progress <= 1
    return answer.progress is not None


def _check_manifest(data: bytes) -> bool:
    """A folder is whole only if the manifest says what its files are."""
    (_FOLDER / "manifest").mkdir(exist_ok=True)
    (_FOLDER / "manifest" / MANIFEST_FILE).write_bytes(data)
    return find_damage(_FOLDER / "manifest", source_sha256="0" * 64) is None


def _check_page_file(data: bytes) -> bool:
    path = _FOLDER / "pages"
    path.write_bytes(data)
    try:
        read = len(list(read_page_file(path)))
        assert read == check_page_file(path) == int.from_bytes(data[-8:], "little")
    except ConfigError as error:
        return refused(error)
    return True


def _check_warm_file(data: bytes) -> bool:
    path = _FOLDER / "warm.jsonl"
    path.write_bytes(data)
    try:
        return bool(read_warm_file(path, whole=False, cache_salt=""))
    except typer.Exit:
        return False


def _profile_bytes() -> bytes:
    write_profile(_FOLDER, _SUBJECT, _POINTS)
    return (_FOLDER / _SUBJECT.file_name).read_bytes()


def _page_file_bytes() -> bytes:
    messages = [
        hicache_pb2.ExportResponse(
            digest=bytes(32), fields=[hicache_pb2.PageField(name=b"m", value=b"x")]
        ).SerializeToString()
        for _ in range(2)
    ]
    body = b"".join(len(each).to_bytes(4, "little") + each for each in messages)
    return b"CMPAGES\x01" + body + bytes(4) + (2).to_bytes(8, "little")


_PROFILE = _profile_bytes()
_PAGES = _page_file_bytes()
_TOML = b"""log-level = "info"
model-path = "m"
[scheduler]
port = 50051
page-size = 64
load_policy = "timeout"
max-chunk-ms = 500.0
[stage-worker]
scheduler = ["127.0.0.1:50052", "[::1]:50052"]
redis_url = "redis://user:secret@127.0.0.1:6379"
device = "cpu"
[hicache]
max_bytes = 0
redis-url = ["redis://127.0.0.1:6379"]
"""
_TOML_WORDS = (
    *(b"[[a]]\n", b"a = nan\n", b"port = -1\n", b"port = inf\n", b"= {}", b" = 1979-05-27\n"),
    *(b"x.y.z = 1\n", b"[" * 5000, b"\x1b[2J", b'"""', b"1" * 5000, b"= [[[1]]]\n", b"redis://["),
    *(b"rediss://\x00", b"unix://", b"http://", b"page-size = 99999999999999999999\n", b"\\ud800"),
)
_PROMPTS = (b'{"prompt": "What?", "output_len": 64}\n{"input_ids": [5, 9, 2]}\n',)
_WARM_LINES = (
    b'"a text"',
    b'{"text": "a", "cache_salt": "s"}',
    b'{"input_ids": [1, 2]}',
    b'{"messages": [{"role": "user", "content": "hi"}]}',
)
_WARM = (b"\n".join(_WARM_LINES),)
_MANIFEST = {"source_sha256": "0" * 64, "files": {}}
_LINE_WORDS = (b"[" * 100_000, b"\\ud800", b"1e999", b"NaN", b"null", b"true", b"-1", b'"a"', b"{}")

TARGETS = (
    Target(
        name="latency file",
        seeds=(_LATENCIES.encode(),),
        check=_check_latency,
        values=mutated_json(json.loads(_LATENCIES)),
        examples=1000,
    ),
    Target(
        name="profile file",
        seeds=(_PROFILE,),
        check=_check_profile,
        values=mutated_json(json.loads(_PROFILE)),
        examples=500,
    ),
    Target(
        name="TOML settings",
        seeds=(_TOML,),
        check=_check_settings,
        values=mutated(_TOML, words=_TOML_WORDS),
        examples=150,
    ),
    Target(
        name="bench result",
        seeds=(json.dumps(_RESULT).encode(),),
        check=_check_result,
        values=mutated_json(_RESULT),
        examples=100,
    ),
    Target(
        name="bench prompts",
        seeds=_PROMPTS,
        check=_check_prompts,
        values=mutated(*_PROMPTS, words=_LINE_WORDS),
    ),
    Target(
        name="token ids",
        seeds=(b"[1, 2, 3]",),
        check=_check_ids,
        values=mutated_json([1, 2, 3]),
        examples=500,
    ),
    Target(
        name="command line's config.json",
        seeds=(b'{"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4}',),
        check=_check_num_layers,
        values=mutated_json({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4}),
        examples=500,
    ),
    Target(
        name="answer of /ready",
        seeds=(b'{"state": "loading", "reason": "", "progress": 0.5}',),
        check=_check_answer,
        values=mutated_json({"state": "loading", "reason": "", "progress": 0.5}),
        examples=500,
    ),
    Target(
        name="manifest",
        seeds=(json.dumps(_MANIFEST).encode(),),
        check=_check_manifest,
        values=mutated_json(_MANIFEST, values=("\0", "../../etc/passwd", "x" * 5000)),
        examples=500,
    ),
    Target(name="page file", seeds=(_PAGES,), check=_check_page_file, values=mutated(_PAGES)),
    Target(
        name="warm file",
        seeds=_WARM,
        check=_check_warm_file,
        values=mutated(*_WARM, words=_LINE_WORDS),
        examples=1000,
    ),
)
