"""What a caller sees of an input or output, and what that is as a tensor.

A program holds its tensors as the engine likes them: int8 with channels last. A caller of VIPLite sees them as the vendor's
compiler leaves them: uint8 with a zero point moved by 128 (``w8a8``), planes one after the other, and dimensions that begin with
the one whose elements lie side by side. An input with a pre-process node inside the network takes an image's bytes instead, with
channels last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..chips import Chip
from ..errors import ModelError
from ..program import Model, Preprocess
from ..tensor import Affine, DType, DynamicFixedPoint, Layout, Quantization, TensorSpec
from .constants import vip_buffer_format_e, vip_buffer_quantize_format_e

MAX_DIMENSIONS = 6
NAME_BYTES = 64
"""Of a name in the interface, the zero at its end included."""

DTYPE_OF: dict[int, DType] = {
    vip_buffer_format_e.VIP_BUFFER_FORMAT_FP32: DType.FLOAT32,
    vip_buffer_format_e.VIP_BUFFER_FORMAT_FP16: DType.FLOAT16,
    vip_buffer_format_e.VIP_BUFFER_FORMAT_UINT8: DType.UINT8,
    vip_buffer_format_e.VIP_BUFFER_FORMAT_INT8: DType.INT8,
    vip_buffer_format_e.VIP_BUFFER_FORMAT_UINT16: DType.UINT16,
    vip_buffer_format_e.VIP_BUFFER_FORMAT_INT16: DType.INT16,
    vip_buffer_format_e.VIP_BUFFER_FORMAT_BFP16: DType.BFLOAT16,
    vip_buffer_format_e.VIP_BUFFER_FORMAT_INT32: DType.INT32,
    vip_buffer_format_e.VIP_BUFFER_FORMAT_UINT32: DType.UINT32,
    vip_buffer_format_e.VIP_BUFFER_FORMAT_INT64: DType.INT64,
    vip_buffer_format_e.VIP_BUFFER_FORMAT_UINT64: DType.UINT64,
    vip_buffer_format_e.VIP_BUFFER_FORMAT_INT4: DType.INT4,
    vip_buffer_format_e.VIP_BUFFER_FORMAT_UINT4: DType.UINT4,
    vip_buffer_format_e.VIP_BUFFER_FORMAT_BOOL8: DType.BOOL,
}
"""Formats whose elements anynpu has a type for."""

_FORMAT_OF = {dtype: vip_buffer_format_e(number) for number, dtype in DTYPE_OF.items()}
_BITS = {number: dtype.bits for number, dtype in DTYPE_OF.items()} | {
    vip_buffer_format_e.VIP_BUFFER_FORMAT_CHAR: 8,
    vip_buffer_format_e.VIP_BUFFER_FORMAT_FP64: 64,
}


@dataclass(frozen=True)
class Attributes:
    """An input or output as queries show it.

    :ivar spec: what the caller's bytes are as a tensor
    :ivar dims: sizes, that of neighbors in memory first
    :ivar preprocess: what a pre-process node inside the network does to the bytes; None without such a node
    """

    spec: TensorSpec
    dims: tuple[int, ...]
    data_format: vip_buffer_format_e
    quant_format: vip_buffer_quantize_format_e
    preprocess: Preprocess | None = None

    @property
    def name(self) -> str:
        return self.spec.name.encode()[: NAME_BYTES - 1].decode("utf-8", "ignore")

    @property
    def fixed_point_pos(self) -> int:
        quantization = self.spec.quantization
        return quantization.fraction_bits if isinstance(quantization, DynamicFixedPoint) else 0

    @property
    def scale(self) -> float:
        return 1.0 if self.spec.quantization is None else self.spec.quantization.scale

    @property
    def zero_point(self) -> int:
        return 0 if self.spec.quantization is None else self.spec.quantization.zero_point

    @property
    def nbytes(self) -> int:
        """What a buffer for it has at least."""
        return buffer_bytes(self.dims, int(self.data_format))


def buffer_bytes(dims: tuple[int, ...], data_format: int) -> int:
    """Bytes of a buffer: no padding, but that rows of four-bit elements begin with a byte of their own.

    >>> buffer_bytes((5, 2, 1, 1), vip_buffer_format_e.VIP_BUFFER_FORMAT_INT4)
    6
    """
    row = -(-dims[0] * _BITS[data_format] // 8)
    return row * math.prod(dims[1:])


def input_attributes(model: Model, spec: TensorSpec, chip: Chip) -> Attributes:
    """How an input of the program is seen."""
    preprocess = model.preprocess.get(spec.name)
    if preprocess is not None and preprocess.picture:
        pixels = TensorSpec(spec.name, spec.shape, DType.UINT8, Layout.NHWC)
        return attributes_of(pixels, preprocess)
    return attributes_of(_visible(model, spec, chip))


def output_attributes(model: Model, spec: TensorSpec, chip: Chip) -> Attributes:
    """How an output of the program is seen."""
    return attributes_of(_visible(model, spec, chip))


def attributes_of(spec: TensorSpec, preprocess: Preprocess | None = None) -> Attributes:
    """The attributes of a tensor that callers see as it is."""
    dims = tuple(reversed(spec.memory_shape)) or (1,)
    if len(dims) > MAX_DIMENSIONS:
        raise ModelError(
            f"'{spec.name}' has {len(dims)} dimensions, VIPLite has at most {MAX_DIMENSIONS}", hint="reshape it inside the model"
        )
    return Attributes(spec, dims, _FORMAT_OF[spec.dtype], _quant_format(spec.quantization), preprocess)


def _quant_format(quantization: Quantization | None) -> vip_buffer_quantize_format_e:
    if quantization is None:
        return vip_buffer_quantize_format_e.VIP_BUFFER_QUANTIZE_NONE
    if isinstance(quantization, DynamicFixedPoint):
        return vip_buffer_quantize_format_e.VIP_BUFFER_QUANTIZE_DYNAMIC_FIXED_POINT
    return vip_buffer_quantize_format_e.VIP_BUFFER_QUANTIZE_TF_ASYMM


def _visible(model: Model, spec: TensorSpec, chip: Chip) -> TensorSpec:
    layout = Layout.row_major(len(spec.shape))
    if spec.dtype.is_float:
        return TensorSpec(spec.name, spec.shape, DType.BFLOAT16 if model.dtype == "bf16" else DType.FLOAT16, layout)
    if spec.quantization is None:
        plain_byte = spec.dtype is DType.BOOL and (chip.vip is None or chip.vip.software != "2.0")
        return TensorSpec(spec.name, spec.shape, DType.UINT8 if plain_byte else spec.dtype, layout)
    quantization = _one_scale(spec)
    if spec.dtype is DType.INT8 and isinstance(quantization, Affine) and model.dtype == "w8a8":
        moved = Affine.per_tensor(quantization.scale, quantization.zero_point + 128)
        return TensorSpec(spec.name, spec.shape, DType.UINT8, layout, moved)
    return TensorSpec(spec.name, spec.shape, spec.dtype, layout, quantization)


def _one_scale(spec: TensorSpec) -> Quantization:
    """The interface has space for one scale, and for 16 bits only for one that is a power of two."""
    quantization = spec.quantization
    assert quantization is not None
    if isinstance(quantization, Affine) and not quantization.is_per_tensor:
        first, last = spec.dtype.limits
        pairs = list(zip(quantization.scales, quantization.zero_points, strict=True))
        low = min(0.0, *((first - zero) * scale for scale, zero in pairs))
        high = max(0.0, *((last - zero) * scale for scale, zero in pairs))
        scale = (high - low) / (last - first) or 1.0
        quantization = Affine.per_tensor(scale, max(first, min(last, round(first - low / scale))))
    if isinstance(quantization, Affine) and spec.dtype is DType.INT16:
        return DynamicFixedPoint(math.floor(-math.log2(quantization.scale)))
    return quantization
