"""Which network interface has a given address; UCX is bound by interface name."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

from chunkmesh.errors import ConfigError

_SIOCGIFADDR = 0x8915
_IFREQ_QUERY = struct.Struct("16s24x")
_ADDRESS_AT = 20
_IPV6_TABLE = Path("/proc/net/if_inet6")


def interface_of(address: str) -> str:
    """Return the name of the interface with this IPv4 or IPv6 address, such as lo or eth0.

    Raises:
        ConfigError: no interface has it, or it is a wildcard, which would listen everywhere.
    """
    try:
        wanted = ipaddress.ip_address(address)
    except ValueError as error:
        raise ConfigError(
            f"data address {address}: the ucx transport needs a number, such as 127.0.0.1"
        ) from error
    if wanted.is_unspecified:
        raise ConfigError(f"data address {address}: name the address of one interface")
    if wanted.is_loopback:
        return "lo"
    if isinstance(wanted, ipaddress.IPv6Address):
        return _interface_of_ipv6(wanted)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            if _address_of(probe, name) == wanted:
                return name
    raise ConfigError(f"data address {address}: no interface of this host has it")


def _interface_of_ipv6(wanted: ipaddress.IPv6Address) -> str:
    """Look an address up in Linux's table: 32 hexadecimal digits, four numbers and the name."""
    try:
        lines = _IPV6_TABLE.read_text(encoding="ascii").splitlines()
    except OSError:
        lines = []
    for line in lines:
        digits, *_, name = line.split()
        if int(digits, 16) == int(wanted):
            return name
    raise ConfigError(f"data address {wanted}: no interface of this host has it")


def _address_of(probe: socket.socket, name: str) -> ipaddress.IPv4Address | None:
    request = _IFREQ_QUERY.pack(name.encode())
    try:
        reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
    except OSError:
        return None
    return ipaddress.IPv4Address(reply[_ADDRESS_AT : _ADDRESS_AT + 4])
