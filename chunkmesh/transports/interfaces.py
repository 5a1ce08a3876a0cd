"""Which network interface has a given IPv4 address; UCX is bound by interface name."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct

from chunkmesh.errors import ConfigError

_SIOCGIFADDR = 0x8915
_IFREQ_QUERY = struct.Struct("16s24x")
_ADDRESS_AT = 20


def interface_of(address: str) -> str:
    """Return the name of the interface with this IPv4 address, such as lo or eth0.

    Raises:
        ConfigError: no interface has it, or it is a wildcard, which would listen everywhere.
    """
    try:
        wanted = ipaddress.IPv4Address(address)
    except ipaddress.AddressValueError as error:
        raise ConfigError(f"data address {address}: the ucx transport needs IPv4") from error
    if wanted.is_unspecified:
        raise ConfigError(f"data address {address}: name the address of one interface")
    if wanted.is_loopback:
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            if _address_of(probe, name) == wanted:
                return name
    raise ConfigError(f"data address {address}: no interface of this host has it")


def _address_of(probe: socket.socket, name: str) -> ipaddress.IPv4Address | None:
    request = _IFREQ_QUERY.pack(name.encode())
    try:
        reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
    except OSError:
        return None
    return ipaddress.IPv4Address(reply[_ADDRESS_AT : _ADDRESS_AT + 4])
