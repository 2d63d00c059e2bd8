"""The end of a model that the host computes, beside the file of the compiled model.

A compiled model ends where operators begin whose results have as many elements as the data says, such as NonMaxSuppression. What follows is
an ONNX model of its own, ``yolo.tail.onnx`` beside ``yolo.rknn``, which onnxruntime computes. The compiler writes it, sessions run it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ._optional import onnxruntime
from .errors import CompileError, FeedNameError
from .tensor import DType, TensorSpec
from .types import Array

__all__ = ["ORDER", "Tail", "tail_path"]

ORDER = "anynpu.outputs"
"""The entry of a tail's metadata that names the outputs of the whole model in their order, one per line."""

_TYPES: Mapping[str, DType] = {
    "tensor(float)": DType.FLOAT32,
    "tensor(float16)": DType.FLOAT16,
    "tensor(int64)": DType.INT64,
    "tensor(int32)": DType.INT32,
    "tensor(bool)": DType.BOOL,
    "tensor(uint8)": DType.UINT8,
    "tensor(int8)": DType.INT8,
}


def tail_path(path: str | os.PathLike[str]) -> Path:
    """Where the tail of a model file lies.

    >>> tail_path("yolo.rknn").name
    'yolo.tail.onnx'
    """
    return Path(path).with_suffix(".tail.onnx")


class Tail:
    """The last operators of a model, computed on the host by onnxruntime. Several threads may run it at once.

    :param model: the path of a ``.tail.onnx`` or of the compiled model beside it; its bytes; or a compiled model that has a tail
    :ivar inputs: what it reads, by name: outputs of the compiled model
    :ivar outputs: what it makes
    :ivar order: the outputs that the ONNX model had, in their order; those that are not in *outputs* the compiled model makes itself

    >>> tail = Tail("yolo.rknn")                                                 # doctest: +SKIP
    >>> (selected,) = tail.run({"boxes": boxes, "scores": scores})               # doctest: +SKIP
    """

    def __init__(self, model: Any) -> None:
        runtime = onnxruntime()
        data = getattr(model, "tail", model)
        if not isinstance(data, bytes):
            path = Path(data)
            path = path if path.name.endswith(".tail.onnx") else tail_path(path)
            if not path.is_file():
                raise CompileError(f"there is no file {path}", hint="compile writes it beside a model that has a tail")
            data = path.read_bytes()
        options = runtime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        try:
            self._session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's exception classes are private
            text = str(error).strip().partition("\n")[0][:400]
            raise CompileError(f"this is no tail of a model: {text}", hint="compile the model again") from error
        self.inputs = tuple(entry.name for entry in self._session.get_inputs())
        self.outputs = tuple(entry.name for entry in self._session.get_outputs())
        entries = self._session.get_modelmeta().custom_metadata_map
        self.order = tuple(entries[ORDER].split("\n")) if entries.get(ORDER) else self.outputs
        self._kinds = {entry.name: _TYPES.get(entry.type, DType.FLOAT32) for entry in self._session.get_inputs()}
        self._specs = {
            entry.name: TensorSpec(
                entry.name,
                tuple(extent if isinstance(extent, int) else -1 for extent in entry.shape),
                _TYPES.get(entry.type, DType.FLOAT32),
            )
            for entry in self._session.get_outputs()
        }

    def spec(self, name: str) -> TensorSpec:
        """What is known of an output; an extent of -1 depends on the data."""
        return self._specs[name]

    def input_type(self, name: str) -> np.dtype[Any]:
        """The type in which it reads an output of the compiled model."""
        found: np.dtype[Any] = np.dtype(self._kinds[name].storage)
        return found

    def run(self, values: Mapping[str, npt.ArrayLike], outputs: Sequence[str] | None = None) -> list[Array]:
        """The outputs of the whole model, from outputs of the compiled one by name.

        :param outputs: those wanted, in this order; all of the tail's own if not given
        """
        missing = [name for name in self.inputs if name not in values]
        if missing:
            raise FeedNameError(f"the tail reads '{missing[0]}', which is not given", hint=f"it reads: {', '.join(self.inputs)}")
        feed = {name: np.ascontiguousarray(values[name], self.input_type(name)) for name in self.inputs}
        made = dict(zip(self.outputs, self._session.run(None, feed), strict=True))
        found = []
        for name in outputs or self.outputs:
            if name not in made and name not in values:
                raise FeedNameError(f"there is no output '{name}'", hint=f"the tail makes: {', '.join(self.outputs)}")
            found.append(made[name] if name in made else np.asarray(values[name]))
        return found
