"""UCX is bound by interface name; a wrong one would listen where nobody asked for."""

from __future__ import annotations

import socket

import psutil
import pytest

from chunkmesh.errors import ConfigError
from chunkmesh.transports.interfaces import interface_of


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "::1"])
def test_loopback_is_lo(address: str) -> None:
    """The default of every command must never leave the host."""
    assert interface_of(address) == "lo"


def test_every_address_leads_to_its_interface() -> None:
    """On a host with several networks the data plane stays on the chosen one."""
    for name, addresses in psutil.net_if_addrs().items():
        for entry in addresses:
            is_address = entry.family in {socket.AF_INET, socket.AF_INET6}
            if is_address and psutil.net_if_stats()[name].isup:
                assert interface_of(entry.address.partition("%")[0]) == name


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("0.0.0.0", "one interface"),
        ("::", "one interface"),
        ("2001:db8::77", "no interface"),
        ("203.0.113.77", "no interface"),
        ("localhost", "needs a number"),
    ],
)
def test_an_unusable_address_is_a_config_error(address: str, named: str) -> None:
    """Start-up must say what is wrong instead of listening everywhere."""
    with pytest.raises(ConfigError, match=named):
        interface_of(address)
