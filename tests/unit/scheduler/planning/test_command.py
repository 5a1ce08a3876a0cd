"""`chunkmesh plan` as users run it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from scheduler.latency_file import LatencyFile, SavedStage
from scheduler.planning.command import app
from scheduler.planning.known_shapes import KNOWN_CONFIGS

_QUICK = ("--strategy", "fixed", "--strategy", "optimal")


def _run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def _json(*words: str) -> Any:
    result = _run(*words, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_all_strategies_side_by_side() -> None:
    """The object that programs read: every strategy, its chunks and its figures."""
    found = _json("--tokens", "16K", "--stages", "2", "--page-size", "64")
    strategies = [plan["strategy"] for plan in found["plans"]]
    assert strategies == ["fixed", "best-fixed", "dynamic", "best-dynamic", "optimal"]
    for plan in found["plans"]:
        assert sum(plan["chunks"]) == 16_384
        assert plan["is_simulated"]
        assert 0 < plan["bubble_ratio"] < 1
        assert plan["throughput_tokens_s"] == pytest.approx(16_384_000 / plan["ttft_ms"], rel=1e-3)
        assert plan["link_bytes"] == 16_384 * 4096 * 2
        assert plan["kv_bytes_per_stage"] == [18 * 2048 * 16_384 * 2] * 2
    assert found["plans"][0]["chunks"] == [4096] * 4
    assert found["plans"][0]["equal_bubble_ratio"] == 0.2
    assert found["model"]["name"] == "qwen3-8b"
    assert found["latency"]["is_estimate"] is False
    assert found["communication"][0]["pipeline_bytes"] == 16_384 * 4096 * 2


def test_given_stages_and_chunk_settings_are_used(tmp_path: Path) -> None:
    """A latency file, a size and a factor give the chunks of the rule that is known by them."""
    file = LatencyFile(
        model="mine",
        device="gpu",
        stages=(SavedStage(first_layer=0, last_layer=7, ms_per_token=0.065536, ms_per_pair=1e-6),),
    )
    path = tmp_path / "latency.json"
    path.write_text(file.to_json())
    model = ("--latency-model", str(path), "--stages", "4", "--tokens", "32768")
    chunks_of = ("--page-size", "64", "--chunked-prefill-size", "4096", "--strategy", "dynamic")
    words = (*model, *chunks_of)
    found = _json(*words, "--dynamic-chunking-smooth-factor", "1")
    chunks = [4096, 3648, 3328, 3136, 2880, 2752, 2624, 2496, 2368, 2304, 2240, 896]
    assert found["plans"][0]["chunks"] == chunks
    assert found["plans"][0]["link_bytes"] is None
    assert found["communication"] == []
    assert _run(*words).exit_code == 0


def test_dynamic_chunks_shrink_at_the_end_of_the_context() -> None:
    """As in a mesh of that context; without the flag the model's own counts."""
    prompt = ("--model", "smollm2-135m", "--tokens", "8191", "--page-size", "64")
    words = (*prompt, "--chunked-prefill-size", "2048", "--strategy", "dynamic")
    own, same = _json(*words), _json(*words, "--context-length", "8192")
    longer = _json(*words, "--context-length", "16384")
    assert own["plans"] == same["plans"]
    assert own["plans"][0]["num_chunks"] > longer["plans"][0]["num_chunks"]


def test_a_model_without_a_name_is_told_in_short(tmp_path: Path) -> None:
    """`chunkmesh status --save-latency-model` knows weights only by 64 digits."""
    stage = SavedStage(first_layer=0, last_layer=7, ms_per_token=0.1, ms_per_pair=1e-6)
    path = tmp_path / "latency.json"
    file = LatencyFile(model="0123456789abcdef" * 4, device="x", stages=(stage,))
    path.write_text(file.to_json())
    found = _json("--latency-model", str(path), "--stages", "2", "--tokens", "4K", *_QUICK)
    assert found["model"]["name"] == "model 0123456789ab"
    assert found["latency"]["origin"] == "model 0123456789ab on x"
    shown = _run("--latency-model", str(path), "--stages", "2", "--tokens", "4K", *_QUICK)
    assert "bytes are not told" in shown.stdout


def test_several_lengths_and_requests() -> None:
    """Each length has its plans; of prompts in a row the last waits for the others."""
    found = _json("--tokens", "4K,8192", "--num-requests", "3", *_QUICK)
    assert [plan["tokens"] for plan in found["plans"]] == [4096, 4096, 8192, 8192]
    assert all(plan["finish_ms"] > plan["ttft_ms"] for plan in found["plans"])


def test_how_many_stages_hold_a_prompt() -> None:
    """Whoever asks for a size of GPU sees weights and KV of the fullest stage, in both tables."""
    words = ("--model", "Qwen/Qwen3-32B", "--strategy", "fixed")
    sweep = _run(*words, "--sweep", "stages=4..8,tokens=1M")
    rows = [line.split() for line in sweep.stdout.splitlines() if " 1M " in line]
    assert [row[-2] for row in rows[1:]] == ["85.9", "43.7"]
    one = _run(*words, "--stages", "8", "--tokens", "4K,1M")
    assert "sum at 1M" in one.stdout
    assert sum("43.7 GB" in line for line in one.stdout.splitlines()) == 2


def test_a_sweep_of_all_strategies_is_as_wide_as_a_log() -> None:
    """Without a terminal there are 120 columns; a wider table has its cells set close."""
    shown = _run("--sweep", "stages=32,tokens=128K")
    (row,) = (line for line in shown.stdout.splitlines() if " 128K " in line and "%" in line)
    assert "  128K " in row
    assert len(row) <= 120


def test_a_prompt_beyond_the_models_context_is_told() -> None:
    """It is planned all the same, for context may be stretched; but nobody shall miss it."""
    words = ("--model", "qwen3-32b", "--strategy", "fixed")
    assert "1M tokens are more than the 40960" in _run(*words, "--tokens", "4K,1M").stdout
    assert "more than" not in _run(*words, "--tokens", "4K").stdout
    assert _json(*words, "--tokens", "4K")["model"]["context_length"] == 40_960


def test_a_lone_stage_has_no_bubble() -> None:
    """Rounding made it -0.0%."""
    found = _json("--sweep", "stages=1,tokens=512K..2M", *_QUICK)
    assert [plan["bubble_ratio"] for plan in found["plans"]] == pytest.approx([0.0] * 6, abs=1e-9)
    assert "-0.0%" not in _run("--sweep", "stages=1,tokens=512K..2M", *_QUICK).stdout


def test_named_layers_are_used() -> None:
    """Users may have stages that are not equal."""
    found = _json("--layers", "0-9,10-35", "--tokens", "8K", *_QUICK)
    assert found["plans"][0]["layers"] == ["0-9", "10-35"]


def test_auto_partition_balances_a_slow_end(tmp_path: Path) -> None:
    """Where each microbatch pays for a head, the last stage gets fewer layers and all is faster."""
    stage = SavedStage(first_layer=0, last_layer=14, ms_per_token=0.1, ms_per_pair=1e-6)
    last = stage.model_copy(update={"first_layer": 15, "last_layer": 29, "edge_ms": 40.0})
    path = tmp_path / "latency.json"
    path.write_text(LatencyFile(model="mine", device="cpu", stages=(stage, last)).to_json())
    words = ("--latency-model", str(path), "--stages", "2", "--tokens", "8K", *_QUICK)
    even, auto = _json(*words), _json(*words, "--partition", "auto")
    assert even["plans"][1]["layers"] == ["0-14", "15-29"]
    first, last = auto["plans"][1]["layers"]
    assert int(last.split("-")[0]) > 15, (first, last)
    assert auto["plans"][1]["ttft_ms"] < even["plans"][1]["ttft_ms"]


def test_auto_partition_keeps_the_even_split_where_it_is_as_good() -> None:
    """DeepSeek's last stage could give a layer to the light first one, which would fill slower."""
    words = ("--model", "deepseek-v3.1", "--stages", "8", "--tokens", "32K", *_QUICK)
    even, auto = _json(*words), _json(*words, "--partition", "auto")
    assert auto["plans"] == even["plans"]
    assert auto["latency"]["is_estimate"] is True


def test_the_tables_tell_all() -> None:
    """People see what programs see, and that scaled figures are an estimate."""
    shown = _run("--model", "llama-3.1-8b", "--tokens", "128K", "--lanes", *_QUICK)
    assert shown.exit_code == 0
    for words in ("ESTIMATE", "llama-3.1-8b", "efficiency", "KV of 128K", "tensor parallel"):
        assert words in shown.stdout
    assert "stage 3 .." in shown.stdout


def test_pictures_are_written(tmp_path: Path) -> None:
    """Chunks over stages, as PNG and as SVG."""
    for name, begin in (("plan.png", b"\x89PNG"), ("plan.svg", b"<?xml")):
        path = tmp_path / name
        result = _run("--tokens", "8K,16K", "--picture", str(path), *_QUICK)
        assert (result.exit_code, result.stderr) == (0, f"{path}: 4 plans\n")
        assert path.read_bytes().startswith(begin)


def test_a_sweep_goes_over_stages_and_lengths(tmp_path: Path) -> None:
    """Numbers of stages beyond the layers are left out and named, not an error."""
    path = tmp_path / "sweep.svg"
    words = ("--sweep", "stages=16..64,tokens=4K..8K", *_QUICK)
    found = _json(*words, "--picture", str(path))
    cells = [(plan["stages"], plan["tokens"]) for plan in found["plans"][::2]]
    assert cells == [(16, 4096), (16, 8192), (32, 4096), (32, 8192)]
    assert found["skipped_stages"] == [64]
    assert path.read_bytes().startswith(b"<?xml")
    shown = _run(*words)
    assert "left out: 64 stages" in shown.stdout
    assert shown.stderr.startswith("planned so far: stages=16, tokens=4K\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--stages", "37"), "36 layers cannot be split over 37 stages"),
        (("--stages", "0"), "greater than or equal to 1"),
        (("--tokens", "many"), "'many' is no number"),
        (("--model", "gpt-9"), "neither a model folder nor one of"),
        (("--latency-model", "none.json"), "nor a file"),
        (("--layers", "0-9"), "layers 10-35 missing"),
        (("--layers", "0-9,10-35", "--stages", "2"), "--stages and --layers exclude each other"),
        (("--layers", "0-9,10-35", "--partition", "auto"), "exclude each other"),
        (("--sweep", "stages=1..4", "--stages", "2"), "exclude each other"),
        (("--sweep", "tokens=1K..4K", "--tokens", "2K"), "--tokens and --sweep tokens exclude"),
        (("--lanes", "--json"), "exclude each other"),
        (("--lanes", "--sweep", "stages=1..2"), "--lanes and --sweep exclude each other"),
        (("--tokens", ""), "'' is no number"),
        (("--model", ""), "neither a model folder nor one of"),
        (("--link-gbps", "inf"), "less than or equal to 1000000000"),
        (("--max-chunk-ms", "inf"), "less than or equal to 1000000000"),
        (("--picture", "plan.pdf"), "must end in .png or .svg"),
        (("--dynamic-chunking-smooth-factor", "1.5"), "less than or equal to 1"),
        (("--tokens", "4K", "--context-length", "4096"), "must be above the 4096 tokens"),
        (("--strategy", "clever"), "'clever' is not one of"),
        (("--sweep", "stages=50..60"), "36 layers cannot be split over 50 stages"),
    ],
)
def test_wrong_usage_is_named(words: tuple[str, ...], said: str) -> None:
    """Value and limit, and the exit status of wrong usage."""
    result = _run(*words)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.replace("\u2502", " ").split())


def test_what_is_too_large_to_draw_is_named(tmp_path: Path) -> None:
    """Nothing is written, and the message says what to choose less of."""
    path = tmp_path / "plan.png"
    words = ("--tokens", "1M", "--num-requests", "8", "--strategy", "fixed")
    result = _run(*words, "--picture", str(path))
    assert result.exit_code == 2
    assert "too many to draw" in result.stderr
    assert not path.exists()


def test_a_path_is_no_formula(tmp_path: Path) -> None:
    """Dollars in a model's path ended the picture with a syntax error."""
    folder, path = tmp_path / "$x^{$", tmp_path / "sweep.png"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(KNOWN_CONFIGS["smollm2-135m"]))
    words = ("--sweep", "stages=1..2,tokens=1K", "--strategy", "fixed", "--picture", str(path))
    result = _run("--model", str(folder), *words)
    assert result.exit_code == 0, result.stderr
    assert f"model     {folder}: 30 layers" in result.stdout
    assert path.stat().st_size > 0
