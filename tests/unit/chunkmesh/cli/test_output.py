"""chunkmesh.cli.output: what tables and lines for people do with text of others."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from chunkmesh.cli.output import output_console, print_table
from chunkmesh.cli.status import summary, worker_table
from chunkmesh.v1 import generation_pb2 as pb


def test_brackets_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    """A path such as models/[v2] was shown without its end, and [/x] ended the command."""
    console = output_console()
    table = Table("name")
    table.add_row("models/[v2]/[/x]")
    console.print(table)
    console.print("models/[v2]/[/x]", soft_wrap=True)
    assert capsys.readouterr().out.count("models/[v2]/[/x]") == 2


def test_an_ipv6_address_is_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """The data address of a worker on an IPv6 network was shown as its port alone."""
    info = pb.GetServerInfoResponse(reason="the worker at [fd00::1]:5001 was lost")
    info.workers.add(data_address="[fd00::1]:5001", device="cpu")
    console = output_console()
    console.print(summary(info), soft_wrap=True)
    console.print(worker_table(info))
    assert capsys.readouterr().out.count("[fd00::1]:5001") == 2


def test_what_chunks_are_multiples_of_is_shown() -> None:
    """Where there is such a length: fixed chunks are cut in tokens."""
    info = pb.GetServerInfoResponse(
        chunk_strategy="optimal", chunked_prefill_tokens=4096, chunk_alignment_tokens=512
    )
    assert "chunks    optimal, at most 4096 tokens, multiples of 512" in summary(info).splitlines()
    info = pb.GetServerInfoResponse(
        chunk_strategy="fixed", chunked_prefill_tokens=4096, chunk_strategy_reason="no fit"
    )
    assert "chunks    fixed, at most 4096 tokens (no fit)" in summary(info).splitlines()


def _printed(width: int) -> str:
    """Return a table of twelve figures as a terminal of this width shows it."""
    file = io.StringIO()
    table = Table(*(f"column {index}" for index in range(12)))
    table.add_row(*(f"{index / 1000:.3f}" for index in range(12)))
    print_table(Console(file=file, width=width), table)
    return file.getvalue()


def test_a_table_fits_a_terminal_of_80_columns() -> None:
    """A sweep of five strategies showed 0.1.. and 39.. in most of its cells."""
    shown = _printed(80)
    assert max(map(len, shown.splitlines())) <= 80
    assert "\u2026" not in shown
    assert [f"{index / 1000:.3f}" in shown for index in range(12)] == [True] * 12


def test_a_narrow_terminal_cuts_no_figure_off() -> None:
    """Its digits go on a line below."""
    shown = _printed(40)
    assert "\u2026" not in shown
    assert sum(map(str.isdigit, shown)) == sum(map(str.isdigit, _printed(200)))


def test_a_table_that_fits_stays_as_it_is() -> None:
    """With room between its cells."""
    assert "\u2502 0.000    \u2502 0.001    \u2502" in _printed(200)
