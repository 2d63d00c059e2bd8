"""The gRPC interface, streaming included.

A call that its client cancels is cancelled here by gRPC itself. The requests of a stream run side by side, a bounded number of them; their
answers come in the order of the requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import re
import socket
import struct
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .._util import optional as _optional
from .._util.types import Array
from ..errors import AnynpuError, DeviceTimeout, OverloadedError, RequestError, RequestTooLargeError
from ..session.protocol.messages import (
    BYTES,
    DATATYPES,
    DETAILS,
    METHODS,
    RAW_INPUTS,
    RAW_OUTPUTS,
    SERVICE,
    STREAMED_ANSWER,
    VARINT,
    array_from_bytes,
    datatype_of,
    field_of,
    fields_of,
    join_contents,
    messages,
    split_contents,
)
from .body import MAX_HEAD, encoding_of, unpack
from .connection import connection_bound
from .failures import failure_of, message_of, retry_after_of
from .interfaces import Model
from .limits import FREE_BYTES, GRACE, Complaints, Holding, Limits
from .model import InferAnswer, InferRequest
from .options import ServeOptions
from .regions import SharedTensor, read_place
from .rest_bodies import MAX_AXES, MAX_EXTENT, MAX_TENSORS, read_parameters
from .service import NAME, Service, configuration_message

# What gRPC itself states in the log about clients that send what is no call.
#
# A path that is not UTF-8 gives five tracebacks, of which a client without a key can cause as many as it likes. They become one line a
# second. Everything else that gRPC states is left as it is, and a server gives the logger back as it found it.


FRAGILE = (1, 84)
"""From this version on gRPC's loop ends at the first call whose path is not UTF-8, before any part of ours sees the call: the port is dead
for everybody, after one packet of a client without a key. There is no setting against it."""

_LOGGER = "grpc._cython.cygrpc"
_NAMES = ("UnicodeDecodeError", "ExecuteBatchError")
_MESSAGES = ("Invalid encoding on", "Failed sending error status")


class ClientFaults(logging.Filter):
    """Takes out what a client has caused, and counts it."""

    def __init__(self, complaints: Complaints) -> None:
        super().__init__()
        self._complaints = complaints

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record stays in the log."""
        kind = record.exc_info[0] if record.exc_info else None
        if (kind is None or kind.__name__ not in _NAMES) and not record.getMessage().startswith(_MESSAGES):
            return True
        self._complaints.add()
        return False


def warn_of_version(version: str) -> None:
    """State that the installed gRPC cannot be left to clients that are not trusted, if that is so."""
    found = re.match(r"(\d{1,9})\.(\d{1,9})", version)
    if found and (int(found[1]), int(found[2])) >= FRAGILE:
        log.warning(
            "grpcio %s stops listening at a call whose name is not text, which any client can send: pip install 'grpcio<%d.%d', "
            "or serve without gRPC (--grpc-port -1)",
            version,
            *FRAGILE,
        )


@contextmanager
def quiet_rpc() -> Iterator[None]:
    """While it lasts, faults of gRPC's clients are one line a second in the log."""
    found = ClientFaults(Complaints("gRPC: %d messages about calls whose names are not text or whose clients are gone"))
    logger = logging.getLogger(_LOGGER)
    logger.addFilter(found)
    try:
        yield
    finally:
        logger.removeFilter(found)


# Receiving messages of gRPC within the bytes in flight.
#
# gRPC gives a message only when all of it is there, and does not state before how large it is. So a call gets space for the largest
# message before it is received, for a moment, and waits for that space if there is none. Nothing is received for a call that waits:
# its client can send no more than the window of HTTP/2. A message that takes longer, or a stream that waits for its next request,
# counts for four times what the kernel has received on its connection since. As with HTTP, one that does not go on loses its place
# when others need the space.
#
# Everything belongs to the event loop of the server: no lock but the turnstile, which keeps the order in which calls came.


PATIENCE = 5.0
"""Seconds that a call waits for space."""

SHORT = 0.02
"""Seconds for which a call has space for the largest message if others wait for it."""

MAX_WAITING = 64
"""Calls that wait for space."""

POLL = 0.002
LOOK = 0.02
"""Seconds between two checks of what has arrived for those who are slow."""

MAX_PEERS = 1024
"""Connections that are remembered."""

GROWTH = 4
"""How many times what has arrived of a message counts."""

SLACK = 2**16
"""Bytes that arrive besides messages, and do not count."""

_COUNT = struct.Struct("Q")
_BYTES_RECEIVED = 128
"""Where the kernel's ``tcp_info`` has the bytes that were received on a connection."""


class Dropped(OverloadedError):
    """A call had to make space while it received its message."""


class _Peer:
    """A connection of gRPC, found by the address of its client.

    :ivar readings: calls that receive a message on it; those that are slow are true
    """

    def __init__(self, name: str) -> None:
        self.readings: dict[_Reading, bool] = {}
        self._base = 0  # bytes that were received before, or have been given out since
        self._fd, self._address = _find_socket(name)

    def begin(self, reading: _Reading) -> None:
        """A call begins to receive."""
        if not self.readings:
            self._base = self._received()
        self.readings[reading] = False

    def end(self, reading: _Reading, nbytes: int) -> None:
        """It has received a message of so many bytes, or does not go on."""
        del self.readings[reading]
        if self.readings:
            self._base = min(self._received(), self._base + nbytes + nbytes // 1000 + 64)

    def arrived(self) -> int:
        """Bytes that the kernel has received and that were not delivered."""
        return max(0, self._received() - self._base - SLACK)

    def _received(self) -> int:
        """All that was ever received; 0 if the connection is gone, or is none of TCP."""
        if self._fd < 0:
            return 0
        try:
            with _Borrowed(self._fd) as own:
                if own.getpeername() != self._address:
                    return 0
                info = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED + 8)
        except OSError:
            return 0
        return int(_COUNT.unpack_from(info, _BYTES_RECEIVED)[0]) if len(info) >= _BYTES_RECEIVED + 8 else 0


@dataclass(eq=False)
class _Reading:
    """A call that receives a message.

    :ivar dropped: whether it had to make space
    :ivar began: when its client could begin to send
    """

    task: asyncio.Task[Any]
    holding: Holding
    dropped: bool = False
    began: float = 0.0
    peer: _Peer | None = None

    def drop(self) -> None:
        """Make space."""
        self.dropped = True
        self.task.cancel()


class Intake:
    """Receives the messages of all calls of one server.

    :param end: what gRPC gives when there is no further message
    """

    def __init__(self, limits: Limits, options: ServeOptions, end: Any) -> None:
        self._limits = limits
        self._largest = min(options.max_request_bytes, options.max_inflight_bytes)
        self._end = end
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._peers: OrderedDict[str, _Peer] = OrderedDict()
        self._slow: dict[_Peer, None] = {}
        self._quick: dict[_Reading, None] = {}  # those that have space for the largest message, the oldest first
        self._looking: asyncio.TimerHandle | None = None

    async def receive(self, context: Any, soon: bool = True) -> tuple[bytes, Holding] | None:
        """The next message of a call, and what counts it; None if there is no further one.

        :param soon: whether the client ought to send it now; not so for a further one of a stream
        """
        task = asyncio.current_task()
        assert task is not None
        name = str(context.peer())
        holding = self._limits.open(name.rpartition(":")[0], lambda: reading.drop())
        reading = _Reading(task, holding)
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None
        nbytes = 0
        try:
            if soon:
                await self._enter(holding)
            peer = reading.peer = self._peer(name)
            reading.began = loop.time()
            peer.begin(reading)
            try:
                if soon:
                    self._quick[reading] = None
                    timer = loop.call_later(GRACE, self._slow_down, reading)
                else:
                    self._slow_down(reading)
                data = await context.read()
                nbytes = 0 if data is self._end else len(data)
            finally:
                if timer is not None:
                    timer.cancel()
                self._quick.pop(reading, None)
                peer.end(reading, nbytes)
                holding.received()
            if data is self._end:
                holding.close()
                return None
            more = nbytes - holding.nbytes
            (holding.take if more > 0 else holding.add)(more)
            return data, holding
        except BaseException as error:
            holding.close()
            if not reading.dropped or not isinstance(error, asyncio.CancelledError):
                raise
            getattr(task, "uncancel", int)()  # Python 3.10 has no such thing
            raise Dropped(
                "the message did not arrive in time, and other requests need the space",
                hint="come again in 1 s, or send less at a time",
            ) from None

    async def _enter(self, holding: Holding) -> None:
        """Wait for space for the largest message."""
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE
        if self._waiting >= MAX_WAITING:
            raise OverloadedError(f"{MAX_WAITING} calls wait already", hint="come again in 1 s, or send less at a time")
        self._waiting += 1
        try:
            async with self._turn:
                while True:
                    try:
                        holding.take(self._largest)
                        return
                    except OverloadedError:
                        if loop.time() > until:
                            raise
                    oldest = next(iter(self._quick), None)
                    if oldest is not None and loop.time() - oldest.began > SHORT:
                        self._slow_down(oldest)
                    await asyncio.sleep(POLL)
        finally:
            self._waiting -= 1

    def _peer(self, name: str) -> _Peer:
        peer = self._peers.pop(name, None)
        if peer is None:
            peer = _Peer(name)
        self._peers[name] = peer
        while len(self._peers) > MAX_PEERS:
            self._peers.popitem(last=False)
        return peer

    def _slow_down(self, reading: _Reading) -> None:
        """From now on, what has arrived counts."""
        assert reading.peer is not None
        self._quick.pop(reading, None)
        reading.peer.readings[reading] = True
        reading.holding.receive()
        self._slow[reading.peer] = None
        self._look()

    def _look(self) -> None:
        """See what has arrived for those who are slow, as long as there are any."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        coming = False
        for peer in list(self._slow):
            slow = [reading for reading, is_slow in peer.readings.items() if is_slow]
            if not slow:
                del self._slow[peer]
            arrived = peer.arrived()
            coming = coming or bool(arrived)
            # a message may grow as fast as it has: there is space for that too
            left = min(GROWTH * arrived, self._largest * len(slow))
            for reading in slow:
                share = min(left, self._largest)
                left -= share
                more = share - reading.holding.nbytes
                if more <= 0:
                    reading.holding.add(more)
                    continue
                try:
                    reading.holding.arrived(more)
                except OverloadedError:
                    reading.holding.drop()
        if self._slow:
            self._looking = asyncio.get_running_loop().call_later(LOOK if coming else 5 * LOOK, self._look)


class _Borrowed:
    """A socket of gRPC's, as one of Python's, which is never closed here; it may be closed, or be another one, at any moment."""

    def __init__(self, fd: int) -> None:
        # With all three given nothing is asked of the system, which takes time. An address of IPv6 has space for one of IPv4 too, which is
        # what both kinds of sockets give here; the other way round it would be cut off.
        self._socket = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=fd)

    def __enter__(self) -> socket.socket:
        return self._socket

    def __exit__(self, *_: object) -> None:
        self._socket.detach()


def _find_socket(peer: str) -> tuple[int, Any]:
    """The descriptor of a connection to *peer*, as gRPC writes it, and its address; -1 if there is none."""
    kind, _, rest = peer.partition(":")
    host, _, port = rest.replace("%5B", "[").replace("%5D", "]").rpartition(":")
    host = host.strip("[]")
    if kind not in ("ipv4", "ipv6") or not port.isdigit():
        return -1, None
    for name in os.listdir("/proc/self/fd"):
        address: Any = None
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with _Borrowed(int(name)) as own:
                    address = own.getpeername()
        if isinstance(address, tuple) and address[1] == int(port) and address[0].removeprefix("::ffff:") == host:
            return int(name), address
    return -1, None


log = logging.getLogger("anynpu.serve")

Call = Callable[[bytes | memoryview, Any], Awaitable[Any]]
Status = tuple[Any, str, tuple[tuple[str, str], ...]]

STREAM_DEPTH = 16
"""Requests of one stream that are in flight at a time; the client waits with more."""

OPEN_CALLS = ("ServerLive", "ServerReady")
"""Calls that need no key, and whose message is not even read."""

CONTROL_CALLS = ("RepositoryModelLoad", "RepositoryModelUnload")
"""Calls that change which models there are."""

WINDOW = 2**20
"""Bytes that a client may send of a message that is not read yet: enough that an image is not held up."""

MAX_CALLS = 128
"""Calls at a time on one connection."""

_CONTENTS = {
    "BOOL": ("bool_contents", np.bool_),
    "INT8": ("int_contents", np.int32),
    "INT16": ("int_contents", np.int32),
    "INT32": ("int_contents", np.int32),
    "INT64": ("int64_contents", np.int64),
    "UINT8": ("uint_contents", np.uint32),
    "UINT16": ("uint_contents", np.uint32),
    "UINT32": ("uint_contents", np.uint32),
    "UINT64": ("uint64_contents", np.uint64),
    "FP32": ("fp32_contents", np.float32),
    "FP64": ("fp64_contents", np.float64),
}
"""The field of the message that holds a datatype, and what its elements are."""


_NAME, _VERSION, _ID, _INPUTS, _TENSOR_CONTENTS = 1, 2, 3, 5, 5
"""Numbers of fields of an inference and of its inputs."""

_ELEMENT_BYTES = {1: 1, 2: 4, 3: 8, 4: 4, 5: 8}
"""Bytes of an element, once it is parsed, by the number of a field of typed contents that holds varints."""

_FLOAT_CONTENTS = (6, 7)

MAX_MESSAGE_FIELDS = 16 * MAX_TENSORS
"""Fields of one inference, those of its inputs and their contents among them. protobuf takes up to 50 times their size for empty ones."""


class WireRequest(NamedTuple):
    """An inference as it came, and what is needed of it before it is parsed."""

    data: bytes | memoryview
    model: str
    version: str
    id: str


def rpc_server(service: Service) -> Any:
    """A gRPC server with the protocol's calls, not started and without ports."""
    grpc, aio = _optional.grpc(), _optional.grpc_aio()
    warn_of_version(grpc.__version__)
    options = service.options
    calls = Calls(service)
    handlers = {}
    # all take and give bytes; gRPC would read the message of a call that it knows to have one before it asks us whether it may come
    for name in METHODS:
        if name == "ModelStreamInfer":
            handlers[name] = grpc.stream_stream_rpc_method_handler(calls.stream)
        else:
            call: Call = calls.infer if name == "ModelInfer" else calls.unary(name)
            handlers[name] = grpc.stream_unary_rpc_method_handler(calls.answering(name, call))
    server = aio.server(
        options=[
            ("grpc.max_receive_message_length", options.max_request_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ("grpc.per_message_decompression", 0),  # we unpack ourselves, and count before
            ("grpc.http2.bdp_probe", 0),  # a call that is not read cannot send more than the first window, which stays as it is
            ("grpc.http2.lookahead_bytes", WINDOW),
            ("grpc.max_concurrent_streams", MAX_CALLS),
            ("grpc.max_metadata_size", MAX_HEAD // 4),
            ("grpc.absolute_max_metadata_size", MAX_HEAD // 4),
            ("grpc.http2.max_ping_strikes", 2),
            ("grpc.http2.max_requests_per_read", 8),
            ("grpc.server_handshake_timeout_ms", round(options.header_timeout * 1000)),
            ("grpc.max_allowed_incoming_connections", connection_bound(options.max_connections)),
        ],
        maximum_concurrent_rpcs=options.max_connections,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    return server


class Calls:
    """What each call does."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._codes = _optional.grpc().StatusCode
        self._intake = Intake(service.limits, service.options, _optional.grpc_aio().EOF)
        self._decode_error = _optional.protobuf("message").DecodeError

    def answering(self, name: str, call: Call) -> Callable[[AsyncIterator[bytes], Any], Awaitable[Any]]:
        """A handler for one call: checks the key before it receives the message, and reports errors as gRPC does."""

        async def handle(requests: AsyncIterator[bytes], context: Any) -> Any:
            answer, status = await self._try(name, call, context)
            if status is not None:
                # gRPC keeps the exception of this as long as the call, and with it all that this frame knows: so the message is not here
                await context.abort(*status)
            return answer

        return handle

    async def _try(self, name: str, call: Call, context: Any) -> tuple[Any, Status | None]:
        """The answer to a call, or what its client receives instead."""
        holding: Holding | None = None
        try:
            if name in OPEN_CALLS:
                return await call(b"", context), None  # whatever the message is
            self._check_key(context, name in CONTROL_CALLS)
            received = await self._intake.receive(context)
            if received is None:
                raise RequestError("the call has no message", hint="send one")
            data, holding = received
            return await call(await self._unpacked(data, holding), context), None
        except Exception as error:  # the client must get an answer whatever happened
            if not isinstance(error, AnynpuError):
                log.exception("the call %s failed", name)
            return None, self._status(error)
        finally:
            if holding is not None:
                holding.close()

    async def _unpacked(self, data: bytes, holding: Holding) -> bytes | memoryview:
        encoding = encoding_of(data)
        return data if not encoding else await unpack(data, encoding, holding, self._service.options.max_request_bytes)

    def unary(self, name: str) -> Call:
        """A call with a message of its own."""
        call: Callable[[Any, Any], Awaitable[Any]] = getattr(self, f"_{name}")
        request_class = getattr(messages(), METHODS[name][0])

        async def handle(data: bytes | memoryview, context: Any) -> bytes:
            if len(data) > FREE_BYTES:
                raise RequestTooLargeError(
                    f"the message has {len(data)} bytes, and {name} takes {FREE_BYTES}", hint="send fewer parameters"
                )
            answer: bytes = (await call(self._read(request_class, data), context)).SerializeToString()
            return answer

        return handle

    async def infer(self, data: bytes | memoryview, context: Any) -> bytes:
        """The call ``ModelInfer``."""
        return await self._infer(
            _outlined(data, self._service.options.max_request_bytes), context.time_remaining(), self._carrier(context)
        )

    async def stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        """The call ``ModelStreamInfer``."""
        try:
            self._check_key(context)
        except AnynpuError as error:
            await context.abort(*self._status(error))
        carrier = self._carrier(context)
        room = asyncio.Semaphore(STREAM_DEPTH)
        answers: asyncio.Queue[asyncio.Task[Any] | None] = asyncio.Queue()

        async def accept() -> None:
            soon = True
            while True:
                received: tuple[bytes, Holding] | OverloadedError | None
                try:
                    received = await self._intake.receive(context, soon)
                except Dropped:
                    raise
                except OverloadedError as error:  # it came, and cannot be kept
                    received = error
                if received is None:
                    return
                soon = False
                task = asyncio.ensure_future(self._streamed(received, carrier))
                if not isinstance(received, OverloadedError):
                    # a task that is cancelled before its first step runs none of its code, so what it holds is given back here
                    task.add_done_callback(partial(_close, received[1]))
                answers.put_nowait(task)
                await room.acquire()

        reader = asyncio.ensure_future(accept())
        reader.add_done_callback(lambda _: answers.put_nowait(None))
        try:
            while (task := await answers.get()) is not None:
                yield await task
                room.release()
            failure = reader.exception()
            if failure is not None:
                await context.abort(*self._status(failure))
        finally:
            reader.cancel()
            while not answers.empty():
                left = answers.get_nowait()
                if left is not None:
                    left.cancel()

    async def _streamed(self, received: tuple[bytes, Holding] | OverloadedError, carrier: Mapping[str, str]) -> bytes:
        answer = messages().ModelStreamInferResponse()
        holding: Holding | None = None
        try:
            if isinstance(received, OverloadedError):
                raise received
            data, holding = received
            request = _outlined(await self._unpacked(data, holding), self._service.options.max_request_bytes)
            answer.infer_response.id = request.id
            return field_of(STREAMED_ANSWER, await self._infer(request, None, carrier))
        except AnynpuError as error:
            answer.error_message = message_of(error)
        except Exception as error:  # one request must not end the stream of others
            log.exception("a request of a stream failed")
            answer.error_message = message_of(error)
        finally:
            if holding is not None:
                holding.close()
        told: bytes = answer.SerializeToString()
        return told

    def _parse(self, data: bytes | memoryview) -> InferRequest:
        rest, raw = split_contents(data, RAW_INPUTS)
        message = self._read(messages().ModelInferRequest, rest)
        return _request(message, raw or message.raw_input_contents)

    def _read(self, request_class: Any, data: bytes | memoryview) -> Any:
        try:
            return request_class.FromString(bytes(data))
        except self._decode_error:
            raise RequestError(
                f"the message is no {request_class.__name__}", hint="does the client speak the protocol?"
            ) from None

    def _carrier(self, context: Any) -> Mapping[str, str]:
        """The headers, if tracing needs to know which trace the request belongs to."""
        return {} if self._service.traces is None else _headers(context)

    def _check_key(self, context: Any, control: bool = False) -> None:
        shown = _headers(context)
        self._service.check_key(shown.get("authorization"), shown.get("x-api-key"), control)

    def _status(self, error: BaseException) -> Status:
        """What the client of a call receives: code, message and metadata."""
        trailing: tuple[tuple[str, str], ...] = ()
        seconds = retry_after_of(error)
        if seconds is not None:
            trailing = (("retry-after-ms", str(math.ceil(seconds * 1000))),)
        return getattr(self._codes, failure_of(error).code), message_of(error), trailing

    async def _ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802  the protocol's name
        return messages().ServerLiveResponse(live=True)

    async def _ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        return messages().ServerReadyResponse(ready=self._service.is_ready())

    async def _ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        try:
            self._service.model(request.name, request.version)
        except AnynpuError:
            return messages().ModelReadyResponse(ready=False)
        return messages().ModelReadyResponse(ready=True)

    async def _ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        return messages().ServerMetadataResponse(
            name=NAME, version=self._service.version(), extensions=self._service.extensions()
        )

    async def _ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        model = self._service.model(request.name, request.version)
        answer = messages().ModelMetadataResponse(
            name=model.name, versions=self._service.repository.versions(model.name), platform=model.platform
        )
        for target, tensors in ((answer.inputs, model.inputs), (answer.outputs, model.outputs)):
            for tensor in tensors:
                target.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        answer.properties[DETAILS] = model.details.to_text()
        return answer

    async def _ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        model = self._service.model(request.name, request.version)
        return messages().ModelConfigResponse(config=configuration_message(model, self._service.options))

    async def _ModelStatistics(self, request: Any, context: Any) -> Any:  # noqa: N802
        found = await self._service.statistics(request.name, request.version)
        return messages().ModelStatisticsResponse(model_stats=found)

    async def _RepositoryIndex(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = messages().RepositoryIndexResponse()
        await self._service.repository.refresh()
        for entry in self._service.repository.index(request.ready):
            answer.models.add(name=entry.name, version=entry.version, state=entry.state, reason=entry.reason)
        return answer

    async def _RepositoryModelLoad(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._service.load(request.model_name, _parameters(request))
        return messages().RepositoryModelLoadResponse()

    async def _RepositoryModelUnload(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._service.unload(request.model_name)
        return messages().RepositoryModelUnloadResponse()

    async def _SystemSharedMemoryStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = messages().SystemSharedMemoryStatusResponse()
        for region in self._service.regions.status(request.name):
            told = answer.regions[region.name]
            told.name, told.key, told.offset, told.byte_size = region.name, region.key, region.offset, region.nbytes
        return answer

    async def _SystemSharedMemoryRegister(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._service.regions.register(request.name, request.key, request.offset, request.byte_size)
        return messages().SystemSharedMemoryRegisterResponse()

    async def _SystemSharedMemoryUnregister(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._service.regions.unregister(request.name)
        return messages().SystemSharedMemoryUnregisterResponse()

    async def _infer(self, request: WireRequest, remaining: float | None, carrier: Mapping[str, str]) -> bytes:
        async def read(model: Model) -> InferRequest:
            limits = self._service.limits
            limits.check_size(len(request.data), limits.max_body(model, self._service.options.max_json_bytes))
            parsed = self._parse(request.data)
            if remaining is not None:
                if remaining <= 0:
                    raise DeviceTimeout("the deadline of the request has passed", hint="give it more time")
                parsed.timeout = remaining if parsed.timeout is None else min(parsed.timeout, remaining)
            return parsed

        answer = await self._service.infer("grpc", request.model, request.version, read, carrier)
        return _answer(answer)


_NOTHING = np.empty(0, np.uint8)


def _close(holding: Holding, _: asyncio.Future[Any]) -> None:
    holding.close()


def _headers(context: Any) -> dict[str, str]:
    return {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}


def _outlined(data: bytes | memoryview, max_decoded: int) -> WireRequest:
    """Look through the fields of an inference before protobuf parses it, which takes many times the memory of small fields.

    :param max_decoded: bytes that the typed contents of its inputs may have once they are parsed
    """
    texts = {_NAME: "", _VERSION: "", _ID: ""}
    count = small = decoded = 0
    try:
        for depth, number, kind, value in _walk(memoryview(data)):
            count += 1
            if count > MAX_MESSAGE_FIELDS:
                raise RequestTooLargeError(
                    f"the message has more than {MAX_MESSAGE_FIELDS} fields", hint="send raw contents, one for each input"
                )
            if depth == 2 and number in _ELEMENT_BYTES and kind in (BYTES, VARINT):
                elements = 1 if kind == VARINT else int(np.count_nonzero(np.frombuffer(value, np.uint8) < 128))
                decoded += elements * _ELEMENT_BYTES[number]
            elif depth == 2 and number in _FLOAT_CONTENTS:
                decoded += len(value)
            elif depth or number != RAW_INPUTS or kind != BYTES:
                small += len(value)
            if depth == 0 and kind == BYTES and number in texts:
                texts[number] = str(value[: FREE_BYTES + 1], "utf-8")
            if small > FREE_BYTES or decoded > max_decoded:
                raise RequestTooLargeError(
                    f"the contents of the message take more than {max_decoded} bytes when parsed"
                    if decoded > max_decoded
                    else f"the message has more than {FREE_BYTES} bytes besides tensors",
                    hint="send raw contents, or less at a time",
                )
    except (IndexError, UnicodeDecodeError):
        raise RequestError("the message is no ModelInferRequest", hint="does the client speak the protocol?") from None
    return WireRequest(data, texts[_NAME], texts[_VERSION], texts[_ID])


def _walk(message: memoryview, depth: int = 0) -> Iterator[tuple[int, int, int, memoryview]]:
    """Depth, number, wire type and value of the fields of an inference, of its inputs and of their contents."""
    for number, kind, begin, end in fields_of(message):
        value = message[begin:end]
        inner = kind == BYTES and ((depth == 0 and number == _INPUTS) or (depth == 1 and number == _TENSOR_CONTENTS))
        yield depth, number, kind, value[:0] if inner else value
        if inner:
            yield from _walk(value, depth + 1)


def _request(message: Any, raw: Sequence[bytes | memoryview]) -> InferRequest:
    priority, timeout = read_parameters(_parameters(message))
    outputs = [output.name for output in message.outputs]
    if len(set(outputs)) != len(outputs):
        raise RequestError("an output comes twice", hint="ask for each output once")
    places = {output.name: read_place(_parameters(output), output.name) for output in message.outputs if output.parameters}
    shared_outputs = {name: place for name, place in places.items() if place is not None}
    inputs, shared = _inputs(message, raw)
    return InferRequest(
        message.model_name, message.model_version, message.id, inputs, outputs, priority, timeout, shared, shared_outputs
    )


def _inputs(request: Any, raw: Sequence[bytes | memoryview]) -> tuple[dict[str, Array], dict[str, SharedTensor]]:
    inputs: dict[str, Array] = {}
    shared: dict[str, SharedTensor] = {}
    own = []
    for tensor in request.inputs:
        if any(not 0 <= extent <= MAX_EXTENT for extent in tensor.shape) or len(tensor.shape) > MAX_AXES:
            raise RequestError(f"the shape of '{tensor.name}' is {list(tensor.shape)[:20]}", hint="send integers from 0")
        place = read_place(_parameters(tensor), tensor.name) if tensor.parameters else None
        if place is None:
            own.append(tensor)
        elif tensor.name in shared:
            raise RequestError(f"input '{tensor.name}' comes twice", hint="give each input once")
        else:
            shared[tensor.name] = SharedTensor(place, tensor.datatype, tuple(tensor.shape))
    if len(request.inputs) > MAX_TENSORS or (raw and len(raw) != len(own)):
        raise RequestError(f"{len(own)} inputs and {len(raw)} raw contents", hint="send raw contents for all inputs or for none")
    for index, tensor in enumerate(own):
        shape = tuple(tensor.shape)
        if tensor.name in inputs or tensor.name in shared:
            raise RequestError(f"input '{tensor.name}' comes twice", hint="give each input once")
        if raw and tensor.HasField("contents"):
            raise RequestError(f"input '{tensor.name}' has contents besides the raw ones", hint="send raw or typed contents")
        try:
            if raw:
                data = raw[index]
                inputs[tensor.name] = array_from_bytes(data, 0, len(data), tensor.datatype, shape, tensor.name)
            else:
                inputs[tensor.name] = _typed(tensor, shape)
        except (ValueError, OverflowError) as error:
            if isinstance(error, RequestError):
                raise
            raise RequestError(
                f"input '{tensor.name}' is no tensor of shape {list(shape)}: {error}", hint="look at both"
            ) from None
    return inputs, shared


def _typed(tensor: Any, shape: tuple[int, ...]) -> Array:
    """A tensor from the field of the message that its datatype has."""
    found = _CONTENTS.get(tensor.datatype)
    if found is None:
        raise RequestError(
            f"input '{tensor.name}' has the datatype {tensor.datatype!r}, for which contents have no field",
            hint=f"send raw contents; datatypes are {', '.join(DATATYPES)}",
        )
    field, kind = found
    values: Array = np.array(getattr(tensor.contents, field), kind)
    target = DATATYPES[tensor.datatype].newbyteorder("=")
    if values.size and target.kind in "iu":
        limits = np.iinfo(target)
        if int(values.min()) < limits.min or int(values.max()) > limits.max:
            raise RequestError(f"the contents of input '{tensor.name}' do not fit {target}", hint="look at the datatype")
    return values.astype(target).reshape(shape)


def _parameters(holder: Any) -> dict[str, Any]:
    """The parameters of a message or of a part of it."""
    return {key: _parameter(value) for key, value in holder.parameters.items()}


def _parameter(value: Any) -> Any:
    kind = value.WhichOneof("parameter_choice")
    return None if kind is None else getattr(value, kind)


def _answer(answer: InferAnswer) -> bytes:
    message = messages().ModelInferResponse(model_name=answer.model, model_version=answer.version, id=answer.id)
    contents = []
    for name, array in answer.outputs.items():
        output = message.outputs.add(name=name, datatype=datatype_of(array.dtype), shape=array.shape)
        place = answer.shared.get(name)
        contents.append(array if place is None else _NOTHING)  # clients find the contents of an output by its number
        if place is not None:
            for key, value in place.parameters(array.nbytes).items():
                setattr(output.parameters[key], "string_param" if isinstance(value, str) else "int64_param", value)
    return join_contents(message.SerializeToString(), RAW_OUTPUTS, contents)
