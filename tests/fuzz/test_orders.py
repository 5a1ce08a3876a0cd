"""Orders of a scheduler that is not ours: the worker leaves the epoch or the stream, and lives."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from chunkmesh.errors import LinkError
from chunkmesh.transports.create import create
from chunkmesh.transports.memory import MemoryNetwork
from chunkmesh.v1 import stage_pb2 as pb
from stage_worker.compute import Compute, Listener
from stage_worker.highest_term import HighestTerm
from stage_worker.host_pages import HostPages
from stage_worker.identity import Identity
from stage_worker.model_stage import load_stage
from stage_worker.page_io import PageIO
from stage_worker.page_jobs import PageIOLimits
from stage_worker.session import Session, SessionListener
from stage_worker.stage import Stage
from stage_worker.weight_choice import WeightChoice
from tests.fuzz.exploration import explore_async
from tests.fuzz.message_mutation import drawn_message, mutated_message

PAGE_TOKENS, NUM_PAGES = 16, 8
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 256,
    "torch_dtype": "float32",
}
JOIN = pb.Join(
    epoch=1,
    stage_index=0,
    num_stages=1,
    page_tokens=PAGE_TOKENS,
    num_pages=NUM_PAGES,
    max_microbatch_tokens=64,
)
ROW = pb.SamplingRow(
    entry=0,
    row=3,
    seed=7,
    temperature=0.7,
    top_p=0.9,
    top_k=5,
    min_p=0.01,
    forbidden_ids=[5],
    frequency_penalty=0.5,
    repetition_penalty=1.1,
    seen_ids=[1, 2],
    seen_counts=[1, 3],
    bias_ids=[4],
    biases=[1.5],
    top_logprobs=2,
)
DIGEST = bytes(32)
HONEST_EPOCH = 99


def _orders(epoch: int = 1) -> list[pb.AttachResponse]:
    """Return what an honest scheduler would send behind Join and Connect."""
    chunk = pb.Microbatch(
        epoch=epoch,
        entries=[pb.Entry(row=3, num_tokens=20, new_page_ids=[0, 1])],
        token_ids_le=b"\1\0\0\0" * 20,
        sampling=[ROW],
        prompt_targets=[pb.PromptTargets(entry=0, target_ids_le=b"\2\0\0\0" * 5, top_logprobs=2)],
    )
    step = pb.Microbatch(
        epoch=epoch,
        seq_no=1,
        entries=[pb.Entry(row=3, start=20, num_tokens=1)],
        token_ids_le=b"\1\0\0\0",
        sampling=[pb.SamplingRow(row=3, position=1, repetition_penalty=1, top_p=1)],
    )
    page = pb.StorePage(digest=DIGEST, parent=DIGEST, namespace=DIGEST, page_id=0)
    return [
        pb.AttachResponse(microbatch=chunk),
        pb.AttachResponse(copy_pages=pb.CopyPages(source_ids=[0], target_ids=[2])),
        pb.AttachResponse(microbatch=step),
        pb.AttachResponse(store=pb.Store(store_id=1, pages=[page], in_turn=True)),
        pb.AttachResponse(store=pb.Store(store_id=2, pages=[page])),
        pb.AttachResponse(save_pages=pb.SavePages(digests=[DIGEST], page_ids=[0], host_ids=[0])),
        pb.AttachResponse(load=pb.Load(load_id=1, digests=[DIGEST], host_ids=[0], timeout_ms=50)),
        pb.AttachResponse(end_load=pb.EndLoad(load_id=1)),
        pb.AttachResponse(commit_load=pb.CommitLoad(load_id=1, page_ids=[4])),
        pb.AttachResponse(cancel_load=pb.CancelLoad(load_id=2)),
        pb.AttachResponse(release=pb.Release(row=3)),
    ]


class _Scheduler:
    """Stands in for the stub: says what it was given, and hears what the worker says."""

    def __init__(self, orders: Sequence[pb.AttachResponse]) -> None:
        self.said: list[pb.AttachRequest] = []
        self._orders = orders

    def Attach(self, messages: AsyncIterator[pb.AttachRequest]) -> _Scheduler:
        self._messages = messages
        return self

    async def wait_for_connection(self) -> None:
        return

    async def __aiter__(self) -> AsyncIterator[pb.AttachResponse]:
        hearing = asyncio.create_task(self._hear())
        for order in self._orders:
            yield order
            if order.WhichOneof("order") in {"join", "connect"}:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0)
        await asyncio.sleep(0.005)
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)

    async def _hear(self) -> None:
        async for message in self._messages:
            self.said.append(message)


class _Worker:
    """What a worker is made of beside its stream."""

    def __init__(self, stage: Stage) -> None:
        self.crashes: list[BaseException] = []
        self.acks: list[pb.Ack] = []
        self.faults: list[tuple[int, str]] = []
        self._network = MemoryNetwork()
        self._stage = stage
        host = HostPages(4 * PAGE_TOKENS * stage.description.kv_bytes_per_token)
        self.page_io = PageIO(
            [],
            stage,
            range(1),
            report=lambda _result: None,
            crashed=self.crashes.append,
            limits=PageIOLimits(host=host),
        )
        self.compute = Compute(
            stage,
            self.page_io,
            Listener(
                acked=self.acks.append,
                fault=lambda epoch, reason: self.faults.append((epoch, reason)),
                crashed=self.crashes.append,
            ),
        )
        self.compute.start()

    async def obey(self, orders: Sequence[pb.AttachResponse]) -> str:
        """Play one stream; return how it ended."""
        session = Session(
            identity=Identity(
                incarnation="i",
                description=self._stage.description,
                kv_capacity_tokens=NUM_PAGES * PAGE_TOKENS,
                host_capacity_tokens=64,
                peer=None,
            ),
            transport=create("memory", "memory:x", network=self._network),
            compute=self.compute,
            page_io=self.page_io,
            term=HighestTerm(),
            listener=SessionListener(
                connected=lambda: None, placed=lambda _place: None, crashed=self.crashes.append
            ),
        )
        scheduler: Any = _Scheduler(orders)
        try:
            await session.run(scheduler)
        except LinkError:
            return "broke the protocol"
        return "ended"

    def close(self) -> None:
        self.compute.stop()
        self.page_io.close()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """Load a model of random weights."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    choice = WeightChoice(load_format="dummy", quantization="auto")
    return load_stage(folder, layers=range(1), choice=choice)


def with_epoch(join: pb.Join, epoch: int) -> pb.Join:
    """Return a Join of another epoch."""
    other = pb.Join()
    other.CopyFrom(join)
    other.epoch = epoch
    return other


def _hostile(random_: random.Random) -> list[pb.AttachResponse]:
    """Return a stream of orders of which some are wrong."""
    join = JOIN if random_.random() < 0.8 else mutated_message(JOIN, random_)
    orders = [pb.AttachResponse(join=join), pb.AttachResponse(connect=pb.Connect(epoch=1))]
    rest = _orders()
    if random_.random() < 0.3:
        random_.shuffle(rest)
    for order in rest:
        kind = random_.random()
        if kind < 0.25:
            orders.append(mutated_message(order, random_))
        elif kind < 0.3:
            orders.append(drawn_message(pb.AttachResponse, random_))
        else:
            orders.append(order)
    return orders


async def test_hostile_orders(stage: Stage) -> None:
    """A worker's weights outlive any scheduler: no crash, and the next epoch is served."""
    worker = _Worker(stage)

    async def check(orders: list[pb.AttachResponse]) -> None:
        # Over the wire, as they would come.
        received = [pb.AttachResponse.FromString(each.SerializeToString()) for each in orders]
        await worker.obey(received)
        if worker.crashes:
            raise worker.crashes[0]

    try:
        await explore_async(_hostile, check, examples=100)
        join = with_epoch(JOIN, HONEST_EPOCH)
        honest = [pb.AttachResponse(join=join), pb.AttachResponse(connect=pb.Connect(epoch=1))]
        assert await worker.obey([*honest, *_orders(HONEST_EPOCH)]) == "ended"
        await asyncio.to_thread(worker.compute.stop)
        assert not worker.crashes
        assert HONEST_EPOCH not in {epoch for epoch, _ in worker.faults}
        assert [each.seq_no for each in worker.acks if each.epoch == HONEST_EPOCH] == [0, 1]
    finally:
        worker.close()
