"""Keeps what a worker measured on disk, so that its next start is ready at once.

One JSON file for each subject: all that the times depend on. A file that cannot be read, or that
is not of its subject, is a warning and measured again. Files come and go whole, by renaming.
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, Self

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from stage_worker.element_type import dtype_name
from stage_worker.profile_plan import PLAN_VERSION, ProfileLimits, ProfilePoint, ProfileShape
from stage_worker.stage import StageDescription

_log = structlog.get_logger(__name__)
_MAX_POINTS = 1024
_CPU_INFO = Path("/proc/cpuinfo")

Count = Annotated[int, Field(ge=0, lt=1 << 32)]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ProfileSubject(_Record):
    """What was measured, on what and how: a profile holds only where all of this is the same."""

    layers: str
    weights: str
    """SHA-256 over the digests of config, layers, embedding and head."""
    dtype: str
    device: str
    processor: str
    """The CPU's model, of other devices too: it launches their work."""
    runtime: str
    """Library and version that compute."""
    threads: int
    plan_version: int
    max_chunk_tokens: int
    max_prefix_tokens: int
    max_rows: int
    budget_ms: float

    @classmethod
    def of(
        cls, description: StageDescription, limits: ProfileLimits, *, runtime: str, threads: int
    ) -> Self:
        """Describe a stage on this machine."""
        return cls(
            layers=f"{description.first_layer}-{description.last_layer - 1}",
            weights=_weights_digest(description),
            dtype=dtype_name(description.dtype),
            device=description.hardware,
            processor=_processor(),
            runtime=runtime,
            threads=threads,
            plan_version=PLAN_VERSION,
            **dataclasses.asdict(limits),
        )

    @property
    def file_name(self) -> str:
        """Name of its file."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:32] + ".json"


class _Point(_Record):
    prefix_tokens: Count
    chunk_tokens: Count = 0
    num_rows: Count = 0
    compute_us: Annotated[int, Field(ge=1, lt=1 << 32)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.chunk_tokens) == bool(self.num_rows):
            raise ValueError("a point is either a chunk or decode rows")
        return self


class _ProfileFile(_Record):
    format: Literal["chunkmesh-profile"] = "chunkmesh-profile"
    version: Literal[1] = 1
    subject: ProfileSubject
    points: Annotated[tuple[_Point, ...], Field(min_length=1, max_length=_MAX_POINTS)]


def read_profile(folder: Path, subject: ProfileSubject) -> tuple[ProfilePoint, ...] | None:
    """Return the points that are kept of a subject; None without any. Blocks for the disk."""
    path = folder / subject.file_name
    try:
        return _parse(path.read_bytes(), subject)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _log.warning("kept profile not used", path=str(path), reason=_first_line(error))
        return None


def _parse(text: bytes, subject: ProfileSubject) -> tuple[ProfilePoint, ...]:
    """Read the text of a subject's file.

    Raises:
        ValueError: it is not one.
    """
    kept = _ProfileFile.model_validate_json(text)
    if kept.subject != subject:
        raise ValueError("it is of another subject")
    return tuple(
        ProfilePoint(
            shape=ProfileShape(**point.model_dump(exclude={"compute_us"})),
            compute_us=point.compute_us,
        )
        for point in kept.points
    )


def write_profile(folder: Path, subject: ProfileSubject, points: Iterable[ProfilePoint]) -> None:
    """Keep the points of a subject; a warning if that fails. Blocks for the disk."""
    listed = tuple(
        _Point(**dataclasses.asdict(point.shape), compute_us=point.compute_us) for point in points
    )
    path = folder / subject.file_name
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_text(
                _ProfileFile(subject=subject, points=listed).model_dump_json(indent=1) + "\n",
                encoding="utf-8",
            )
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("profile not kept", path=str(path), reason=str(error))


def _first_line(error: Exception) -> str:
    """Say in one line why a file was not used."""
    if isinstance(error, ValidationError):
        fault = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, fault["loc"]))
        return f"{where}: {fault['msg']}" if where else str(fault["msg"])
    return str(error)


def _weights_digest(description: StageDescription) -> str:
    digests = (
        description.config_digest,
        description.embedding_digest,
        description.head_digest,
        *description.layer_digests,
    )
    return hashlib.sha256(b"".join(len(each).to_bytes(4) + each for each in digests)).hexdigest()


def _processor() -> str:
    """Return the CPU's model as Linux names it; empty elsewhere."""
    try:
        with _CPU_INFO.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return ""
