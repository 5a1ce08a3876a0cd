"""hicache-admin on a live mesh of a tiny random Llama: while requests run, and over restarts."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from chunkmesh.layers import partition
from chunkmesh.v1 import generation_pb2 as pb
from hicache.admin import warm
from stage_worker.model_stage import load_stage
from tests.eventually import eventually
from tests.hicache_admin import Ended, admin, hicache_over
from tests.mesh import Mesh, mesh
from tests.random_ids import make_prompt
from tests.recorded_stage import RecordedStage
from tests.reference import Reference
from tests.valkey import Valkey, running_valkey

NEW_TOKENS = 8
PROMPT_TOKENS = 100
PROMPT_PAGES = 6


def stages(folder: Path, num_stages: int) -> list[RecordedStage]:
    """Load the tiny Llama as this many stages."""
    return [
        RecordedStage(load_stage(folder, layers=range(part.first, part.last)))
        for part in partition(4, num_stages)
    ]


@contextlib.asynccontextmanager
async def cached_mesh(
    folder: Path, valkey: Valkey, *, num_stages: int = 2
) -> AsyncIterator[tuple[Mesh, str]]:
    """Run a mesh with a HiCache, and yield both."""
    async with (
        hicache_over(valkey) as hicache,
        mesh(
            folder,
            stages(folder, num_stages),
            redis_url=valkey.url,
            hicache_url=hicache,
            served_model_name="tiny-llama",
        ) as running,
    ):
        yield running, hicache


async def ask(running: Mesh, prompt: Sequence[int], *, cache_salt: str = "") -> pb.GenerateComplete:
    """Run a greedy request that end tokens do not end."""
    return await running.generate(
        input_ids=pb.TokenIds(ids=prompt),
        sampling_params=pb.SamplingParams(
            temperature=0, max_new_tokens=NEW_TOKENS, ignore_eos=True
        ),
        cache_salt=cache_salt,
    )


async def ask_until_stored(running: Mesh, prompt: Sequence[int], *, cache_salt: str = "") -> None:
    """Run a prompt until all its pages are found."""
    async with asyncio.timeout(20):
        while (await ask(running, prompt, cache_salt=cache_salt)).cached_tokens < 96:
            await running.at_rest()


def prompts_file(folder: Path, prompts: Sequence[Sequence[int]], **more: str) -> str:
    """Write prompts for warm."""
    path = folder / "prompts.jsonl"
    lines = [json.dumps({"input_ids": list(prompt), **more}) for prompt in prompts]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


async def test_warm_fills_the_cache(
    tiny: Path, reference: Reference, valkey: Valkey, tmp_path: Path
) -> None:
    """New pages are counted once, also of prompts that share some; the next request hits."""
    prompts = [make_prompt(PROMPT_TOKENS, seed=seed) for seed in (1, 2)]
    prompts.append(prompts[0][:64] + make_prompt(36, seed=3))
    file = await asyncio.to_thread(prompts_file, tmp_path, prompts)
    async with cached_mesh(tiny, valkey) as (running, hicache):
        command = (
            "--hicache",
            hicache,
            "warm",
            file,
            "--scheduler",
            str(running.address),
            "--json",
        )
        dry = await admin(*command, "--dry-run")
        num_new = 2 * PROMPT_PAGES + 2
        assert dry.object == {
            "dry_run": True,
            "num_prompts": 3,
            "num_failed": 0,
            "prompt_tokens": 3 * PROMPT_TOKENS,
            "cached_tokens": 0,
            "num_new_pages": num_new,
        }
        assert 0 == (await admin("--hicache", hicache, "stats", "--json")).object["num_pages"]
        done = await admin(*command, "--yes", "--concurrency", "2")
        assert (0, num_new) == (done.status, done.object["num_new_pages"])
        assert 3 * PROMPT_TOKENS == done.object["prompt_tokens"]
        again = await admin(*command, "--yes")
        assert (0, 3 * 96) == (again.object["num_new_pages"], again.object["cached_tokens"])
        answer = await ask(running, prompts[0])
        assert (96, reference.generate(prompts[0], NEW_TOKENS)) == (
            answer.cached_tokens,
            list(answer.output_ids),
        )
        failed = await asyncio.to_thread(prompts_file, tmp_path, [[999_999] * 20])
        refused = await admin(
            "--hicache", hicache, "warm", failed, "--scheduler", str(running.address), "--yes"
        )
        assert (2, True) == (refused.status, "999999" in refused.errors)


@pytest.mark.parametrize("how", ["clear", "evict", "flush"])
async def test_what_the_devices_hold_is_stored_again(
    tiny: Path, reference: Reference, valkey: Valkey, tmp_path: Path, how: str
) -> None:
    """A cache that was emptied is warm again by the next warm, though nothing is computed."""
    prompt = make_prompt(PROMPT_TOKENS, seed=1)
    file = await asyncio.to_thread(prompts_file, tmp_path, [prompt])
    async with cached_mesh(tiny, valkey) as (running, hicache):
        command = ("warm", file, "--scheduler", str(running.address), "--json")
        first = await admin("--hicache", hicache, *command, "--yes")
        assert (0, PROMPT_PAGES) == (first.status, first.object["num_new_pages"])
        if how == "clear":
            await admin("--hicache", hicache, "clear", "--yes")
        elif how == "evict":
            await admin("--hicache", hicache, "evict", "--older-than", "1ms", "--yes")
        else:
            await asyncio.to_thread(flush, valkey)

        async def is_empty() -> bool:
            stats = (await admin("--hicache", hicache, "stats", "--json")).object
            is_up = not (stats["rebuilding"] or stats["redis_fault"])
            return is_up and not stats["num_pages"] and not num_keys(valkey, "cm:*")

        await eventually(is_empty)
        assert running.control_loop.engine.snapshot().num_cached_pages == PROMPT_PAGES
        dry = await admin("--hicache", hicache, *command, "--dry-run")
        assert PROMPT_PAGES == dry.object["num_new_pages"]
        again = await admin("--hicache", hicache, *command, "--yes")
        assert (0, PROMPT_PAGES) == (again.status, again.object["num_new_pages"])
        assert 96 == again.object["cached_tokens"]
        assert running.control_loop.engine.forget_cached() == PROMPT_PAGES
        answer = await ask(running, prompt)
        assert (96, reference.generate(prompt, NEW_TOKENS)) == (
            answer.cached_tokens,
            list(answer.output_ids),
        )


def flush(valkey: Valkey) -> None:
    """Empty Redis behind everybody's back."""
    with valkey.client() as client:
        client.flushall()


async def test_without_redis_nothing_is_warm(
    tiny: Path, valkey: Valkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O20: the mesh serves, but scripts hear that nothing was cached and that nothing is a hit."""
    monkeypatch.setattr(warm, "_SETTLE_S", 0.2)
    known, new = (make_prompt(PROMPT_TOKENS, seed=seed) for seed in (1, 2))
    tokens = tmp_path / "tokens.json"
    await asyncio.to_thread(tokens.write_text, json.dumps(list(known)))
    file = await asyncio.to_thread(prompts_file, tmp_path, [new])
    async with cached_mesh(tiny, valkey) as (running, hicache):
        words = ("--scheduler", str(running.address), "--json")
        await ask_until_stored(running, known)
        found = await admin("--hicache", hicache, "lookup", "--tokens", str(tokens), *words)
        assert (0, 96) == (found.status, found.object["hit_tokens"])
        valkey.stop()

        async def is_down() -> bool:
            return (await admin("--hicache", hicache, "ping")).status == 1

        await eventually(is_down)
        lost = await admin("--hicache", hicache, "lookup", "--tokens", str(tokens), *words)
        assert (1, 0) == (lost.status, lost.object["hit_tokens"])
        assert "Redis does not answer" in lost.errors
        cold = await admin("--hicache", hicache, "warm", file, *words, "--yes")
        assert (1, 0) == (cold.status, cold.object["num_new_pages"])
        assert f"{PROMPT_PAGES} pages are not usable" in cold.errors


async def test_a_chat_is_warmed_found_and_forgotten(
    tiny: Path, valkey: Valkey, tmp_path: Path
) -> None:
    """A system prompt is found by chats only as the template writes it, until devices forget it.

    After a clear the devices still have it, and warm stores it again from there.
    """
    system = "Be brief. " * 20
    (tmp_path / "system.txt").write_text(system)
    prompt = ("--prompt-file", str(tmp_path / "system.txt"))
    async with cached_mesh(tiny, valkey) as (running, hicache):

        async def run(*words: str) -> Ended:
            scheduler = ("--scheduler", str(running.address))
            return await admin("--hicache", hicache, *words, *scheduler)

        warm = ("warm", prompt[1], "--whole", "--chat-role", "system", "--yes", "--json")
        new_pages = (await run(*warm)).object["num_new_pages"]
        assert len(system) // 16 <= new_pages
        found = await run("lookup", *prompt, "--chat-role", "system", "--json")
        assert 16 * new_pages == found.object["cached_tokens"]
        assert 3 == (await run("lookup", *prompt)).status
        await run("clear", "--yes")
        again = await run(*warm)
        assert (new_pages, "") == (again.object["num_new_pages"], again.errors)
        roles = (("system", system), ("user", "Hello"))
        chat = pb.Chat(messages=[pb.ChatMessage(role=role, content=text) for role, text in roles])
        one = pb.SamplingParams(max_new_tokens=1)
        assert (
            new_pages * 16 == (await running.generate(chat=chat, sampling_params=one)).cached_tokens
        )
        await run("clear", "--devices", "--yes")
        cold = await running.generate(chat=chat, sampling_params=one)
        assert 0 == cold.cached_tokens


async def test_salts_are_namespaces_of_their_own(
    tiny: Path, reference: Reference, valkey: Valkey
) -> None:
    """O17: listed with what they stand for; evicting one tenant's pages leaves the other's.

    All of it is still so after a restart of HiCache, which then knows the index from Redis alone.
    """
    prompt = make_prompt(PROMPT_TOKENS, seed=4)
    async with cached_mesh(tiny, valkey) as (running, hicache):
        scheduler = ("--scheduler", str(running.address))
        await ask_until_stored(running, prompt)
        await ask_until_stored(running, prompt, cache_salt="mine")
        await admin("--hicache", hicache, "pin", "--salt", "mine", "--yes", *scheduler)
        await admin("--hicache", hicache, "quota", "set", "mine", "1GiB", "--yes", *scheduler)
        listed = (await admin("--hicache", hicache, "ls", "--json")).object["namespaces"]
        check_namespaces(listed)
        mine = await admin("--hicache", hicache, "ls", "--salt", "mine", "--json", *scheduler)
        assert [True] == [state["salted"] for state in mine.object["namespaces"]]
        theirs = await admin("--hicache", hicache, "ls", "--salt", "theirs", *scheduler)
        assert (3, True) == (theirs.status, "'theirs'" in theirs.errors)
        await eventually(lambda: num_keys(valkey, "cm-ns:*") == 2)
    async with cached_mesh(tiny, valkey, num_stages=3) as (running, hicache):
        again = (await admin("--hicache", hicache, "ls", "--json")).object["namespaces"]
        check_namespaces(again)
        for state in (*listed, *again):
            state["num_hits"] = 0
        assert sorted(listed, key=str) == sorted(again, key=str)
        scheduler = ("--scheduler", str(running.address))
        longer = [*prompt, *make_prompt(60, seed=5)]
        answer = await ask(running, longer, cache_salt="mine")
        assert (96, reference.generate(longer, NEW_TOKENS)) == (
            answer.cached_tokens,
            list(answer.output_ids),
        )
        await running.at_rest()
        gone = await admin(
            "--hicache", hicache, "evict", "--salt", "", "--yes", "--json", *scheduler
        )
        assert PROMPT_PAGES == gone.object["num_pages"]
        assert 0 == (await ask(running, prompt)).cached_tokens
        assert 96 == (await ask(running, prompt, cache_salt="mine")).cached_tokens


def check_namespaces(states: Sequence[dict[str, Any]]) -> None:
    """Check what ls tells of the pages of one prompt without and with a salt."""
    plain, salted = sorted(states, key=lambda state: bool(state["salted"]))
    assert (False, True) == (plain["salted"], salted["salted"])
    for state in (plain, salted):
        assert (True, "tiny-llama", "float32", 16, 4, [[0, 4]]) == (
            state["known"],
            state["model"],
            state["kv_dtype"],
            state["page_tokens"],
            state["model_layers"],
            state["layers"],
        )
        assert 64 == len(state["fingerprint"])
        assert PROMPT_PAGES == state["num_pages"]
    assert plain["fingerprint"] == salted["fingerprint"]
    assert (0, PROMPT_PAGES) == (plain["num_pinned_pages"], salted["num_pinned_pages"])
    assert (0, 1 << 30) == (plain["quota_bytes"], salted["quota_bytes"])


async def test_changes_on_a_busy_mesh(
    tiny: Path, reference: Reference, valkey: Valkey, tmp_path: Path
) -> None:
    """Whatever is pinned, evicted, verified, imported or cleared, answers stay right."""
    prompts = [make_prompt(PROMPT_TOKENS, seed=seed) for seed in range(10, 14)]
    expected = [reference.generate(prompt, NEW_TOKENS) for prompt in prompts]
    ended = asyncio.Event()

    async with cached_mesh(tiny, valkey) as (running, hicache):

        async def keep_asking() -> int:
            num_right = 0
            while not ended.is_set():
                answers = await asyncio.gather(*(ask(running, prompt) for prompt in prompts))
                assert expected == [list(answer.output_ids) for answer in answers]
                num_right += len(answers)
            return num_right

        async def run(*words: str) -> Ended:
            done = await admin("--hicache", hicache, *words)
            assert done.status in {0, 3}, done
            return done

        asking = asyncio.create_task(keep_asking())
        for prompt in prompts:
            await ask_until_stored(running, prompt)
        await run("export", str(tmp_path / "pages"))
        for round_name in ("first", "second"):
            await run("pin", "--all", "--ttl", "1s", "--yes")
            await run("verify", "--yes")
            await run("evict", "--older-than", "1ms", "--yes")
            await run("quota", "set", "", "64KiB", "--yes", "--scheduler", str(running.address))
            await run("quota", "unset", "", "--yes", "--scheduler", str(running.address))
            await run("clear", "--yes")
            await run("import", str(tmp_path / "pages"), "--yes")
            await run("tree", "--json")
            assert not asking.done(), round_name
        ended.set()
        assert await asking >= len(prompts)
        audit = await run("audit", "--json")
        methods = [entry["method"] for entry in audit.object["entries"]]
        once = ["Import", "Clear", "SetQuota", "SetQuota", "Evict", "Verify", "Pin"]
        assert 2 * once == methods


async def test_pages_move_to_another_mesh(
    tiny: Path, reference: Reference, valkey: Valkey, tmp_path: Path
) -> None:
    """Export here, import there: a full hit with the same ids, also with a salt."""
    prompt = make_prompt(PROMPT_TOKENS, seed=6)
    expected = reference.generate(prompt, NEW_TOKENS)
    file = str(tmp_path / "pages")
    async with cached_mesh(tiny, valkey) as (running, hicache):
        await ask_until_stored(running, prompt, cache_salt="mine")
        exported = await admin("--hicache", hicache, "export", file, "--json")
        assert PROMPT_PAGES == exported.object["num_pages"]
    with running_valkey(tmp_path) as other:
        async with cached_mesh(tiny, other, num_stages=3) as (running, hicache):
            assert 0 == (await ask(running, prompt, cache_salt="theirs")).cached_tokens
            imported = await admin("--hicache", hicache, "import", file, "--yes", "--json")
            assert PROMPT_PAGES == imported.object["num_pages"]
            answer = await ask(running, prompt, cache_salt="mine")
            assert (96, expected) == (answer.cached_tokens, list(answer.output_ids))


def num_keys(valkey: Valkey, pattern: str) -> int:
    """Count the keys in Redis."""
    with valkey.client() as client:
        return len(client.keys(pattern))
