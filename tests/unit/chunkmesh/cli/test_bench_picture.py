"""chunkmesh.cli.bench_picture: what the lines show."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkmesh.cli.bench_picture import DrawnRun, output_rates, save, shares
from tests.bench_records import record


def test_shares_rise_from_0_to_1() -> None:
    """At a value, the line stands at how many are at most as large."""
    values, at_most = shares([30.0, 10.0])
    assert ([10.0, 10.0, 30.0], [0.0, 0.5, 1.0]) == (values.tolist(), at_most.tolist())


def test_rates_hold_every_token() -> None:
    """Bins times rates is what arrived, that of unfinished requests too."""
    records = [record(arrivals_s=(1.0, 2.0), tokens=(1, 3)), record(arrivals_s=(4.0,), tokens=(2,))]
    edges, rates = output_rates(records)
    widths = edges[1:] - edges[:-1]
    assert (rates[:-1] * widths).sum() == pytest.approx(6)
    assert (0.0, 4.0, 0.0) == (edges[0], edges[-1], rates[-1])


def test_nothing_gives_empty_lines(tmp_path: Path) -> None:
    """A run in which all failed is drawn as one."""
    assert [0, 0] == [len(each) for each in shares([])]
    failed = [record(status="UNAVAILABLE", arrivals_s=())]
    path = tmp_path / "p.svg"
    save(
        [DrawnRun(label="a", records=failed), DrawnRun(label="b", records=[record()])], path, "svg"
    )
    assert path.stat().st_size > 0


def test_the_legend_names_each_result_once(tmp_path: Path) -> None:
    """Runs of one result share its colour."""
    runs = [DrawnRun(label=label, records=[record()]) for label in ("base", "base", "new")]
    path = tmp_path / "p.svg"
    save(runs, path, "svg")
    text = path.read_text()
    assert (1, 1) == (text.count("<!-- base -->"), text.count("<!-- new -->"))
