"""Load, run, read: a model in three calls.

The class follows the ``rknn-runtime`` crate: inputs and outputs are bound once to memory of the device, a run copies bytes in, and outputs
are read where the NPU wrote them.

>>> model = RknnModel.load("model.rknn")                       # doctest: +SKIP
>>> model.run(rgb_bytes)                                       # doctest: +SKIP
>>> raw = model.output_raw(0)                                  # doctest: +SKIP
>>> floats = model.output_f32(0)                               # doctest: +SKIP
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from .._util.lifetime import Closeable
from .._util.types import Array
from ..errors import DeviceClosed, ModelFileError, ShapeError, TensorIndexError, TensorNameError, TensorTypeError
from ..program import Model
from ..program.convert import dequantize_affine, dequantize_dfp
from ..vendors.devices import DeviceChoice
from .constants import rknn_tensor_format, rknn_tensor_qnt_type, rknn_tensor_type
from .context import Context
from .info import TensorInfo
from .interface import RknnLibrary
from .library import open_library
from .nc1hwc2 import Nc1hwc2Layout
from .tensormemory import TensorMemory


class RknnModel(Closeable):
    """A model with its memory: made by :meth:`load`, :meth:`load_with_lib`, :meth:`load_from_bytes` or :meth:`from_bytes`.

    Not for several threads at a time; load it once for each, or use a session.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._inputs: list[tuple[TensorInfo, TensorMemory]] = []
        self._outputs: list[tuple[TensorInfo, TensorMemory]] = []
        try:
            for info in context.native_inputs:
                kind = "uint8" if _is_picture(info) else None
                memory = context.bind_input(info.index, dtype=kind, pass_through=kind is None and _is_code(info))
                self._inputs.append((info, memory))
            for info in context.native_outputs:
                self._outputs.append((info, context.bind_output(info.index)))
        except BaseException:
            self.close()
            raise

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: str | DeviceChoice | RknnLibrary | None = None) -> RknnModel:
        """From a file.

        :raises ModelFileError: there is no such file, or it cannot be read; it is an ``OSError``
        """
        return cls(Context(_readable(path), device=device))

    @classmethod
    def load_with_lib(cls, path: str | os.PathLike[str], library: str | os.PathLike[str]) -> RknnModel:
        """From a file, on the vendor's library at *library*."""
        found = open_library(f"rknn:{os.fspath(library)}")
        return cls(Context(_readable(path), device=found))

    @classmethod
    def load_from_bytes(cls, model: bytes, library: str | os.PathLike[str] | None = None) -> RknnModel:
        """From the bytes of a file, on the vendor's library at *library* if one is given."""
        return cls(Context(model, device=None if library is None else f"rknn:{os.fspath(library)}"))

    @classmethod
    def from_bytes(cls, model: bytes | Model, *, device: str | DeviceChoice | RknnLibrary | None = None) -> RknnModel:
        """From the bytes of a file, or from a model that was compiled just now."""
        return cls(Context(model, device=device))

    def input_attr(self, index: int = 0) -> TensorInfo:
        """The attributes of an input: ``shape`` is [1, H, W, 3] for an image."""
        return _entry(self._inputs, index, "input")[0]

    def output_attrs(self) -> tuple[TensorInfo, ...]:
        """The attributes of the outputs as the NPU writes them: ``shape`` is mostly [1, C1, H, W, C2]."""
        return tuple(info for info, _ in self._outputs)

    def output_nc1hwc2_layout(self, index: int = 0) -> Nc1hwc2Layout:
        """Where the channels of an output lie.

        :raises ShapeError: it is not in NC1HWC2
        """
        return Nc1hwc2Layout.from_attr(_entry(self._outputs, index, "output")[0])

    def run(self, *inputs: bytes | bytearray | memoryview | npt.ArrayLike) -> None:
        """Execute. An image is given as its RGB bytes in the order H, W, C, or as an array of them; nothing is normalized before.

        Inputs that are no images are given as arrays of the model's type, in its native layout.
        """
        self._require_open()
        if len(inputs) != len(self._inputs):
            raise TensorNameError(
                f"{len(inputs)} inputs given, the model has {len(self._inputs)}",
                hint="pass them in the order of the model: run(first, second)",
            )
        for given, (info, memory) in zip(inputs, self._inputs, strict=True):
            _write(given, info, memory)
            memory.sync("to_device")
        self._context.execute()
        for _, memory in self._outputs:
            memory.sync("from_device")

    def output_raw(self, index: int) -> Array:
        """An output as the NPU wrote it: a view, valid until the next run. For int8 models that is int8."""
        self._require_open()
        info, memory = _entry(self._outputs, index, "output")
        return memory.array(info.dtype)[: info.elements]

    def output_f32(self, index: int) -> npt.NDArray[np.float32]:
        """An output as real numbers, in the order in which the NPU wrote it."""
        raw = self.output_raw(index)
        info, _ = self._outputs[index]
        if info.type == rknn_tensor_type.RKNN_TENSOR_FLOAT16:
            return raw.astype(np.float32)
        if info.qnt_type == rknn_tensor_qnt_type.RKNN_TENSOR_QNT_DFP:
            return dequantize_dfp(raw, info.fl)
        if raw.dtype in (np.int8, np.uint8, np.int16):
            return dequantize_affine(raw, info.zp, info.scale)
        return raw.astype(np.float32)

    def close(self) -> None:
        """Give the context and its memory back; views of outputs that are still held keep theirs."""
        self._inputs.clear()
        self._outputs.clear()
        self._context.close()

    def _require_open(self) -> None:
        if self._context.closed:
            raise DeviceClosed("the model was closed", hint="load it again")

    def __repr__(self) -> str:
        return f"<RknnModel on {self._context.library.description}>"


def _readable(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    try:
        with open(path, "rb"):
            return path
    except OSError as error:
        raise ModelFileError(
            f"{os.fspath(path)} cannot be read: {error.strerror}", hint="check the path and who may read the file"
        ) from error


def _is_picture(info: TensorInfo) -> bool:
    quantized = info.type in (rknn_tensor_type.RKNN_TENSOR_INT8, rknn_tensor_type.RKNN_TENSOR_FLOAT16)
    return quantized and info.fmt == rknn_tensor_format.RKNN_TENSOR_NHWC


def _is_code(info: TensorInfo) -> bool:
    return info.type in (rknn_tensor_type.RKNN_TENSOR_INT8, rknn_tensor_type.RKNN_TENSOR_INT16)


def _entry(entries: list[tuple[TensorInfo, TensorMemory]], index: int, what: str) -> tuple[TensorInfo, TensorMemory]:
    if not 0 <= index < len(entries):
        raise TensorIndexError(f"there is no {what} {index}", hint=f"the model has {len(entries)}, counted from 0")
    return entries[index]


def _write(given: Any, info: TensorInfo, memory: TensorMemory) -> None:
    """Copy an input to the device, row by row where the device pads rows."""
    kind = np.dtype(np.uint8) if _is_picture(info) else info.dtype
    flat = np.frombuffer(given, np.uint8) if isinstance(given, (bytes, bytearray, memoryview)) else np.asarray(given)
    if flat.dtype == np.uint8 and kind != np.uint8 and flat.nbytes == info.elements * kind.itemsize:
        flat = np.ascontiguousarray(flat).reshape(-1).view(kind)
    if flat.dtype != kind:
        raise TensorTypeError(f"input '{info.name}' takes {kind}, got {flat.dtype}", hint=f"pass bytes, or an array of {kind}")
    if flat.size != info.elements:
        raise ShapeError(
            f"input '{info.name}' takes {info.elements} elements ({list(info.shape)}), got {flat.size}",
            hint="resize the image to the model's input",
        )
    width = info.shape[2] if len(info.shape) == 4 else 0
    if _is_picture(info) and info.w_stride > width:
        n, h, w, c = info.shape
        target = memory.array(kind, (n, h, info.w_stride, c))
        target[:, :, :w] = flat.reshape(info.shape)
    else:
        memory.array(kind)[: flat.size] = flat.reshape(-1)
