"""Float islands in onnxruntime.

One session per island and loaded model; onnxruntime's ``run`` may be called from several threads, so all contexts share it. Inputs and
outputs are bound by pointer to the arrays of the context: nothing is copied on the way in or out.

Weights are handed over as external initialisers, by name. onnxruntime keeps a copy of its own (it folds, transposes and packs them when
the session is built): once per loaded model, never per context. What it needs between the operators of an island is host memory and is
not on the device's account.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _optional
from ...convert import bfloat16_to_float32
from ...errors import DeviceError, ModelFormatError
from ...program import Island
from ...tensor import DType, TensorSpec
from ..control import RunControl

__all__ = ["IslandSession", "weight_values"]

Array = npt.NDArray[Any]

_ONNX_BFLOAT16 = 16  # TensorProto.BFLOAT16: numpy has no such type, and the binding takes ONNX's number instead
_FATAL = 4  # onnxruntime's log level: what goes wrong arrives as an exception, not on stderr


def weight_values(array: Array) -> Array:
    """Weights of an island as its graph declares them: bfloat16, which is held as 16 bits, becomes float32."""
    array = np.ascontiguousarray(array)
    return bfloat16_to_float32(array) if array.dtype == np.uint16 else array


class IslandSession:
    """An island, ready to be bound to memory.

    :param tensors: the tensors of its program
    :param name: how errors call it
    :param threads: host threads of one run
    """

    def __init__(self, island: Island, tensors: Mapping[str, TensorSpec], *, name: str = "island", threads: int = 1) -> None:
        runtime = _optional.onnxruntime()
        self._island = island
        self._tensors = tensors
        self._name = name
        self._run_options = runtime.RunOptions
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _FATAL
        # External data comes from the model's own weights and never from a file that a model may name: nothing lies inside this one.
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
        try:
            if island.weights:
                values = [runtime.OrtValue.ortvalue_from_numpy(weight_values(array)) for array in island.weights.values()]
                options.add_external_initializers(list(island.weights), values)
            self._session = runtime.InferenceSession(
                island.model, options, providers=["CPUExecutionProvider"], disabled_optimizers=_optional.MISTAKEN_OPTIMIZERS
            )
        except Exception as error:  # onnxruntime's own classes share no other base
            raise ModelFormatError(
                f"float {name} cannot be loaded by onnxruntime: {error}",
                hint="the model file may be damaged; compile the model again",
            ) from error
        self._check_names()

    def bind(self, arrays: Mapping[str, Array]) -> Callable[[RunControl], None]:
        """Tie the island to the memory of one context; gives what runs it there."""
        binding = self._session.io_binding()
        for name in self._island.inputs:
            binding.bind_input(name, "cpu", 0, *self._place(name, arrays))
        for name in self._island.outputs:
            binding.bind_output(name, "cpu", 0, *self._place(name, arrays))
        held = [arrays[name] for name in (*self._island.inputs, *self._island.outputs)]

        def run(control: RunControl) -> None:
            assert held  # the binding has bare pointers: this function keeps the arrays alive
            self._run(binding, control)

        return run

    def _run(self, binding: Any, control: RunControl) -> None:
        options = self._run_options()
        options.log_severity_level = _FATAL

        def stop() -> None:
            options.terminate = True

        with ExitStack() as stack:
            stack.enter_context(control.watching(stop))
            if control.remaining is not None:
                timer = threading.Timer(control.remaining, stop)
                timer.start()
                stack.callback(timer.cancel)
            try:
                self._session.run_with_iobinding(binding, options)
            except Exception as error:  # onnxruntime's own classes share no other base
                control.check()
                raise DeviceError(
                    f"float {self._name} failed in onnxruntime: {error}",
                    hint="compile the model again; if it persists, report it with the model",
                ) from error

    def _check_names(self) -> None:
        declared = [value.name for value in (*self._session.get_inputs(), *self._session.get_outputs())]
        expected = [*self._island.inputs, *self._island.outputs]
        unknown = [name for name in expected if name not in declared or name not in self._tensors]
        if unknown or len(declared) != len(expected):
            raise ModelFormatError(
                f"float {self._name} has the tensors {declared}, but the program connects {expected}",
                hint="compile the model again",
            )

    def _place(self, name: str, arrays: Mapping[str, Array]) -> tuple[Any, tuple[int, ...], int]:
        spec, array = self._tensors[name], arrays[name]
        element: Any = _ONNX_BFLOAT16 if spec.dtype is DType.BFLOAT16 else array.dtype.type
        return element, spec.memory_shape, array.ctypes.data
