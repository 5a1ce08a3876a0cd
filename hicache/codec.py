"""Between the contract's messages and the cache's values; checks what comes in."""

from __future__ import annotations

from collections.abc import Iterable

from chunkmesh.coverage import MAX_LAYER_BYTES, MAX_MODEL_LAYERS, Coverage, layer_mask, layer_ranges
from chunkmesh.errors import InvalidRequest
from chunkmesh.indexed_page import PageInfo
from chunkmesh.pages import DIGEST_BYTES
from chunkmesh.v1 import common_pb2
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.audit_log import Deed
from hicache.namespaces import MAX_TEXT_CHARACTERS, NamespaceInfo, NamespaceState
from hicache.runs import Run, RunOrder
from hicache.selection import Below, Everything, Idle, InNamespace, Listed, Prompt, Selection

_SHORT_DIGITS = 12
_ORDERS: dict[int, RunOrder] = {
    pb.RUN_ORDER_UNSPECIFIED: "tree",
    pb.RUN_ORDER_TREE: "tree",
    pb.RUN_ORDER_HITS: "hits",
    pb.RUN_ORDER_RECENT: "recent",
    pb.RUN_ORDER_BYTES: "bytes",
}


def checked(digests: Iterable[bytes], field: str) -> list[bytes]:
    """Return digests of the right length.

    Raises:
        InvalidRequest: one has another.
    """
    listed = list(digests)
    for digest in listed:
        if len(digest) != DIGEST_BYTES:
            raise InvalidRequest(
                f"a digest of {len(digest)} bytes; it must have {DIGEST_BYTES}", field=field
            )
    return listed


def coverage_of(request: pb.CommitRequest) -> Coverage:
    """Return what a commit says of each of its pages.

    Raises:
        InvalidRequest: the layers are none of such a model, or it is too many bytes.
    """
    first, last = request.layers.first, request.layers.last
    model_layers = request.model_layers
    if not 0 < model_layers <= MAX_MODEL_LAYERS:
        raise InvalidRequest(
            f"a model of {model_layers} layers; 1 to {MAX_MODEL_LAYERS} are allowed",
            field="model_layers",
        )
    if not first < last <= model_layers:
        raise InvalidRequest(
            f"layers [{first}, {last}) of a model of {model_layers} layers", field="layers"
        )
    layer_bytes = request.page_bytes // (last - first)
    if layer_bytes > MAX_LAYER_BYTES:
        raise InvalidRequest(
            f"{layer_bytes} bytes of a page in a layer; at most {MAX_LAYER_BYTES} are allowed",
            field="page_bytes",
        )
    return Coverage(
        layers=layer_mask(first, last), model_layers=model_layers, layer_bytes=layer_bytes
    )


def info_of(message: pb.NamespaceInfo) -> NamespaceInfo:
    """Return what a namespace stands for; texts are cut where they are too long to be shown."""
    return NamespaceInfo(
        fingerprint=message.fingerprint[:DIGEST_BYTES],
        model=message.model[:MAX_TEXT_CHARACTERS],
        kv_dtype=message.kv_dtype[:MAX_TEXT_CHARACTERS],
        page_tokens=message.page_tokens,
        rope=message.rope[:MAX_TEXT_CHARACTERS],
        adapter=message.adapter[:MAX_TEXT_CHARACTERS],
        salted=message.salted,
    )


def selection_of(message: pb.Selection) -> Selection:
    """Return which pages are meant.

    Raises:
        InvalidRequest: none of the choices is made, or it is impossible.
    """
    match message.WhichOneof("pages"):
        case "everything" if message.everything:
            return Everything()
        case "below":
            return Below(prefix=message.below)
        case "prompt":
            return Prompt(digests=tuple(checked(message.prompt.digests, "selection.prompt")))
        case "namespace":
            return InNamespace(namespace=checked([message.namespace], "selection.namespace")[0])
        case "idle_ms":
            return Idle(idle_s=message.idle_ms / 1000)
        case _:
            raise InvalidRequest("no pages are chosen", field="selection")


def selection_text(selection: Selection) -> str:
    """Return a selection in words."""
    match selection:
        case Everything():
            return "all pages"
        case Below():
            return f"page {short(selection.prefix)} and below"
        case Prompt():
            return f"a prompt of {len(selection.digests)} pages"
        case InNamespace():
            return f"namespace {short(selection.namespace)}"
        case Idle():
            return f"pages idle for {selection.idle_s:g} s"
        case Listed():
            return f"{len(selection.digests)} pages"


def short(digest: bytes) -> str:
    """Return the first digits of a digest, for people."""
    return digest.hex()[:_SHORT_DIGITS]


def order_of(order: int) -> RunOrder:
    """Return the order that a request asks for.

    Raises:
        InvalidRequest: there is no such order.
    """
    if order not in _ORDERS:
        raise InvalidRequest(f"order {order} is none of this version", field="order")
    return _ORDERS[order]


def layers_message(layers: int) -> list[common_pb2.LayerRange]:
    """Return a mask of layers as ranges."""
    return [common_pb2.LayerRange(first=first, last=last) for first, last in layer_ranges(layers)]


def page_state(info: PageInfo) -> pb.PageState:
    """Describe one page."""
    return pb.PageState(
        layers=layers_message(info.layers), visible=info.visible, num_hits=info.num_hits
    )


def namespace_state(state: NamespaceState) -> pb.NamespaceState:
    """Describe one namespace."""
    message = pb.NamespaceState(
        namespace=state.namespace,
        model_layers=state.model_layers,
        layers=layers_message(state.layers),
        num_pages=state.num_pages,
        num_partial_pages=state.num_partial_pages,
        num_bytes=state.num_bytes,
        num_pinned_pages=state.num_pinned_pages,
        quota_bytes=state.quota_bytes,
        num_hits=state.num_hits,
    )
    info = state.info
    if info is not None:
        message.info.CopyFrom(
            pb.NamespaceInfo(
                fingerprint=info.fingerprint,
                model=info.model,
                kv_dtype=info.kv_dtype,
                page_tokens=info.page_tokens,
                rope=info.rope,
                adapter=info.adapter,
                salted=info.salted,
            )
        )
    return message


def run_message(run: Run) -> pb.Run:
    """Describe one run."""
    return pb.Run(
        namespace=run.namespace,
        first_digest=run.first_digest,
        last_digest=run.last_digest,
        first_page=run.first_page,
        num_pages=run.num_pages,
        depth=run.depth,
        num_children=run.num_children,
        num_bytes=run.num_bytes,
        layers=layers_message(run.layers),
        visible=run.visible,
        num_hits=run.num_hits,
        idle_ms=round(run.idle_s * 1000),
        num_leased_pages=run.num_leased_pages,
        num_pinned_pages=run.num_pinned_pages,
        priority=run.priority,
    )


def audit_entry(unix_ms: int, deed: Deed) -> pb.AuditEntry:
    """Tell of a change that was made by hand at some time."""
    return pb.AuditEntry(
        unix_ms=unix_ms,
        peer=deed.peer,
        caller=deed.caller,
        method=deed.method,
        request=deed.request,
        num_pages=deed.num_pages,
        num_bytes=deed.num_bytes,
    )
