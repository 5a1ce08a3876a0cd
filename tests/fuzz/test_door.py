"""The users' port: whatever is sent is answered or refused, and the next request is served."""

from __future__ import annotations

import random
from pathlib import Path

from google.protobuf.message import Message

from chunkmesh.v1 import generation_pb2 as pb
from tests.bytes_tokenizer import write_bytes_folder
from tests.fuzz.exploration import explore_async
from tests.fuzz.message_mutation import drawn_message, mutated_message
from tests.fuzz.mutation import mutated
from tests.fuzz.raw_calls import answer_of
from tests.mesh import mesh
from tests.scripted_stage import Script, scripted_stages

CONTEXT = 256
PARAMS = pb.SamplingParams(
    temperature=0.7,
    top_p=0.9,
    top_k=5,
    max_new_tokens=3,
    seed=7,
    stop=["zz"],
    stop_token_ids=[66],
    logit_bias={65: 1.0},
    n=2,
    logprobs=True,
    top_logprobs=2,
    frequency_penalty=0.5,
)
CHAT = pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")])
SEEDS: tuple[Message, ...] = (
    pb.GenerateRequest(text="hello", sampling_params=PARAMS, stream=True, return_progress=True),
    pb.GenerateRequest(
        input_ids=pb.TokenIds(ids=[65] * 40),
        sampling_params=pb.SamplingParams(max_new_tokens=2, prompt_logprobs=True),
        cache_salt="s",
        priority=3,
        chunk_tokens=[16, 16, 8],
    ),
    pb.GenerateRequest(input_ids_le=bytes(64), sampling_params=pb.SamplingParams(n=3)),
    pb.GenerateRequest(chat=CHAT, sampling_params=pb.SamplingParams(max_new_tokens=2)),
    pb.TokenizeRequest(chat=CHAT, cache_salt="s"),
    pb.TokenizeRequest(text="hello"),
    pb.AbortRequest(request_id="r"),
    pb.FlushCacheRequest(),
    pb.GetModelInfoRequest(),
    pb.GetServerInfoRequest(),
    pb.GetTimelinesRequest(request_ids=["r"], last=3),
)


def _draw(random_: random.Random) -> tuple[str, bytes]:
    """Return a method and its request: fields made extreme, drawn anew, or bytes changed."""
    seed = random_.choice(SEEDS[:4] if random_.random() < 0.7 else SEEDS)
    name = type(seed).__name__.removesuffix("Request")
    kind = random_.random()
    if kind < 0.6:
        data = mutated_message(seed, random_).SerializeToString()
    elif kind < 0.8:
        data = drawn_message(type(seed), random_).SerializeToString()
    else:
        data = mutated(seed.SerializeToString())(random_)
    return f"/chunkmesh.v1.Generation/{name}", data


async def test_hostile_requests(tmp_path: Path) -> None:
    """No INTERNAL, no page kept, and a healthy request behind them all gets its tokens."""
    folder = write_bytes_folder(
        tmp_path / "m", config={"num_hidden_layers": 2, "max_position_embeddings": CONTEXT}
    )
    async with mesh(folder, scripted_stages(2, Script()), kv_capacity_tokens=1024) as running:

        async def check(call: tuple[str, bytes]) -> None:
            await answer_of(running.channel, call[0], [call[1]], timeout_s=1.0)

        await explore_async(_draw, check, examples=100)
        healthy = await running.generate(
            text="healthy", sampling_params=pb.SamplingParams(max_new_tokens=2)
        )
        assert healthy.completion_tokens == 2
        await running.at_rest()
