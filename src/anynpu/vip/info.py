"""What queries answer, as Python objects, and the way from numbers to a network's codes and back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .._util.types import Array
from .._vip import ffi
from ..errors import ShapeError, TensorTypeError, UnsupportedCall
from ..program import Model
from ..program.convert import convert
from ..tensor import Affine, DType, DynamicFixedPoint, Layout, Quantization, TensorSpec
from .attributes import DTYPE_OF, buffer_bytes
from .constants import vip_buffer_format_e, vip_buffer_property_e, vip_buffer_quantize_format_e
from .interface import VipLibrary
from .library import check


@dataclass(frozen=True)
class HardwareInfo:
    """The NPU.

    :ivar customer_id: what a model's header must state
    :ivar cores: of each device
    """

    customer_id: int
    devices: int
    cores: tuple[int, ...]


@dataclass(frozen=True)
class NetworkProfile:
    """The last run: microseconds and cycles of the NPU."""

    microseconds: int
    cycles: int


@dataclass(frozen=True)
class TensorInfo:
    """The attributes of an input or output.

    :ivar dims: its sizes as the interface has them: width, height, channels, batch
    """

    index: int
    name: str
    dims: tuple[int, ...]
    data_format: vip_buffer_format_e
    quant_format: vip_buffer_quantize_format_e
    fixed_point_pos: int
    scale: float
    zero_point: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes as numpy has them, which is the order of the ONNX model (for an image with channels last: N, H, W, C)."""
        return tuple(reversed(self.dims))

    @property
    def elements(self) -> int:
        return int(np.prod(self.dims, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Of a buffer for it."""
        return buffer_bytes(self.dims, int(self.data_format))

    @property
    def quantization(self) -> Quantization | None:
        """What a code stands for; None where elements are numbers."""
        if self.quant_format == vip_buffer_quantize_format_e.VIP_BUFFER_QUANTIZE_TF_ASYMM:
            return Affine.per_tensor(self.scale, self.zero_point)
        if self.quant_format == vip_buffer_quantize_format_e.VIP_BUFFER_QUANTIZE_DYNAMIC_FIXED_POINT:
            return DynamicFixedPoint(self.fixed_point_pos)
        return None

    @property
    def spec(self) -> TensorSpec:
        """As a tensor, in the order in which it lies in memory."""
        kind = DTYPE_OF.get(self.data_format)
        if kind is None:
            raise UnsupportedCall(
                f"'{self.name}' has elements of {self.data_format.name}", hint="bind a buffer and work on its bytes"
            )
        return TensorSpec(self.name, self.shape, kind, Layout.row_major(len(self.dims)), self.quantization)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The numpy type of an element; bfloat16 and int4 are held as raw bits."""
        return self.spec.dtype.storage

    def encode(self, values: npt.ArrayLike) -> Array:
        """*values* as the network takes them: numbers become codes; what has the network's own type stays as it is.

        float32, float64 and float16 are numbers, except that float16 is a network's own type, too.
        """
        array, spec = np.asarray(values), self.spec
        if array.shape not in (self.shape, self.shape[1:]) and array.size != self.elements:
            raise ShapeError(f"'{self.name}' takes {list(self.shape)}, got {list(array.shape)}", hint="resize or transpose it")
        if array.shape != self.shape:
            if array.ndim != 1 and array.shape != self.shape[1:]:
                raise ShapeError(
                    f"'{self.name}' takes {list(self.shape)}, got {list(array.shape)}", hint="transpose it to the network's order"
                )
            array = array.reshape(self.shape)
        if array.dtype == spec.dtype.storage:
            return np.ascontiguousarray(array)
        if array.dtype.kind == "f":
            numbers = np.ascontiguousarray(array, np.float32)
            return convert(numbers, TensorSpec(self.name, self.shape, DType.FLOAT32, spec.layout), spec)
        if array.dtype.kind in "iu" and spec.quantization is None and not spec.dtype.is_float:
            return np.ascontiguousarray(array, spec.dtype.storage)
        raise TensorTypeError(
            f"'{self.name}' is {spec.dtype.value} and does not take {array.dtype}", hint=f"pass float32, or {spec.dtype.storage}"
        )

    def decode(self, codes: Array) -> Array:
        """float32 numbers from what a network wrote; integers and booleans that are not quantized stay what they are."""
        spec = self.spec
        if spec.quantization is None and not spec.dtype.is_float:
            return np.array(codes.reshape(self.shape))
        return convert(codes, spec, TensorSpec(self.name, self.shape, DType.FLOAT32, spec.layout))


def read_info(library: VipLibrary, network: Any, index: int, *, is_input: bool) -> TensorInfo:
    """Ask a library about an input or output."""
    call = "vip_query_input" if is_input else "vip_query_output"
    ask = getattr(library, call)

    def query(property: vip_buffer_property_e, kind: str) -> Any:
        value = ffi.new(kind)
        check(library, call, ask(network, index, int(property), value))
        return value

    rank = query(vip_buffer_property_e.VIP_BUFFER_PROP_NUM_OF_DIMENSION, "uint32_t *")[0]
    dims = query(vip_buffer_property_e.VIP_BUFFER_PROP_SIZES_OF_DIMENSION, "uint32_t[16]")
    quant = vip_buffer_quantize_format_e(query(vip_buffer_property_e.VIP_BUFFER_PROP_QUANT_FORMAT, "int32_t *")[0])
    fixed, scale, zero = 0, 1.0, 0
    if quant == vip_buffer_quantize_format_e.VIP_BUFFER_QUANTIZE_DYNAMIC_FIXED_POINT:
        fixed = query(vip_buffer_property_e.VIP_BUFFER_PROP_FIXED_POINT_POS, "int32_t *")[0]
    elif quant == vip_buffer_quantize_format_e.VIP_BUFFER_QUANTIZE_TF_ASYMM:
        scale = query(vip_buffer_property_e.VIP_BUFFER_PROP_TF_SCALE, "float *")[0]
        zero = query(vip_buffer_property_e.VIP_BUFFER_PROP_TF_ZERO_POINT, "int32_t *")[0]
    name = ffi.new("char[256]")
    ask(network, index, int(vip_buffer_property_e.VIP_BUFFER_PROP_NAME), name)  # older drivers have no names
    return TensorInfo(
        index=index,
        name=ffi.string(name).decode("utf-8", "replace") or f"{'input' if is_input else 'output'}{index}",
        dims=tuple(dims[0:rank]),
        data_format=vip_buffer_format_e(query(vip_buffer_property_e.VIP_BUFFER_PROP_DATA_FORMAT, "int32_t *")[0]),
        quant_format=quant,
        fixed_point_pos=fixed,
        scale=scale,
        zero_point=zero,
    )


# Inputs and outputs of a model as programs for a VIP see them.


def port(model: Model, spec: TensorSpec) -> TensorSpec:
    """Planes lie one after the other, and uint8 stands where the engine has int8 of other numbers."""
    preprocess = model.preprocess.get(spec.name)
    if preprocess is not None and preprocess.picture:
        return TensorSpec(spec.name, spec.shape, DType.UINT8, Layout.NHWC)
    spec = replace(spec, layout=Layout.row_major(len(spec.shape)))
    quantization = spec.quantization
    if model.dtype == "w8a8" and spec.dtype is DType.INT8 and isinstance(quantization, Affine) and quantization.is_per_tensor:
        moved = Affine.per_tensor(quantization.scale, quantization.zero_point + 128)
        return replace(spec, dtype=DType.UINT8, quantization=moved)
    return spec
