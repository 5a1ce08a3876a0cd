"""A scheduler's control loop with one worker that lies, in one thread and without sockets."""

from __future__ import annotations

import asyncio
import random
import time

from chunkmesh import PROTOCOL_VERSION
from chunkmesh.errors import InvalidRequest, InvariantViolated, ModelFault, Unavailable
from chunkmesh.v1 import common_pb2, generation_pb2
from chunkmesh.v1 import stage_pb2 as pb
from scheduler import replies, route_codec
from scheduler.control_loop import ControlLoop
from scheduler.engine_config import EngineConfig
from scheduler.leadership import LoneLeadership
from scheduler.page_keying import PageKeying
from scheduler.prospect import Patience
from scheduler.request_stream import RequestStream
from scheduler.server_info import server_info
from scheduler.stage_fit import profile_fit
from scheduler.worker_check import Refused
from scheduler.worker_stream import WorkerStream
from scheduler.workers import WorkerLimits
from tests.fuzz.message_mutation import drawn_message, mutated_message
from tests.specs import make_spec

NUM_LAYERS = 2
HELLO = pb.Hello(
    protocol_version=PROTOCOL_VERSION,
    incarnation="hostile",
    layers=common_pb2.LayerRange(first=0, last=NUM_LAYERS),
    layer_digests=[bytes(16)] * NUM_LAYERS,
    embedding_digest=b"e" * 16,
    head_digest=b"h" * 16,
    config_digest=b"c" * 32,
    model_layers=NUM_LAYERS,
    dtype=common_pb2.DTYPE_FLOAT32,
    hidden_size=8,
    kv_bytes_per_token=32,
    kv_capacity_tokens=1024,
    host_capacity_tokens=64,
    data_address="127.0.0.1:1",
    transport="memory",
    device="cpu",
    backends=[common_pb2.Backend(operation="attention", name="sdpa")],
    chunk_alignment_tokens=16,
)
PROFILE = [
    pb.ProfilePoint(start=start, num_tokens=tokens, compute_us=100 + 10 * tokens + start)
    for start in (0, 64)
    for tokens in (8, 16, 32, 64)
]
_LOGPROBS = common_pb2.TokenLogprobs(logprobs=[-1.0], num_top=1, top_ids=[65], top_logprobs=[-1.0])


def honest_answer(order: pb.AttachResponse) -> pb.AttachRequest | None:
    """Say what an honest worker would say."""
    match order.WhichOneof("order"):
        case "join":
            return pb.AttachRequest(join_ready=pb.JoinReady(epoch=order.join.epoch))
        case "connect":
            return pb.AttachRequest(joined=pb.Joined(epoch=order.connect.epoch))
        case "microbatch":
            rows = order.microbatch.sampling
            ack = pb.Ack(
                epoch=order.microbatch.epoch,
                seq_no=order.microbatch.seq_no,
                started_us=10,
                acked_us=20,
                compute_us=5,
                sampled_ids=[65] * len(rows),
                sampled_logprobs=[_LOGPROBS for row in rows if row.HasField("top_logprobs")],
            )
            return pb.AttachRequest(ack=ack)
        case "load":
            done = pb.LoadDone(load_id=order.load.load_id, num_pages=len(order.load.digests))
            return pb.AttachRequest(load_done=done)
        case "store":
            stored = pb.StoreDone(store_id=order.store.store_id, stored=[0])
            return pb.AttachRequest(store_done=stored)
    return None


def new_loop() -> ControlLoop:
    """Make a control loop without workers."""
    return ControlLoop(
        engine_config=EngineConfig(
            page_tokens=16,
            chunked_prefill_tokens=64,
            context_tokens=4096,
            load_min_tokens=0,
            max_running_requests=8,
            max_queued_requests=8,
            load_timeout_s=1.0,
            max_outstanding_stores=4,
        ),
        model_layers=NUM_LAYERS,
        keying=PageKeying(rope="{}", secret=b""),
        hicache=None,
        limits=WorkerLimits(silence_s=60.0, patience=Patience(takeover_s=1.5, announced_s=30.0)),
        on_ready=lambda _ready: None,
    )


class LyingWorker:
    """Attaches to a loop, answers orders honestly for a while, then otherwise."""

    def __init__(self, loop: ControlLoop, random_: random.Random) -> None:
        self._loop = loop
        self._random = random_
        self._num_honest = random_.choice((0, 1, 2, 2, 3, 4, 6, 99))
        self._client: asyncio.Task[None] | None = None

    async def run(self) -> str:
        """Play until nothing is left to answer; return how it ended."""
        hello = pb.Hello()
        hello.CopyFrom(HELLO)
        if self._random.random() < 0.02:
            hello.profile.extend(PROFILE)
        if self._random.random() < 0.5:
            hello = mutated_message(hello, self._random)
        workers = self._loop.workers
        try:
            # As AttachService.Attach does.
            said = route_codec.hello_from(pb.Hello.FromString(hello.SerializeToString()))
            workers.registry.check(said)
            stream = workers.attach(said, profile_fit(said.layers, said.profile))
        except (InvalidRequest, Refused):
            return "refused"
        try:
            await self._answer(stream)
        except InvariantViolated:
            return "broke the protocol"
        finally:
            self._tell()
            workers.lose_stream(stream, "its stream ended")
            if self._client is not None:
                self._loop.abort("r")  # it may wait for another worker
                await self._client
        return "left"

    async def _answer(self, stream: WorkerStream) -> None:
        for index in range(20):
            if self._client is None and not self._loop.unready_reason():
                self._client = asyncio.create_task(self._generate())
            answer = honest_answer(stream._orders.popleft()) if stream._orders else None
            if answer is not None and index >= self._num_honest:
                answer = mutated_message(answer, self._random)
            if index >= self._num_honest and self._random.random() < 0.3:
                answer = drawn_message(pb.AttachRequest, self._random)
            if answer is not None:
                # Over the wire, as it would come.
                self._loop.hear(stream, pb.AttachRequest.FromString(answer.SerializeToString()))
            self._tell()
            await asyncio.sleep(0)

    async def _generate(self) -> None:
        """Run a request as Generate does, and hear all that comes of it."""
        spec = make_spec("r", 40, max_new_tokens=3, num_outputs=self._random.choice((1, 2)))
        stream = RequestStream(
            prompt_tokens=40, arrived_s=time.monotonic(), num_outputs=spec.num_outputs
        )
        request = generation_pb2.GenerateRequest(
            stream=True, return_progress=True, return_timeline=True
        )
        try:
            track = self._loop.submit(spec, stream)
            async for reply in replies.responses(request, "r", stream, track.timings):
                reply.SerializeToString()
        except (Unavailable, ModelFault):
            return
        finally:
            self._loop.forget("r", stream)

    def _tell(self) -> None:
        """Ask what users may ask at any moment; whatever a worker said must fit the answers."""
        info = server_info(self._loop, LoneLeadership(), cache_fault="")
        assert len(info.SerializeToString()) < 100_000
        for timeline in self._loop.requests.timelines():
            list(map(replies.timing, timeline.track.timings()))
