"""A chat and its rendered text are one prompt, also for the cache."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from chunkmesh.v1 import generation_pb2 as pb
from hicache.server import running as hicache_running
from hicache.settings import HiCacheSettings
from tests.bytes_tokenizer import BOS, write_bytes_folder
from tests.mesh import mesh
from tests.scripted_stage import Script, ScriptedStage, scripted_stages
from tests.valkey import running_valkey

LETTERS = "abcdefghijklmnopqrstuvwxyzabcdefghijklmn"
CHAT = pb.Chat(messages=[pb.ChatMessage(role="user", content=LETTERS)])
IDS = [BOS, *f"[user]{LETTERS}".encode()]
ONE_TOKEN = pb.SamplingParams(max_new_tokens=1)
"""With it all that a first stage is given is of the prompt."""


async def test_o03_a_rendered_text_finds_the_pages_of_its_chat(tmp_path: Path) -> None:
    """The template writes BOS and the tokenizer adds one: with two, nothing would be found."""
    folder = write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": 2})
    stages = scripted_stages(2, Script())
    with running_valkey(tmp_path) as valkey:
        settings = HiCacheSettings(port=0, http_port=0, redis_url=(valkey.url,))
        async with (
            hicache_running(settings, ping_s=0.05) as address,
            mesh(folder, stages, redis_url=valkey.url, hicache_url=address) as running,
        ):
            chat = await running.generate(chat=CHAT, sampling_params=ONE_TOKEN)
            await running.at_rest()
            seen_of_chat = seen_ids(stages)
            text = await running.generate(text=f"<bos>[user]{LETTERS}", sampling_params=ONE_TOKEN)
            await running.at_rest()
            seen_of_text = seen_ids(stages)[len(seen_of_chat) :]
    assert (47, IDS) == (len(IDS), seen_of_chat)
    assert (47, 0) == (chat.prompt_tokens, chat.cached_tokens)
    assert (47, 32) == (text.prompt_tokens, text.cached_tokens)
    assert IDS[32:] == seen_of_text


async def test_a_slow_template_holds_up_nobody_else(tmp_path: Path) -> None:
    """A short chat may take seconds to render; the calls of others go on meanwhile."""
    folder = write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": 1})
    file = folder / "tokenizer_config.json"
    loops = "{% for a in range(2500) %}{% for b in range(1000) %}{% endfor %}{% endfor %}x"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": loops}))
    async with mesh(folder, scripted_stages(1, Script())) as running:
        chat = asyncio.create_task(running.generate(chat=CHAT, sampling_params=ONE_TOKEN))
        num_answered = 0
        while not chat.done():
            await running.generate(text="hello", sampling_params=ONE_TOKEN)
            num_answered += 1
        assert chat.result().prompt_tokens == 1
    assert num_answered > 3


def seen_ids(stages: list[ScriptedStage]) -> list[int]:
    """Return all ids that the first stage was given; the last one ran as many."""
    ids: list[int] = []
    for microbatch in stages[0].microbatches:
        assert microbatch.token_ids is not None
        ids += microbatch.token_ids.tolist()
    assert len(ids) == sum(each.num_tokens for each in stages[-1].microbatches)
    return ids
