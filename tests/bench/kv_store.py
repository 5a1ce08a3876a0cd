"""Bandwidth of the page store: against bare redis-py, and of several servers against one.

Run: python -m tests.bench.kv_store [--rounds N] (starts Valkey servers of its own)
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, Protocol

from tests.bench import machine
from tests.bench.kv_values import NUM_LAYERS, OneByOne, Pages, Pipelined, Values
from tests.bench.measure import Sample, cell, interleave, pair_ratios, table
from tests.valkey import Valkey, running_valkey

LAYER_KIB = (64, 256, 1024, 4096)
NUM_SHARDS = 4

_Direction = Literal["write", "read"]
_DIRECTIONS: tuple[_Direction, ...] = ("write", "read")


class _Client(Protocol):
    def write(self) -> None: ...

    def read(self) -> None: ...

    def close(self) -> None: ...


def _calls(clients: Mapping[str, _Client], direction: _Direction) -> dict[str, Callable[[], None]]:
    """Return each client's call, after one for nothing."""
    calls: dict[str, Callable[[], None]] = {
        name: client.write if direction == "write" else client.read
        for name, client in clients.items()
    }
    for call in calls.values():
        call()
    return calls


def _rates(values: Values, calls: dict[str, Callable[[], None]], rounds: int) -> dict[str, Sample]:
    work: dict[str, Callable[[], float]] = {
        name: functools.partial(values.rate, call) for name, call in calls.items()
    }
    return interleave(rounds, work, unit="GB/s")


def _costs(values: Values, calls: dict[str, Callable[[], None]], rounds: int) -> dict[str, Sample]:
    work: dict[str, Callable[[], float]] = {
        name: functools.partial(values.cost, call) for name, call in calls.items()
    }
    return interleave(rounds, work, unit="ms")


def _best(of: dict[str, Sample], pick: Callable[[float, float], float]) -> Sample:
    """Return the better one of the two bare loops in each round."""
    values = tuple(map(pick, of["one"].values, of["many"].values))
    return Sample(name="bare", values=values, unit=of["one"].unit)


def against_bare(url: str, name: str, rounds: int) -> str:
    """Compare with redis-py, value by value and in pipelines; the better of each round counts."""
    rows = []
    for layer_kib in LAYER_KIB:
        values = Values(layer_bytes=layer_kib << 10)
        pages = Pages(values, [url])
        one, many = OneByOne(values, url), Pipelined(values, url)
        clients: dict[str, _Client] = {"pages": pages, "one": one, "many": many}
        for direction in _DIRECTIONS:
            calls = _calls(clients, direction)
            rates, costs = _rates(values, calls, rounds), _costs(values, calls, rounds)
            rows.append(
                [
                    f"{direction}, {layer_kib} KiB",
                    *(cell(rates[name]) for name in clients),
                    cell(pair_ratios(rates["pages"], _best(rates, max))),
                    cell(pair_ratios(costs["pages"], _best(costs, min))),
                ]
            )
        pages.check()
        for client in clients.values():
            client.close()
    header = (
        *(f"{name}, {NUM_LAYERS} values a page", "pages", "SET, GET", "HSET, HMGET"),
        *("bandwidth: pages / better", "client's time: pages / better"),
    )
    return table("Page store against bare redis-py", header, rows)


def shards(servers: list[Valkey], rounds: int) -> str:
    """Compare several servers with one of them."""
    rows = []
    urls = [server.url for server in servers]
    for layer_kib in LAYER_KIB:
        values = Values(layer_bytes=layer_kib << 10)
        one, all_of_them = Pages(values, urls[:1]), Pages(values, urls)
        clients: dict[str, _Client] = {"one": one, "all": all_of_them}
        for direction in _DIRECTIONS:
            rates = _rates(values, _calls(clients, direction), rounds)
            ratios = pair_ratios(rates["all"], rates["one"])
            cells = (cell(rates["one"]), cell(rates["all"]), cell(ratios))
            rows.append([f"{direction}, {layer_kib} KiB", *cells])
        one.check()
        all_of_them.check()
        one.close()
        all_of_them.close()
    header = (f"tcp, {NUM_LAYERS} values a page", "1 server", f"{len(servers)} servers", "ratio")
    return table("Pages on several servers", header, rows)


@contextlib.contextmanager
def _servers(number: int) -> Iterator[list[Valkey]]:
    with contextlib.ExitStack() as stack:
        folders = [
            pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(number)
        ]
        yield [stack.enter_context(running_valkey(folder)) for folder in folders]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds")
    rounds = parser.parse_args().rounds
    print(f"python -m tests.bench.kv_store {' '.join(sys.argv[1:])}\n{machine.describe()}\n")
    print(f"{machine.calibrate()}\n", flush=True)
    with _servers(1) as (server,):
        print(against_bare(server.url, "tcp", rounds), flush=True)
    with _servers(1) as (server,):
        print(against_bare(server.unix_url, "unix", rounds), flush=True)
    with _servers(NUM_SHARDS) as servers:
        print(shards(servers, rounds), flush=True)
    print(machine.calibrate())


if __name__ == "__main__":
    main()
