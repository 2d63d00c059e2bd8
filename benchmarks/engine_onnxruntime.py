"""The other side of the comparison: onnxruntime on one thread, in float32 and with models of its own static quantization."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from anynpu._util.optional import onnxruntime

__all__ = ["Session", "prepare", "quantize"]

Floats = npt.NDArray[np.float32]


class Session:
    """A model in onnxruntime, with one input.

    :param threads: those of onnxruntime; 0 leaves its default
    :param float_kernels: execute quantized operators in float between a dequantization and a quantization, instead of fusing them
    """

    def __init__(self, path: Path, *, threads: int = 1, float_kernels: bool = False) -> None:
        runtime = onnxruntime()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        if float_kernels:
            options.add_session_config_entry("session.disable_quant_qdq", "1")
        self._session: Any = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name

    def run(self, values: Floats) -> list[Any]:
        outputs: list[Any] = self._session.run(None, {self._input: values})
        return outputs


def prepare(model: Any, path: Path) -> Path:
    """Write a model after onnxruntime's own preparation for quantization. Scales per channel need opset 13 or later."""
    import onnx
    from onnx import version_converter

    onnxruntime()  # sets what must be set before its first import
    from onnxruntime.quantization.shape_inference import quant_pre_process

    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    onnx.save(model if opset >= 13 else version_converter.convert_version(model, 13), path)
    # the symbolic inference needs a package of its own, and the shapes do not matter to what follows
    quant_pre_process(path, path, skip_symbolic_shape=True)
    return path


def quantize(source: Path, path: Path, samples: Sequence[Floats], *, symmetric: bool = True) -> Path:
    """onnxruntime's static quantization: unsigned activations and symmetric signed weights per channel, which its integer
    kernels like best.

    :param symmetric: False gives signed activations and asymmetric weights, as NPUs have them
    """
    onnxruntime()
    from onnxruntime import quantization

    name = Session(source)._input

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._samples = iter(samples)

        def get_next(self) -> dict[str, Floats] | None:
            return next(({name: sample} for sample in self._samples), None)

    kinds = quantization.QuantType
    logging.disable(logging.WARNING)  # it speaks of weights that it does not quantize
    quantization.quantize_static(
        source,
        path,
        Reader(),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
        activation_type=kinds.QUInt8 if symmetric else kinds.QInt8,
        weight_type=kinds.QInt8,
        calibrate_method=quantization.CalibrationMethod.MinMax,
        extra_options={"WeightSymmetric": symmetric},
    )
    logging.disable(logging.NOTSET)
    return path
