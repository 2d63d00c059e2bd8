"""Values in memory of the caller's choice: arrays of this process (``cpu``), or memory of the device.

A value owns its memory, or borrows an array, pointer or descriptor; one that was made for a session keeps that session alive. It has no
lock: who writes it while a run uses it gets what he asked for.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._util.types import Array
from ..errors import FeedError, FeedNameError, FeedShapeError, FeedTypeError
from ..npu.memory import Buffer
from ..program import convert
from ..tensor import DType, Layout, TensorSpec
from ..vendors import registry
from .backend import Memory
from .feeds import channels_last
from .nodes import byte_strides, type_string

if TYPE_CHECKING:
    from .session import InferenceSession


# Memory of this machine, as a binding wants it.


class HostMemory:
    """A buffer that no device needs to know: either both sides see the same memory, or calls copy it."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self.nbytes = buffer.size
        self.address = buffer.address
        self.fd = buffer.fd
        self.offset = buffer.offset

    def array(self) -> npt.NDArray[np.uint8]:
        """The bytes, shared."""
        return self._buffer.array(np.uint8)

    def sync_to_device(self) -> None:
        """Nothing to do."""

    def sync_from_device(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Give it back."""
        self._buffer.close()


VALUES = (DType.FLOAT32, DType.FLOAT16, DType.UINT8)
FORMATS = {Layout.NCHW: 0, Layout.NHWC: 1, Layout.NC1HWC2: 2, Layout.PLAIN: 3}
"""Layouts by the number that RKNN calls have for them."""
DLPACK_CPU = 1
"""DLPack's number for the memory of this process."""


class OrtValue:
    """A tensor in memory. Made by the three ``ortvalue_from_...`` functions.

    >>> value = OrtValue.ortvalue_from_numpy(np.zeros((1, 3), np.float32))
    >>> value.shape(), value.element_type(), value.device_name()
    ([1, 3], 'tensor(float)', 'cpu')

    :param device: what ``device_name`` states: as the caller asked for it
    :param last: show an image with its channels last, as the session does
    :param generic: device memory that was made for no session
    """

    def __init__(
        self,
        spec: TensorSpec,
        *,
        array: Array | None = None,
        memory: Memory | None = None,
        owner: object = None,
        device: str = "npu",
        last: bool = False,
        generic: bool = False,
    ) -> None:
        self._spec = spec
        self._array = array
        self._memory = memory
        self._owner = owner  # keeps the session that the memory belongs to
        self._device = "cpu" if memory is None else device
        self._last = last and len(spec.shape) == 4
        self._generic = generic

    @classmethod
    def ortvalue_from_numpy(
        cls,
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
        if is_cpu(device_type):
            return cls(plain(array.shape, dtype_of(array.dtype)), array=array)
        session, spec = _port(session, name, io_kind, "ortvalue_from_numpy")
        kind = dtype_of(array.dtype)
        if (io_kind or "input") == "input" and layout == "onnx" and kind in VALUES:
            target = value_spec(spec, kind)
        else:
            target = spec
        last = session._layout_last and io_kind != "output"
        memory = session._backend.allocate(target.nbytes)
        value = cls(target, memory=memory, owner=session, device=device_named(device_type), last=last)
        value._write(array, sync)
        return value

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
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

        On the device without *session* it is memory that others can map, in the order of *shape*: an output can be bound to it.

        :param shape: as the session shows it; must be that of the input or output
        :param layout: ``native`` for the input's or output's own type and order, ``onnx`` for values of *element_type*
        """
        kind = dtype_of(element_type)
        if is_cpu(device_type):
            return cls(plain(tuple(shape), kind), array=np.zeros(tuple(shape), kind.storage))
        device = device_named(device_type)
        if session is None and name is None:
            spec = plain(tuple(shape), kind)
            return cls(spec, memory=HostMemory(Buffer.allocate(max(1, spec.nbytes))), device=device, generic=True)
        session, spec = _port(session, name, io_kind, "ortvalue_from_shape_and_type")
        last = session._layout_last and io_kind != "output"
        check_shape(tuple(shape), spec, last, io_kind or "input")
        target = _fitting(spec, kind, layout, io_kind or "input")
        return cls(target, memory=session._backend.allocate(target.nbytes), owner=session, device=device, last=last)

    @classmethod
    def ortvalue_from_dmabuf(
        cls,
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
        """A value in another owner's memory: a dma-buf of a camera, a memfd. The descriptor is duplicated; the caller may close his.

        :param size: bytes from *offset* on
        :param virt_addr: where byte 0 of the descriptor is mapped already; left out, it is mapped here
        """
        kind = dtype_of(element_type)
        last = session is not None and session._layout_last and io_kind != "output"
        if session is None:
            spec = plain(tuple(shape), kind)
            memory: Memory = HostMemory(Buffer.from_fd(fd, size, offset))
        else:
            _, port = _port(session, name, io_kind, "ortvalue_from_dmabuf")
            check_shape(tuple(shape), port, last, io_kind or "input")
            spec = _fitting(port, kind, layout if kind is port.dtype else "onnx", io_kind or "input")
            memory = session._backend.import_fd(fd, size, offset, virt_addr or 0)
        if spec.nbytes > size:
            memory.close()
            raise FeedShapeError(
                f"the value takes {spec.nbytes} bytes, the memory has {size}",
                hint="give a larger buffer, or another shape or type",
            )
        return cls(spec, memory=memory, owner=session, last=last)

    @classmethod
    def from_dlpack(cls, data: Any, is_bool_tensor: bool = False) -> OrtValue:
        """A value on ``cpu`` in the memory of another library's tensor, or of a DLPack capsule.

        :param is_bool_tensor: the bytes are truth values, which older DLPack has no type for
        """
        array = np.from_dlpack(data if hasattr(data, "__dlpack__") else _Capsule(data))
        if np.lib.NumpyVersion(np.__version__) < "2.0.0" and array.flags.c_contiguous:
            array = _writable(array)
        return cls.ortvalue_from_numpy(array.view(np.bool_) if is_bool_tensor and array.dtype.itemsize == 1 else array)

    def __dlpack__(self, **options: Any) -> Any:
        """The contents for another library: the memory itself on ``cpu``, a copy from the device."""
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (DLPACK_CPU, 0)

    def shape(self) -> list[int]:
        """As the session shows it: for an input, in the order of its layout."""
        return list(channels_last(self._spec.shape) if self._last else self._spec.shape)

    def element_type(self) -> str:
        """As onnxruntime writes it."""
        return type_string(self._spec.dtype)

    def data_type(self) -> str:
        """As onnxruntime writes it, for example ``tensor(float)``."""
        return type_string(self._spec.dtype)

    def tensor_size_in_bytes(self) -> int:
        """Bytes of the elements, without padding."""
        return self._spec.dtype.nbytes(math.prod(self._spec.shape))

    def device_name(self) -> str:
        """``cpu``, or the device's memory by the name that the caller used: ``npu``, ``rknpu2`` ..."""
        return self._device

    def device_type(self) -> str:
        """The same as :meth:`device_name`."""
        return self._device

    def device_id(self) -> int:
        return 0

    def has_value(self) -> bool:
        return True

    def is_tensor(self) -> bool:
        return True

    def is_sparse_tensor(self) -> bool:
        return False

    def is_tensor_sequence(self) -> bool:
        return False

    def data_ptr(self) -> int:
        """The address of the first byte, in this process."""
        if self._memory is not None:
            return self._memory.address
        return int(self._held().ctypes.data)

    def numpy(self, dtype: npt.DTypeLike | None = None) -> Array:
        """The contents in the order of :meth:`shape`: the array itself on ``cpu``, a new one from device memory.

        :param dtype: None for the value's own type (quantized values, where it is quantized), ``float32`` for values
        """
        if self._memory is None:
            array = self._held()
            return array if dtype is None else array.astype(dtype, copy=False)
        self._memory.sync_from_device()
        spec = self._spec
        order = Layout.row_major(len(spec.shape)) if spec.layout is not Layout.PLAIN else Layout.PLAIN
        if self._last and spec.layout is not Layout.PLAIN:
            order = Layout.NHWC
        if dtype is None:
            target = TensorSpec(spec.name, spec.shape, spec.dtype, order, spec.quantization)
        else:
            target = TensorSpec(spec.name, spec.shape, dtype_of(dtype), order)
        return convert.convert(stored(self._memory, spec), spec, target)

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
        self._write(array, sync=True)

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
        info: dict[str, Any] = {"device_type": self._device, "device_id": 0}
        memory, spec = self._memory, self._spec
        if memory is not None:
            image = spec.layout is not Layout.PLAIN
            info |= {
                "size": memory.nbytes,
                "fd": memory.fd,
                "offset": memory.offset,
                "virt_addr": memory.address,
                "import_count": int(self._owner is not None),
                "dmabuf_backed": memory.fd >= 0,
                "attr_size": spec.dtype.nbytes(math.prod(spec.memory_shape)),
                "size_with_stride": spec.nbytes,
                "w_stride": spec.w_stride or (spec.shape[-1] if image and len(spec.shape) == 4 else 0),
                "h_stride": spec.h_stride,
                "fmt": FORMATS[spec.layout],
                "pass_through": spec.layout is Layout.NC1HWC2 or spec.quantization is not None,
                "aligned_size": memory.nbytes,
                "core_id": -1,
                "layout": spec.layout.value.upper() if image else "UNDEFINED",
                "strides": byte_strides(spec.memory_shape, spec),
            }
        return info

    def _held(self) -> Array:
        assert self._array is not None
        return self._array

    def _write(self, array: Array, sync: bool) -> None:
        memory, spec = self._memory, self._spec
        assert memory is not None
        write_array(memory, spec, array, self._last)
        if sync:
            memory.sync_to_device()


def write_array(memory: Memory, spec: TensorSpec, array: Array, last: bool) -> None:
    """Put an array into device memory in one pass."""
    check_shape(array.shape, spec, last)
    kind = dtype_of(array.dtype)
    order = Layout.NHWC if last and len(spec.shape) == 4 else Layout.row_major(len(spec.shape))
    if spec.layout is Layout.PLAIN:
        order = Layout.PLAIN
    codes = spec.quantization if kind is spec.dtype else None
    source = TensorSpec(spec.name, spec.shape, kind, order, codes)
    convert.convert(np.ascontiguousarray(array), source, spec, out=stored(memory, spec))


def stored(memory: Memory, spec: TensorSpec) -> Array:
    """The bytes of a tensor."""
    return memory.array()[: spec.nbytes]


def value_spec(spec: TensorSpec, kind: DType) -> TensorSpec:
    """An input's memory if it holds values of *kind* instead of quantized values: the device converts them."""
    layout = Layout.NHWC if len(spec.shape) == 4 else Layout.PLAIN
    return TensorSpec(spec.name, spec.shape, kind, layout, w_stride=spec.w_stride if layout is spec.layout else 0)


def _fitting(spec: TensorSpec, kind: DType, layout: str, io_kind: str) -> TensorSpec:
    """The memory of a value of *kind* for an input or output."""
    if kind is spec.dtype and (layout == "native" or spec.quantization is None):
        return spec
    values = io_kind == "input" and kind in VALUES
    if values and layout == "onnx":
        return value_spec(spec, kind)
    more = ", or pass layout='onnx': the device converts the values" if values else ""
    raise type_mismatch(spec, kind, io_kind, f"ask for {spec.dtype.value}{more}")


def type_mismatch(spec: TensorSpec, kind: DType, io_kind: str, hint: str) -> FeedTypeError:
    """The error for a value of another type than the device's."""
    return FeedTypeError(
        f"OrtValue for {io_kind} '{spec.name}' element type mismatch: it is {spec.dtype.value} on the device, not {kind.value}",
        hint=hint,
    )


def _port(
    session: InferenceSession | None, name: str | None, io_kind: str | None, call: str
) -> tuple[InferenceSession, TensorSpec]:
    if session is None or name is None:
        raise FeedError(
            f"{call} on the device needs session and name", hint="they describe type and layout; or use device_type='cpu'"
        )
    kind = io_kind or "input"
    if kind not in ("input", "output"):
        raise FeedError(f"io_kind must be 'input' or 'output', got {io_kind!r}", hint="leave it out for an input")
    backend = session._backend
    return session, named(backend.native_inputs if kind == "input" else backend.native_outputs, name, kind)


def named(specs: Sequence[TensorSpec], name: str, kind: str) -> TensorSpec:
    """The input or output of that name."""
    for spec in specs:
        if spec.name == name:
            return spec
    raise FeedNameError(f"there is no {kind} '{name}'", hint=f"the model has: {', '.join(spec.name for spec in specs)}")


def check_shape(shape: tuple[int, ...], spec: TensorSpec, last: bool, io_kind: str = "input") -> None:
    """Reject a value of another shape."""
    shown = channels_last(spec.shape) if last else spec.shape
    if shape != shown:
        raise FeedShapeError(
            f"OrtValue for {io_kind} '{spec.name}' shape mismatch: it takes {list(shown)}, got {list(shape)}",
            hint="reshape or transpose it",
        )


def _writable(array: Array) -> Array:
    """The memory of *array*, to be written to.

    numpy 1 takes writable memory only from DLPack, calls it read-only all the same, and then does not pass it on.
    """
    memory = (ctypes.c_char * array.nbytes).from_address(array.ctypes.data)
    memory.owner = array  # type: ignore[attr-defined]  # keeps it
    shared: Array = np.ndarray(array.shape, array.dtype, memoryview(memory))
    return shared


class _Capsule:
    """A bare DLPack capsule as something that numpy takes."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (DLPACK_CPU, 0)


def plain(shape: tuple[int, ...], kind: DType) -> TensorSpec:
    """A tensor without a place in a model."""
    return TensorSpec("", tuple(shape), kind)


def dtype_of(kind: object) -> DType:
    """An element type from numpy's or onnxruntime's name."""
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


def is_cpu(device_type: str) -> bool:
    """Whether a device type means the memory of this process."""
    return device_named(device_type) == "cpu"


def device_named(device_type: str) -> str:
    """The name of a device's memory, if there is such a device."""
    name = str(device_type).lower()
    names = ("npu", *(name for vendor in registry.all_vendors() for name in vendor.memory_names))  # they mean the same
    if name == "cpu" or name in names:
        return name
    raise FeedError(f"there is no device {device_type!r}", hint=f"use one of: cpu, {', '.join(names)}")


def at_address(address: int, shape: tuple[int, ...], kind: DType) -> Array:
    """Memory of this process as an array."""
    size = kind.nbytes(math.prod(shape))
    memory = (ctypes.c_ubyte * size).from_address(address)
    array: Array = np.frombuffer(memoryview(memory), kind.storage).reshape(shape)
    return array
