"""Values in memory of the caller's choice, and runs that use them where they lie.

An :class:`OrtValue` is an array of this process (``cpu``) or memory of the device. An :class:`IOBinding` ties values to the inputs and
outputs of a session; a run on it copies nothing that is on the device already: the context reads and writes the bound memory.

Ownership: a value owns its memory, or borrows an array, pointer or descriptor. A binding keeps its session and its values alive. A
binding belongs to one run at a time: a second one, while the first has not finished, is refused. ``_busy`` says so; it changes under
the binding's lock, which is never held while anything runs.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import convert
from ..errors import FeedError, FeedNameError, FeedShapeError, FeedTypeError, SessionError
from ..npu.memory import Buffer
from ..tensor import DType, Layout, TensorSpec
from .backend import Bound, Lane, Memory
from .nodes import type_string

if TYPE_CHECKING:
    from .session import InferenceSession

__all__ = ["IOBinding", "OrtValue"]

Array = npt.NDArray[Any]

DEVICES = ("npu", "rknpu2", "vip")
"""Names for the device's memory; they mean the same."""

_VALUES = (DType.FLOAT32, DType.FLOAT16, DType.UINT8)


class _MappedMemory:
    """Memory behind a descriptor, before any device knows it."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self.nbytes = buffer.size
        self.address = buffer.address
        self.fd = buffer.fd
        self.offset = buffer.offset

    def array(self) -> npt.NDArray[np.uint8]:
        return self._buffer.array(np.uint8)

    def sync_to_device(self) -> None:
        """Nothing to do: both sides see the same memory."""

    def sync_from_device(self) -> None:
        """Nothing to do: both sides see the same memory."""

    def close(self) -> None:
        self._buffer.close()


class OrtValue:
    """A tensor in memory. Made by the three ``ortvalue_from_...`` functions.

    >>> value = OrtValue.ortvalue_from_numpy(np.zeros((1, 3), np.float32))
    >>> value.shape(), value.element_type(), value.device_name()
    ([1, 3], 'tensor(float)', 'cpu')
    """

    def __init__(
        self, spec: TensorSpec, *, array: Array | None = None, memory: Memory | None = None, owner: object = None
    ) -> None:
        self._spec = spec
        self._array = array
        self._memory = memory
        self._owner = owner  # keeps the session that the memory belongs to

    @staticmethod
    def ortvalue_from_numpy(
        arr: Array,
        device_type: str = "cpu",
        device_id: int = 0,
        *,
        name: str | None = None,
        session: InferenceSession | None = None,
        io_kind: str | None = None,
        layout: str = "onnx",
        sync: bool = True,
    ) -> OrtValue:
        """A value with the contents of an array: the array itself on ``cpu``, a copy in device memory on ``npu``.

        :param name: input or output of *session* that the value is meant for
        :param io_kind: ``input`` (default) or ``output``
        :param layout: ``onnx``: the device gets values as they are and converts them itself; ``native``: they are converted to the
            input's own type first
        :param sync: make the contents visible to the device at once
        """
        array = np.asarray(arr)
        if _is_cpu(device_type):
            return OrtValue(_plain(array.shape, _dtype(array.dtype)), array=array)
        session, spec = _port(session, name, io_kind, "ortvalue_from_numpy")
        kind = _dtype(array.dtype)
        if (io_kind or "input") == "input" and layout == "onnx" and kind in _VALUES:
            target = _value_spec(spec, kind)
        else:
            target = spec
        value = OrtValue(target, memory=session._backend.allocate(target.nbytes), owner=session)
        value._write(array, session._layout_last, sync)
        return value

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int],
        element_type: object,
        device_type: str = "cpu",
        device_id: int = 0,
        *,
        name: str | None = None,
        session: InferenceSession | None = None,
        io_kind: str | None = None,
        layout: str = "native",
        mem_flags: str | int = "cacheable",
    ) -> OrtValue:
        """A value with memory of its own, filled with zeros.

        :param shape: as the session shows it; must be that of the input or output
        :param layout: ``native`` for the input's or output's own type and order, ``onnx`` for values of *element_type*
        """
        kind = _dtype(element_type)
        if _is_cpu(device_type):
            return OrtValue(_plain(tuple(shape), kind), array=np.zeros(tuple(shape), kind.storage))
        session, spec = _port(session, name, io_kind, "ortvalue_from_shape_and_type")
        target = _fitting(spec, kind, layout, io_kind or "input")
        _check_shape(tuple(shape), target, session._layout_last)
        return OrtValue(target, memory=session._backend.allocate(target.nbytes), owner=session)

    @staticmethod
    def ortvalue_from_dmabuf(
        fd: int,
        shape: Sequence[int],
        element_type: object,
        *,
        size: int,
        offset: int = 0,
        virt_addr: int | None = None,
        session: InferenceSession | None = None,
        name: str | None = None,
        io_kind: str | None = None,
        layout: str = "native",
    ) -> OrtValue:
        """A value in somebody else's memory: a dma-buf of a camera, a memfd. The descriptor is duplicated; the caller may close his.

        :param size: bytes from *offset* on
        :param virt_addr: where byte 0 of the descriptor is mapped already; left out, it is mapped here
        """
        kind = _dtype(element_type)
        if session is None:
            spec = _plain(tuple(shape), kind)
            memory: Memory = _MappedMemory(Buffer.from_fd(fd, size, offset))
        else:
            _, port = _port(session, name, io_kind, "ortvalue_from_dmabuf")
            spec = _fitting(port, kind, layout, io_kind or "input")
            _check_shape(tuple(shape), spec, session._layout_last)
            memory = session._backend.import_fd(fd, size, offset, virt_addr or 0)
        if spec.nbytes > size:
            memory.close()
            raise FeedShapeError(
                f"the value takes {spec.nbytes} bytes, the memory has {size}",
                hint="give a larger buffer, or another shape or type",
            )
        return OrtValue(spec, memory=memory, owner=session)

    def shape(self) -> list[int]:
        """In the order of the model."""
        return list(self._spec.shape)

    def element_type(self) -> str:
        """As onnxruntime writes it."""
        return type_string(self._spec.dtype)

    def device_name(self) -> str:
        """``cpu`` or ``npu``."""
        return "cpu" if self._memory is None else "npu"

    device_type = device_name

    def device_id(self) -> int:
        return 0

    def has_value(self) -> bool:
        return True

    def is_tensor(self) -> bool:
        return True

    def data_ptr(self) -> int:
        """The address of the first byte, in this process."""
        if self._memory is not None:
            return self._memory.address
        return int(self._held().ctypes.data)

    def numpy(self, dtype: npt.DTypeLike = None) -> Array:
        """The contents in the model's order of axes: the array itself on ``cpu``, a new one from device memory.

        :param dtype: None for the value's own type (codes, where it is quantised), ``float32`` for values
        """
        if self._memory is None:
            array = self._held()
            return array if dtype is None else array.astype(dtype, copy=False)
        self._memory.sync_from_device()
        spec = self._spec
        order = Layout.row_major(len(spec.shape)) if spec.layout is not Layout.PLAIN else Layout.PLAIN
        if dtype is None:
            target = TensorSpec(spec.name, spec.shape, spec.dtype, order, spec.quantization)
        else:
            target = TensorSpec(spec.name, spec.shape, _dtype(dtype), order)
        return convert.convert(_stored(self._memory, spec), spec, target)

    def update_inplace(self, np_arr: Array) -> None:
        """Put the contents of an array into the value's memory, converted in one pass."""
        array = np.asarray(np_arr)
        if self._memory is None:
            held = self._held()
            if array.shape != held.shape:
                raise FeedShapeError(
                    f"the value has shape {list(held.shape)}, the array {list(array.shape)}", hint="make them equal"
                )
            np.copyto(held, array, casting="same_kind")
            return
        session = self._owner
        self._write(array, getattr(session, "_layout_last", False), sync=True)

    def sync_to_device(self) -> None:
        """Make what the host wrote visible to the device."""
        if self._memory is not None:
            self._memory.sync_to_device()

    def sync_from_device(self) -> None:
        """Make what the device wrote visible to the host."""
        if self._memory is not None:
            self._memory.sync_from_device()

    def memory_info(self) -> dict[str, Any]:
        """Where the value lies and how."""
        info: dict[str, Any] = {"device_type": self.device_name(), "device_id": 0}
        memory, spec = self._memory, self._spec
        if memory is not None:
            info |= {
                "size": memory.nbytes,
                "fd": memory.fd,
                "offset": memory.offset,
                "virt_addr": memory.address,
                "dmabuf_backed": memory.fd >= 0,
                "attr_size": spec.nbytes,
                "w_stride": spec.w_stride or (spec.shape[-1] if len(spec.shape) == 4 else 0),
                "fmt": "UNDEFINED" if spec.layout is Layout.PLAIN else spec.layout.value.upper(),
                "pass_through": spec.quantization is not None,
            }
        return info

    def _held(self) -> Array:
        assert self._array is not None
        return self._array

    def _write(self, array: Array, last: bool, sync: bool) -> None:
        memory, spec = self._memory, self._spec
        assert memory is not None
        _write(memory, spec, array, last)
        if sync:
            memory.sync_to_device()


class IOBinding:
    """Ties values to the inputs and outputs of a session. Made by ``session.io_binding()``."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._busy = False
        self._inputs: dict[str, OrtValue] = {}
        self._outputs: dict[str, OrtValue] = {}
        self._own: dict[str, OrtValue] = {}  # device memory behind inputs and outputs on the host

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """Read an input from an array; each run converts what the array holds then."""
        spec = self._input(name)
        array = np.asarray(arr_on_cpu)
        _check_shape(array.shape, spec, self._session._layout_last)
        self._bind(self._inputs, name, OrtValue.ortvalue_from_numpy(array))

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: object, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Read an input from host memory at an address."""
        if not _is_cpu(device_type):
            raise FeedError(
                "device memory cannot be bound by its address", hint="use OrtValue.ortvalue_from_dmabuf and bind_ortvalue_input"
            )
        self.bind_cpu_input(name, _at_address(buffer_ptr, tuple(shape), _dtype(element_type)))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Read an input from a value: in place if it is on the device."""
        spec = self._input(name)
        held = ortvalue._spec
        if ortvalue._memory is None:
            self.bind_cpu_input(name, ortvalue._held())
            return
        self._bind(self._inputs, name, OrtValue(self._understood(held, spec, "input"), memory=ortvalue._memory, owner=ortvalue))

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: object = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
        *,
        layout: str = "native",
        mem_flags: str | int = "cacheable",
    ) -> None:
        """Have an output put into new memory: of this process, or of the device.

        :param element_type: of an output on ``cpu``; by default as ``run`` gives it
        :param buffer_ptr: address of host memory to put it into
        """
        spec = self._output(name)
        session = self._session
        kind = session._types[session._output_numbers[name]] if element_type is None else _dtype(element_type).storage
        if shape is not None and tuple(shape) != spec.shape:
            raise FeedShapeError(f"output '{name}' has shape {list(spec.shape)}, not {list(shape)}", hint="leave the shape out")
        if _is_cpu(device_type):
            if buffer_ptr is None:
                array = np.zeros(spec.shape, kind)
            else:
                array = _at_address(buffer_ptr, spec.shape, _dtype(kind))
            value = OrtValue(_plain(spec.shape, _dtype(kind)), array=array)
        elif buffer_ptr is not None:
            raise FeedError("device memory cannot be bound by its address", hint="use OrtValue.ortvalue_from_dmabuf")
        else:
            value = OrtValue(spec, memory=session._backend.allocate(spec.nbytes), owner=session)
        self._bind(self._outputs, name, value)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Have an output put into a value: in place if it is on the device."""
        spec = self._output(name)
        if ortvalue._memory is None:
            held = ortvalue._held()
            if held.shape != spec.shape or not held.flags.c_contiguous or not held.flags.writeable:
                raise FeedShapeError(
                    f"output '{name}' has shape {list(spec.shape)}, the value {list(held.shape)}",
                    hint="bind a contiguous, writable array of that shape",
                )
            self._bind(self._outputs, name, ortvalue)
            return
        held_spec = self._understood(ortvalue._spec, spec, "output")
        self._bind(self._outputs, name, OrtValue(held_spec, memory=ortvalue._memory, owner=ortvalue))

    def clear_binding_inputs(self) -> None:
        """Let go of all inputs."""
        with self._lock:
            self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Let go of all outputs."""
        with self._lock:
            self._outputs.clear()

    def synchronize_inputs(self) -> None:
        """Make bound inputs visible to the device."""
        for value in self._inputs.values():
            value.sync_to_device()

    def synchronize_outputs(self) -> None:
        """Make bound outputs visible to the host."""
        for value in self._outputs.values():
            value.sync_from_device()

    def get_outputs(self) -> list[OrtValue]:
        """The values of the outputs, in the order of the model; those that nobody bound, after a run."""
        return [self._outputs[spec.name] for spec in self._session._backend.outputs if spec.name in self._outputs]

    def copy_outputs_to_cpu(self) -> list[Array]:
        """The outputs as arrays, in the order of the model."""
        return [value.numpy() for value in self.get_outputs()]

    # -- for the session

    def begin(self) -> _BoundRun:
        """Take hold of the binding for one run."""
        session = self._session
        backend = session._backend
        missing = [spec.name for spec in backend.inputs if spec.name not in self._inputs]
        if missing:
            raise FeedNameError(
                f"all model inputs must be bound before run_with_iobinding; '{missing[0]}' is not",
                hint="bind_cpu_input or bind_ortvalue_input",
            )
        for spec in backend.outputs:
            if spec.name not in self._outputs:
                self.bind_output(spec.name)
        with self._lock:
            if self._busy:
                raise SessionError(
                    "this binding is in a run that has not finished", hint="use one binding for each request in flight"
                )
            self._busy = True
        try:
            return _BoundRun(self)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Let the next run have the binding."""
        with self._lock:
            self._busy = False

    def device_value(self, name: str, spec: TensorSpec, kind: str) -> OrtValue:
        """Device memory of the binding's own, for an input or output that is on the host."""
        key = f"{kind} {name}"
        value = self._own.get(key)
        if value is None or value._spec != spec:
            value = OrtValue(spec, memory=self._session._backend.allocate(spec.nbytes), owner=self._session)
            self._own[key] = value
        return value

    def _bind(self, values: dict[str, OrtValue], name: str, value: OrtValue) -> None:
        with self._lock:
            if self._busy:
                raise SessionError(
                    "this binding is in a run that has not finished", hint="use one binding for each request in flight"
                )
            values[name] = value

    def _input(self, name: str) -> TensorSpec:
        return _named(self._session._backend.native_inputs, name, "input")

    def _output(self, name: str) -> TensorSpec:
        return _named(self._session._backend.native_outputs, name, "output")

    def _understood(self, held: TensorSpec, spec: TensorSpec, kind: str) -> TensorSpec:
        """What the memory of a value means for an input or output: a value without a place of its own is taken as one that has it."""
        if held.name:
            if held.name != spec.name:
                raise FeedNameError(f"the value was made for '{held.name}', not for '{spec.name}'", hint="make one for each")
            return held
        if kind == "input" and held.dtype in _VALUES and held.dtype is not spec.dtype:
            target = _value_spec(spec, held.dtype)
        else:
            target = spec
        if held.dtype is not target.dtype:
            raise FeedTypeError(
                f"{kind} '{spec.name}' is {target.dtype.value}, the value {held.dtype.value}", hint="use its type"
            )
        if math.prod(held.shape) != math.prod(target.memory_shape):
            raise FeedShapeError(
                f"{kind} '{spec.name}' takes {list(target.memory_shape)} in memory, the value has {list(held.shape)}",
                hint="get_native_inputs() and get_native_outputs() tell the shapes in memory",
            )
        return target


class _BoundRun:
    """What a lane executes for a binding: host arrays in, the run, host arrays out."""

    def __init__(self, binding: IOBinding) -> None:
        backend = binding._session._backend
        last = binding._session._layout_last
        self._copies_in: list[tuple[Memory, TensorSpec, Array, bool]] = []
        self._copies_out: list[tuple[Memory, TensorSpec, Array]] = []
        self._inputs: list[Bound] = []
        self._outputs: list[Bound] = []
        for spec in backend.native_inputs:
            value = binding._inputs[spec.name]
            if value._memory is None:
                array = value._held()
                kind = _dtype(array.dtype)
                held = _value_spec(spec, kind) if kind in _VALUES and kind is not spec.dtype else spec
                device = binding.device_value(spec.name, held, "input")
                assert device._memory is not None
                self._copies_in.append((device._memory, held, array, last))
                value = device
            assert value._memory is not None
            self._inputs.append(Bound(value._memory, value._spec))
        for spec in backend.native_outputs:
            value = binding._outputs[spec.name]
            if value._memory is None:
                device = binding.device_value(spec.name, spec, "output")
                assert device._memory is not None
                self._copies_out.append((device._memory, spec, value._held()))
                value = device
            assert value._memory is not None
            self._outputs.append(Bound(value._memory, value._spec))

    def __call__(self, lane: Lane, timeout: float | None) -> None:
        for memory, spec, array, last in self._copies_in:
            _write(memory, spec, array, last)
            memory.sync_to_device()
        lane.run_bound(self._inputs, self._outputs, timeout)
        for memory, spec, array in self._copies_out:
            memory.sync_from_device()
            order = Layout.PLAIN if spec.layout is Layout.PLAIN else Layout.NCHW
            kind = _dtype(array.dtype)
            codes = spec.quantization if kind is spec.dtype else None
            convert.convert(_stored(memory, spec), spec, TensorSpec(spec.name, spec.shape, kind, order, codes), out=array)


def _write(memory: Memory, spec: TensorSpec, array: Array, last: bool) -> None:
    """Put an array into device memory in one pass."""
    _check_shape(array.shape, spec, last)
    kind = _dtype(array.dtype)
    order = Layout.NHWC if last and len(spec.shape) == 4 else Layout.row_major(len(spec.shape))
    if spec.layout is Layout.PLAIN:
        order = Layout.PLAIN
    codes = spec.quantization if kind is spec.dtype else None
    source = TensorSpec(spec.name, spec.shape, kind, order, codes)
    convert.convert(np.ascontiguousarray(array), source, spec, out=_stored(memory, spec))


def _stored(memory: Memory, spec: TensorSpec) -> Array:
    return memory.array()[: spec.nbytes]


def _value_spec(spec: TensorSpec, kind: DType) -> TensorSpec:
    """An input's memory if it holds values of *kind* instead of codes: the device converts them."""
    layout = Layout.NHWC if len(spec.shape) == 4 else Layout.PLAIN
    return TensorSpec(spec.name, spec.shape, kind, layout, w_stride=spec.w_stride if layout is spec.layout else 0)


def _fitting(spec: TensorSpec, kind: DType, layout: str, io_kind: str) -> TensorSpec:
    """The memory of a value of *kind* for an input or output."""
    if kind is spec.dtype and (layout == "native" or spec.quantization is None):
        return spec
    if io_kind == "input" and kind in _VALUES:
        return _value_spec(spec, kind)
    raise FeedTypeError(
        f"{io_kind} '{spec.name}' is {spec.dtype.value} on the device, not {kind.value}", hint=f"ask for {spec.dtype.value}"
    )


def _port(
    session: InferenceSession | None, name: str | None, io_kind: str | None, call: str
) -> tuple[InferenceSession, TensorSpec]:
    if session is None or name is None:
        raise FeedError(
            f"{call} on the device needs session and name", hint="they tell type and layout; or use device_type='cpu'"
        )
    kind = io_kind or "input"
    if kind not in ("input", "output"):
        raise FeedError(f"io_kind must be 'input' or 'output', got {io_kind!r}", hint="leave it out for an input")
    backend = session._backend
    return session, _named(backend.native_inputs if kind == "input" else backend.native_outputs, name, kind)


def _named(specs: Sequence[TensorSpec], name: str, kind: str) -> TensorSpec:
    for spec in specs:
        if spec.name == name:
            return spec
    raise FeedNameError(f"there is no {kind} '{name}'", hint=f"the model has: {', '.join(spec.name for spec in specs)}")


def _check_shape(shape: tuple[int, ...], spec: TensorSpec, last: bool) -> None:
    model = spec.shape
    shown = (model[0], *model[2:], model[1]) if last and len(model) == 4 else model
    if shape != shown:
        raise FeedShapeError(f"'{spec.name}' takes {list(shown)}, got {list(shape)}", hint="reshape or transpose it")


def _plain(shape: tuple[int, ...], kind: DType) -> TensorSpec:
    return TensorSpec("", tuple(shape), kind)


def _dtype(kind: object) -> DType:
    if isinstance(kind, DType):
        return kind
    if isinstance(kind, str) and kind.startswith("tensor(") and kind.endswith(")"):
        kind = kind[7:-1]
    if kind == "float":
        kind = "float32"
    try:
        return DType(np.dtype(kind).name)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise FeedTypeError(f"{kind!r} is no element type", hint="pass a numpy type such as np.float32") from None


def _is_cpu(device_type: str) -> bool:
    name = str(device_type).lower()
    if name == "cpu":
        return True
    if name in DEVICES:
        return False
    raise FeedError(f"there is no device {device_type!r}", hint=f"use one of: cpu, {', '.join(DEVICES)}")


def _at_address(address: int, shape: tuple[int, ...], kind: DType) -> Array:
    size = kind.nbytes(math.prod(shape))
    memory = (ctypes.c_ubyte * size).from_address(address)
    return np.frombuffer(memory, kind.storage).reshape(shape)
