"""A session's backend on the VIPLite calls: the vendor's library or the software NPU.

A device worker is one network with buffers of its own. Each input is converted once, into the buffer that the NPU reads, and each output
once, into the array that the user gets. Runs on bound memory set the caller's buffers in the place of the device worker's, for that run.

What an array means: values, as for every session. Where the model states what was done to its images (mean and std), that is done
here, unless a node inside the network does it. A ``.nb`` of the vendor's compiler does not state: there uint8 for a uint8 input is
taken as the network's codes.

Who owns what: the backend owns its first network, which its first device worker uses and which the others are duplicated from; it stays
while a backend that shares its weights is open (see :mod:`anynpu.vendors.libraries`).

Threads: see :mod:`anynpu.session.backend`. On V85x, which cannot duplicate, each device worker loads the model again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import chips, modelfile
from .._util.types import Array
from .._vip import ffi
from ..chips import Chip
from ..errors import (
    AnynpuError,
    CallFailed,
    DeviceMemoryError,
    DeviceTimeout,
    OptionError,
    UnsupportedCall,
)
from ..modelfile.recognize import FileKind, identify
from ..npu import Buffer as HostBuffer
from ..program import Model, Preprocess
from ..program.convert import Conversion
from ..session import Bound, Feed, Marks, Memory, SessionOptions
from ..tensor import DType, Layout, TensorSpec, round_up
from ..vendors.devices import board_chip
from ..vendors.libraries import Lender, session_errors
from .buffer import ALIGNMENT, Buffer, create_params
from .constants import (
    vip_buffer_format_e,
    vip_buffer_operation_type_e,
    vip_buffer_quantize_format_e,
    vip_network_property_e,
)
from .info import TensorInfo
from .interface import VipLibrary
from .library import check, open_library
from .network import Network
from .table import VENDOR

_FLUSH = int(vip_buffer_operation_type_e.VIP_BUFFER_OPER_TYPE_FLUSH)
_INVALIDATE = int(vip_buffer_operation_type_e.VIP_BUFFER_OPER_TYPE_INVALIDATE)


def open_backend(
    model: str | PathLike[str] | bytes,
    options: SessionOptions,
    device: str | VipLibrary | None = None,
    weights_from: object = None,
) -> VipBackend:
    """The backend of a session for *model*."""
    if options.family not in ("", VENDOR.name):
        raise OptionError(
            f"Provider/model mismatch: requested {options.provider}, which is for models of another family than VIPLite",
            hint="leave providers out, or name VIPLiteExecutionProvider",
        )
    if weights_from is not None and not isinstance(weights_from, VipBackend):
        raise OptionError("weights can be shared between VIPLite sessions only", hint="leave use_weight_from out")
    with session_errors():
        return VipBackend(model, device, weights_from)


class VipBackend(Lender[Network]):
    """One model on one VIPLite device."""

    provider = VENDOR.providers[0]
    library: VipLibrary

    def __init__(
        self, model: str | PathLike[str] | bytes, device: str | VipLibrary | None, weights_from: VipBackend | None
    ) -> None:
        if device is None and weights_from is not None:
            device = weights_from.library
        super().__init__(weights_from)
        self.library = open_library(device)
        self._model = model
        self._open_root(self._new_network, self._describe)

    def _describe(self) -> None:
        chip = self._chip()
        compiled = self._compiled()
        self.chip = chip.name
        self.cores = chip.cores
        self.core_masks: tuple[int, ...] = ()
        self.lanes_on_demand = self.library.lanes_on_demand
        self.description = self.library.words(chip)
        self.input_ports = tuple(_InputPort(info, compiled) for info in self._root.inputs)
        self.output_infos = self._root.outputs
        self.inputs = tuple(port.logical for port in self.input_ports)
        self.outputs = tuple(info.spec for info in self.output_infos)
        self.native_inputs = tuple(port.native for port in self.input_ports)
        self.native_outputs = self.outputs
        self.shape_sets: tuple[tuple[tuple[int, ...], ...], ...] = ()
        text = "" if compiled is None else compiled.custom_string
        more = {} if compiled is None or compiled.metadata is None else compiled.metadata.entries()
        self.metadata: Mapping[str, str] = {**more, **({"rknn_custom_string": text} if text else {})}

    def _chip(self) -> Chip:
        known = self.library.chip_of(self._root.handle)
        if known is not None:
            return known
        name = board_chip()
        if name is None:
            number = self._root.hardware.customer_id
            name = next((chip.name for chip in chips.all_chips() if chip.vip and chip.vip.customer_id == number), "t527")
        return chips.get(name)

    def _compiled(self) -> Model | None:
        """The model itself, where it is one of ours."""
        known = self.library.model_of(self._root.handle)
        if known is not None:
            return known
        return modelfile.read(self._model) if identify(self._model) is FileKind.ANYNPU else None

    # for the session

    def open_lane(self, mask: int) -> VipLane:
        """A new network; there is one core, so *mask* chooses nothing."""
        del mask
        return VipLane(self, self._root if self._take_root() else self._another_network())

    def allocate(self, nbytes: int) -> VipMemory:
        """Memory of the device."""
        return VipMemory(self.library, Buffer.allocate(self.library, _bytes_info(max(1, nbytes))))

    def import_fd(self, fd: int, nbytes: int, offset: int, address: int = 0) -> VipMemory:
        """Another owner's memory. VIPLite takes whole multiples of 64 bytes, from the beginning of a descriptor or from an
        address."""
        info = _bytes_info(nbytes)
        if not offset and not nbytes % ALIGNMENT:
            return VipMemory(self.library, Buffer.from_fd(self.library, info, fd, nbytes))
        own = HostBuffer.from_fd(fd, nbytes, offset)
        rounded = round_up(nbytes, ALIGNMENT)  # a mapping has whole pages
        start = own.address
        if start % ALIGNMENT:
            raise DeviceMemoryError(
                f"byte {offset} of the descriptor is no multiple of {ALIGNMENT}, where memory for a VIP begins",
                hint=f"lay the tensors out at multiples of {ALIGNMENT} bytes",
            )
        pointer = ffi.cast("void *", start)
        call = "vip_create_buffer_from_handle"
        buffer = Buffer(self.library, info, call, create_params(info), pointer, rounded, keep=own)
        return VipMemory(self.library, buffer, offset=offset, fd=own.fd)

    def _new_network(self) -> Network:
        lender = self._lender
        if lender is None:
            return Network(self._model, device=self.library)
        return lender._root.duplicate(model=self._model)

    def _another_network(self) -> Network:
        try:
            return self._root.duplicate()
        except UnsupportedCall:  # V85x cannot
            return self._new_network()


class VipMemory:
    """A buffer, for OrtValues."""

    def __init__(self, library: VipLibrary, buffer: Buffer, *, offset: int = 0, fd: int | None = None) -> None:
        self.buffer = buffer
        self._library = library
        self._offset = offset
        self._fd = fd

    @property
    def nbytes(self) -> int:
        return self.buffer.size

    @property
    def address(self) -> int:
        return self.buffer.address

    @property
    def fd(self) -> int:
        return self._library.fd_of(self.buffer.handle) if self._fd is None else self._fd

    @property
    def offset(self) -> int:
        return self._offset

    def array(self) -> npt.NDArray[np.uint8]:
        """The bytes, shared."""
        return self.buffer.bytes()

    def sync_to_device(self) -> None:
        """Make what the host wrote visible to the device."""
        self.buffer.flush()

    def sync_from_device(self) -> None:
        """Make what the device wrote visible to the host."""
        self.buffer.invalidate()

    def close(self) -> None:
        """Give it back."""
        self.buffer.close()


class _InputPort:
    """An input: how a session sees it, how it lies in memory, and the ways from one to the other."""

    def __init__(self, info: TensorInfo, compiled: Model | None) -> None:
        self.info = info
        picture = _is_picture(info)
        spec = info.spec
        if picture:
            n, h, w, c = info.shape
            self.native = TensorSpec(info.name, (n, c, h, w), DType.UINT8, Layout.NHWC)
        else:
            self.native = spec
        self.logical = replace(self.native, layout=Layout.row_major(len(self.native.shape)))
        self.preprocess: Preprocess | None = None
        if compiled is not None and not picture:
            self.preprocess = compiled.preprocess.get(info.name)
        self._bytes_are_codes = compiled is None and spec.dtype is DType.UINT8
        self._conversions: dict[tuple[int, bool], Conversion] = {}

    def conversion(self, array: Array, last: bool) -> Conversion:
        """From an array to the buffer."""
        key = (array.dtype.num, last)
        known = self._conversions.get(key)
        if known is None:
            known = self._conversions[key] = self._make(DType(array.dtype.name), last)
        return known

    def _make(self, kind: DType, last: bool) -> Conversion:
        native = self.native
        layout = Layout.NHWC if last else Layout.row_major(len(native.shape))
        own = kind is native.dtype and (kind is not DType.UINT8 or self._bytes_are_codes) and native.quantization is not None
        source = TensorSpec(native.name, native.shape, kind, layout, native.quantization if own else None)
        values = native.quantization is not None or native.dtype.is_float
        return Conversion(source, native, self.preprocess if values and not own else None)


class VipLane:
    """One network of a session."""

    def __init__(self, backend: VipBackend, network: Network) -> None:
        self.backend = backend
        self.network = network
        self._library = backend.library
        self._handle = network.handle
        self._inputs = [network.bind_input(port.info.index) for port in backend.input_ports]
        self._outputs = [network.bind_output(info.index) for info in backend.output_infos]
        self._addresses = [buffer.address for buffer in (*self._inputs, *self._outputs)]
        self._handles = [buffer.handle for buffer in (*self._inputs, *self._outputs)]
        self._shapes = [info.shape for info in backend.output_infos]
        self._own_bound = True
        self._timeout_ms = 0
        self._running = False
        self._conversions: dict[tuple[int, str], tuple[Conversion, np.dtype[Any]]] = {}

    def infer(
        self, feed: Feed, wanted: Sequence[int], types: Sequence[np.dtype[Any]], timeout: float | None, marks: Marks
    ) -> list[Array]:
        """Inputs, run, outputs."""
        if not self._own_bound:
            self._bind(self._inputs, self._outputs)
            self._own_bound = True
        addresses, handles = self._addresses, self._handles
        flush = self._library.vip_flush_buffer
        for index, port in enumerate(self.backend.input_ports):
            array = feed.arrays[index]
            port.conversion(array, feed.nhwc[index]).run(array.__array_interface__["data"][0], addresses[index])
            if status := flush(handles[index], _FLUSH):
                self._check("vip_flush_buffer", status)
        marks.written = time.perf_counter_ns()
        self._run(timeout)
        marks.ran = time.perf_counter_ns()
        results = []
        first = len(self._inputs)
        for index, kind in zip(wanted, types, strict=True):
            if status := flush(handles[first + index], _INVALIDATE):
                self._check("vip_flush_buffer", status)
            known = self._conversions.get((index, kind.char))
            conversion, storage = known if known is not None else self._reading(index, kind)
            result = np.empty(self._shapes[index], storage)
            conversion.run(addresses[first + index], result.__array_interface__["data"][0])
            results.append(result if storage == kind else result.astype(kind))
        return results

    def run_bound(self, inputs: Sequence[Bound], outputs: Sequence[Bound], timeout: float | None) -> None:
        """Execute on memory of the caller."""
        chosen = []
        for index, (bound, port) in enumerate(zip(inputs, self.backend.input_ports, strict=True)):
            if bound.spec == port.native or _same_bytes(bound.spec, port.native):
                chosen.append(_buffer_of(bound.memory))
                continue
            values = bound.memory.array()[: bound.spec.nbytes].view(bound.spec.dtype.storage)
            last = bound.spec.layout is Layout.NHWC
            port.conversion(values, last).run(bound.memory.address, self._addresses[index])
            self._inputs[index].flush()
            chosen.append(self._inputs[index])
        self._own_bound = False
        self._bind(chosen, [_buffer_of(bound.memory) for bound in outputs])
        self._run(timeout)

    def cancel(self) -> bool:
        """Stop the run, where the library can."""
        return self._running and self._library.cancel(self._handle)

    def abandon(self) -> None:
        """Nothing waits for a device worker's network: duplicates are made from the backend's first one, which only reads it."""

    def close(self) -> None:
        """Destroy the device worker's network and its buffers."""
        if self.backend.is_root(self.network):
            for buffer in (*self._inputs, *self._outputs):
                buffer.close()
        else:
            self.network.close()

    def _reading(self, index: int, kind: np.dtype[Any]) -> tuple[Conversion, np.dtype[Any]]:
        spec = self.backend.output_infos[index].spec
        as_values = kind != spec.dtype.storage and (spec.quantization is not None or spec.dtype.is_float)
        target = TensorSpec(spec.name, spec.shape, DType.FLOAT32, spec.layout) if as_values else spec
        known = self._conversions[index, kind.char] = (Conversion(spec, target), target.dtype.storage)
        return known

    def _bind(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        library, handle = self._library, self._handle
        for index, buffer in enumerate(inputs):
            self._check("vip_set_input", library.vip_set_input(handle, index, buffer.handle))
        for index, buffer in enumerate(outputs):
            self._check("vip_set_output", library.vip_set_output(handle, index, buffer.handle))

    def _run(self, timeout: float | None) -> None:
        library = self._library
        milliseconds = 0 if timeout is None else max(1, round(timeout * 1000))
        if (
            milliseconds != self._timeout_ms
            and vip_network_property_e.VIP_NETWORK_PROP_SET_TIME_OUT in library.generation.network_properties
        ):
            value = ffi.new("uint32_t *", milliseconds)
            property = int(vip_network_property_e.VIP_NETWORK_PROP_SET_TIME_OUT)
            self._check("vip_set_network", library.vip_set_network(self._handle, property, value))
            self._timeout_ms = milliseconds
        self._running = True
        try:
            status = library.vip_run_network(self._handle)
        finally:
            self._running = False
        if status:
            self._check("vip_run_network", status)

    def _check(self, call: str, status: int) -> None:
        """Errors as a session raises them: always a RuntimeError, unless it is about time."""
        try:
            check(self._library, call, status)
        except (RuntimeError, DeviceTimeout):
            raise
        except AnynpuError as error:
            raise CallFailed(
                error.message, hint=error.hint, code=error.code, call=error.call, code_name=error.code_name
            ) from None


def _is_picture(info: TensorInfo) -> bool:
    """Whether a pre-process node takes the input: bytes that stand for themselves, with channels last."""
    none = info.quant_format == vip_buffer_quantize_format_e.VIP_BUFFER_QUANTIZE_NONE
    return none and info.data_format == vip_buffer_format_e.VIP_BUFFER_FORMAT_UINT8 and len(info.dims) == 4 and info.dims[0] == 3


def _same_bytes(spec: TensorSpec, native: TensorSpec) -> bool:
    """Whether memory that holds one is memory that holds the other."""
    plain = {spec.layout, native.layout} <= {Layout.PLAIN, Layout.NCHW}
    return (
        spec.dtype is native.dtype
        and spec.memory_shape == native.memory_shape
        and spec.quantization == native.quantization
        and (spec.layout is native.layout or plain)
    )


def _buffer_of(memory: Memory) -> Buffer:
    if not isinstance(memory, VipMemory):
        raise DeviceMemoryError("the memory belongs to another device", hint="make it with the session that uses it")
    return memory.buffer


def _bytes_info(size: int) -> TensorInfo:
    """Memory that is just bytes."""
    plain = vip_buffer_quantize_format_e.VIP_BUFFER_QUANTIZE_NONE
    return TensorInfo(0, "memory", (size,), vip_buffer_format_e.VIP_BUFFER_FORMAT_UINT8, plain, 0, 1.0, 0)
