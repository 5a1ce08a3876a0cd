"""The guide's table of roles is the code's, and the limits that it names are those that hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chunkmesh import grpc_options, side_door
from chunkmesh.transports import handshake, rendezvous
from chunkmesh.transports.base import HANDSHAKE_TIMEOUT_S
from chunkmesh.trust import key_file
from chunkmesh.trust.access import ACCESS, Door, Role

_GUIDE = (Path(__file__).parents[3] / "docs" / "security.md").read_text(encoding="utf-8")


def _rows(first_cells: set[str]) -> list[list[str]]:
    """Return the table rows that begin with one of these."""
    rows = [line.strip("|").split("|") for line in _GUIDE.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows if row[0].strip() in first_cells]


def test_the_table_of_methods() -> None:
    """An operator reads the guide, not the code."""
    told: dict[tuple[str, str], str] = {}
    for door, methods, roles in _rows({door.value for door in Door}):
        for method in methods.split(", "):
            assert (door, method) not in told
            told[door, method] = roles
    expected = {
        (door.value, _short(method)): ", ".join(sorted(roles))
        for door, methods in ACCESS.items()
        for method, roles in methods.items()
    }
    assert expected == told


def _short(method: str) -> str:
    name = method.rpartition("/")[2]
    return "reflection" if name == "ServerReflectionInfo" else name


def test_the_names_of_roles() -> None:
    """Whoever makes certificates elsewhere copies them from there."""
    names = {row[0]: row[1].strip("`") for row in _rows({role.value for role in Role})}
    assert {role.value: role.certificate_name for role in Role} == names


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"(\d+) MiB both ways", grpc_options.MAX_MESSAGE_BYTES >> 20),
        (r"headers or trailers of a call \| (\d+) KiB", grpc_options.MAX_METADATA_BYTES >> 10),
        (r"(\d+) a connection", grpc_options.MAX_STREAMS),
        (r"(\d+) a server", grpc_options.MAX_CALLS),
        (r"HTTP/2 handshake \| (\d+) s", grpc_options.HANDSHAKE_S),
        (r"data port, handshake \| (\d+) KiB", handshake.MAX_BYTES >> 10),
        (r"data port, handshake \| 4 KiB, (\d+) s", round(HANDSHAKE_TIMEOUT_S)),
        (r"data port, handshake .* (\d+) at a time", rendezvous.MAX_STRANGERS),
        (r"side door \| head (\d+) KiB", side_door.MAX_HEAD_BYTES >> 10),
        (r"side door .* (\d+) s from", round(side_door.REQUEST_S)),
        (r"side door .* (\d+) connections", side_door.MAX_CONNECTIONS),
        (r"keys (\d+) MiB", key_file.MAX_FILE_BYTES >> 20),
        (r"\((\d+) to 512 characters\)", key_file.MIN_KEY_CHARACTERS),
    ],
)
def test_limits(text: str, value: int) -> None:
    """A number in the guide that the code has left behind is worse than none."""
    assert [str(value)] == re.findall(text, _GUIDE)
