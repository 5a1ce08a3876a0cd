"""The chassis behind a guard: real certificates, real keys, real connections on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from chunkmesh.address import HostPort, Listen
from chunkmesh.errors import ChunkMeshError, Forbidden, Unauthenticated, Unavailable
from chunkmesh.grpc_client import PLAIN, Access, RenewedChannel, blocking_channel, channel
from chunkmesh.grpc_server import GrpcServer
from chunkmesh.status import from_rpc_error
from chunkmesh.trust.access import ACCESS, Door, Role
from chunkmesh.trust.caller import caller_metadata
from chunkmesh.trust.guard import Guard
from chunkmesh.trust.identity import Identity, current_identity
from chunkmesh.trust.key_file import KeyFile, key_file
from deploy.certs.certificates import Authority
from tests.certificates import access, files_of, mesh_files, new_authority

USER_KEY, ADMIN_KEY = "user-key-0123456789", "admin-key-0123456789"
GENERATE, FLUSH = "/chunkmesh.v1.Generation/Generate", "/chunkmesh.v1.Generation/FlushCache"
Context = grpc.aio.ServicerContext[bytes, bytes]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Make the mesh's."""
    return new_authority(tmp_path / "mesh")


async def _who(_request: bytes, _context: Context) -> bytes:
    """Answer who calls."""
    identity = current_identity()
    return f"{'+'.join(sorted(identity.roles))}/{identity.tenant}".encode()


async def _who_streamed(request: bytes, context: Context) -> AsyncIterator[bytes]:
    yield await _who(request, context)


def _chassis(guard: Guard) -> GrpcServer:
    """Serve every method of a door by answering who calls."""
    chassis = GrpcServer(guard=guard)
    for path in ACCESS[guard.door]:
        service, _, method = path[1:].partition("/")
        if not service.startswith("chunkmesh."):
            continue
        handler: Any = grpc.unary_unary_rpc_method_handler(_who)
        if method == "Generate":
            handler = grpc.unary_stream_rpc_method_handler(_who_streamed)
        generic = grpc.method_handlers_generic_handler(service, {method: handler})
        chassis.server.add_generic_rpc_handlers((generic,))
    return chassis


@contextlib.asynccontextmanager
async def _serving(guard: Guard) -> AsyncIterator[HostPort]:
    listen = Listen(host="127.0.0.1", port=0, flag="--port", explicit=True)
    async with _chassis(guard).listening(listen, grace_s=0) as address:
        yield address


async def _ask(
    address: HostPort, how: Access, method: str, metadata: tuple[tuple[str, str], ...] = ()
) -> str | ChunkMeshError:
    """Call a method and return who the server says it was, or the error."""
    async with channel(address, how) as connection:
        return await _ask_on(connection, method, metadata)


async def _ask_on(
    connection: grpc.aio.Channel, method: str, metadata: tuple[tuple[str, str], ...] = ()
) -> str | ChunkMeshError:
    sent = grpc.aio.Metadata(*metadata)
    try:
        if method == GENERATE:
            stream: Any = connection.unary_stream(method)
            replies = [reply async for reply in stream(b"", timeout=5, metadata=sent)]
            return bytes(replies[0]).decode()
        unary: Any = connection.unary_unary(method)
        return bytes(await unary(b"", timeout=5, metadata=sent)).decode()
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)


def _mutual(authority: Authority, door: Door, role: Role) -> Guard:
    return Guard(door=door, tls=mesh_files(authority, role), is_mutual=True)


_INTERNAL_DOORS = {
    Door.INTERNAL: Role.SCHEDULER,
    Door.HICACHE: Role.HICACHE,
    Door.DATA: Role.WORKER,
}


@pytest.mark.parametrize("door", _INTERNAL_DOORS)
async def test_the_table_holds_at_every_internal_door(authority: Authority, door: Door) -> None:
    """Each role calls each method once: exactly those of the table pass."""
    server = _INTERNAL_DOORS[door]
    methods = [method for method in ACCESS[door] if method.startswith("/chunkmesh.")]
    async with _serving(_mutual(authority, door, server)) as address:
        for role in Role:
            async with channel(address, access(authority, role, server)) as connection:
                for method in methods:
                    answer = await _ask_on(connection, method)
                    if role in ACCESS[door][method]:
                        assert answer == f"{role}/"
                    else:
                        assert isinstance(answer, Forbidden), (role, method)


@pytest.mark.parametrize("method", [GENERATE, FLUSH])
@pytest.mark.parametrize("role", Role)
async def test_the_users_port_is_for_clients_and_admins(
    authority: Authority, role: Role, method: str
) -> None:
    """A stolen worker's certificate opens neither Generate nor the admin's verbs."""
    async with _serving(_mutual(authority, Door.USERS, Role.SCHEDULER)) as address:
        answer = await _ask(address, access(authority, role), method)
    allowed = {GENERATE: {Role.CLIENT: "client/client", Role.ADMIN: "admin/"}}
    expected = allowed.get(method, {Role.ADMIN: "admin/"}).get(role)
    if expected is None:
        assert isinstance(answer, Forbidden)
    else:
        assert expected == answer


async def _refused(address: HostPort, how: Access) -> bool:
    """Say whether no connection comes about."""
    answer = await _ask(address, how, "/chunkmesh.v1.StageControl/Attach")
    return isinstance(answer, Unavailable)


async def test_strangers_get_no_connection(authority: Authority, tmp_path: Path) -> None:
    """No certificate, one of another authority, an expired one, plain text: none gets to a call."""
    other = new_authority(tmp_path / "other")
    expired = authority.issue("old", "w", ("worker.chunkmesh",), days=-1)
    theirs = other.issue_role(Role.WORKER)
    async with _serving(_mutual(authority, Door.INTERNAL, Role.SCHEDULER)) as address:
        assert await _refused(address, access(authority, None, Role.SCHEDULER))
        how = Access(tls=files_of(theirs, authority), server_role=Role.SCHEDULER)
        assert await _refused(address, how)
        how = Access(tls=files_of(expired, authority), server_role=Role.SCHEDULER)
        assert await _refused(address, how)
        assert await _refused(address, PLAIN)
        assert not await _refused(address, access(authority, Role.WORKER, Role.SCHEDULER))


async def test_clients_refuse_a_server_of_another_role(
    authority: Authority, tmp_path: Path
) -> None:
    """A worker's certificate must not make a scheduler, nor another mesh's."""
    async with _serving(_mutual(authority, Door.INTERNAL, Role.WORKER)) as address:
        assert await _refused(address, access(authority, Role.WORKER, Role.SCHEDULER))
    other = new_authority(tmp_path / "other")
    mine = authority.issue_role(Role.WORKER)
    async with _serving(_mutual(authority, Door.INTERNAL, Role.SCHEDULER)) as address:
        how = Access(tls=files_of(mine, other), server_role=Role.SCHEDULER)
        assert await _refused(address, how)


async def test_a_certificate_without_a_role_is_a_user_and_nothing_else(
    authority: Authority, tmp_path: Path
) -> None:
    """Users' certificates come from their company, with names of people."""
    users = new_authority(tmp_path / "users")
    anna = users.issue("anna", "anna", ())
    server = authority.issue_role(Role.SCHEDULER)
    guard = Guard(door=Door.USERS, tls=files_of(server, users), is_mutual=True)
    how = Access(tls=files_of(anna, authority))
    async with _serving(guard) as address:
        assert await _ask(address, how, GENERATE) == "client/anna"
        assert isinstance(await _ask(address, how, FLUSH), Forbidden)
    nobody = authority.issue("nobody", "nobody", ())
    async with _serving(_mutual(authority, Door.INTERNAL, Role.SCHEDULER)) as address:
        how = Access(tls=files_of(nobody, authority), server_role=Role.SCHEDULER)
        answer = await _ask(address, how, "/chunkmesh.v1.StageControl/Attach")
    assert isinstance(answer, Forbidden)
    assert "without a role" in str(answer)


async def test_health_asks_for_no_role(authority: Authority) -> None:
    """A probe with any certificate of the mesh is answered, and without TLS any probe."""
    asked = health_pb2.HealthCheckRequest()
    async with _serving(_mutual(authority, Door.INTERNAL, Role.SCHEDULER)) as address:
        how = access(authority, Role.CLIENT, Role.SCHEDULER)
        async with channel(address, how) as connection:
            stub: Any = health_pb2_grpc.HealthStub(connection)
            assert (await stub.Check(asked, timeout=5)).status


async def test_an_open_port_lets_everybody_do_everything() -> None:
    """Without TLS and keys nothing is asked, as for a mesh on one's own machine."""
    async with _serving(Guard(door=Door.USERS)) as address:
        assert await _ask(address, PLAIN, FLUSH) == "admin+client/"


def _keys(tmp_path: Path, name: str, text: str) -> KeyFile:
    path = tmp_path / name
    path.touch(mode=0o600)
    path.write_text(text)
    return key_file(path, flag=f"--{name}")


def _bearer(key: str) -> tuple[tuple[str, str], ...]:
    return caller_metadata(api_key=key, tenant="")


@pytest.mark.parametrize(
    ("method", "metadata", "expected"),
    [
        (GENERATE, _bearer(USER_KEY), "client/blue"),
        (GENERATE, _bearer(ADMIN_KEY), "admin/"),
        (GENERATE, (("authorization", f"bearer  {USER_KEY}"),), "client/blue"),
        (GENERATE, (), Unauthenticated),
        (GENERATE, _bearer("user-key-0123456788"), Unauthenticated),
        (GENERATE, (("authorization", USER_KEY),), Unauthenticated),
        (GENERATE, (("authorization", f"Basic {USER_KEY}"),), Unauthenticated),
        (GENERATE, _bearer(USER_KEY) * 2, Unauthenticated),
        (GENERATE, (*_bearer(USER_KEY), ("chunkmesh-tenant", "green")), Forbidden),
        (GENERATE, (*_bearer(ADMIN_KEY), ("chunkmesh-tenant", "green")), "admin/green"),
        (GENERATE, (*_bearer(ADMIN_KEY), ("chunkmesh-tenant", "a" * 65)), Forbidden),
        (FLUSH, _bearer(USER_KEY), Forbidden),
        (FLUSH, _bearer(ADMIN_KEY), "admin/"),
        (FLUSH, (), Unauthenticated),
    ],
)
async def test_keys(
    tmp_path: Path,
    method: str,
    metadata: tuple[tuple[str, str], ...],
    expected: str | type[ChunkMeshError],
) -> None:
    """Keys of users and of operators open what is theirs; no answer repeats one."""
    guard = Guard(
        door=Door.USERS,
        api_keys=_keys(tmp_path, "api-key-file", f"{USER_KEY} blue"),
        admin_keys=_keys(tmp_path, "admin-api-key-file", ADMIN_KEY),
    )
    with structlog.testing.capture_logs() as logs:
        async with _serving(guard) as address:
            answer = await _ask(address, PLAIN, method, metadata)
    if isinstance(expected, str):
        assert expected == answer
    else:
        assert type(answer) is expected
    assert not any("key-0123" in str(told) for told in (*logs, answer))


async def test_admin_keys_alone_close_only_the_admins_verbs(tmp_path: Path) -> None:
    """As in SGLang: users are let in, whoever flushes caches is asked for a key."""
    keys = _keys(tmp_path, "admin-api-key-file", ADMIN_KEY)
    async with _serving(Guard(door=Door.USERS, admin_keys=keys)) as address:
        assert await _ask(address, PLAIN, GENERATE) == "client/"
        assert isinstance(await _ask(address, PLAIN, FLUSH), Forbidden)
        assert await _ask(address, PLAIN, FLUSH, _bearer(ADMIN_KEY)) == "admin/"


async def test_keys_over_tls_are_asked_of_all_but_admins(
    authority: Authority, tmp_path: Path
) -> None:
    """A user's certificate opens the connection, his key the call."""
    guard = Guard(
        door=Door.USERS,
        tls=mesh_files(authority, Role.SCHEDULER),
        is_mutual=True,
        api_keys=_keys(tmp_path, "api-key-file", f"{USER_KEY} blue"),
    )
    user, admin = access(authority, Role.CLIENT), access(authority, Role.ADMIN)
    async with _serving(guard) as address:
        assert isinstance(await _ask(address, user, GENERATE), Unauthenticated)
        assert await _ask(address, user, GENERATE, _bearer(USER_KEY)) == "client/blue"
        assert await _ask(address, admin, FLUSH) == "admin/"


async def test_a_call_without_a_key_is_refused_unread(tmp_path: Path) -> None:
    """A stranger's 40 MB are not worth a look: the answer comes before the message has."""
    keys = _keys(tmp_path, "api-key-file", USER_KEY)
    async with (
        _serving(Guard(door=Door.USERS, api_keys=keys)) as address,
        channel(address) as connection,
    ):
        call: Any = connection.stream_unary(FLUSH)
        running = call()  # says hello, and never sends its message
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with asyncio.timeout(5):
                await running
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_blocking_channel_bears_the_key(tmp_path: Path) -> None:
    """The command lines have no event loop."""
    keys = _keys(tmp_path, "api-key-file", f"{USER_KEY} blue")

    def ask(address: HostPort) -> bytes:
        with blocking_channel(address, Access(metadata=_bearer(USER_KEY))) as connection:
            stream: Any = connection.unary_stream(GENERATE)
            (reply,) = stream(b"", timeout=5)
            return bytes(reply)

    async with _serving(Guard(door=Door.USERS, api_keys=keys)) as address:
        assert await asyncio.to_thread(ask, address) == b"client/blue"


async def test_new_certificates_are_used_for_new_connections_only(authority: Authority) -> None:
    """Rotation without restart: streams that stand go on, who dials now sees the new ones."""
    attach = "/chunkmesh.v1.StageControl/Attach"
    server = authority.issue_role(Role.SCHEDULER)
    worker = authority.issue_role(Role.WORKER)
    files = files_of(server, authority, Role.SCHEDULER)
    guard = Guard(door=Door.INTERNAL, tls=files, is_mutual=True)
    mine = files_of(worker, authority, Role.WORKER)
    how = Access(tls=mine, server_role=Role.SCHEDULER)
    async with _serving(guard) as address:
        renewed = RenewedChannel(address, how)
        standing = renewed.current()
        assert await _ask_on(standing, attach) == "worker/"
        # A new authority signs both ends; the old one is trusted no more.
        other = new_authority(authority.folder / "next")
        for role, old in ((Role.SCHEDULER, server), (Role.WORKER, worker)):
            fresh = other.issue_role(role)
            fresh.keyfile.replace(old.keyfile)
            fresh.certfile.replace(old.certfile)
        stale = Access(tls=files_of(authority.issue_role(Role.HICACHE), authority))
        other.certfile.replace(authority.certfile)
        assert await _ask_on(standing, attach) == "worker/"
        assert await _ask_on(renewed.current(), attach) == "worker/"
        assert renewed.current() is not standing
        assert await _refused(address, Access(tls=stale.tls, server_role=Role.SCHEDULER))
        await renewed.close()


async def test_a_broken_new_certificate_is_not_used(authority: Authority) -> None:
    """The old pair goes on for whoever dials."""
    server = authority.issue_role(Role.SCHEDULER)
    guard = Guard(
        door=Door.INTERNAL, tls=files_of(server, authority, Role.SCHEDULER), is_mutual=True
    )
    how = access(authority, Role.WORKER, Role.SCHEDULER)
    async with _serving(guard) as address:
        assert not await _refused(address, how)
        server.certfile.write_text("-----BEGIN CERTIFICATE-----\nhalf")
        with structlog.testing.capture_logs() as logs:
            assert not await _refused(address, how)
    assert "files kept as they were" in [line["event"] for line in logs]


def _warnings(logs: list[Any]) -> list[str]:
    return [line["event"] for line in logs if line["log_level"] == "warning"]


async def test_an_open_port_of_a_network_is_told(authority: Authority, tmp_path: Path) -> None:
    """Whoever opens a port to a network hears what he has opened; with TLS and keys nothing."""
    listen = Listen(host="0.0.0.0", port=0, flag="--port", explicit=True)
    keys = _keys(tmp_path, "api-key-file", USER_KEY)
    closed = Guard(door=Door.USERS, tls=mesh_files(authority, Role.SCHEDULER), api_keys=keys)
    told = []
    for guard in (Guard(door=Door.USERS), Guard(door=Door.USERS, api_keys=keys), closed):
        with structlog.testing.capture_logs() as logs:
            async with _chassis(guard).listening(listen, grace_s=0):
                told.append([event.split(":")[0] for event in _warnings(logs)])
    assert told == [["PORT WITHOUT TLS", "OPEN PORT"], ["PORT WITHOUT TLS"], []]


async def test_a_silent_connection_holds_nothing_up(authority: Authority) -> None:
    """Whoever connects and says nothing does not keep the right client out."""
    async with _serving(_mutual(authority, Door.INTERNAL, Role.SCHEDULER)) as address:
        strangers = [socket.create_connection((address.host, address.port)) for _ in range(50)]
        assert not await _refused(address, access(authority, Role.WORKER, Role.SCHEDULER))
        for stranger in strangers:
            stranger.close()


def test_an_identity_of_nobody_has_no_role() -> None:
    """Code that runs outside of a guarded call must not be taken for an operator's."""
    assert Identity(roles=frozenset()) == current_identity()
