"""Hosts of one network on one machine: network namespaces whose packets pass through this process.

Each host has one TUN device; a thread reads the packets of all of them and writes each to the host
that it is for, unless the test says that the way between the two is spoilt. So a way can
lose, delay or swallow packets in one direction alone, with the kernel's real TCP at both ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x1001
_READ_BYTES = 1 << 16
_LOOK_S = 0.05
_CLONE_NEWNET, _CLONE_NEWNS = 0x40000000, 0x00020000
_MS_SLAVE, _MS_REC, _MNT_DETACH = 1 << 19, 1 << 14, 2
_DESTINATION = slice(16, 20)
"""Of an IPv4 header."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Way:
    """What happens to packets of one host to another; by default nothing."""

    is_cut: bool = False
    loss: float = 0.0
    """0 <= loss <= 1, the share of packets that vanish."""
    delay_s: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One network namespace."""

    name: str
    namespace: str
    """Empty for that of this process."""
    address: str
    """IPv4."""
    device: int
    """Descriptor of its TUN device."""

    def enter(self) -> None:
        """Let this process be here, and see this host's network devices in /sys, as UCX does.

        Source: https://man7.org/linux/man-pages/man8/ip-netns.8.html
        """
        libc = ctypes.CDLL(None, use_errno=True)
        with Path(f"/run/netns/{self.namespace}").open("rb") as namespace:
            _check(libc.setns(namespace.fileno(), _CLONE_NEWNET))
        _check(libc.unshare(_CLONE_NEWNS))
        _check(libc.mount(b"", b"/", b"none", _MS_SLAVE | _MS_REC, None))
        _check(libc.umount2(b"/sys", _MNT_DETACH))
        _check(libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None))


class Network:
    """Owns the hosts and the thread that carries their packets."""

    def __init__(self, hosts: Sequence[Host], seed: int = 0) -> None:
        """Carry nothing yet; seed draws which packets are lost."""
        self.hosts = {host.name: host for host in hosts}
        self.num_carried = 0
        """Packets that have reached their host."""
        self._by_address = {_packed(host.address): host for host in hosts}
        self._ways = {(a.name, b.name): Way() for a in hosts for b in hosts if a is not b}
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._delayed: list[tuple[float, int, Host, bytes]] = []
        """By the time they are due."""
        self._num_delayed = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._carry, name="packets", daemon=True)

    def way(self, source: str, target: str) -> Way:
        """Return what happens between two hosts, to be changed at will."""
        return self._ways[source, target]

    def both(self, one: str, other: str) -> tuple[Way, Way]:
        """Return the ways there and back."""
        return self.way(one, other), self.way(other, one)

    @contextlib.contextmanager
    def carrying(self) -> Iterator[Network]:
        """Carry packets while inside."""
        self._thread.start()
        try:
            yield self
        finally:
            self._ends.set()
            self._thread.join()

    def _carry(self) -> None:
        poll = select.poll()
        for host in self.hosts.values():
            poll.register(host.device, select.POLLIN)
        by_device = {host.device: host for host in self.hosts.values()}
        while not self._ends.is_set():
            for device, _ in poll.poll(1000 * self._wait_s()):
                self._take(by_device[device], os.read(device, _READ_BYTES))
            self._deliver_due()

    def _wait_s(self) -> float:
        """Return how long nothing is due."""
        if not self._delayed:
            return _LOOK_S
        return min(_LOOK_S, max(0.0, self._delayed[0][0] - time.monotonic()))

    def _take(self, source: Host, packet: bytes) -> None:
        """Judge a packet that has left a host."""
        target = self._by_address.get(packet[_DESTINATION])
        if target is None or target is source:
            return
        way = self._ways[source.name, target.name]
        if way.is_cut or self._random.random() < way.loss:
            return
        if not way.delay_s:
            self._deliver(target, packet)
            return
        self._num_delayed += 1
        due_s = time.monotonic() + way.delay_s
        heapq.heappush(self._delayed, (due_s, self._num_delayed, target, packet))

    def _deliver_due(self) -> None:
        while self._delayed and self._delayed[0][0] <= time.monotonic():
            _, _, target, packet = heapq.heappop(self._delayed)
            self._deliver(target, packet)

    def _deliver(self, target: Host, packet: bytes) -> None:
        os.write(target.device, packet)
        self.num_carried += 1


def unable() -> str:
    """Return why this machine cannot have such hosts; empty if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    return ""


@contextlib.contextmanager
def network(*names: str) -> Iterator[Network]:
    """Run hosts of these names and one called `here`, this process's own, while inside."""
    number = os.getpid() % 250 + 1
    with contextlib.ExitStack() as stack:
        hosts = [stack.enter_context(_host("here", "", number, 1))]
        for index, name in enumerate(names):
            namespace = f"cm{os.getpid()}{name}"
            hosts.append(stack.enter_context(_host(name, namespace, number, 2 + index)))
        yield stack.enter_context(Network(hosts).carrying())


@contextlib.contextmanager
def _host(name: str, namespace: str, network_number: int, number: int) -> Iterator[Host]:
    """Make a host with an address of 10.213.network_number.0/24 while inside."""
    interface, address = f"cm{network_number}x{number}", f"10.213.{network_number}.{number}"
    device = os.open("/dev/net/tun", os.O_RDWR)
    try:
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", interface.encode(), _IFF_TUN_NO_PI))
        if namespace:
            _ip("netns", "add", namespace)
            _ip("link", "set", interface, "netns", namespace)
        inside = ["-n", namespace] if namespace else []
        _ip(*inside, "addr", "add", f"{address}/24", "dev", interface)
        _ip(*inside, "link", "set", interface, "up")
        if namespace:
            _ip(*inside, "link", "set", "lo", "up")
        yield Host(name=name, namespace=namespace, address=address, device=device)
    finally:
        os.close(device)
        if namespace:
            subprocess.run(["ip", "netns", "del", namespace], check=False, timeout=10)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=10)


def _check(result: int) -> None:
    """Raise what the kernel has said against a call of libc's."""
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _packed(address: str) -> bytes:
    return bytes(map(int, address.split(".")))
