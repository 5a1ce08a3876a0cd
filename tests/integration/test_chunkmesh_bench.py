"""`chunkmesh bench` against a scripted Generation server."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import Result

from chunkmesh.errors import Overloaded
from chunkmesh.v1 import generation_pb2 as pb
from tests.cli_run import run_cli
from tests.fake_generation import FakeGeneration, script

_TIMEOUT_S = 30
_SMALL = ("--num-prompts", "6", "--random-input-len", "10", "--random-output-len", "5")


class _FirstEnds(FakeGeneration):
    """Ends the first request, and then no other."""

    async def Generate(
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Play the script, from the second request on without its end."""
        self.hang = bool(self.requests)
        async for reply in super().Generate(request, context):
            yield reply


def _prepared(server: FakeGeneration) -> FakeGeneration:
    """Give it a vocabulary, and an idle mesh whose requests bring a token, then two."""
    server.info.num_requests_running = 0
    server.model = pb.GetModelInfoResponse(
        served_model_name="fake", context_length=8192, vocab_size=100, eos_token_ids=[3]
    )
    chunks = [pb.GenerateStreamChunk(token_ids=ids) for ids in ([5], [6, 7])]
    server.replies = [*(pb.GenerateResponse(chunk=chunk) for chunk in chunks), script()[-1]]
    return server


@pytest.fixture
def server() -> Iterator[FakeGeneration]:
    """Yield a server of three tokens a request."""
    made = _prepared(FakeGeneration())
    yield made
    made.close()


@pytest.fixture
def first_ends() -> Iterator[FakeGeneration]:
    """Yield a server that ends one request."""
    made = _prepared(_FirstEnds())
    yield made
    made.close()


def _serve(server: FakeGeneration, *words: str) -> Result:
    return run_cli("bench", "serve", "--server", server.address, *_SMALL, *words)


def _json(server: FakeGeneration, *words: str) -> dict[str, Any]:
    result = _serve(server, "--json", *words)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("command", [("serve",), ("compare",), ("plot",), ()])
def test_help(command: tuple[str, ...]) -> None:
    """The first thing that one tries."""
    result = run_cli("bench", *command, "--help")
    assert result.exit_code == 0
    assert "Usage: chunkmesh bench" in result.stdout


def test_prompts_are_sent_as_they_were_asked_for(server: FakeGeneration) -> None:
    """One warm-up, then six streamed greedy requests of exact lengths."""
    assert _serve(server).exit_code == 0
    warm_up, *measured = server.requests
    assert [10] * 6 == [len(request.input_ids_le) // 4 for request in measured]
    params = measured[0].sampling_params
    assert (5, True, 0.0) == (params.max_new_tokens, params.ignore_eos, params.temperature)
    assert params.HasField("temperature")
    assert all(request.stream for request in measured)
    assert len({request.input_ids_le for request in measured}) == 6
    assert warm_up.input_ids_le == measured[0].input_ids_le


def test_no_run_finds_what_another_has_cached(server: FakeGeneration) -> None:
    """The same seed sends the same prompts; the cache must not answer the second time."""
    _serve(server, "--num-runs", "2")
    salts = [request.cache_salt for request in server.requests]
    assert len(salts) == 13
    assert len({salts[0], *salts[1:7]}) == len({salts[0], *salts[7:]}) == 2
    assert len(set(salts)) == 3


def test_a_salt_of_one_s_own_is_kept(server: FakeGeneration) -> None:
    """For measuring a cache that was filled before; the warm-up leaves it alone."""
    _serve(server, "--cache-salt", "mine")
    assert {"mine"} == {request.cache_salt for request in server.requests[1:]}
    assert server.requests[0].cache_salt != "mine"


def test_json_holds_figures_and_where_they_come_from(server: FakeGeneration) -> None:
    """A figure without its workload and mesh cannot be checked."""
    found = _json(server, "--goodput", "ttft:60000", "--metric-percentiles", "95")
    assert ("chunkmesh bench result", 1) == (found["kind"], found["format"])
    assert (6, "inf", "random") == (
        found["workload"]["num_prompts"],
        found["workload"]["request_rate"],
        found["workload"]["dataset"]["name"],
    )
    assert ("fake", "fixed", 2) == (
        found["model"]["served_model_name"],
        found["server"]["chunk_strategy"],
        len(found["server"]["workers"]),
    )
    assert {"date", "command", "version", "commit", "client"} == set(found["origin"])
    (run,) = found["runs"]
    figures = run["figures"]
    assert (6, 0, 600, 18) == tuple(
        figures[name]
        for name in ("completed", "failed", "total_input_tokens", "total_output_tokens")
    )
    assert figures["request_goodput"] == figures["request_throughput"] > 0
    assert 0 < figures["median_ttft_ms"] <= figures["p95_ttft_ms"] < figures["p95_e2el_ms"]
    assert (1.5, None) == (figures["tokens_per_message"], run["records"])


def test_tables_show_the_wanted_latencies(server: FakeGeneration) -> None:
    """For people; what is odd about the figures stands below."""
    result = _serve(server, "--percentile-metrics", "ttft,itl", "--metric-percentiles", "50,99.9")
    assert result.exit_code == 0
    shown = result.stdout
    assert all(word in shown for word in ("TTFT", "ITL", "p50", "p99.9", "output tokens/s"))
    assert "E2EL" not in shown
    assert "model     fake" in shown
    assert "messages bring 1.50 tokens" in shown


def test_the_detailed_result_tells_of_every_request(server: FakeGeneration) -> None:
    """Whoever doubts a figure can compute it again."""
    records = _json(server, "--save-detailed")["runs"][0]["records"]
    assert list(range(6)) == [record["index"] for record in records]
    assert {("OK", 3, 12.5)} == {
        (record["status"], record["output_tokens"], record["server_ttft_ms"]) for record in records
    }
    assert [[1, 2]] * 6 == [record["arrived_tokens"] for record in records]


def test_requests_wait_for_their_turn(server: FakeGeneration) -> None:
    """With one at a time each is sent after the end of the one before."""
    records = _json(server, "--save-detailed", "--max-concurrency", "1")["runs"][0]["records"]
    for earlier, later in itertools.pairwise(records):
        assert earlier["arrivals_s"][-1] <= later["sent_s"]


def test_requests_are_sent_when_they_are_due(server: FakeGeneration) -> None:
    """An even 20 a second takes six requests a quarter of a second."""
    words = ("--save-detailed", "--request-rate", "20", "--burstiness", "inf")
    records = _json(server, *words)["runs"][0]["records"]
    assert [index / 20 for index in range(6)] == pytest.approx([each["due_s"] for each in records])
    assert all(each["sent_s"] >= each["due_s"] for each in records)


def test_waiting_for_a_turn_is_told(server: FakeGeneration) -> None:
    """A schedule that the cap holds up is not the load that was asked for."""
    words = ("--request-rate", "1000", "--max-concurrency", "1")
    assert "for their turn" in _serve(server, *words).stdout
    assert "for their turn" not in _serve(server).stdout


def test_a_file_is_sent_in_order(server: FakeGeneration, tmp_path: Path) -> None:
    """Texts as texts, ids as ids, lengths as they stand there."""
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "Hello there", "output_len": 2}\n{"input_ids": [1, 2, 3]}\n')
    words = ("--dataset-name", "file", "--dataset-path", str(path), "--output-len", "7")
    run_cli("bench", "serve", "--server", server.address, *words, "--max-concurrency", "1",
            "--num-warmups", "0")  # fmt: skip
    text, ids = server.requests
    assert ("Hello there", 2) == (text.text, text.sampling_params.max_new_tokens)
    assert (12, 7) == (len(ids.input_ids_le), ids.sampling_params.max_new_tokens)


def test_failures_are_counted_and_end_with_1(server: FakeGeneration, tmp_path: Path) -> None:
    """A fast refusal must not pass for a fast answer."""
    server.error = Overloaded("128 requests wait, the limit")
    path = tmp_path / "r.json"
    words = ("--num-warmups", "0", "--result-filename", str(path))
    result = _serve(server, *words)
    assert result.exit_code == 1
    assert "6 failed with RESOURCE_EXHAUSTED: 128 requests wait, the limit" in result.stderr
    (run,) = json.loads(path.read_text())["runs"]
    assert (0, 6) == (run["figures"]["completed"], run["figures"]["failed"])
    assert _serve(server, *words, "--allow-failures").exit_code == 0


def test_a_failing_warm_up_ends_it(server: FakeGeneration) -> None:
    """What is wrong with one request is wrong with all, and is said at once."""
    server.error = Overloaded("128 requests wait, the limit")
    result = _serve(server)
    assert (1, "") == (result.exit_code, result.stdout)
    assert result.stderr == "chunkmesh: overloaded: 128 requests wait, the limit\n"


def test_a_warm_up_that_hangs_ends_it(server: FakeGeneration) -> None:
    """It is bounded as the requests that count are."""
    server.hang = True
    result = _serve(server, "--request-timeout", "0.5")
    assert (1, "") == (result.exit_code, result.stdout)
    assert "no answer in time" in result.stderr


def test_a_request_may_take_too_long(server: FakeGeneration) -> None:
    """A stage that hangs is a failure, not a benchmark without an end."""
    server.hang = True
    result = _serve(server, "--num-warmups", "0", "--request-timeout", "0.5")
    assert result.exit_code == 1
    assert "6 failed with DEADLINE_EXCEEDED" in result.stderr


def test_a_run_may_be_cut_short(server: FakeGeneration) -> None:
    """What runs then is cancelled on the mesh, and counted apart."""
    server.hang = True
    words = ("--num-warmups", "0", "--duration", "0.5", "--max-concurrency", "2")
    (run,) = _json(server, *words)["runs"]
    figures = run["figures"]
    assert ("duration", 2, 4, 0) == (
        run["end"],
        figures["unfinished"],
        figures["not_sent"],
        figures["failed"],
    )
    assert server.cancelled.wait(10)


def test_ctrl_c_shows_what_was_measured(first_ends: FakeGeneration, tmp_path: Path) -> None:
    """An hour's figures are not lost, and nobody computes on."""
    path = tmp_path / "r.json"
    command = [
        *(sys.executable, "-m", "chunkmesh.cli", "bench", "serve", "--server", first_ends.address),
        *(*_SMALL, "--num-warmups", "0", "--max-concurrency", "1", "--num-runs", "3"),
        *("--result-filename", str(path)),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + _TIMEOUT_S
        while len(first_ends.requests) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        shown, errors = process.communicate(timeout=_TIMEOUT_S)
    assert process.returncode == 130, errors
    assert "[interrupted" in errors
    assert "requests completed" in shown
    (run,) = json.loads(path.read_text())["runs"]
    assert ("interrupted", 1, 1, 4) == (
        run["end"],
        run["figures"]["completed"],
        run["figures"]["unfinished"],
        run["figures"]["not_sent"],
    )
    assert first_ends.cancelled.wait(10)


def test_results_are_compared(server: FakeGeneration, tmp_path: Path) -> None:
    """Ratios with their spread; a run of its own says nothing about it."""
    base, new = tmp_path / "base.json", tmp_path / "new.json"
    for path in (base, new):
        _serve(server, "--num-runs", "2", "--result-filename", str(path))
    result = run_cli("bench", "compare", str(base), str(new), "--json")
    assert result.exit_code == 0, result.stderr
    figures = {row["name"]: row for row in json.loads(result.stdout)["figures"]}
    assert {"output_throughput", "median_ttft_ms", "p99_itl_ms"} <= figures.keys()
    assert all(len(row["base"]) == len(row["new"]) == 2 for row in figures.values())
    table = run_cli("bench", "compare", str(base), str(new)).stdout
    assert "median_ttft_ms" in table


def test_unlike_workloads_are_not_compared(server: FakeGeneration, tmp_path: Path) -> None:
    """Unless one insists; then the difference is shown beside the figures."""
    paths = [str(tmp_path / f"{seed}.json") for seed in (1, 2)]
    for seed, path in enumerate(paths, 1):
        _serve(server, "--seed", str(seed), "--result-filename", path)
    result = run_cli("bench", "compare", *paths)
    assert (2, "") == (result.exit_code, result.stdout)
    assert "seed is 1, then 2" in result.stderr
    told = run_cli("bench", "compare", *paths, "--allow-different")
    assert told.exit_code == 0
    assert "workload seed is 1, then 2" in told.stdout


@pytest.mark.parametrize(("name", "begin"), [("p.svg", b"<?xml"), ("p.png", b"\x89PNG")])
def test_results_are_drawn(server: FakeGeneration, tmp_path: Path, name: str, begin: bytes) -> None:
    """At once, or later from files with every request."""
    at_once, later, path = tmp_path / f"a{name}", tmp_path / f"b{name}", tmp_path / "r.json"
    words = ("--plot", str(at_once), "--save-detailed", "--result-filename", str(path))
    assert _serve(server, *words).exit_code == 0
    assert run_cli("bench", "plot", str(path), str(path), "-o", str(later)).exit_code == 0
    assert at_once.read_bytes().startswith(begin)
    assert later.read_bytes().startswith(begin)


def test_what_cannot_be_drawn_says_why(server: FakeGeneration, tmp_path: Path) -> None:
    """Before anything is measured, where that is known."""
    path = tmp_path / "r.json"
    _serve(server, "--result-filename", str(path))
    result = run_cli("bench", "plot", str(path), "-o", str(tmp_path / "p.svg"))
    assert result.exit_code == 2
    assert "measure with --save-detailed" in result.stderr
    num_requests = len(server.requests)
    assert _serve(server, "--plot", "p.gif").exit_code == 2
    assert len(server.requests) == num_requests


def test_without_matplotlib_only_plots_are_refused(
    server: FakeGeneration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes with an extra; what is missing is said before an hour is spent."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = _serve(server, "--plot", str(tmp_path / "p.svg"))
    assert (2, []) == (result.exit_code, server.requests)
    assert "chunkmesh[demo]" in result.stderr
    assert _serve(server).exit_code == 0


@pytest.mark.parametrize(
    "words",
    [
        ("--request-rate", "0"),
        ("--request-rate", "nan"),
        ("--burstiness", "-1"),
        ("--temperature", "-1"),
        ("--goodput", "fast"),
        ("--percentile-metrics", "ttft,speed"),
        ("--metric-percentiles", "101"),
        ("--metric-percentiles", "x"),
        ("--dataset-name", "file"),
        ("--dataset-path", "x.jsonl"),
        ("--random-input-len", "8188"),
        ("--num-prompts", "0"),
    ],
)
def test_a_wrong_call_sends_nothing(server: FakeGeneration, words: tuple[str, ...]) -> None:
    """Usage errors end with 2, as everywhere, and name the flag or the limit."""
    result = _serve(server, *words)
    assert (2, "") == (result.exit_code, result.stdout)
    assert server.requests == []


def test_a_file_of_too_few_prompts_is_refused(server: FakeGeneration, tmp_path: Path) -> None:
    """Sent twice they would be found in the cache."""
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one"}\n')
    words = ("--dataset-name", "file", "--dataset-path", str(path))
    result = run_cli("bench", "serve", "--server", server.address, "--num-prompts", "2", *words)
    assert result.exit_code == 2
    assert "holds 1" in result.stderr


def test_a_mesh_that_is_not_ready_is_refused(server: FakeGeneration) -> None:
    """Its refusals would be all there is to measure."""
    server.info.ready = False
    server.info.reason = "no worker holds layers 0-29"
    result = _serve(server)
    assert result.exit_code == 1
    assert "no worker holds layers 0-29" in result.stderr


def test_others_on_the_mesh_are_warned_of(server: FakeGeneration) -> None:
    """Their work is in every figure."""
    server.info.num_requests_running = 2
    assert "2 requests of others" in _serve(server).stderr


def test_an_unreachable_server_is_named_with_a_remedy() -> None:
    """The commonest failure of a newcomer."""
    result = run_cli("bench", "serve", "--server", "127.0.0.1:1")
    assert result.exit_code == 1
    assert "no answer from 127.0.0.1:1" in result.stderr
