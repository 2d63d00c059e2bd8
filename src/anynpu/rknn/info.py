"""What queries answer, as Python objects."""

from __future__ import annotations

import enum
import math
import struct as binary
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from .._rknn import ffi
from ..chips import Chip
from ..errors import ShapeError, TensorTypeError, UnsupportedCall
from ..program.arithmetic import affine_from_range
from ..tensor import Affine, DType, DynamicFixedPoint, Layout, Quantization, TensorSpec, round_up
from .constants import RKNN_MAX_DIMS, RKNN_MAX_NAME_LEN, rknn_tensor_format, rknn_tensor_qnt_type, rknn_tensor_type

# What the attribute queries of ``rknn_query`` answer, as pure functions of a program's tensor and a chip.
#
# A caller sees a tensor in one of three views: in the general order of axes, as the NPU reads or writes it, or as NHWC. Each view
# is a :class:`TensorAttr`: the values of a ``rknn_tensor_attr``, and as ``spec`` the memory that they describe. That memory is the
# caller's; where it differs from the tensor of the program, :func:`anynpu.program.convert.convert` goes from one to the other.
#
# What the caller's memory never shows, whatever the program has:
#
# * float32: a float tensor of the program is float16 for the caller, as a chip delivers it.
# * Scales by group of channels: the interface has space for one scale. The compiler gives none to inputs and outputs; a program that has
#   them all the same is shown with one scale that covers all groups, and its bytes are converted to that.
# * uint64 and four bits without a sign, which the interface does not know: they are shown as int64 and uint8.
#
# What boards were seen to report, and documents state:
#
# * A tensor without quantization is ``AFFINE`` with zero point 0 and scale 1.0, not ``NONE``. It was seen for float16; integers and
#   booleans follow it here.
# * ``w_stride`` is filled for every input of rank 4 and 0 for outputs. Rows of 1, 3 or 4 channels are padded to the chip's alignment.
# * ``size_with_stride`` of an NCHW output is what the chip's own rearranging needs as space: channels are rounded up to the channel block
#   and the width to its alignment. The bytes the caller gets are dense, so ``size`` is enough for them. NHWC outputs are dense, and their
#   ``size_with_stride`` reports it: no log of a board shows anything else, and programs allocate what it states.
# * ``RKNN_QUERY_NATIVE_NHWC_INPUT_ATTR`` of an image is uint8 with librknnmrt: clients bind its answer as it is and write the bytes of
#   their image. The other queries show the codes.
# * Codes in NC1HWC2 leave a convolution with their channels padded to ``Chip.channel_alignment``; floats, and inputs, only to whole blocks.
#
# Concurrency: nothing here changes after it was made.


DTYPE_OF: Mapping[rknn_tensor_type, DType] = MappingProxyType(
    {
        rknn_tensor_type.RKNN_TENSOR_FLOAT32: DType.FLOAT32,
        rknn_tensor_type.RKNN_TENSOR_FLOAT16: DType.FLOAT16,
        rknn_tensor_type.RKNN_TENSOR_INT8: DType.INT8,
        rknn_tensor_type.RKNN_TENSOR_UINT8: DType.UINT8,
        rknn_tensor_type.RKNN_TENSOR_INT16: DType.INT16,
        rknn_tensor_type.RKNN_TENSOR_UINT16: DType.UINT16,
        rknn_tensor_type.RKNN_TENSOR_INT32: DType.INT32,
        rknn_tensor_type.RKNN_TENSOR_UINT32: DType.UINT32,
        rknn_tensor_type.RKNN_TENSOR_INT64: DType.INT64,
        rknn_tensor_type.RKNN_TENSOR_BOOL: DType.BOOL,
        rknn_tensor_type.RKNN_TENSOR_INT4: DType.INT4,
        rknn_tensor_type.RKNN_TENSOR_BFLOAT16: DType.BFLOAT16,
    }
)
"""The element type behind each type of the interface."""

TYPE_OF: Mapping[DType, rknn_tensor_type] = MappingProxyType({dtype: kind for kind, dtype in DTYPE_OF.items()})
"""The interface's type for an element type; uint64 and uint4 have none."""

_SHOWN_AS = {DType.FLOAT32: DType.FLOAT16, DType.UINT64: DType.INT64, DType.UINT4: DType.UINT8}
_NPU_TYPES = (DType.INT8, DType.UINT8, DType.INT16, DType.FLOAT16, DType.BFLOAT16)
"""What the NPU reads and writes itself; all other types belong to operators on the CPU, which know no native layout."""

_PICTURE_CHANNELS = (1, 3, 4)
_FORMAT_OF = {
    Layout.PLAIN: rknn_tensor_format.RKNN_TENSOR_UNDEFINED,
    Layout.NCHW: rknn_tensor_format.RKNN_TENSOR_NCHW,
    Layout.NHWC: rknn_tensor_format.RKNN_TENSOR_NHWC,
    Layout.NC1HWC2: rknn_tensor_format.RKNN_TENSOR_NC1HWC2,
}
_LAYOUT_OF = {fmt: layout for layout, fmt in _FORMAT_OF.items()}

_STRUCT = binary.Struct(f"=2I{RKNN_MAX_DIMS}I{RKNN_MAX_NAME_LEN}s2I3ib3xif2IB3xI")
"""``rknn_tensor_attr``, field by field."""

_MAX_SIZE = 2**32 - 1


class View(enum.Enum):
    """How a query shows a tensor."""

    LOGICAL = "logical"
    """``RKNN_QUERY_INPUT_ATTR`` and ``RKNN_QUERY_OUTPUT_ATTR``"""
    NATIVE = "native"
    """``RKNN_QUERY_NATIVE_INPUT_ATTR`` and ``RKNN_QUERY_NATIVE_OUTPUT_ATTR``, which also have ``NC1HWC2`` in another name"""
    NHWC = "nhwc"
    """``RKNN_QUERY_NATIVE_NHWC_INPUT_ATTR`` and ``RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR``"""


@dataclass(frozen=True)
class TensorAttr:
    """The values of a ``rknn_tensor_attr``.

    :ivar dims: sizes in the order of ``fmt``, without the zeros behind them
    :ivar spec: the memory that these attributes describe. For an input it has the padding that ``w_stride`` states, which memory of
        ``rknn_set_io_mem`` has; buffers of ``rknn_inputs_set`` have none. Outputs are dense
    """

    index: int
    dims: tuple[int, ...]
    name: str
    n_elems: int
    size: int
    fmt: rknn_tensor_format
    type: rknn_tensor_type
    qnt_type: rknn_tensor_qnt_type
    fl: int
    zp: int
    scale: float
    w_stride: int
    size_with_stride: int
    pass_through: int
    h_stride: int
    spec: TensorSpec
    _image: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.dims) > RKNN_MAX_DIMS:
            raise ShapeError(
                f"'{self.name}' has {len(self.dims)} axes, the RKNN interface has space for {RKNN_MAX_DIMS}",
                hint="reshape it inside the model",
            )
        if self.size_with_stride > _MAX_SIZE:
            raise ShapeError(
                f"'{self.name}' takes {self.size_with_stride} bytes, the RKNN interface counts to {_MAX_SIZE}",
                hint="compile the model for smaller shapes",
            )
        # a name that is cut must not end within a character
        name = self.name.encode()[: RKNN_MAX_NAME_LEN - 1].decode(errors="ignore").encode()
        image = _STRUCT.pack(
            self.index,
            len(self.dims),
            *self.dims,
            *(0,) * (RKNN_MAX_DIMS - len(self.dims)),
            name,
            self.n_elems,
            self.size,
            self.fmt,
            self.type,
            self.qnt_type,
            self.fl,
            self.zp,
            self.scale,
            self.w_stride,
            self.size_with_stride,
            self.pass_through,
            self.h_stride,
        )
        object.__setattr__(self, "_image", image)


def fill(attr: TensorAttr, struct: Any) -> None:
    """Write *attr* into a ``rknn_tensor_attr *``: every byte, so that unused sizes and the rest of the name are zero."""
    ffi.memmove(struct, attr._image, _STRUCT.size)


def input_attr(spec: TensorSpec, chip: Chip, index: int, view: View) -> TensorAttr:
    """What a query for input *index*, the program's tensor *spec*, answers on *chip*.

    librknnmrt has no general order of axes: there the logical view is the native one. An input that is not of rank 4 looks the same
    in every view.

    >>> from anynpu import chips
    >>> from anynpu.tensor import Affine
    >>> image = TensorSpec("images", (1, 3, 640, 640), DType.INT8, Layout.NHWC, Affine.per_tensor(1 / 255, -128))
    >>> attr = input_attr(image, chips.get("rk3588"), 0, View.LOGICAL)
    >>> attr.dims, attr.fmt.name, attr.w_stride
    ((1, 640, 640, 3), 'RKNN_TENSOR_NHWC', 640)
    """
    shown = _shown(spec)
    if view is View.LOGICAL and chip.library == "librknnmrt":
        view = View.NATIVE
    if len(spec.shape) != 4:
        size = shown.nbytes
        return _attr(index, shown, size_with_stride=round_up(size, chip.input_width_alignment["int8"]))
    memory = _native_input(shown, chip) if view is View.NATIVE else _picture(shown, chip)
    if view is View.NHWC and chip.library == "librknnmrt" and shown.shape[1] in _PICTURE_CHANNELS and shown.dtype is DType.INT8:
        memory = _as_bytes(memory)
    return _attr(index, memory, w_stride=memory.w_stride or spec.shape[3], size_with_stride=memory.nbytes)


def output_attr(spec: TensorSpec, chip: Chip, index: int, view: View) -> TensorAttr:
    """What a query for output *index*, the program's tensor *spec*, answers on *chip*.

    Where the view does not exist it raises: :class:`UnsupportedCall` on a chip that has no NHWC outputs, :class:`ShapeError` for
    NHWC of a tensor that is not of rank 4. librknnmrt answers the latter with the tensor as it is.

    >>> from anynpu import chips
    >>> from anynpu.tensor import Affine
    >>> boxes = TensorSpec("boxes", (1, 80, 20, 20), DType.INT8, Layout.NHWC, Affine.per_tensor(0.1, 3))
    >>> output_attr(boxes, chips.get("rk3588"), 0, View.NATIVE).dims
    (1, 6, 20, 20, 16)
    >>> output_attr(boxes, chips.get("rk3588"), 0, View.LOGICAL).size_with_stride
    51200
    """
    shown = _shown(spec)
    if view is View.NHWC:
        return _nhwc_output(shown, chip, index)
    if len(spec.shape) != 4:
        return _attr(index, shown, size_with_stride=shown.nbytes)
    if view is View.NATIVE:
        memory = _native_output(shown, chip)
        return _attr(index, memory, size_with_stride=memory.nbytes)
    n, c, h, w = spec.shape
    if shown.dtype in _NPU_TYPES:
        c, w = round_up(c, _by_type(chip.channel_block, shown.dtype)), round_up(w, _width_alignment(chip, shown.dtype))
    return _attr(index, shown, size_with_stride=shown.dtype.nbytes(n * c * h * w))


def memory_spec(
    spec: TensorSpec,
    chip: Chip,
    *,
    fmt: int,
    type: int,
    dims: Sequence[int],
    w_stride: int,
    h_stride: int,
    is_input: bool,
    pass_through: bool,
) -> TensorSpec:
    """What memory bound with ``rknn_set_io_mem`` holds, from the fields of the caller's attributes.

    Callers query an attribute and change some fields, not always all that belong together: a changed ``fmt`` often comes with the
    sizes of the old one. So *dims* decides nothing; it only has to be the shape of the tensor in one of its orders, or be empty.

    * The tensor's own type is codes, or values where it is not quantized. Another type is numbers: an input still needs mean, std and
      quantization (which codes and *pass_through* never do), an output is dequantized.
    * librknnrt takes uint8 and float32 for inputs that the NPU reads, librknnmrt uint8; both take float32 and float16 for outputs.
    * *w_stride* and *h_stride* count for inputs: 0 is no padding, and *h_stride* matters between images of a batch only.
    * NC1HWC2 for an input is what it states with *pass_through* alone. Without it the CPU rearranges, and the memory is NHWC (librknnrt).

    :param spec: the program's tensor
    :raises TensorTypeError: for a type that the tensor does not take
    :raises ShapeError: for a layout, sizes or strides that do not fit
    """
    shown = _shown(spec)
    fmt, dtype = _known_format(fmt, spec), _known_type(type, spec)
    if len(spec.shape) != 4:
        native = shown
    else:
        native = _native_input(shown, chip) if is_input else _native_output(shown, chip)
    dtype = _accepted_type(dtype, shown, chip, is_input=is_input, pass_through=pass_through)
    _check_dims(dims, shown, native)
    layout = _accepted_layout(_LAYOUT_OF[fmt], native, chip, is_input=is_input, pass_through=pass_through)
    memory = replace(shown, layout=layout, dtype=dtype, quantization=shown.quantization if dtype is shown.dtype else None)
    if layout is Layout.NC1HWC2:
        memory = replace(memory, c1=native.c1, c2=native.c2)
    return _with_strides(memory, w_stride, h_stride) if is_input and len(spec.shape) == 4 else memory


# the caller's side of a tensor


def _shown(spec: TensorSpec) -> TensorSpec:
    """The tensor as the interface can show it: one scale, a known type, dense in row-major order."""
    dtype = _SHOWN_AS.get(spec.dtype, spec.dtype)
    return TensorSpec(spec.name, spec.shape, dtype, Layout.row_major(len(spec.shape)), _single_scale(spec))


def _single_scale(spec: TensorSpec) -> Quantization | None:
    quantization = spec.quantization
    if quantization is None or spec.dtype.is_float or quantization.is_per_tensor:
        return None if spec.dtype.is_float else quantization
    first, last = spec.dtype.limits
    scales, zeros = (values.astype(np.float64) for values in quantization.expand(spec.channels))
    return affine_from_range(float(np.min((first - zeros) * scales)), float(np.max((last - zeros) * scales)), spec.dtype)


def _picture(shown: TensorSpec, chip: Chip) -> TensorSpec:
    """An input as NHWC, with the padding of rows that the chip wants."""
    width, stride = shown.shape[3], 0
    if shown.shape[1] in _PICTURE_CHANNELS and shown.dtype in _NPU_TYPES:
        stride = round_up(width, _width_alignment(chip, shown.dtype))
    return replace(shown, layout=Layout.NHWC, w_stride=stride if stride > width else 0)


def _as_bytes(picture: TensorSpec) -> TensorSpec:
    """An image of int8 values as the bytes that they stand for."""
    quantization = picture.quantization
    shifted = None if quantization is None else Affine.per_tensor(quantization.scale, quantization.zero_point + 128)
    return replace(picture, dtype=DType.UINT8, quantization=shifted)


def _native_input(shown: TensorSpec, chip: Chip) -> TensorSpec:
    if shown.dtype not in _NPU_TYPES:
        return shown
    if shown.shape[1] in _PICTURE_CHANNELS:
        return _picture(shown, chip)
    block = _by_type(chip.channel_block, shown.dtype)
    return replace(shown, layout=Layout.NC1HWC2, c2=block, c1=-(-shown.shape[1] // block))


def _native_output(shown: TensorSpec, chip: Chip) -> TensorSpec:
    if shown.dtype not in _NPU_TYPES:
        return shown
    block = _by_type(chip.channel_block, shown.dtype)
    alignment = block if shown.quantization is None else _by_type(chip.channel_alignment, shown.dtype)
    return replace(shown, layout=Layout.NC1HWC2, c2=block, c1=round_up(shown.shape[1], alignment) // block)


def _nhwc_output(shown: TensorSpec, chip: Chip, index: int) -> TensorAttr:
    if not _has_nhwc_outputs(chip):
        raise UnsupportedCall(
            f"{chip.name} has no NHWC outputs, so there is no such attribute of '{shown.name}'",
            hint="query RKNN_QUERY_NATIVE_OUTPUT_ATTR",
            call="RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR",
        )
    if len(shown.shape) != 4 and chip.library == "librknnmrt":
        return _attr(index, shown, size_with_stride=shown.nbytes)  # programs for these chips ask for nothing else
    if len(shown.shape) != 4:
        raise ShapeError(
            f"output '{shown.name}' of shape {list(shown.shape)} has no NHWC form: that is for 4 axes",
            hint="query RKNN_QUERY_NATIVE_OUTPUT_ATTR",
            call="RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR",
        )
    return _attr(index, replace(shown, layout=Layout.NHWC), size_with_stride=shown.nbytes)


def _has_nhwc_outputs(chip: Chip) -> bool:
    return chip.queries["RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR"]


def _attr(index: int, memory: TensorSpec, *, size_with_stride: int, w_stride: int = 0) -> TensorAttr:
    dims = replace(memory, w_stride=0, h_stride=0).memory_shape
    quantization = memory.quantization
    fixed_point = isinstance(quantization, DynamicFixedPoint)
    kind = rknn_tensor_qnt_type.RKNN_TENSOR_QNT_DFP if fixed_point else rknn_tensor_qnt_type.RKNN_TENSOR_QNT_AFFINE_ASYMMETRIC
    elements = math.prod(dims)
    return TensorAttr(
        index=index,
        dims=dims,
        name=memory.name,
        n_elems=elements,
        size=memory.dtype.nbytes(elements),
        fmt=_FORMAT_OF[memory.layout],
        type=TYPE_OF[memory.dtype],
        qnt_type=kind,
        fl=quantization.fraction_bits if isinstance(quantization, DynamicFixedPoint) else 0,
        zp=0 if quantization is None else quantization.zero_point,
        scale=1.0 if quantization is None else float(np.float32(quantization.scale)),
        w_stride=w_stride,
        size_with_stride=size_with_stride,
        pass_through=0,
        h_stride=0,
        spec=memory,
    )


def _by_type(values: Mapping[str, int], dtype: DType) -> int:
    """An entry of the catalogue; a type without one has as many bytes as int8."""
    return values.get(dtype.value) or max(1, values["int8"] * 8 // dtype.bits)


def _width_alignment(chip: Chip, dtype: DType) -> int:
    return _by_type(chip.input_width_alignment, dtype)


# what a caller may make of it


def _known_format(fmt: int, spec: TensorSpec) -> rknn_tensor_format:
    try:
        known = rknn_tensor_format(fmt)
    except ValueError:
        known = rknn_tensor_format.RKNN_TENSOR_FORMAT_MAX
    if known not in _LAYOUT_OF:
        raise ShapeError(f"the memory of '{spec.name}' has fmt {fmt}, which is no format", hint="keep what the query filled in")
    return known


def _known_type(kind: int, spec: TensorSpec) -> DType:
    try:
        return DTYPE_OF[rknn_tensor_type(kind)]
    except (KeyError, ValueError):
        raise TensorTypeError(
            f"the memory of '{spec.name}' has the unknown tensor type {kind}", hint="keep what the query filled in"
        ) from None


def _accepted_type(dtype: DType, shown: TensorSpec, chip: Chip, *, is_input: bool, pass_through: bool) -> DType:
    if is_input and pass_through:
        if dtype.bits == shown.dtype.bits:
            return shown.dtype  # the bytes go to the NPU as they are, whatever they are called
        accepted = [shown.dtype]
    elif is_input:
        accepted = [shown.dtype]
        if shown.dtype in _NPU_TYPES:
            accepted += [DType.UINT8] if chip.library == "librknnmrt" else [DType.UINT8, DType.FLOAT32]
    else:
        accepted = [shown.dtype, DType.FLOAT16, DType.FLOAT32]
    if dtype not in accepted:
        names = ", ".join(dict.fromkeys(TYPE_OF[entry].name for entry in accepted))
        role = "input" if is_input else "output"
        raise TensorTypeError(
            f"{role} '{shown.name}' is {shown.dtype.value}; {chip.library} does not take {dtype.value} memory for it"
            + (" with pass_through" if is_input and pass_through else ""),
            hint=f"set type to one of: {names}",
        )
    return dtype


def _check_dims(dims: Sequence[int], shown: TensorSpec, native: TensorSpec) -> None:
    given = tuple(dims)
    known = [shown.shape, replace(native, w_stride=0).memory_shape]
    if len(shown.shape) == 4:
        known.append(replace(shown, layout=Layout.NHWC).memory_shape)
    if given and given not in known:
        raise ShapeError(
            f"the memory of '{shown.name}' is described as {list(given)}, the tensor is {list(shown.shape)}",
            hint="pass the dims that the query filled in; rknn_set_input_shapes changes the shape of a dynamic model",
        )


def _accepted_layout(layout: Layout, native: TensorSpec, chip: Chip, *, is_input: bool, pass_through: bool) -> Layout:
    role = "input" if is_input else "output"
    mini = chip.library == "librknnmrt"
    if len(native.shape) != 4:
        if layout is Layout.NC1HWC2:
            raise ShapeError(
                f"{role} '{native.name}' of shape {list(native.shape)} has no NC1HWC2 form: that is for 4 axes",
                hint="set fmt to RKNN_TENSOR_UNDEFINED",
            )
        return native.layout  # without 4 axes a format changes nothing
    taken = {Layout.NCHW, Layout.NHWC, native.layout}
    if is_input and pass_through:
        taken = {native.layout}
    elif is_input and mini:
        taken.discard(Layout.NCHW)
        taken.add(native.layout)
    elif not is_input and not _has_nhwc_outputs(chip):
        taken.discard(Layout.NHWC)
    if layout not in taken:
        names = ", ".join(sorted(_FORMAT_OF[entry].name for entry in taken))
        raise ShapeError(
            f"{role} '{native.name}' does not take {_FORMAT_OF[layout].name} memory on {chip.name}"
            + (" with pass_through" if is_input and pass_through else ""),
            hint=f"set fmt to one of: {names}",
        )
    if layout is Layout.NC1HWC2 and is_input and not pass_through and not mini:
        return Layout.NHWC
    return layout


def _with_strides(memory: TensorSpec, w_stride: int, h_stride: int) -> TensorSpec:
    n, _, h, w = memory.shape
    for name, stride, extent in (("w_stride", w_stride, w), ("h_stride", h_stride, h)):
        if stride and stride < extent:
            raise ShapeError(
                f"the memory of input '{memory.name}' has {name} {stride}, an image has {extent}",
                hint=f"set {name} to what the query filled in, or to 0 for no padding",
            )
    return replace(memory, w_stride=w_stride if w_stride > w else 0, h_stride=h_stride if h_stride > h and n > 1 else 0)


@dataclass(frozen=True)
class TensorInfo:
    """The attributes of an input or output.

    :ivar shape: its sizes in the order of ``fmt``
    :ivar elements: how many, padding of channel blocks included
    :ivar size: bytes without the padding of rows; ``size_with_stride`` with it
    :ivar w_stride: stored pixels of a row; 0 where that does not apply
    """

    index: int
    name: str
    shape: tuple[int, ...]
    elements: int
    size: int
    fmt: rknn_tensor_format
    type: rknn_tensor_type
    qnt_type: rknn_tensor_qnt_type
    fl: int
    zp: int
    scale: float
    w_stride: int
    size_with_stride: int
    h_stride: int

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The numpy type of an element; bfloat16 and int4 are held as raw bits."""
        return DTYPE_OF[self.type].storage

    @property
    def n_elems(self) -> int:
        """``elements`` under the interface's name."""
        return self.elements

    @property
    def format(self) -> rknn_tensor_format:
        """``fmt``, in full."""
        return self.fmt

    @property
    def data_type(self) -> rknn_tensor_type:
        """``type``, in full."""
        return self.type

    @property
    def layout(self) -> str:
        """``nchw``, ``nhwc``, ``nc1hwc2`` or ``undefined``."""
        return self.fmt.name.removeprefix("RKNN_TENSOR_").lower()


@dataclass(frozen=True)
class MemorySizes:
    """What a model needs and what the chip has, in bytes."""

    weights: int
    internal: int
    allocated: int
    sram: int
    sram_free: int


@dataclass(frozen=True)
class ShapeRange:
    """The shapes that an input may have."""

    index: int
    name: str
    fmt: rknn_tensor_format
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Version:
    """Of library and driver, as they state it."""

    api: str
    driver: str


def read_attr(struct: Any) -> TensorInfo:
    """From a ``rknn_tensor_attr``."""
    return TensorInfo(
        index=struct.index,
        name=ffi.string(struct.name).decode("utf-8", "replace"),
        shape=tuple(struct.dims[0 : struct.n_dims]),
        elements=struct.n_elems,
        size=struct.size,
        fmt=rknn_tensor_format(struct.fmt),
        type=rknn_tensor_type(struct.type),
        qnt_type=rknn_tensor_qnt_type(struct.qnt_type),
        fl=struct.fl,
        zp=struct.zp,
        scale=struct.scale,
        w_stride=struct.w_stride,
        size_with_stride=struct.size_with_stride,
        h_stride=struct.h_stride,
    )


def write_attr(info: TensorInfo, *, pass_through: bool = False) -> Any:
    """A ``rknn_tensor_attr *`` with these values."""
    struct = ffi.new("rknn_tensor_attr *")
    struct.index, struct.n_dims = info.index, len(info.shape)
    for axis, extent in enumerate(info.shape):
        struct.dims[axis] = extent
    struct.name = info.name.encode()[:255]
    struct.n_elems, struct.size = info.elements, info.size
    struct.fmt, struct.type, struct.qnt_type = int(info.fmt), int(info.type), int(info.qnt_type)
    struct.fl, struct.zp, struct.scale = info.fl, info.zp, info.scale
    struct.w_stride, struct.size_with_stride, struct.h_stride = info.w_stride, info.size_with_stride, info.h_stride
    struct.pass_through = pass_through
    return struct
