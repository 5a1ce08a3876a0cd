"""Whole meshes over mutual TLS with keys: they serve as in plain text, and let in who may come."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import urllib.request
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from chunkmesh.grpc_client import Access, channel
from chunkmesh.layers import partition
from chunkmesh.trust.access import Role
from chunkmesh.trust.caller import caller_metadata
from chunkmesh.trust.tls_files import TlsPaths, tls_files
from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import generation_pb2_grpc, stage_pb2_grpc
from deploy.certs.certificates import Authority, Issued
from hicache.server import running as hicache_running
from hicache.settings import HiCacheSettings
from stage_worker.model_stage import load_stage
from tests.bytes_tokenizer import write_bytes_folder
from tests.certificates import access, mesh_files, mesh_settings, new_authority
from tests.cli_run import run_cli
from tests.hicache_admin import admin
from tests.mesh import Mesh, mesh
from tests.random_ids import make_prompt
from tests.recorded_stage import RecordedStage
from tests.reference import Reference
from tests.scripted_stage import Script, scripted_stages
from tests.valkey import Valkey

BLUE, GREEN, ADMIN = "blue-key-0123456789", "green-key-0123456789", "admin-key-0123456789"
UNNAMED = "other-key-0123456789"
"""An operator's, too."""
NEW_TOKENS = 4
_FLUSH = pb.FlushCacheRequest()
_LAST = pb.GetTimelinesRequest(last=1)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Make the mesh's."""
    return new_authority(tmp_path / "mesh-ca")


def _key_file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def _stages(folder: Path) -> list[RecordedStage]:
    return [
        RecordedStage(load_stage(folder, layers=range(part.first, part.last)))
        for part in partition(4, 2)
    ]


def _sent(key: str, tenant: str = "") -> grpc.aio.Metadata:
    return grpc.aio.Metadata(*caller_metadata(api_key=key, tenant=tenant))


async def _run(running: Mesh, key: str, prompt: Sequence[int]) -> pb.GenerateComplete:
    """Run a greedy request with a key."""
    request = pb.GenerateRequest(
        input_ids=pb.TokenIds(ids=prompt),
        sampling_params=pb.SamplingParams(
            temperature=0, max_new_tokens=NEW_TOKENS, ignore_eos=True
        ),
    )
    call = running.stub.Generate(request, timeout=60, metadata=_sent(key))
    return [reply async for reply in call][-1].complete


@contextlib.asynccontextmanager
async def _whole(
    tiny: Path, authority: Authority, valkey: Valkey, tmp_path: Path
) -> AsyncIterator[tuple[Mesh, str]]:
    """Run HiCache, scheduler and two workers over TLS, with keys of two tenants."""
    settings = HiCacheSettings(
        port=0, http_port=0, redis_url=(valkey.url,), **mesh_settings(authority, Role.HICACHE)
    )
    async with (
        hicache_running(settings, ping_s=0.05) as hicache,
        mesh(
            tiny,
            _stages(tiny),
            redis_url=valkey.url,
            transport="grpc",
            worker_tls=mesh_files(authority, Role.WORKER),
            user=access(authority, None),
            hicache_url=hicache,
            api_key_file=_key_file(tmp_path, "keys", f"{BLUE} blue\n{GREEN} green\n"),
            admin_api_key_file=_key_file(tmp_path, "admin-keys", f"{ADMIN} ops\n{UNNAMED}\n"),
            **mesh_settings(authority, Role.SCHEDULER),
        ) as running,
    ):
        yield running, str(hicache)


async def test_over_tls_ids_are_the_same_and_tenants_find_only_their_own(
    tiny: Path, reference: Reference, authority: Authority, valkey: Valkey, tmp_path: Path
) -> None:
    """The same prompt of another tenant is computed anew: a hit would tell what others asked."""
    prompt = make_prompt(100, seed=1)
    expected = reference.generate(prompt, NEW_TOKENS)
    async with _whole(tiny, authority, valkey, tmp_path) as (running, _):
        runs = []
        for key in (BLUE, BLUE, GREEN, GREEN):
            runs.append(await _run(running, key, prompt))
            await running.at_rest()
        told = await asyncio.to_thread(_told_at_side_door, running)
    assert [expected] * 4 == [list(run.output_ids) for run in runs]
    assert [0, 96, 0, 96] == [run.cached_tokens for run in runs]
    assert "chunkmesh_refused_calls" in told
    assert not any(secret in told for secret in (BLUE, GREEN, ADMIN, "blue", "green"))


def _told_at_side_door(running: Mesh) -> str:
    """Return all that anybody can read there."""
    told = ""
    for path in ("metrics", "server_info", "ready", "live"):
        with urllib.request.urlopen(f"http://{running.http_address}/{path}", timeout=5) as answer:
            told += answer.read().decode()
    return told


async def test_certificates_are_replaced_under_a_running_mesh(
    tiny: Path, authority: Authority, valkey: Valkey, tmp_path: Path
) -> None:
    """Another authority for all: what stands goes on, HiCache is reached, old clients are not."""
    prompt = make_prompt(100, seed=2)
    old_ca = tmp_path / "old-ca.crt"
    shutil.copy(authority.certfile, old_ca)
    async with _whole(tiny, authority, valkey, tmp_path) as (running, _):
        await _run(running, BLUE, prompt)
        await running.at_rest()
        _replace_all(authority, tmp_path)
        again = await _run(running, BLUE, prompt)  # on the connections that stand
        async with channel(running.address, access(authority, None)) as connection:
            stub = generation_pb2_grpc.GenerationStub(connection)
            info = await stub.GetServerInfo(
                pb.GetServerInfoRequest(), timeout=10, metadata=_sent(ADMIN)
            )
        stale = Access(tls=tls_files(TlsPaths(ca_certs=old_ca), name="old"))
        async with channel(running.address, stale) as connection:
            stub = generation_pb2_grpc.GenerationStub(connection)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=10)
    assert ("", 96) == (info.cache_fault, again.cached_tokens)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def _replace_all(authority: Authority, tmp_path: Path) -> None:
    """Put the files of a new authority in the place of the old ones."""
    fresh = new_authority(tmp_path / "next-ca")
    for role in (Role.SCHEDULER, Role.WORKER, Role.HICACHE):
        issued = fresh.issue_role(role)
        issued.keyfile.replace(authority.folder / issued.keyfile.name)
        issued.certfile.replace(authority.folder / issued.certfile.name)
    fresh.certfile.replace(authority.certfile)


async def test_who_attaches_must_be_a_worker(
    tmp_path: Path, tiny: Path, authority: Authority
) -> None:
    """A user's, an operator's and the scheduler's own certificate are refused; so is none."""
    async with mesh(
        tiny,
        _stages(tiny),
        worker_tls=mesh_files(authority, Role.WORKER),
        user=access(authority, None),
        **mesh_settings(authority, Role.SCHEDULER),
    ) as running:
        codes = []
        for role in (Role.CLIENT, Role.ADMIN, Role.HICACHE, None):
            how = access(authority, role, Role.SCHEDULER)
            async with channel(running.internal_address, how) as connection:
                call = stage_pb2_grpc.StageControlStub(connection).Attach(timeout=10)
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call.read()
                codes.append(caught.value.code())
    denied = grpc.StatusCode.PERMISSION_DENIED
    assert [denied, denied, denied, grpc.StatusCode.UNAVAILABLE] == codes


async def test_users_end_their_own_requests_only(tmp_path: Path) -> None:
    """Ids of requests are guessed easily; an operator ends any."""
    folder = write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": 1})
    stages = scripted_stages(1, Script(delay_s=0.01))
    async with mesh(
        folder,
        stages,
        api_key_file=_key_file(tmp_path, "keys", f"{BLUE} blue\n{GREEN} green\n"),
        admin_api_key_file=_key_file(tmp_path, "admin-keys", ADMIN),
    ) as running:
        found = []
        for callers in ((GREEN, BLUE), (ADMIN,)):
            request = pb.GenerateRequest(
                request_id="known",
                text="hello",
                stream=True,
                sampling_params=pb.SamplingParams(seed=1, max_new_tokens=10_000, ignore_eos=True),
            )
            call = running.stub.Generate(request, timeout=60, metadata=_sent(BLUE))
            await call.read()
            for key in callers:
                abort = pb.AbortRequest(request_id="known")
                answer = await running.stub.Abort(abort, timeout=10, metadata=_sent(key))
                found.append(answer.found)
            ended = pb.GenerateResponse()
            while isinstance(reply := await call.read(), pb.GenerateResponse):
                ended = reply
            assert pb.FINISH_REASON_ABORT == ended.complete.finish_reason
        codes = []
        for key in (BLUE, ADMIN):
            codes.append(await _code(running.stub.FlushCache(_FLUSH, metadata=_sent(key))))
            codes.append(await _code(running.stub.GetTimelines(_LAST, metadata=_sent(key))))
    denied, ok = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.OK
    assert [denied, denied, ok, ok] == codes
    assert [False, True, True] == found


async def test_ids_are_their_users_own(tmp_path: Path) -> None:
    """A refusal would tell a user which ids others have, and let him keep them from theirs."""
    folder = write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": 1})
    async with mesh(
        folder,
        scripted_stages(1, Script(delay_s=0.01)),
        api_key_file=_key_file(tmp_path, "keys", f"{BLUE} blue\n{GREEN} green\n"),
        admin_api_key_file=_key_file(tmp_path, "admin-keys", ADMIN),
    ) as running:
        request = pb.GenerateRequest(
            request_id="known",
            text="hello",
            stream=True,
            sampling_params=pb.SamplingParams(seed=1, max_new_tokens=10_000, ignore_eos=True),
        )
        calls = [running.stub.Generate(request, timeout=60, metadata=_sent(BLUE))]
        await calls[0].read()
        calls.append(running.stub.Generate(request, timeout=60, metadata=_sent(GREEN)))
        begun = await calls[1].read()
        assert isinstance(begun, pb.GenerateResponse)
        assert "known" == begun.request_id
        twice = running.stub.Generate(request, timeout=60, metadata=_sent(GREEN))
        assert grpc.StatusCode.INVALID_ARGUMENT is await _code(twice)
        abort = pb.AbortRequest(request_id="known")
        as_green = _sent(ADMIN, "green")
        green = await running.stub.Abort(abort, timeout=10, metadata=as_green)
        again = await running.stub.Abort(abort, timeout=10, metadata=as_green)
        await running.has_requests(1)
        asked = pb.GetTimelinesRequest(request_ids=["known"])
        told = [
            [each.finish_reason async for each in running.stub.GetTimelines(asked, metadata=sent)]
            for sent in (_sent(ADMIN), as_green)
        ]
        anybody = await running.stub.Abort(abort, timeout=10, metadata=_sent(ADMIN))
        await running.at_rest()
        for call in calls:
            call.cancel()
    assert [True, False, True] == [green.found, again.found, anybody.found]
    assert [["", "abort"], ["abort"]] == told


@pytest.mark.parametrize(
    ("files", "most", "expected"),
    [
        (("users", "admins"), {}, (0, 100)),
        (("users", "admins"), {"max_user_priority": 7}, (7, 100)),
        (("admins",), {}, (100, 100)),
        (("admins",), {"max_user_priority": 0}, (0, 100)),
        ((), {}, (100, 100)),
    ],
    ids=["keys", "keys and a limit", "operators' keys", "operators' keys and a limit", "no keys"],
)
async def test_the_highest_priority_of_users_and_operators(
    tmp_path: Path, files: Sequence[str], most: dict[str, Any], expected: tuple[int, int]
) -> None:
    """Where users are told apart none may starve the others; else all is as it was."""
    folder = write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": 1})
    given: dict[str, dict[str, Any]] = {
        "users": {"api_key_file": _key_file(tmp_path, "keys", f"{BLUE} blue\n")},
        "admins": {"admin_api_key_file": _key_file(tmp_path, "admin-keys", ADMIN)},
    }
    settings = {name: path for file in files for name, path in given[file].items()}
    codes = []
    async with mesh(folder, scripted_stages(1, Script()), **settings, **most) as running:
        keys = (BLUE if "users" in files else "", ADMIN if files else "")
        for key, highest in zip(keys, expected, strict=True):
            for priority in (highest, highest + 1):
                request = pb.GenerateRequest(
                    text="x",
                    priority=priority,
                    sampling_params=pb.SamplingParams(max_new_tokens=1),
                )
                call = running.stub.Generate(request, timeout=10, metadata=_sent(key))
                codes.append(await _code(call))
    ok, refused = grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT
    assert [ok, refused, ok, refused] == codes


async def _code(call: grpc.aio.Call) -> grpc.StatusCode:
    """Read a call of either kind to its end and return how that was."""
    async with asyncio.timeout(10):
        if isinstance(call, grpc.aio.UnaryStreamCall):
            with contextlib.suppress(grpc.aio.AioRpcError):
                while await call.read() is not grpc.aio.EOF:
                    pass
        return await call.code()


async def test_the_command_lines_over_tls(
    tiny: Path, authority: Authority, valkey: Valkey, tmp_path: Path
) -> None:
    """What each of them lacks is said in words; with all it works as in plain text."""
    admin_cert = authority.issue_role(Role.ADMIN)
    ca = ("--ssl-ca-certs", str(authority.certfile))
    async with _whole(tiny, authority, valkey, tmp_path) as (running, hicache):
        to = ("--server", str(running.address))
        blue = ("--api-key-file", str(_key_file(tmp_path, "blue", f"{BLUE}\n")))
        generate = ("generate", *to, "--max-new-tokens", "2", "hello hello hello hello")
        plain = await asyncio.to_thread(run_cli, *generate)
        without_key = await asyncio.to_thread(run_cli, *generate, *ca)
        good = await asyncio.to_thread(run_cli, *generate, *ca, *blue)
        trace = await asyncio.to_thread(run_cli, "trace", *to, *ca, *blue)
        await running.at_rest()
        as_admin = (*ca, *_shown(admin_cert), "--hicache", hicache)
        stats = await admin(*as_admin, "stats", "--json")
        as_client = (*ca, *_shown(authority.issue_role(Role.CLIENT)), "--hicache", hicache)
        refused = await admin(*as_client, "stats")
        nobody = await admin(*ca, "--hicache", hicache, "stats")
        looked = await _looked_up(running, tmp_path, as_admin)
    assert (1, 1, 0, 1) == (
        plain.exit_code,
        without_key.exit_code,
        good.exit_code,
        trace.exit_code,
    )
    assert "no answer" in plain.stderr
    assert "asks for a bearer key" in without_key.stderr
    assert "is for admin; this caller is client" in trace.stderr
    assert "" == stats.object["redis_fault"]
    assert (1, True) == (refused.status, "this caller is client" in refused.errors)
    assert (1, True) == (nobody.status, "no answer" in nobody.errors)
    assert [0, 16] == looked


async def test_the_audit_log_names_certificates_and_keys(
    tiny: Path, authority: Authority, valkey: Valkey, tmp_path: Path
) -> None:
    """Addresses say nothing where many operators share a machine; keys are shown to nobody."""
    names = (Role.ADMIN.certificate_name, "localhost")
    issued = authority.issue("ada", "Ada L\u00f6wenherz", names)
    async with _whole(tiny, authority, valkey, tmp_path) as (running, hicache):
        words = ("--ssl-ca-certs", str(authority.certfile), *_shown(issued), "--hicache", hicache)
        await _run(running, BLUE, make_prompt(100, seed=3))
        await running.at_rest()
        assert 0 == (await admin(*words, "pin", "--all", "--yes")).status
        for key in (ADMIN, UNNAMED):
            await running.stub.FlushCache(_FLUSH, metadata=_sent(key), timeout=10)
        told = await admin(*words, "audit", "--json")
        table = (await admin(*words, "audit")).output
    callers = [(each["method"], each["caller"]) for each in told.object["entries"]]
    unnamed, named, pinned = callers
    assert ("Clear", True) == (unnamed[0], unnamed[1].startswith("scheduler for ipv4:127.0.0.1:"))
    assert ("Clear", "scheduler for ops") == named
    assert ("Pin", "Ada L\u00f6wenherz") == pinned
    assert "Ada L\u00f6wenherz" in table
    assert not any(secret in told.output + table for secret in (ADMIN, UNNAMED, "key"))


def _shown(issued: Issued) -> tuple[str, ...]:
    """Return the flags of a certificate."""
    return ("--ssl-certfile", str(issued.certfile), "--ssl-keyfile", str(issued.keyfile))


async def _looked_up(running: Mesh, tmp_path: Path, words: tuple[str, ...]) -> list[int]:
    """Return how much of the prompt above is cached for nobody's and for blue's requests."""
    key = ("--api-key-file", str(_key_file(tmp_path, "admin", ADMIN)))
    prompt = ("--text", "hello hello hello hello", "--scheduler", str(running.address), "--json")
    found = []
    for tenant in ("", "blue"):
        looked = await admin(*words, *key, "--tenant", tenant, "lookup", *prompt)
        found.append(json.loads(looked.output)["cached_tokens"])
    return found
