"""The few calls of UCP that UCXX does not offer, by ctypes on the library that UCXX has loaded.

A tag receive that tells how many bytes came: UCXX takes a message shorter than its buffer silently.
The transports of one endpoint: UCXX only knows those of the whole process.
Source: ucp/api/ucp.h of UCX 1.20 and later, whose public structures only grow at their ends
(https://openucx.readthedocs.io/en/master/api.html).
"""

from __future__ import annotations

import ctypes

from chunkmesh.errors import LinkError

_OK = 0
_IN_PROGRESS = 1
_MAX_ERROR_POINTER = 100
_MAX_TRANSPORTS = 32

_ATTR_DATATYPE = 1 << 3
_ATTR_NO_IMMEDIATE_COMPLETION = 1 << 16
_DATATYPE_BYTES = 1 << 3
"""ucp_dt_make_contig(1)."""
_EP_TRANSPORTS = 1 << 3
_FULL_MASK = (1 << 64) - 1


class _RequestParam(ctypes.Structure):
    _fields_ = (
        ("op_attr_mask", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("request", ctypes.c_void_p),
        ("callback", ctypes.c_void_p),
        ("datatype", ctypes.c_uint64),
        ("user_data", ctypes.c_void_p),
        ("reply_buffer", ctypes.c_void_p),
        ("memory_type", ctypes.c_int),
        ("recv_info", ctypes.c_void_p),
        ("memh", ctypes.c_void_p),
    )


class _TagRecvInfo(ctypes.Structure):
    _fields_ = (("sender_tag", ctypes.c_uint64), ("length", ctypes.c_size_t))


class _TransportEntry(ctypes.Structure):
    _fields_ = (("transport_name", ctypes.c_char_p), ("device_name", ctypes.c_char_p))


class _Transports(ctypes.Structure):
    _fields_ = (
        ("entries", ctypes.POINTER(_TransportEntry)),
        ("num_entries", ctypes.c_uint),
        ("entry_size", ctypes.c_size_t),
    )


class _SockaddrStorage(ctypes.Structure):
    _fields_ = (("words", ctypes.c_uint64 * 16),)


class _EpAttr(ctypes.Structure):
    _fields_ = (
        ("field_mask", ctypes.c_uint64),
        ("name", ctypes.c_char * 32),
        ("local_sockaddr", _SockaddrStorage),
        ("remote_sockaddr", _SockaddrStorage),
        ("transports", _Transports),
        ("user_data", ctypes.c_void_p),
    )


class Ucp:
    """The loaded library. All calls are short and keep the interpreter lock."""

    def __init__(self) -> None:
        library = ctypes.PyDLL("libucp.so.0")
        self.ep_query = library.ucp_ep_query
        self.ep_query.argtypes = (ctypes.c_void_p, ctypes.POINTER(_EpAttr))
        self.ep_query.restype = ctypes.c_int8
        self.tag_recv = library.ucp_tag_recv_nbx
        self.tag_recv.argtypes = (
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_uint64,
            ctypes.c_uint64,
            ctypes.POINTER(_RequestParam),
        )
        self.tag_recv.restype = ctypes.c_ssize_t
        self.recv_test = library.ucp_tag_recv_request_test
        self.recv_test.argtypes = (ctypes.c_void_p, ctypes.POINTER(_TagRecvInfo))
        self.recv_test.restype = ctypes.c_int8
        self.cancel = library.ucp_request_cancel
        self.cancel.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        self.cancel.restype = None
        self.free = library.ucp_request_free
        self.free.argtypes = (ctypes.c_void_p,)
        self.free.restype = None
        self.status_string = ctypes.PyDLL("libucs.so.0").ucs_status_string
        self.status_string.argtypes = (ctypes.c_int8,)
        self.status_string.restype = ctypes.c_char_p

    def describe(self, status: int) -> str:
        """Return UCX's text for a status."""
        return (self.status_string(status) or b"unknown").decode()


def endpoint_transports(ucp: Ucp, endpoint: int) -> tuple[str, ...]:
    """Return the names of the transports that an endpoint's lanes use, such as tcp, in lane order.

    Empty if UCX does not tell.
    """
    entries = (_TransportEntry * _MAX_TRANSPORTS)()
    attributes = _EpAttr(field_mask=_EP_TRANSPORTS)
    attributes.transports.entries = entries
    attributes.transports.num_entries = _MAX_TRANSPORTS
    attributes.transports.entry_size = ctypes.sizeof(_TransportEntry)
    if ucp.ep_query(endpoint, ctypes.byref(attributes)) != _OK:
        return ()
    names = [
        entries[index].transport_name.decode() for index in range(attributes.transports.num_entries)
    ]
    return tuple(dict.fromkeys(names))


class TagReceive:
    """One posted receive. Its buffer must live until it is settled or its worker is gone."""

    def __init__(self, ucp: Ucp, worker: int, buffer: tuple[int, int], tag: int) -> None:
        """Post it: buffer is an address and the most bytes to take, on the CPU or a GPU."""
        self.length = 0
        """Bytes that came, once it has arrived."""
        self._ucp = ucp
        self._worker = worker
        self._arrived = False
        self._failure: str | None = None
        self._request: int | None = None
        """UCX's request; None once it is settled and freed."""
        param = _RequestParam(
            op_attr_mask=_ATTR_DATATYPE | _ATTR_NO_IMMEDIATE_COMPLETION, datatype=_DATATYPE_BYTES
        )
        address, size = buffer
        request = ucp.tag_recv(worker, address, size, tag, _FULL_MASK, ctypes.byref(param))
        if -_MAX_ERROR_POINTER <= request <= 0:
            self._failure = ucp.describe(request)
        else:
            self._request = request

    @property
    def settled(self) -> bool:
        """Whether UCX has no more to do with the buffer."""
        return self._request is None

    def arrived(self) -> bool:
        """Return whether the whole message is in the buffer.

        Raises:
            LinkError: the message was too long, its sender is gone, or the receive was cancelled.
        """
        self._settle()
        if self._failure is not None:
            raise LinkError(f"receive failed: {self._failure}")
        return self._arrived

    def cancel(self) -> bool:
        """Take the receive back; return False if its message is arriving or has arrived."""
        if self._request is not None:
            self._ucp.cancel(self._worker, self._request)
            self._settle()
        return self._request is None and not self._arrived

    def abandon(self) -> None:
        """Give the request back to UCX, whatever its state, before its worker is destroyed."""
        if not self.cancel() and self._request is not None:
            self._ucp.free(self._request)
            self._request = None
            self._failure = "the link was closed"

    def _settle(self) -> None:
        if self._request is None:
            return
        info = _TagRecvInfo()
        status = self._ucp.recv_test(self._request, ctypes.byref(info))
        if status == _IN_PROGRESS:
            return
        if status == _OK:
            self._arrived = True
            self.length = info.length
        else:
            self._failure = self._ucp.describe(status)
        self._ucp.free(self._request)
        self._request = None
