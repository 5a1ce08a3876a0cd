"""Between the registry's plain values and the protos of the Attach stream: who joins what."""

from __future__ import annotations

from chunkmesh.errors import InvalidRequest
from chunkmesh.layers import LayerRange
from chunkmesh.v1 import common_pb2
from chunkmesh.v1 import stage_pb2 as pb
from scheduler.decisions import SendConnect, SendJoin, SendReleased, SendStandBy
from scheduler.formation import OutboundLink
from scheduler.hello_checks import check_hello
from scheduler.latency_fit import LatencyPoint
from scheduler.latency_model import Work
from scheduler.registry import FaultSide
from scheduler.worker_hello import BackendName, WorkerHello

_MAX_PROFILE_POINTS = 512
_MAX_BACKENDS = 16
_MAX_CHUNK_ALIGNMENT = 1 << 20
_MAX_PROFILE_ROWS = 4096


def hello_from(message: pb.Hello) -> WorkerHello:
    """Read a worker's first message.

    Raises:
        InvalidRequest: a field is missing or out of range.
    """
    check_hello(message)
    first, last = message.layers.first, message.layers.last
    if not first < last <= message.model_layers:
        raise InvalidRequest(
            f"layers [{first}, {last}) are not a range of a model of {message.model_layers} layers"
        )
    if message.dtype not in common_pb2.Dtype.values() or not message.dtype:
        raise InvalidRequest(f"dtype {message.dtype} is unknown")
    if not 0 < len(message.incarnation) <= 64:
        raise InvalidRequest("incarnation must have 1 to 64 characters")
    if len(message.layer_digests) != last - first:
        raise InvalidRequest(
            f"{len(message.layer_digests)} layer digests for {last - first} layers"
        )
    if len(message.profile) > _MAX_PROFILE_POINTS:
        raise InvalidRequest(
            f"{len(message.profile)} profile points, at most {_MAX_PROFILE_POINTS}"
        )
    if message.chunk_alignment_tokens > _MAX_CHUNK_ALIGNMENT:
        raise InvalidRequest(
            f"chunk_alignment_tokens is {message.chunk_alignment_tokens}, at most"
            f" {_MAX_CHUNK_ALIGNMENT}"
        )
    return WorkerHello(
        worker_id=message.incarnation,
        protocol_version=message.protocol_version,
        layers=LayerRange(first=first, last=last),
        model_layers=message.model_layers,
        layer_digests=tuple(message.layer_digests),
        embedding_digest=message.embedding_digest,
        head_digest=message.head_digest,
        config_digest=message.config_digest,
        dtype=common_pb2.Dtype.Name(message.dtype).removeprefix("DTYPE_").lower(),
        hidden_size=message.hidden_size,
        kv_bytes_per_token=message.kv_bytes_per_token,
        kv_capacity_tokens=message.kv_capacity_tokens,
        host_capacity_tokens=message.host_capacity_tokens,
        data_address=message.data_address,
        peer=message.peer,
        transport=message.transport,
        device=message.device,
        profile=tuple(map(_point_from, message.profile)),
        backends=tuple(
            BackendName(operation=each.operation, name=each.name, reason=each.reason)
            for each in message.backends[:_MAX_BACKENDS]
        ),
        chunk_alignment_tokens=message.chunk_alignment_tokens,
    )


def _point_from(message: pb.ProfilePoint) -> LatencyPoint:
    """Read a measured microbatch.

    Raises:
        InvalidRequest: it is neither a chunk nor decode rows, or took no time.
    """
    if bool(message.num_tokens) == bool(message.num_rows):
        raise InvalidRequest(
            f"a profile point has {message.num_tokens} tokens and {message.num_rows} decode rows,"
            " must have one of both"
        )
    if not message.compute_us:
        raise InvalidRequest("a profile point has no compute time")
    if message.num_rows > _MAX_PROFILE_ROWS:
        raise InvalidRequest(
            f"a profile point has {message.num_rows} decode rows, at most {_MAX_PROFILE_ROWS}"
        )
    if message.num_rows:
        work = Work.of_rows([message.row_tokens] * message.num_rows)
    else:
        work = Work.of_chunk(message.start, message.start + message.num_tokens)
    return LatencyPoint(work=work, ms=message.compute_us / 1000)


def join_order(
    join: SendJoin, *, page_tokens: int, max_microbatch_tokens: int
) -> pb.AttachResponse:
    """Write a Join."""
    return pb.AttachResponse(
        join=pb.Join(
            epoch=join.epoch,
            stage_index=join.stage_index,
            num_stages=join.num_stages,
            next_address=join.next_address,
            inbound_token=join.inbound_token,
            outbound_token=join.outbound_token,
            page_tokens=page_tokens,
            num_pages=join.num_pages,
            max_microbatch_tokens=max_microbatch_tokens,
        )
    )


def connect_order(connect: SendConnect) -> pb.AttachResponse:
    """Write a Connect."""
    return pb.AttachResponse(connect=pb.Connect(epoch=connect.epoch))


def rest_order(decision: SendStandBy | SendReleased) -> pb.AttachResponse:
    """Write what a worker outside of routes is told."""
    if isinstance(decision, SendReleased):
        return pb.AttachResponse(released=pb.Released())
    return pb.AttachResponse(stand_by=pb.StandBy(reason=decision.reason))


def link_from(joined: pb.Joined) -> OutboundLink | None:
    """Read what a stage tells of its link to the next one; None on the last stage."""
    if not joined.transport:
        return None
    return OutboundLink(transport=joined.transport, rtt_us=joined.rtt_us)


_SIDES = {
    pb.FAULT_SIDE_INBOUND: FaultSide.INBOUND,
    pb.FAULT_SIDE_OUTBOUND: FaultSide.OUTBOUND,
}


def side_from(fault: pb.Fault) -> FaultSide:
    """Read what a fault is of; what is unknown is of the stage."""
    return _SIDES.get(fault.side, FaultSide.STAGE)
