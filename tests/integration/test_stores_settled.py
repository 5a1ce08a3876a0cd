"""chunkmesh.cli.stores_settled: the demo's second run must find what the first one stored."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from chunkmesh.address import HostPort
from chunkmesh.cli.stores_settled import wait_until_settled
from chunkmesh.errors import Unavailable
from chunkmesh.v1 import hicache_pb2


class _Counting:
    """Answers GetStats with growing counts, then with the last one for ever."""

    def __init__(self, counts: list[int]) -> None:
        self._counts = counts

    def get_stats(
        self, _request: hicache_pb2.GetStatsRequest, _context: grpc.ServicerContext
    ) -> hicache_pb2.GetStatsResponse:
        """Return the next count, half of it as partial pages."""
        count = self._counts.pop(0) if len(self._counts) > 1 else self._counts[0]
        return hicache_pb2.GetStatsResponse(
            num_pages=count // 2, num_partial_pages=count - count // 2
        )


@pytest.fixture
def hicache(request: pytest.FixtureRequest) -> Iterator[HostPort]:
    """Yield the address of a server that plays the counts of the test's parameter."""
    stats = grpc.unary_unary_rpc_method_handler(
        _Counting(list(request.param)).get_stats,
        request_deserializer=hicache_pb2.GetStatsRequest.FromString,
        response_serializer=hicache_pb2.GetStatsResponse.SerializeToString,
    )
    service = hicache_pb2.DESCRIPTOR.services_by_name["HiCache"].full_name
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {"GetStats": stats}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield HostPort(host="127.0.0.1", port=port)
    server.stop(None).wait()


@pytest.mark.parametrize("hicache", [[0, 0, 3, 7, 12]], indirect=True)
def test_the_wait_ends_when_the_count_stands_still(hicache: HostPort) -> None:
    """Neither at the first zeros, before any page came, nor while pages come."""
    assert wait_until_settled(hicache, quiet_s=0.3) == 12


@pytest.mark.parametrize("hicache", [[0]], indirect=True)
def test_the_wait_is_bounded(hicache: HostPort) -> None:
    """A cache that stores nothing must not hang the demo."""
    assert wait_until_settled(hicache, timeout_s=0.3) == 0


def test_no_server_is_an_error() -> None:
    """A dead hicache-server is not a cache without pages."""
    with pytest.raises(Unavailable):
        wait_until_settled(HostPort(host="127.0.0.1", port=1))
