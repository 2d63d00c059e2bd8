"""The inputs and outputs of a context: what the caller's bytes are, and how they become the engine's.

A port belongs to one context and one set of shapes. Everything that depends on the model alone (attributes, conversions) is made at
first use and kept; what the caller bound to it is the only thing that changes. The context's lock protects both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..._rknn import ffi
from ...chips import Chip
from ...errors import AnynpuError
from ...npu import Device
from ...program import Model, Preprocess
from ...program.convert import Conversion
from ...tensor import DType, Layout, TensorSpec
from ...vendors.libraries import Refusal
from ..constants import Code, rknn_tensor_format, rknn_tensor_type
from ..info import DTYPE_OF, TensorAttr, View, input_attr, memory_spec, output_attr
from .memory import TensorMemory

_CODES_ALWAYS = frozenset({DType.INT8, DType.INT16})
"""Data of these types for a tensor of the same quantized type are codes. uint8 never is: it is what images are made of."""

_INPUT_FORMATS = {
    rknn_tensor_format.RKNN_TENSOR_NCHW: Layout.NCHW,
    rknn_tensor_format.RKNN_TENSOR_NHWC: Layout.NHWC,
    rknn_tensor_format.RKNN_TENSOR_UNDEFINED: Layout.NHWC,  # the order that the attributes of an input show
}


def indices(structs: Any, count: int) -> Sequence[int]:
    """The tensor that each of *count* ``rknn_input`` or ``rknn_output`` structs stands for.

    Programs that clear the array and leave every ``index`` at 0 pass the structs in the order of the tensors: where indices repeat, the
    position counts.
    """
    found = [structs[position].index for position in range(count)]
    return range(count) if indices_repeat(found) else found


def indices_repeat(found: Sequence[int]) -> bool:
    """Whether *found* has an index of a tensor twice; one that no tensor has is an error of its own."""
    return len(set(found)) < len(found) and max(found) < len(found)


@dataclass(frozen=True, eq=False)
class Transfer:
    """One way of the data: how many bytes the caller's side has, and what to do with them."""

    nbytes: int
    conversion: Conversion


class Binding:
    """Memory of the caller that a tensor is bound to. It stays mapped for as long as the binding lives, also if it is destroyed.

    :ivar key: the bytes of the attributes that it was bound with: binding the same again changes nothing
    :ivar conversion: None where the engine uses the memory itself
    """

    __slots__ = ("_view", "address", "conversion", "key", "memory")

    def __init__(self, memory: TensorMemory, key: bytes, conversion: Conversion | None) -> None:
        self.memory = memory
        self.key = key
        self.conversion = conversion
        self.address = memory.buffer.address
        self._view = memory.buffer.view()


class _Port:
    """What inputs and outputs have in common."""

    def __init__(self, spec: TensorSpec, chip: Chip, index: int) -> None:
        self.spec = spec
        self.chip = chip
        self.index = index
        self.binding: Binding | None = None
        self._attrs: dict[View, TensorAttr] = {}

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def row_major(self) -> Layout:
        return Layout.PLAIN if self.spec.layout is Layout.PLAIN else Layout.NCHW

    def _memory(self, attr: Any, memory: TensorMemory, *, is_input: bool) -> TensorSpec:
        """What the caller states that he binds; rejected if it does not fit the memory."""
        try:
            fmt, kind = rknn_tensor_format(attr.fmt), rknn_tensor_type(attr.type)
        except ValueError:
            raise Refusal(
                Code.RKNN_ERR_PARAM_INVALID,
                f"the attributes of '{self.name}' have format {attr.fmt} and type {attr.type}, which do not exist",
                "begin with attributes that rknn_query gave",
            ) from None
        if attr.n_dims > len(attr.dims):
            raise Refusal(Code.RKNN_ERR_PARAM_INVALID, f"'{self.name}' cannot have {attr.n_dims} dimensions")
        try:
            spec = memory_spec(
                self.spec,
                self.chip,
                fmt=fmt,
                type=kind,
                dims=tuple(attr.dims[0 : attr.n_dims]),
                w_stride=attr.w_stride,
                h_stride=attr.h_stride,
                is_input=is_input,
                pass_through=bool(attr.pass_through),
            )
        except AnynpuError as error:
            raise Refusal(Code.RKNN_ERR_PARAM_INVALID, error.message, error.hint) from error
        if memory.size < spec.nbytes:
            raise Refusal(
                Code.RKNN_ERR_PARAM_INVALID,
                f"'{self.name}' takes {spec.nbytes} bytes as {kind.name} in {fmt.name}, the memory has {memory.size}",
                "create it with size_with_stride of the attributes, or with n_elems times the size of the type",
            )
        return spec

    def same_memory(self, spec: TensorSpec) -> bool:
        """Whether memory that holds *spec* is what the engine itself would read or write."""
        own = self.spec
        return (
            spec.dtype is own.dtype
            and spec.memory_shape == own.memory_shape
            and (spec.layout is own.layout or {spec.layout, own.layout} <= {Layout.PLAIN, Layout.NCHW})
            and spec.quantization == own.quantization
        )


class InputPort(_Port):
    """One input."""

    def __init__(self, spec: TensorSpec, chip: Chip, index: int, preprocess: Preprocess | None) -> None:
        super().__init__(spec, chip, index)
        self.preprocess = preprocess
        self.given = False
        self._transfers: dict[tuple[int, int, int], Transfer] = {}

    def attr(self, view: View) -> TensorAttr:
        """The attributes that a query gives."""
        if view not in self._attrs:
            self._attrs[view] = input_attr(self.spec, self.chip, self.index, view)
        return self._attrs[view]

    def transfer(self, kind: int, fmt: int, pass_through: int) -> Transfer:
        """From what ``rknn_inputs_set`` is given to the engine."""
        key = (0, 0, 1) if pass_through else (kind, fmt, 0)  # what is passed through is not looked at
        known = self._transfers.get(key)
        if known is None:
            source = self._native() if pass_through else self._source(kind, fmt)
            known = self._transfers[key] = Transfer(source.nbytes, self._conversion(source, bool(pass_through)))
        return known

    def bind(self, memory: TensorMemory, attr: Any, key: bytes) -> Binding:
        """How memory with these attributes becomes the engine's input."""
        source = self._memory(attr, memory, is_input=True)
        normalized = self._is_normalized(source, bool(attr.pass_through))
        direct = normalized and self.same_memory(source)
        return Binding(memory, key, None if direct else self._conversion(source, bool(attr.pass_through)))

    def _native(self) -> TensorSpec:
        """Data that is passed through lies as the NPU reads it, without the padding of rows."""
        return replace(self.attr(View.NATIVE).spec, w_stride=0, h_stride=0)

    def _source(self, kind: int, fmt: int) -> TensorSpec:
        try:
            dtype = DTYPE_OF[rknn_tensor_type(kind)]
            layout = _INPUT_FORMATS[rknn_tensor_format(fmt)] if len(self.spec.shape) == 4 else self.row_major
        except (KeyError, ValueError):
            raise Refusal(
                Code.RKNN_ERR_INPUT_INVALID,
                f"input '{self.name}' does not take type {kind} in format {fmt}",
                "use a type from RKNN_TENSOR_FLOAT32 to RKNN_TENSOR_BOOL, and RKNN_TENSOR_NHWC or RKNN_TENSOR_NCHW",
            ) from None
        if dtype.bits < 8 or dtype is DType.BFLOAT16:
            raise Refusal(Code.RKNN_ERR_INPUT_INVALID, f"input '{self.name}' does not take {dtype.value}", "use int8 or float16")
        codes = dtype is self.spec.dtype and dtype in _CODES_ALWAYS
        return TensorSpec(self.name, self.spec.shape, dtype, layout, self.spec.quantization if codes else None)

    def _is_normalized(self, source: TensorSpec, pass_through: bool) -> bool:
        """Whether mean and std were applied already, or never are: to codes, to data that is passed through, to other integers."""
        no_values = self.spec.quantization is None and not self.spec.dtype.is_float
        return pass_through or source.quantization is not None or no_values or self.preprocess is None

    def _conversion(self, source: TensorSpec, pass_through: bool) -> Conversion:
        preprocess = None if self._is_normalized(source, pass_through) else self.preprocess
        try:
            return Conversion(source, self.spec, preprocess)
        except AnynpuError as error:
            raise Refusal(Code.RKNN_ERR_INPUT_INVALID, error.message, error.hint) from error


class OutputPort(_Port):
    """One output."""

    def __init__(self, spec: TensorSpec, chip: Chip, index: int) -> None:
        super().__init__(spec, chip, index)
        self._transfers: dict[bool, Transfer] = {}

    def attr(self, view: View) -> TensorAttr:
        """The attributes that a query gives."""
        if view not in self._attrs:
            self._attrs[view] = output_attr(self.spec, self.chip, self.index, view)
        return self._attrs[view]

    def transfer(self, want_float: bool) -> Transfer:
        """From the engine to what ``rknn_outputs_get`` gives: in the model's order of axes, without padding."""
        known = self._transfers.get(want_float)
        if known is None:
            visible = self.attr(View.LOGICAL).spec
            target = TensorSpec(self.name, self.spec.shape, DType.FLOAT32, self.row_major)
            if not want_float:
                target = TensorSpec(self.name, self.spec.shape, visible.dtype, self.row_major, visible.quantization)
            known = self._transfers[want_float] = Transfer(target.nbytes, Conversion(self.spec, target))
        return known

    def bind(self, memory: TensorMemory, attr: Any, key: bytes) -> Binding:
        """How the engine's output becomes memory with these attributes."""
        target = self._memory(attr, memory, is_input=False)
        return Binding(memory, key, None if self.same_memory(target) else Conversion(self.spec, target))


def attr_key(attr: Any) -> bytes:
    """The bytes of a ``rknn_tensor_attr``."""
    return bytes(ffi.buffer(attr, ffi.sizeof("rknn_tensor_attr")))


class Ports:
    """The inputs and outputs of one set of shapes."""

    def __init__(self, device: Device, model: Model, index: int) -> None:
        program = model.programs[index]
        chip = device.chip
        self.inputs = [
            InputPort(spec, chip, position, model.preprocess.get(spec.name)) for position, spec in enumerate(program.input_specs)
        ]
        self.outputs = [OutputPort(spec, chip, position) for position, spec in enumerate(program.output_specs)]


def cut_name(name: str) -> str:
    """A name as the interface can show it."""
    return name.encode()[:255].decode("utf-8", "ignore")
