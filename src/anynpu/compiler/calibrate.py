"""Ranges of activations from calibration samples: the fp32 model runs once over the data set, with everything of interest as output."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._native import ffi, lib
from .._optional import MISTAKEN_OPTIMIZERS, onnx, onnxruntime
from ..errors import CalibrationError, CompileError
from .graph import Graph, external_tensor, to_onnx
from .ranges import ALGORITHMS, Observer

__all__ = ["CalibratedRanges", "Calibration", "UnknownRanges", "calibrate"]

Floats = npt.NDArray[np.float32]
Progress = Callable[[str, int, "int | None"], None]

_LARGE_BYTES = 1 << 16
"""Weights from this size on are handed to onnxruntime as they lie in memory, not copied through the bytes of a model."""


class CalibratedRanges:
    """Ranges as an observer saw them."""

    def __init__(self, observer: Observer, algorithm: str, percentile: float) -> None:
        if algorithm not in ALGORITHMS:
            raise CompileError(f"there is no calibration algorithm '{algorithm}'", hint=f"choose one of: {', '.join(ALGORITHMS)}")
        self._observer = observer
        self._algorithm = algorithm
        self._percentile = percentile

    def __call__(self, name: str, *, exact: bool) -> tuple[float, float]:
        algorithm = "minmax" if exact else self._algorithm
        return self._observer.range(name, algorithm, percentile=self._percentile)


class UnknownRanges:
    """Stands in where only the structure matters (check)."""

    def __call__(self, name: str, *, exact: bool) -> tuple[float, float]:
        return -1.0, 1.0


@dataclass(frozen=True, eq=False)
class Calibration:
    """What the fp32 model was seen to do.

    :ivar channels: smallest and largest value by channel, for the tensors that were asked for
    """

    observer: Observer
    channels: Mapping[str, tuple[Floats, Floats]]


def calibrate(
    graph: Graph,
    names: Iterable[str],
    by_channel: Iterable[str],
    samples: Iterable[Mapping[str, npt.NDArray[Any]]],
    total: int | None,
    progress: Progress | None,
) -> Calibration:
    """Statistics of the tensors *names* of a simplified graph over *samples*."""
    inputs = set(graph.inputs)
    channels = {name: _empty_range(graph, name) for name in by_channel}
    wanted = [name for name in dict.fromkeys((*names, *channels)) if name not in inputs and graph.is_float(name)]
    extra = [name for name in wanted if name not in graph.outputs]
    session = _session(graph, extra)
    observer = Observer()
    seen = 0
    for sample in samples:
        try:
            results = session.run(wanted, dict(sample))
        except Exception as error:  # onnxruntime's exception classes are private
            raise CalibrationError(
                f"the model failed on calibration sample {seen + 1}: {error}", hint="check that sample"
            ) from error
        for name, value in zip(wanted, results, strict=True):
            observer.observe(name, value)
            if name in channels:
                widen(channels[name], value)
        for name in inputs:
            if graph.is_float(name):
                observer.observe(name, np.asarray(sample[name], np.float32))
        seen += 1
        if progress is not None:
            progress("calibrating", seen, total)
    if not seen:
        raise CalibrationError("the calibration data set is empty", hint="give at least one sample; 10 to 20 are usual")
    return Calibration(observer, channels)


def _empty_range(graph: Graph, name: str) -> tuple[Floats, Floats]:
    extent = graph.shapes[name][1]
    return np.full(extent, np.inf, np.float32), np.full(extent, -np.inf, np.float32)


def widen(ranges: tuple[Floats, Floats], values: npt.NDArray[Any]) -> None:
    """Widen ranges by channel to what an NCHW array holds."""
    low, high = np.empty_like(ranges[0]), np.empty_like(ranges[1])
    values = np.ascontiguousarray(values, np.float32)
    batch, extent = values.shape[:2]
    pixels = values.size // (batch * extent)
    pointer = ffi.cast("float *", values.ctypes.data)
    lib.anynpu_minmax_channels_f32(
        pointer, batch, extent, pixels, ffi.cast("float *", low.ctypes.data), ffi.cast("float *", high.ctypes.data)
    )
    np.minimum(ranges[0], low, out=ranges[0])
    np.maximum(ranges[1], high, out=ranges[1])


def _session(graph: Graph, extra: list[str]) -> Any:
    runtime = onnxruntime()
    large: dict[str, npt.NDArray[Any]] = {}

    def initializer(name: str, value: npt.NDArray[Any]) -> Any:
        if value.nbytes < _LARGE_BYTES:
            return onnx().numpy_helper.from_array(value, name)
        large[name] = np.ascontiguousarray(value)
        return external_tensor(name, value)

    model = to_onnx(graph, graph.nodes, graph.inputs, [*graph.outputs, *extra], initializer=initializer)
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    if large:
        values = [runtime.OrtValue.ortvalue_from_numpy(value) for value in large.values()]
        options.add_external_initializers(list(large), values)
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
    return runtime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"], disabled_optimizers=MISTAKEN_OPTIMIZERS
    )
