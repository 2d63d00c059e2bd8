"""Segments of float layers in onnxruntime, where C lacks a kernel.

One session per segment and loaded model; onnxruntime's ``run`` may be called from several threads, so all contexts share it. Inputs and
outputs are bound by pointer to the arrays of the context: nothing is copied on the way in or out.

Weights are handed over in memory, by name. onnxruntime keeps a copy of its own (it folds, transposes and packs them when the session is
built): once per loaded model, never per context. What it needs between the layers is host memory and is not on the device's account.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from ..._util import optional as _optional
from ..._util.types import Array
from ...errors import DeviceError, DeviceMemoryError, ModelFormatError
from ...program import FloatStretch, Program
from ...tensor import DType
from ..control import RunControl
from .onnx_writer import BFLOAT16, onnx_model
from .preparation import Preparation

__all__ = ["OnnxStretch"]


_SESSION = 256 << 10  # bytes of a session without its weights, about
_NO_MEMORY = re.compile("allocate memory|bad_alloc|bad allocation")  # onnxruntime has no class for it
_FATAL = 4  # onnxruntime's log level: what goes wrong arrives as an exception, not on stderr


def _has_codes(program: Program, stretch: FloatStretch) -> bool:
    layers = program.layers[stretch.first : stretch.last]
    return any(program.tensors[name].quantization is not None for layer in layers for name in layer.outputs)


class OnnxStretch:
    """A segment, ready to be bound to memory.

    :param threads: host threads of one run
    :param preparation: what the segments of a model share, with a limit for what they take
    """

    def __init__(
        self, program: Program, stretch: FloatStretch, *, threads: int = 1, preparation: Preparation | None = None
    ) -> None:
        preparation = preparation or Preparation()
        runtime = _optional.onnxruntime()
        self._stretch = stretch
        self._tensors = program.tensors
        self._name = f"float layers {stretch.first} to {stretch.last - 1}"
        self._run_options = runtime.RunOptions
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _FATAL
        # There is nothing to find on the disk: all constants are handed over below. Should one be missed, this is an empty file.
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
        if _has_codes(
            program, stretch
        ):  # what is rounded to quantized values is computed as it stands: fusing would move or leave out a rounding
            options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        model, constants, uses = onnx_model(program, stretch, preparation)
        copies = sum(array.nbytes for array in constants.values())
        packed = sum(array.nbytes * uses[name] for name, array in constants.items())
        if preparation.fits(_SESSION + copies + packed):
            preparation.take(_SESSION + copies + packed)
        else:
            # onnxruntime packs a weight again for each node that reads it
            preparation.take(_SESSION + copies)
            options.add_session_config_entry("session.disable_prepacking", "1")
        try:
            if constants:
                values = [runtime.OrtValue.ortvalue_from_numpy(array) for array in constants.values()]
                options.add_external_initializers(list(constants), values)
            self._session = _optional.ort_session(model, options, disabled_optimizers=_optional.MISTAKEN_OPTIMIZERS)
        except Exception as error:  # onnxruntime's own classes share no other base
            raise ModelFormatError(
                f"{self._name} cannot be loaded by onnxruntime: {error}",
                hint="the model file may be damaged; compile the model again",
            ) from error

    def bind(self, arrays: Mapping[str, Array]) -> Callable[[RunControl], None]:
        """Tie the segment to the memory of one context; gives what runs it there."""
        binding = self._session.io_binding()
        for name in self._stretch.inputs:
            binding.bind_input(name, "cpu", 0, *self._place(name, arrays))
        for name in self._stretch.outputs:
            binding.bind_output(name, "cpu", 0, *self._place(name, arrays))
        held = [arrays[name] for name in (*self._stretch.inputs, *self._stretch.outputs)]

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
                if _NO_MEMORY.search(str(error)):
                    raise DeviceMemoryError(
                        f"{self._name} need more memory than there is",
                        hint="use smaller input shapes; if the model is isolated and you trust it that far, raise isolate_memory_mb",
                    ) from error
                raise DeviceError(
                    f"{self._name} failed in onnxruntime: {error}",
                    hint="compile the model again; if it persists, report it with the model",
                ) from error

    def _place(self, name: str, arrays: Mapping[str, Array]) -> tuple[Any, tuple[int, ...], int]:
        spec, array = self._tensors[name], arrays[name]
        # numpy has no bfloat16: the binding takes ONNX's number instead
        element: Any = BFLOAT16 if spec.dtype is DType.BFLOAT16 else array.dtype.type
        return element, spec.memory_shape, array.ctypes.data
