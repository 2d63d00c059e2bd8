"""Compile a model, run it on the software NPU, and compare with onnxruntime in float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

import anynpu
from anynpu import modelfile
from anynpu._util import optional as _optional
from anynpu.modelfile.validate import validate_model
from anynpu.program import Float, Layer, Model, Program

from .onnx_builders import feeds

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]


def run_fp32(proto: onnx.ModelProto, samples: Sequence[Feeds]) -> list[list[Array]]:
    """The outputs of the original model for each sample."""
    runtime = _optional.onnxruntime()
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [session.run(None, dict(sample)) for sample in samples]


def run_model(
    model: Model, samples: Sequence[Feeds], *, shapes: int | Mapping[str, Sequence[int]] = 0, **options: Any
) -> list[list[Array]]:
    """The outputs of a compiled model on the software NPU for each sample."""
    with anynpu.Device(model.chip) as device, device.load(model).context(shapes=shapes) as context:
        return [context.run(dict(sample), **options) for sample in samples]


@dataclass(frozen=True, eq=False)
class Run:
    """A model that was compiled and executed, with what it should have given."""

    model: Model
    samples: list[dict[str, Array]]
    results: list[list[Array]]
    expected: list[list[Array]]

    @property
    def program(self) -> Program:
        return self.model.programs[0]

    @property
    def kinds(self) -> list[str]:
        """What perf tables print, layer by layer."""
        return [layer.kind for layer in self.program.layers]

    @property
    def operators(self) -> list[str]:
        """The operators of the layers."""
        return [type(layer.op).__name__ for layer in self.program.layers]

    @property
    def float_layers(self) -> list[Layer]:
        return [layer for layer in self.program.layers if isinstance(layer.op, Float)]

    def errors(self) -> list[float]:
        """By output: the largest error in quantization steps. A float output has the step that 256 quantized values over its
        range would have."""
        found = []
        for index, name in enumerate(self.program.outputs):
            wanted = np.stack([entry[index].astype(np.float64) for entry in self.expected])
            given = np.stack([entry[index].astype(np.float64) for entry in self.results])
            quantization = self.program.tensors[name].quantization
            extent = max(float(wanted.max()), 0.0) - min(float(wanted.min()), 0.0)
            step = max(extent / 255.0, 1e-9) if quantization is None else quantization.scale
            found.append(float(np.abs(wanted - given).max()) / step)
        return found

    def relative_errors(self) -> list[float]:
        """By output: the largest error relative to the largest value."""
        found = []
        for index in range(len(self.program.outputs)):
            wanted = np.stack([entry[index].astype(np.float64) for entry in self.expected])
            given = np.stack([entry[index].astype(np.float64) for entry in self.results])
            found.append(float(np.abs(wanted - given).max() / max(np.abs(wanted).max(), 1e-9)))
        return found


def execute(
    proto: onnx.ModelProto,
    target: str = "rk3588",
    *,
    samples: list[dict[str, Array]] | None = None,
    count: int = 3,
    low: float = -1.0,
    high: float = 1.0,
    **options: Any,
) -> Run:
    """Compile with the samples as calibration data, run them, and check the program and the model file on the way."""
    samples = feeds(proto, count, low=low, high=high) if samples is None else samples
    expected = run_fp32(proto, samples)
    if options.get("dtype") != "fp16":
        options.setdefault("dataset", samples)
        options.setdefault("algorithm", "minmax")
    model = anynpu.compile(proto, target, **options)
    validate_model(model)
    results = run_model(model, samples)
    again = run_model(modelfile.read(modelfile.to_bytes(model)), samples)
    for before, after in zip(results, again, strict=True):
        for one, other in zip(before, after, strict=True):
            np.testing.assert_array_equal(one, other)
    for wanted, given in zip(expected, results, strict=True):
        assert [entry.shape for entry in given] == [entry.shape for entry in wanted]
    return Run(model, samples, results, expected)


def assert_close_in_steps(run: Run, steps: float) -> None:
    """The int8 result is within *steps* output steps of float32, and not a constant."""
    errors = run.errors()
    assert max(errors) <= steps, f"off by {errors} steps, at most {steps} are expected; layers: {run.kinds}"


def assert_close_relative(run: Run, tolerance: float = 1e-2) -> None:
    """The result is within *tolerance* of float32, relative to the largest value."""
    errors = run.relative_errors()
    assert max(errors) <= tolerance, f"off by {errors} of the largest value; layers: {run.kinds}"
