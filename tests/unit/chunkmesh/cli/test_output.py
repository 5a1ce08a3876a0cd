"""chunkmesh.cli.output: what tables and lines for people do with text of others."""

from __future__ import annotations

import pytest
from rich.table import Table

from chunkmesh.cli.output import output_console
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
