"""The demo's parts that need no mesh: its prompts, its table, its verdict."""

from __future__ import annotations

import pytest
from rich.console import Console

from chunkmesh.cli.demo import problem_of
from chunkmesh.cli.demo_prompt import long_chat, short_chat
from chunkmesh.cli.demo_report import Run, links_text, run_table
from chunkmesh.v1 import generation_pb2 as pb


def _count_words(chat: pb.Chat) -> int:
    return len(chat.messages[0].content.split())


@pytest.mark.parametrize("num_tokens", [200, 3000, 20000])
def test_the_long_prompt_has_about_the_wanted_length(num_tokens: int) -> None:
    """The figures of two machines are comparable only at the same length."""
    assert _count_words(long_chat(num_tokens, _count_words)) == pytest.approx(num_tokens, abs=10)


def test_the_lines_of_the_long_prompt_differ() -> None:
    """Pages that repeat would make the cache look better than it is."""
    lines = long_chat(5000, _count_words).messages[0].content.splitlines()
    assert len(set(lines) - {""}) == len(lines) - 2


def test_the_prompts_are_the_same_at_every_call() -> None:
    """The second long run must find the first one's pages."""
    assert long_chat(500, _count_words) == long_chat(500, _count_words)
    assert short_chat() == short_chat()


def _run(name: str, *, cached: int, ids: tuple[int, ...] = (1, 2)) -> Run:
    complete = pb.GenerateComplete(
        text="Paris",
        output_ids=ids,
        prompt_tokens=3000,
        cached_tokens=cached,
        completion_tokens=11,
        chunk_tokens=[256, 256],
        ttft_ms=1500,
        e2e_ms=2500,
        timeline=[pb.MicrobatchTiming(num_tokens=256)],
    )
    return Run(name=name, complete=complete)


def test_the_table_gives_rates() -> None:
    """A user compares how fast prompts of the same length get their first token."""
    run = _run("again", cached=1500)
    assert run.prefill_tokens_per_s() == pytest.approx(2000)
    assert run.decode_tokens_per_s() == pytest.approx(10)
    console = Console(width=120)
    with console.capture() as capture:
        console.print(run_table([run]))
    row = next(line for line in capture.get().splitlines() if "again" in line)
    cells = [cell.strip() for cell in row.strip("\u2502").split("\u2502")]
    assert cells == ["again", "3000", "1500", "2", "1.50", "2000", "10.0"]


def test_a_link_names_its_transport() -> None:
    """The demo is to show what activations really travel by."""
    workers = [
        pb.WorkerInfo(stage_index=0, outbound=pb.LinkInfo(transport="tcp", rtt_us=310)),
        pb.WorkerInfo(stage_index=1),
    ]
    text = links_text(pb.GetServerInfoResponse(workers=workers))
    assert text == "link stage 0 -> 1: transport tcp, round trip 0.31 ms"


def test_a_good_demo_has_no_problem() -> None:
    """The verdict on a demo as it should be."""
    runs = (_run("short", cached=0), _run("cold", cached=0), _run("cached", cached=2944))
    assert problem_of(runs) is None


@pytest.mark.parametrize(
    ("cold", "cached", "complaint"),
    [
        (_run("cold", cached=64), _run("cached", cached=2944), "expected none"),
        (_run("cold", cached=0), _run("cached", cached=0), "found only 0 tokens"),
        (_run("cold", cached=0), _run("cached", cached=2944, ids=(3,)), "another answer"),
    ],
)
def test_a_bad_demo_says_what_is_wrong(cold: Run, cached: Run, complaint: str) -> None:
    """A demo that shows nothing must not end with status 0."""
    text = problem_of((_run("short", cached=0), cold, cached))
    assert text is not None
    assert complaint in text
