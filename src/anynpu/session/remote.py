"""A backend on another machine: a model on a server that speaks the Open Inference Protocol over gRPC.

``InferenceSession("grpc://board:8001/yolo")`` is a session like any other, with the same queue, callbacks, streams and statistics: only its
device workers are calls. ``grpc://host:port/model/version`` names a version, ``grpcs://`` uses TLS. Two variables of the
environment belong to it: ``ANYNPU_API_KEY`` is the key that the server asks for, ``ANYNPU_CA_FILE`` the certificates that it is
checked against.

A server that is not there, or sheds, is asked again for as long as submitting may block (``submit_timeout_ms``), then the request fails.
The connection comes back on its own.

One channel serves all device workers; gRPC makes it safe. A device worker's ``_call`` is set by the thread that uses the device
worker and read by the thread that cancels it.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import numpy as np

from .._util import optional as _optional
from .._util.types import Array
from ..errors import (
    AccessDeniedError,
    AnynpuError,
    DeviceError,
    DeviceTimeout,
    DeviceUnavailable,
    FeedError,
    JobCancelled,
    OptionError,
    OverloadedError,
    RequestTooLargeError,
    ServeError,
    UnknownModelError,
)
from ..npu.memory import Buffer
from ..tensor import DType, Layout, TensorSpec
from .ortvalue import HostMemory
from .protocol.messages import (
    DATATYPES,
    DETAILS,
    RAW_INPUTS,
    RAW_OUTPUTS,
    SERVICE,
    ModelDetails,
    array_from_bytes,
    datatype_of,
    join_contents,
    messages,
    split_contents,
)

if TYPE_CHECKING:
    from .backend import Backend, Bound, DeviceFactory, Lane, Marks, Memory
    from .feeds import Feed
    from .options import SessionOptions


Headers = tuple[tuple[str, str], ...]

KEY_VARIABLE = "ANYNPU_API_KEY"
CERTIFICATES_VARIABLE = "ANYNPU_CA_FILE"

_FIRST_PAUSE = 0.02
_MAX_PAUSE = 1.0


def parse_address(address: str) -> tuple[str, str, str, bool]:
    """Server, model, version and whether TLS is used.

    >>> parse_address("grpc://board:8001/yolo/2")
    ('board:8001', 'yolo', '2', False)
    """
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        port = None
    names = [] if port is None else [unquote(part) for part in parts.path.strip("/").split("/")]
    if port is None or not parts.hostname or not names or not names[0] or len(names) > 2 or parts.query or parts.fragment:
        raise OptionError(f"{address} is no address of a model", hint="write it as grpc://host:port/model or .../model/version")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{port}", names[0], names[1] if len(names) > 1 else "", parts.scheme == "grpcs"


def open_backend(
    address: str, options: SessionOptions, device: str | DeviceFactory | None, weights_from: Backend | None
) -> RemoteBackend:
    """The backend for a model on a server."""
    if device is not None or weights_from is not None or options.custom_ops:
        raise OptionError(
            f"{address} is a model on a server, which has its own device, weights and operators",
            hint="leave device, use_weight_from and custom_op_paths out",
        )
    return RemoteBackend(address, options)


class RemoteConnection:
    """A channel to a server and the calls on it."""

    def __init__(self, server: str, secure: bool, patience: float) -> None:
        grpc = _optional.grpc()
        self.server = server
        self.patience = patience
        self.rpc_error: type[Exception] = grpc.RpcError
        self._grpc = grpc
        settings = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.min_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 1000),
        ]
        if secure:
            file = os.environ.get(CERTIFICATES_VARIABLE)
            roots = Path(file).read_bytes() if file else None
            self._channel = grpc.secure_channel(server, grpc.ssl_channel_credentials(roots), settings)
        else:
            self._channel = grpc.insecure_channel(server, settings)
        key = os.environ.get(KEY_VARIABLE)
        self._metadata = (("x-api-key", key),) if key else ()
        self._calls = {name: self._call(name) for name in ("ModelMetadata", "ModelInfer")}

    def _call(self, name: str) -> Any:
        return self._channel.unary_unary(f"/{SERVICE}/{name}")

    def start(self, name: str, request: bytes, timeout: float | None, headers: Headers = ()) -> Any:
        """A call under way."""
        return self._calls[name].future(request, timeout=timeout, metadata=(*self._metadata, *headers))

    def error_of(self, error: Any, timeout: float | None) -> tuple[AnynpuError, float | None]:
        """Our error for one of gRPC's, and after how many seconds to try again: None for not at all, 0 for soon."""
        code, text = error.code().name, error.details() or ""
        message, _, hint = text.partition("\n  hint: ")
        where = f"{self.server}: {message}"
        if code in (
            "UNAVAILABLE",
            "CANCELLED",
        ):  # a server that ends cancels what reaches it then; our own cancelling is no RpcError
            return DeviceUnavailable(f"the server {self.server} does not answer: {message}", hint=hint or "is it running?"), 0.0
        if code == "RESOURCE_EXHAUSTED":
            trailing = dict(error.trailing_metadata() or ())
            if "retry-after-ms" not in trailing:
                return RequestTooLargeError(where, hint=hint), None
            seconds = int(trailing["retry-after-ms"]) / 1000
            return OverloadedError(where, hint=hint, retry_after=seconds), seconds
        if code == "DEADLINE_EXCEEDED":
            return DeviceTimeout(
                where if timeout is None else f"the request did not finish within {timeout:g} s", hint=hint
            ), None
        kinds: dict[str, type[AnynpuError]] = {
            "NOT_FOUND": UnknownModelError,
            "INVALID_ARGUMENT": FeedError,
            "UNAUTHENTICATED": AccessDeniedError,
            "PERMISSION_DENIED": AccessDeniedError,
        }
        if code == "UNAUTHENTICATED":
            hint = f"set {KEY_VARIABLE} to a key of the server"
        return kinds.get(code, DeviceError)(where, hint=hint), None

    def close(self) -> None:
        """End the channel and the calls on it."""
        self._channel.close()


class RemoteBackend:
    """One model on a server."""

    def __init__(self, address: str, options: SessionOptions) -> None:
        server, self.model, self.version, secure = parse_address(address)
        self.connection = RemoteConnection(server, secure, options.submit_timeout_ms / 1000)
        try:
            details = self._details()
            _check_output_types(details.outputs, options)
        except BaseException:
            self.connection.close()
            raise
        self.layout = details.layout
        self.description = f"{details.description} at {server}"
        self.provider = details.provider
        self.chip = details.chip
        self.cores = details.cores
        self.core_masks: tuple[int, ...] = ()
        self.lanes_on_demand = True
        self.inputs = self.native_inputs = details.inputs
        self.outputs = self.native_outputs = details.outputs
        self.shape_sets = details.shape_sets
        self.metadata: Mapping[str, str] = dict(details.metadata)

    def _details(self) -> ModelDetails:
        request = messages().ModelMetadataRequest(name=self.model, version=self.version)
        patience = self.connection.patience
        try:
            data = RemoteLane(self).call("ModelMetadata", request.SerializeToString(), patience)
        except DeviceTimeout:
            raise DeviceUnavailable(
                f"the server {self.connection.server} does not answer within {patience:g} s", hint="is it running?"
            ) from None
        answer = _read(messages().ModelMetadataResponse, data)
        text = answer.properties.get(DETAILS)
        if text is not None:
            return ModelDetails.from_text(text)
        inputs, outputs = (tuple(_spec(tensor) for tensor in tensors) for tensors in (answer.inputs, answer.outputs))
        description = f"{answer.platform or 'model'} on a server"
        return ModelDetails(
            description, "RemoteExecutionProvider", answer.platform or "server", 1, "nchw", inputs, outputs, (), {}
        )

    def open_lane(self, mask: int) -> RemoteLane:
        """A call at a time."""
        if mask > 1:
            raise OptionError("a server chooses its cores itself", hint="leave core and schedule out")
        return RemoteLane(self)

    def allocate(self, nbytes: int) -> Memory:
        """Memory of this machine."""
        return HostMemory(Buffer.allocate(nbytes))

    def import_fd(self, fd: int, nbytes: int, offset: int, address: int = 0) -> Memory:
        """Memory that another owner allocated."""
        return HostMemory(Buffer.from_fd(fd, nbytes, offset))

    def close(self) -> None:
        """End the connection."""
        self.connection.close()


class RemoteLane:
    """One call at a time."""

    def __init__(self, backend: RemoteBackend) -> None:
        self._backend = backend
        self._call: Any = None
        self._stopped = threading.Event()

    def infer(
        self, feed: Feed, wanted: Sequence[int], types: Sequence[np.dtype[Any]], timeout: float | None, marks: Marks
    ) -> list[Array]:
        """Send the inputs and receive the outputs."""
        backend = self._backend
        request = messages().ModelInferRequest(model_name=backend.model, model_version=backend.version)
        arrays = []
        for spec, array, last in zip(backend.inputs, feed.arrays, feed.nhwc, strict=True):
            array = _in_layout(array, last, backend.layout)
            request.inputs.add(name=spec.name, datatype=datatype_of(array.dtype), shape=array.shape)
            arrays.append(array)
        for number in wanted:
            request.outputs.add(name=backend.outputs[number].name)
        data = join_contents(request.SerializeToString(), RAW_INPUTS, arrays)
        marks.written = time.perf_counter_ns()
        data = self.call("ModelInfer", data, timeout, feed.headers)
        marks.ran = time.perf_counter_ns()
        rest, contents = split_contents(data, RAW_OUTPUTS)
        answer = _read(messages().ModelInferResponse, rest)
        found = {output.name: index for index, output in enumerate(answer.outputs)}
        results = []
        for number, kind in zip(wanted, types, strict=True):
            name = backend.outputs[number].name
            if name not in found or len(contents) != len(answer.outputs):
                raise ServeError(
                    f"the server's answer has no output '{name}'", hint="is it a server of the Open Inference Protocol?"
                )
            output, raw = answer.outputs[found[name]], contents[found[name]]
            array = array_from_bytes(raw, 0, len(raw), output.datatype, tuple(output.shape), name)
            results.append(array.astype(kind))  # a copy of its own, which the caller may write to
        return results

    def call(self, name: str, request: bytes, timeout: float | None, headers: Headers = ()) -> bytes:
        """Make a call; again where the server is away or sheds, as long as there is time."""
        connection = self._backend.connection
        end = None if timeout is None else time.monotonic() + timeout
        patient_until = time.monotonic() + connection.patience
        pause = _FIRST_PAUSE
        self._stopped.clear()
        while True:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise DeviceTimeout(f"the request did not finish within {timeout:g} s", hint="give it more time")
            self._call = connection.start(name, request, left, headers)
            if self._stopped.is_set():
                self._call.cancel()
            try:
                answer: bytes = self._call.result()
                return answer
            except connection.rpc_error as error:
                failure, again = connection.error_of(error, timeout)
            except _optional.grpc().FutureCancelledError:
                raise JobCancelled("the request was cancelled") from None
            finally:
                self._call = None
            wait = max(pause, again or 0.0) * random.uniform(0.8, 1.2)
            if again is None or time.monotonic() + wait > min(patient_until, end or patient_until):
                raise failure
            if self._stopped.wait(wait):
                raise JobCancelled("the request was cancelled")
            pause = min(2 * pause, _MAX_PAUSE)

    def run_bound(self, inputs: Sequence[Bound], outputs: Sequence[Bound], timeout: float | None) -> None:
        """As :meth:`infer`, from and to memory of this machine."""
        run_bound_by_copies(self, inputs, outputs, timeout)

    def cancel(self) -> bool:
        """End the call; the server takes it out of its queue."""
        self._stopped.set()
        call = self._call
        if call is not None:
            call.cancel()
        return True

    def abandon(self) -> None:
        """End the call that hangs."""
        self.cancel()

    def close(self) -> None:
        """Nothing is held."""


def run_bound_by_copies(lane: Lane, inputs: Sequence[Bound], outputs: Sequence[Bound], timeout: float | None) -> None:
    """What ``run_bound`` is for a device worker that shares no memory with its device: :meth:`~.backend.Lane.infer` and copies."""
    from .feeds import Feed

    arrays, last = [], []
    for bound in inputs:
        bound.memory.sync_from_device()
        spec = bound.spec
        arrays.append(bound.memory.array()[: spec.nbytes].view(spec.dtype.storage).reshape(spec.memory_shape))
        last.append(spec.layout is Layout.NHWC)
    types = [bound.spec.dtype.storage for bound in outputs]
    results = lane.infer(Feed(arrays, last, 0), range(len(outputs)), types, timeout, _NoMarks())
    for bound, result in zip(outputs, results, strict=True):
        data = np.ascontiguousarray(result).reshape(-1).view(np.uint8)
        bound.memory.array()[: data.size] = data
        bound.memory.sync_to_device()


class _NoMarks:
    written = 0
    ran = 0


def _read(kind: Any, data: bytes) -> Any:
    """A message of the server."""
    try:
        return kind.FromString(data)
    except _optional.protobuf("message").DecodeError:
        raise ServeError("the server's answer cannot be read", hint="is it a server of the Open Inference Protocol?") from None


def _in_layout(array: Array, last: bool, layout: str) -> Array:
    """An image in the order of axes that the server takes."""
    if array.ndim != 4 or layout == "any" or last == (layout == "nhwc"):
        return array
    return np.ascontiguousarray(array.transpose(0, 3, 1, 2) if last else array.transpose(0, 2, 3, 1))


def _spec(tensor: Any) -> TensorSpec:
    """A tensor of a server that reports no more than the protocol asks."""
    storage = DATATYPES.get(tensor.datatype)
    shape = tuple(tensor.shape)
    if storage is None or any(extent < 0 for extent in shape[1:]):
        raise ServeError(
            f"tensor '{tensor.name}' is {tensor.datatype} of shape {list(shape)}",
            hint="sessions take tensors of numbers with fixed shapes",
        )
    dtype = DType.BFLOAT16 if tensor.datatype == "BF16" else DType(storage.newbyteorder("=").name)
    return TensorSpec(tensor.name, tuple(max(1, extent) for extent in shape), dtype, Layout.row_major(len(shape)))


def _check_output_types(outputs: Sequence[TensorSpec], options: SessionOptions) -> None:
    """Servers give values: quantized values of a quantized output are not available."""
    asked = options.output_type
    for spec in outputs:
        kind = asked.get(spec.name, "float32") if isinstance(asked, Mapping) else asked
        if spec.quantization is not None and not kind.startswith("float"):
            raise OptionError(
                f"output '{spec.name}' comes from the server as values, not as {kind}",
                hint="ask for a float type, or leave output_type out",
            )
