"""Plays a scenario file: commands and, below each, the actions that the engine answers with.

A file begins with why it exists. Lines starting with "> " are commands; what follows up to the
next command is what the engine must say. `python -m tests.scenarios.play FILE ...` rewrites files
with what it does say, to be read before it is committed.
Source: the idea of etcd's raft (https://github.com/etcd-io/raft/tree/main/testdata).
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np

from chunkmesh.errors import ChunkMeshError
from scheduler.actions import Action
from scheduler.engine import Engine
from scheduler.engine_config import EngineConfig
from scheduler.events import (
    Acked,
    Arrived,
    Cancelled,
    Checked,
    Event,
    Loaded,
    LossCause,
    Matched,
    RouteAwaited,
    RouteFormed,
    RouteLost,
    Stored,
    Tick,
)
from scheduler.latency_model import PipelineLatency, StageLatency
from tests.letter_text import LetterText
from tests.scenarios.show import show, show_error
from tests.specs import GREEDY, make_spec, zero_logprobs


def play(text: str) -> str:
    """Return the scenario with the answers that the engine gives."""
    scene = _Scene()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(">"):
            lines += [line, *scene.command(line[1:].split())]
        elif line.startswith("#") or not line:
            lines.append(line)
    return "\n".join(lines) + "\n"


class _Scene:
    """An engine, its clock and its route."""

    def __init__(self) -> None:
        """Begin with a small engine without a route."""
        self._config = EngineConfig(
            page_tokens=16,
            chunked_prefill_tokens=64,
            max_running_requests=8,
            max_queued_requests=8,
            load_timeout_s=1.0,
            max_outstanding_stores=0,
            stage_deadline_floor_s=0.0,
        )
        self._engine = Engine(self._config)
        self._now_s = 0.0
        self._epoch = 0
        self._num_stages = 0
        self._has_many = False
        """Whether several routes have stood side by side."""

    def command(self, words: list[str]) -> Iterator[str]:
        """Do one command; return what it answers."""
        name, *arguments = words
        plain = [word for word in arguments if "=" not in word]
        named = dict(word.split("=", 1) for word in arguments if "=" in word)
        match name:
            case "config":
                changed = {key: _value(key, text) for key, text in named.items()}
                self._config = dataclasses.replace(self._config, **changed)  # type: ignore[arg-type]
                self._engine = Engine(self._config)
            case "at":
                self._now_s = float(plain[0])
            case "state":
                yield self._state()
            case "drain":
                yield from [show(action) for action in self._engine.flush(self._now_s)]
            case "flush":
                yield f"{self._engine.forget_cached()} pages forgotten"
            case "chunks":
                now = self._engine.snapshot()
                yield f"{now.chunk_strategy}, refits {list(now.num_refits)}"
                if now.chunk_strategy_reason:
                    yield f"because {now.chunk_strategy_reason}"
            case _:
                for event in self._events(name, plain, named):
                    yield from self._handle(event)

    def _handle(self, event: Event) -> Iterator[str]:
        """Give one event to the engine."""
        try:
            actions = self._engine.handle(event, self._now_s)
            self._has_many |= len(self._engine.snapshot().routes) > 1
            yield from [self._show(action) for action in actions]
        except ChunkMeshError as error:
            yield f"! {show_error(error)}"

    def _show(self, action: Action) -> str:
        """Return one line for an action; with several routes its epoch before it."""
        epoch = getattr(action, "epoch", None) if self._has_many else None
        return show(action) if epoch is None else f"route {epoch}: {show(action)}"

    def _state(self) -> str:
        """Return the engine's counts."""
        now = self._engine.snapshot()
        preempted = f", {now.num_preemptions} preempted" if now.num_preemptions else ""
        cached = f", {now.num_cached_pages} cached" if now.num_cached_pages else ""
        if now.num_host_pages:
            cached += f", {now.num_host_cached_pages}/{now.num_host_pages} host"
        rest = "at rest" if self._engine.is_idle() else "busy"
        return (
            f"{rest}: {now.num_free_pages}/{now.num_pages} pages free, {now.num_running} running, "
            f"{now.num_waiting} waiting, {now.num_in_flight} in flight, {now.num_loads} loads, "
            f"{now.num_stores} stores{preempted}{cached}"
        )

    def _events(  # noqa: C901, PLR0911 - one for each command
        self, name: str, plain: list[str], named: dict[str, str]
    ) -> list[Event]:
        """Return the events of one command."""
        epoch = int(named.get("epoch", self._epoch))
        match name:
            case "route":
                epoch = int(named.get("epoch", self._epoch + 1))
                self._epoch, self._num_stages = max(self._epoch, epoch), int(named["stages"])
                return [
                    RouteFormed(
                        epoch=epoch,
                        num_stages=self._num_stages,
                        num_pages=int(named["pages"]),
                        latency=_latency(self._num_stages, named),
                        num_host_pages=int(named.get("host", "0")),
                        page_bytes=(int(named.get("page_bytes", "0")),) * self._num_stages,
                        pool_ids=tuple(filter(None, named.get("pools", "").split(","))),
                    )
                ]
            case "lost":
                cause = cast("LossCause", named.get("cause", "ended"))
                return [RouteLost(epoch=epoch, reason=" ".join(plain), cause=cause)]
            case "awaited":
                return [
                    RouteAwaited(
                        wait_s=float(plain[0]),
                        reason=" ".join(plain[1:]),
                        is_announced="announced" in named,
                    )
                ]
            case "arrive":
                return [self._arrival(plain[0], named)]
            case "matched":
                request_id, _, child = plain[0].partition("/")
                return [
                    Matched(
                        request_id=request_id,
                        child=int(child or 0),
                        num_pages=0 if plain[1] == "nothing-known" else int(plain[1]),
                        lease_id=named.get("lease"),
                        is_known=plain[1] != "nothing-known",
                    )
                ]
            case "checked":
                return [self._checked(plain, named)]
            case "gone":
                return [Cancelled(request_id=plain[0], cause="gone")]
            case "abort":
                return [Cancelled(request_id=plain[0], cause="abort")]
            case "tick":
                return [Tick(deaf_s=float(named.get("deaf", "0")))]
            case _:
                every = range(self._num_stages)
                stages = list(every) if plain[0] == "*" else [int(plain[0])]
                numbers = [int(word) for word in plain[1:]]
                if name == "ack":
                    return [self._ack(epoch, stage, numbers, named) for stage in stages]
                return [self._answer(name, epoch, stage, numbers, named) for stage in stages]

    def _ack(self, epoch: int, stage: int, numbers: list[int], named: dict[str, str]) -> Acked:
        """Return an ack; ids and log-probabilities are the last stage's.

        logprobs=N tells those of N sampled ids, prompt=N,M those of N and of M prompt tokens, ms=X
        how long the stage has computed.
        """
        seq_no, *ids = numbers
        compute_ms = float(named.get("ms", "0"))
        if stage < self._num_stages - 1:
            return Acked(epoch=epoch, stage=stage, seq_no=seq_no, compute_ms=compute_ms)
        lengths = [int(word) for word in named.get("prompt", "").split(",") if word]
        return Acked(
            epoch=epoch,
            stage=stage,
            seq_no=seq_no,
            compute_ms=compute_ms,
            sampled_ids=tuple(ids),
            sampled_logprobs=(zero_logprobs(1),) * int(named.get("logprobs", "0")),
            prompt_logprobs=tuple(map(zero_logprobs, lengths)),
            without_choice=tuple(int(word) for word in named.get("without", "").split(",") if word),
        )

    def _answer(
        self, name: str, epoch: int, stage: int, numbers: list[int], named: dict[str, str]
    ) -> Event:
        """Return what one stage says of a load or store."""
        number, *rest = numbers
        match name:
            case "loaded":
                return Loaded(
                    epoch=epoch,
                    stage=stage,
                    load_id=number,
                    num_pages=rest[0],
                    num_host_pages=int(named.get("host", "0")),
                    num_bytes=int(named.get("bytes", "0")),
                    took_s=float(named.get("took", "0")),
                    is_damaged="damaged" in named,
                )
            case "stored":
                return Stored(epoch=epoch, stage=stage, store_id=number, stored=tuple(rest))
        raise ValueError(name)

    def _checked(self, plain: list[str], named: dict[str, str]) -> Checked:
        """Return HiCache's answer about the pages of so many leading tokens of a prompt."""
        first_id, num_tokens = int(named.get("other", "0")), int(plain[0])
        ids = np.arange(first_id, first_id + num_tokens, dtype=np.uint32)
        spec = make_spec("x", ids, page_tokens=self._config.page_tokens)
        num_pages = None if plain[1] == "nothing-known" else int(plain[1])
        return Checked(last_digest=spec.digests[-1], num_pages=num_pages)

    def _arrival(self, request_id: str, named: dict[str, str]) -> Event:
        """Return a request's arrival: prompts with the same `other` begin alike.

        Stop strings spell a space as an underscore.
        """
        stops = tuple(word.replace("_", " ") for word in named.get("stop", "").split(",") if word)
        first_id, prompt_tokens = int(named.get("other", "0")), int(named["prompt"])
        spec = make_spec(
            request_id,
            np.arange(first_id, first_id + prompt_tokens, dtype=np.uint32),
            max_new_tokens=int(named.get("new", "1")),
            min_new_tokens=int(named.get("min", "0")),
            end_ids=frozenset(int(word) for word in named.get("end", "").split(",") if word),
            text=LetterText(stops),
            page_tokens=self._config.page_tokens,
            sampling=dataclasses.replace(
                GREEDY,
                presence_penalty=float(named.get("presence", "0")),
                top_logprobs=int(named["logprobs"]) if "logprobs" in named else None,
            ),
            num_outputs=int(named.get("n", "1")),
            priority=int(named.get("priority", "0")),
            prompt_top_logprobs=int(named["prompt_logprobs"])
            if "prompt_logprobs" in named
            else None,
        )
        return Arrived(spec=spec)


def _value(name: str, text: str) -> float | str:
    """Read a value of EngineConfig."""
    if name in {"chunk_strategy", "load_policy", "write_policy"}:
        return text
    if name == "enable_prefix_caching":
        return text == "yes"
    is_number = name == "max_chunk_ms" or name.startswith("load_timeout_s")
    return float(text) if is_number else int(text)


def _latency(num_stages: int, named: dict[str, str]) -> PipelineLatency | None:
    """Return the latency of equal stages, if a term of it is given; times in ms."""
    terms = {
        "floor": "floor_ms",
        "fixed": "fixed_ms",
        "token": "ms_per_token",
        "pair": "ms_per_pair",
        "row": "ms_per_row",
    }
    given: dict[str, Any] = {
        terms[name]: float(text) for name, text in named.items() if name in terms
    }
    return PipelineLatency((StageLatency(**given),) * num_stages) if given else None


def main() -> None:
    """Rewrite the files named on the command line."""
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(play(path.read_text(encoding="ascii")), encoding="ascii")


if __name__ == "__main__":
    main()
