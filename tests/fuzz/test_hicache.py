"""hicache-server: whatever is asked is answered or refused, and its index goes on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from google.protobuf.message import Message

from chunkmesh.grpc_client import channel
from chunkmesh.v1 import common_pb2, hicache_pb2_grpc
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.server import running
from hicache.settings import HiCacheSettings
from tests.fuzz.exploration import explore_async
from tests.fuzz.message_mutation import drawn_message, mutated_message
from tests.fuzz.mutation import mutated
from tests.fuzz.raw_calls import answer_of
from tests.page_samples import NAMESPACE, chain, encoded, parents
from tests.valkey import running_valkey

DIGESTS = chain(3)
OTHERS_NAMESPACE = b"o" * 32
PROMPT = pb.Selection(prompt=pb.DigestList(digests=DIGESTS))
COMMIT = pb.CommitRequest(
    namespace=NAMESPACE,
    layers=common_pb2.LayerRange(first=0, last=4),
    model_layers=4,
    page_bytes=1024,
    pages=[
        pb.CommittedPage(digest=digest, parent=parent)
        for digest, parent in zip(DIGESTS, parents(DIGESTS), strict=True)
    ],
    info=pb.NamespaceInfo(fingerprint=bytes(32), model="tiny", page_tokens=16),
)
PARTS = [
    pb.ImportRequest(
        digest=page.digest,
        fields=[
            pb.PageField(name=b"m", value=page.record),
            *(pb.PageField(name=b"%d" % layer, value=bytes(value)) for layer, value in page.layers),
        ],
    )
    for page in encoded(DIGESTS, range(4))
]
SEEDS: tuple[Message, ...] = (
    COMMIT,
    pb.MatchRequest(digests=DIGESTS, lease_ttl_ms=1000),
    pb.ReleaseLeaseRequest(lease_id="a-1"),
    pb.RenewLeasesRequest(lease_ids=["a-1"], lease_ttl_ms=1000),
    pb.InvalidateRequest(digests=DIGESTS[2:]),
    pb.LookupRequest(digests=DIGESTS),
    pb.GetStatsRequest(),
    pb.ListNamespacesRequest(),
    pb.ListRunsRequest(namespace=NAMESPACE, below=DIGESTS[0][:4], max_depth=2, limit=5),
    pb.PinRequest(selection=PROMPT, ttl_ms=1000),
    pb.UnpinRequest(selection=PROMPT),
    pb.EvictRequest(selection=PROMPT, dry_run=True),
    pb.SetQuotaRequest(namespace=NAMESPACE, max_bytes=4096),
    pb.ClearRequest(),
    pb.GetAuditLogRequest(limit=5),
    pb.VerifyRequest(selection=PROMPT),
    pb.ExportRequest(selection=PROMPT),
)

Call = tuple[str, list[bytes]]


def _draw(random_: random.Random) -> Call:
    """Return a method and its requests."""
    if random_.random() < 0.1:
        parts: Sequence[pb.ImportRequest] = [mutated_message(each, random_) for each in PARTS]
        return "Import", [each.SerializeToString() for each in parts]
    seed = random_.choice(SEEDS)
    name = type(seed).__name__.removesuffix("Request")
    kind = random_.random()
    if kind < 0.6:
        data = mutated_message(seed, random_).SerializeToString()
    elif kind < 0.8:
        data = drawn_message(type(seed), random_).SerializeToString()
    else:
        data = mutated(seed.SerializeToString())(random_)
    return name, [data]


async def test_hostile_requests(tmp_path: Path) -> None:
    """No INTERNAL, and pages that are committed behind them all are found."""
    with running_valkey(tmp_path) as valkey:
        settings = HiCacheSettings(port=0, http_port=0, redis_url=(valkey.unix_url,))
        async with running(settings, ping_s=0.05) as address, channel(address) as to_hicache:

            async def check(call: Call) -> None:
                method = f"/chunkmesh.v1.HiCache/{call[0]}"
                await answer_of(to_hicache, method, call[1], timeout_s=5.0)

            await explore_async(_draw, check, examples=300)
            stub = hicache_pb2_grpc.HiCacheStub(to_hicache)
            fresh = chain(3, name="fresh")
            parents_ = (OTHERS_NAMESPACE, *fresh[:-1])  # quotas of the other one were set, too
            pages = [
                pb.CommittedPage(digest=digest, parent=parent)
                for digest, parent in zip(fresh, parents_, strict=True)
            ]
            commit = pb.CommitRequest(
                namespace=OTHERS_NAMESPACE,
                layers=COMMIT.layers,
                model_layers=4,
                page_bytes=1024,
                pages=pages,
            )
            assert (await stub.Commit(commit)).num_visible == len(fresh)
            hit = await stub.Match(pb.MatchRequest(digests=fresh, lease_ttl_ms=1000))
            assert hit.num_pages == len(fresh)
