"""docs/metrics.md and the rules for Prometheus speak of the metrics that there are."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator

import promql_parser
import pytest

from tests.metrics_in_code import ROOT, metrics_in_code, metrics_page

RULES = ROOT / "deploy" / "prometheus"
_SERIES = ("_bucket", "_sum", "_count")


_KEY = re.compile(r" {6}(?:- |  | {4})([a-z]+): *(.*)")
"""Of a rule, or of its annotations."""


def rules(name: str) -> list[dict[str, str]]:
    """Return the rules of a file, as it is laid out: keys on lines, long texts folded."""
    found: list[dict[str, str]] = []
    key = ""
    for line in (RULES / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("      - "):
            found.append({})
        matched = _KEY.fullmatch(line)
        if matched is not None:
            key, text = matched.groups()
            found[-1][key] = text.removeprefix(">-")
        elif found:
            found[-1][key] += f" {line.strip()}"
    return found


def selected(expression: promql_parser.Expr) -> Iterator[str]:
    """Yield the names of the series that an expression asks for."""
    found = re.findall(r"\b(?:chunkmesh|vllm)[a-z0-9_:]*", expression.prettify())
    yield from found


def shown_series() -> set[str]:
    """Return the names of all series."""
    return {
        metric.name + ending
        for metric in metrics_in_code()
        for ending in (_SERIES if metric.type == "histogram" else ("",))
    }


def test_the_page_tells_every_metric_and_no_other() -> None:
    """Names, types, labels, units and meanings; written by python -m tests.metrics_in_code."""
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert page[page.index("## Scheduler") :] == metrics_page()


def test_no_name_is_given_twice() -> None:
    """Two services may run in one process, whose registry takes each name once."""
    names = [metric.name for metric in metrics_in_code()]
    assert sorted(set(names)) == sorted(names)


def test_labels_are_known_words() -> None:
    """A label of ids, prompts or users would make series without end."""
    labels = {label for metric in metrics_in_code() for label in metric.labels}
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert not labels & {"epoch", "worker", "worker_id", "request_id", "user", "tenant", "key"}
    assert all(f"`{label}`" in page for label in labels)


@pytest.mark.parametrize("name", ["recording_rules.yml", "alerts.yml"])
def test_rules_can_be_read_and_ask_for_series_that_there_are(name: str) -> None:
    """A renamed metric would leave an alert that never fires."""
    known = shown_series()
    for rule in rules(name):
        names = list(selected(promql_parser.parse(rule["expr"])))
        assert names, rule
        assert set(names) <= known, rule


def test_recorded_names_are_those_of_vllm() -> None:
    """With the three series of each histogram; a dashboard asks for all of them."""
    recorded = {rule["record"] for rule in rules("recording_rules.yml")}
    assert all(re.fullmatch(r"vllm:[a-z0-9_]+", name) for name in recorded)
    for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency"):
        assert {f"vllm:{name}_seconds{ending}" for ending in _SERIES} <= recorded


def test_alerts_say_what_is_wrong_and_what_to_do() -> None:
    """Whoever is woken reads these two lines first."""
    alerts = rules("alerts.yml")
    assert len({alert["alert"] for alert in alerts}) == len(alerts) >= 10
    for alert in alerts:
        assert alert["labels"] in {"{severity: page}", "{severity: ticket}"}
        assert all(len(alert[key]) > 10 for key in ("summary", "runbook"))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize(
    "command",
    [("check", "rules", "alerts.yml", "recording_rules.yml"), ("test", "rules", "alerts_test.yml")],
    ids=["check", "test"],
)
def test_promtool_agrees(command: tuple[str, ...]) -> None:
    """Prometheus itself reads the rules, and each alert fires when it should."""
    done = subprocess.run(
        ["promtool", *command], cwd=RULES, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
