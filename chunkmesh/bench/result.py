"""A result file: what was sent to what, by which program, and the figures of each run. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from pydantic import ConfigDict, TypeAdapter, ValidationError

from chunkmesh.bench.client_lag import ClientLag
from chunkmesh.bench.figures import Figures
from chunkmesh.bench.record import READ_STRICTLY, RequestRecord
from chunkmesh.errors import ConfigError
from chunkmesh.json_text import parse_json

KIND = "chunkmesh bench result"
VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BenchRun:
    """One time that the workload was played."""

    __pydantic_config__: ClassVar[ConfigDict] = READ_STRICTLY

    end: str
    """complete, or why it was cut short: duration, interrupted."""
    figures: Figures
    failures: Mapping[str, Mapping[str, object]]
    """By status: how many, and what the first of them was told."""
    lag: ClientLag
    records: tuple[RequestRecord, ...] | None
    """None where they were not kept."""

    @property
    def is_whole(self) -> bool:
        """Whether every request was sent and ended well."""
        return self.end == "complete" and not self.failures


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """All runs of one command."""

    __pydantic_config__: ClassVar[ConfigDict] = READ_STRICTLY

    origin: Mapping[str, Any]
    workload: Mapping[str, Any]
    """All that has to be alike in results that are compared."""
    goodput_ms: Mapping[str, float]
    """Targets; empty without."""
    model: Mapping[str, Any]
    server: Mapping[str, Any]
    """What model and mesh told of themselves before the first run."""
    runs: tuple[BenchRun, ...]
    """At least one."""

    def values(self, figure: str) -> list[float]:
        """Return a figure of each run that has it."""
        return [run.figures[figure] for run in self.runs if figure in run.figures]

    def as_json(self, *, with_records: bool) -> dict[str, Any]:
        """Return the object that a file holds."""
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        runs = [_run_json(run, with_records=with_records) for run in self.runs]
        return {"kind": KIND, "format": VERSION, **fields, "runs": runs}

    @classmethod
    def from_text(cls, text: str, name: str) -> Self:
        """Read a file's text.

        Raises:
            ConfigError: it holds no result, or one of another format; names the file.
        """
        try:
            fields = parse_json(text)
        except ValueError as error:
            raise ConfigError(f"{name}: no JSON: {error}") from error
        if not isinstance(fields, dict) or fields.pop("kind", None) != KIND:
            raise ConfigError(f"{name}: no result of chunkmesh bench serve")
        if (found := fields.pop("format", None)) != VERSION:
            raise ConfigError(f"{name}: format {found}, this program reads {VERSION}")
        try:
            result = TypeAdapter(cls).validate_json(json.dumps(fields))
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            place = ".".join(map(str, fault["loc"]))
            raise ConfigError(f"{name}: {place}: {fault['msg']}") from error
        if not result.runs:
            raise ConfigError(f"{name}: it holds no run")
        return result


def _run_json(run: BenchRun, *, with_records: bool) -> dict[str, Any]:
    fields = {each.name: getattr(run, each.name) for each in dataclasses.fields(run)}
    records: Sequence[RequestRecord] = run.records or ()
    kept = [record.as_json() for record in records] if with_records else None
    return {**fields, "lag": dataclasses.asdict(run.lag), "records": kept}
