"""Between text and ids: what a prompt becomes, what ends an output, which characters it shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chunkmesh.v1 import generation_pb2 as pb
from hicache.server import running as hicache_running
from hicache.settings import HiCacheSettings
from tests.bytes_tokenizer import BOS, EOS, EOT, write_bytes_folder
from tests.mesh import Mesh, mesh
from tests.scripted_stage import Script, ScriptedStage, scripted_stages
from tests.valkey import running_valkey

LETTERS = "abcdefghijklmnopqrstuvwxyzabcdefghijklmn"
CHAT = pb.Chat(messages=[pb.ChatMessage(role="user", content=LETTERS)])
GOES_ON = pb.Chat(
    messages=[*CHAT.messages, pb.ChatMessage(role="assistant", content="One, ")],
    continue_final_message=True,
)
NO_TURN = pb.Chat(messages=CHAT.messages, add_generation_prompt=False)
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if not loop.last %}."
    "{% else %}<eot>{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
INPUTS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "chat": ({"chat": CHAT}, [BOS, *f"[user]{LETTERS}".encode(), EOT, *b"[assistant]"]),
    "chat without a turn": ({"chat": NO_TURN}, [BOS, *f"[user]{LETTERS}".encode(), EOT]),
    "chat that goes on": (
        {"chat": GOES_ON},
        [BOS, *f"[user]{LETTERS}.[assistant]One, ".encode()],
    ),
    "rendered text": (
        {"text": f"<bos>[user]{LETTERS}<eot>[assistant]"},
        [BOS, *f"[user]{LETTERS}".encode(), EOT, *b"[assistant]"],
    ),
    "text": ({"text": LETTERS}, [BOS, *LETTERS.encode()]),
    "ids": ({"input_ids": pb.TokenIds(ids=[65, BOS, BOS, 66])}, [65, BOS, BOS, 66]),
}


def folder(tmp_path: Path) -> Path:
    """Write a model folder of one layer whose template ends turns and begins the assistant's."""
    made = write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": 1})
    (made / "chat_template.jinja").write_text(TEMPLATE)
    return made


def prompt_seen(stage: ScriptedStage) -> list[int]:
    """Return the ids of the only prompt that a stage has computed."""
    return [
        int(each)
        for microbatch in stage.microbatches
        if microbatch.token_ids is not None and len(microbatch.token_ids) > 1
        for each in microbatch.token_ids
    ]


@pytest.mark.parametrize(("prompt", "ids"), INPUTS.values(), ids=INPUTS.keys())
async def test_tokenize_tells_what_the_model_sees(
    tmp_path: Path, prompt: dict[str, Any], ids: list[int]
) -> None:
    """BOS once, where the model's files want it; ids pass untouched; usage counts them (O03)."""
    stages = scripted_stages(1, Script())
    async with mesh(folder(tmp_path), stages) as running:
        tokenized = await running.stub.Tokenize(pb.TokenizeRequest(**prompt))
        complete = await running.generate(
            **prompt, sampling_params=pb.SamplingParams(max_new_tokens=1)
        )
    assert ids == list(tokenized.input_ids)
    assert ids == prompt_seen(stages[0])
    assert len(ids) == complete.prompt_tokens


async def test_o03_a_rendered_text_hits_the_pages_of_its_chat(tmp_path: Path) -> None:
    """The same 47 ids, so the second one takes both full pages of the first one from the cache."""
    made = write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": 1})
    params = pb.SamplingParams(max_new_tokens=1)
    with running_valkey(tmp_path) as valkey:
        settings = HiCacheSettings(port=0, http_port=0, redis_url=(valkey.url,))
        async with (
            hicache_running(settings, ping_s=0.05) as address,
            mesh(
                made, scripted_stages(1, Script()), redis_url=valkey.url, hicache_url=address
            ) as running,
        ):
            chat = await running.generate(chat=CHAT, sampling_params=params)
            await running.at_rest()
            text = await running.generate(text=f"<bos>[user]{LETTERS}", sampling_params=params)
    assert (47, 0) == (chat.prompt_tokens, chat.cached_tokens)
    assert (47, 32) == (text.prompt_tokens, text.cached_tokens)


O10_SCRIPT = Script(ids={1: [65, EOT, 66, EOS, 67]})


async def o10(running: Mesh, **params: Any) -> pb.GenerateComplete:
    """Run the script of case O10, with five tokens at most."""
    return await running.generate(
        text="x", sampling_params=pb.SamplingParams(seed=1, max_new_tokens=5, **params)
    )


async def test_o10_ignore_eos_ignores_every_end_token_of_the_model(tmp_path: Path) -> None:
    """The model's files name two; neither may end what is to go on, a stop id still does."""
    async with mesh(folder(tmp_path), scripted_stages(1, O10_SCRIPT)) as running:
        info = await running.stub.GetModelInfo(pb.GetModelInfoRequest())
        default = await o10(running)
        ignored = await o10(running, ignore_eos=True)
        stopped = await o10(running, ignore_eos=True, stop_token_ids=[66])
        shown = await o10(running, ignore_eos=True, skip_special_tokens=False)
    assert [EOS, EOT] == list(info.eos_token_ids)
    assert ([65, EOT], "A") == (list(default.output_ids), default.text)
    assert (pb.FINISH_REASON_STOP, EOT) == (default.finish_reason, default.matched_token_id)
    assert ([65, EOT, 66, EOS, 67], "ABC") == (list(ignored.output_ids), ignored.text)
    assert pb.FINISH_REASON_LENGTH == ignored.finish_reason
    assert ([65, EOT, 66], 66) == (list(stopped.output_ids), stopped.matched_token_id)
    assert pb.FINISH_REASON_STOP == stopped.finish_reason
    assert shown.text == "A<eot>B<eos>C"
