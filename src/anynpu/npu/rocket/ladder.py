"""The self-test of a board: convolutions from a copy to a network, each compared with the native engine byte by byte.

Each step adds one feature, so that the first step that fails names what this board does differently. The report holds what a developer
needs to find the rule: the geometry, how many bytes differ and by how much, and the first differences with their places.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...errors import AnynpuError
from ...program import Conv, FixedPoint, Layer, MemoryPlan, Program
from ...program.arithmetic.fixed_point import multiplier_and_shift
from ...program.arithmetic.lookup_tables import CURVES, curve_of
from ...tensor import Affine, DType, Layout, TensorSpec
from ..control import RunControl
from ..engines.native import NativeEngine
from .engine import expected_output
from .kernel import KernelFile, opener
from .runner import Runner
from .segments import plan

__all__ = ["STEPS", "StepResult", "make_program", "make_report", "run_ladder"]

_SHOWN = 8


@dataclass
class _Net:
    """A program that is built convolution by convolution, with random weights that use the whole range of the output."""

    random: np.random.Generator
    tensors: dict[str, TensorSpec] = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)

    def image(self, name: str, channels: int, height: int, width: int, zero: int = -11) -> str:
        """A tensor."""
        quantization = Affine.per_tensor(0.1, zero)
        self.tensors[name] = TensorSpec(name, (1, channels, height, width), DType.INT8, Layout.NHWC, quantization)
        return name

    def conv(
        self,
        x: str,
        outputs: int,
        kernel: int = 1,
        *,
        stride: int = 1,
        pad: int | None = None,
        depthwise: bool = False,
        factors: bool = False,
        zero: int = -5,
        added: str | None = None,
        curve: str | None = None,
    ) -> str:
        """One more convolution; gives the name of its output. *factors*: multipliers per channel; *curve*: name of an activation."""
        _, channels, height, width = self.tensors[x].shape
        pad = kernel // 2 if pad is None else pad
        depth = 1 if depthwise else channels
        reach = 70.0 * 70.0 * np.sqrt(kernel * kernel * depth)
        name = f"y{len(self.layers)}"
        y = self.image(name, outputs, (height + 2 * pad - kernel) // stride + 1, (width + 2 * pad - kernel) // stride + 1)
        stage = FixedPoint(
            channel_multiplier=self.random.integers(8000, 16385, outputs).astype(np.int32) if factors else np.zeros(0, np.int32),
            multiplier=np.array([self.random.integers(1 << 14, 1 << 15)], np.int32),
            shift=np.array([int(np.log2(32767 * reach / 60))], np.int32),
            zero_point=np.array([-11], np.int32),
            residual_multiplier=None if added is None else int(self.random.integers(1 << 14, 1 << 15)),
            residual_shift=0 if added is None else 5,
        )
        if curve is not None:
            shape = CURVES[curve]
            values = multiplier_and_shift(250 / 65535)
            multiplier, shift = (np.array([number], np.int32) for number in values)
            stage = replace(stage, curves=(curve_of(shape, 3 * shape.half / reach),), multiplier=multiplier, shift=shift)
        op = Conv(
            weights=self.random.integers(-128, 128, (outputs, kernel, kernel, depth)).astype(np.int8),
            weight_zero=np.array([zero], np.int32),
            bias=self.random.integers(-(1 << 14), 1 << 14, outputs).astype(np.int32),
            epilogue=stage,
            strides=(stride, stride),
            pads=(pad, pad, pad, pad),
            groups=channels if depthwise else 1,
        )
        inputs = (x,) if added is None else (x, added)
        self.layers.append(Layer(f"conv {len(self.layers)}", "Conv", op, inputs, (y,)))
        return y

    def copy(self, x: str) -> str:
        """A 1x1 convolution whose output is its input."""
        _, channels, height, width = self.tensors[x].shape
        multiplier, shift, zero = (np.array([value], np.int32) for value in (1 << 14, 14, -11))
        stage = FixedPoint(np.zeros(0, np.int32), multiplier, shift, zero)
        weights = np.eye(channels, dtype=np.int8).reshape(channels, 1, 1, channels)
        op = Conv(weights, np.zeros(1, np.int32), np.zeros(channels, np.int32), stage)
        self.layers.append(Layer("copy", "Conv", op, (x,), (self.image("y", channels, height, width),)))
        return "y"

    def network(self, x: str) -> str:
        """Two blocks as MobileNet has them, one with an addition."""
        x = self.conv(x, 32, 3, stride=2, factors=True)
        y = self.conv(self.conv(x, 32, 3, depthwise=True, factors=True), 32, factors=True, added=x)
        return self.conv(self.conv(y, 32, 3, stride=2, depthwise=True, factors=True), 64, factors=True)


_Step = Callable[[_Net], Any]

STEPS: dict[str, _Step] = {
    "copy": lambda net: net.copy(net.image("x", 16, 10, 10)),
    "1x1": lambda net: net.conv(net.image("x", 32, 14, 14), 48),
    "1x1, 40 to 7 channels": lambda net: net.conv(net.image("x", 40, 9, 11), 7),
    "3x3": lambda net: net.conv(net.image("x", 32, 14, 14), 32, 3, pad=0),
    "3x3, 48 channels": lambda net: net.conv(net.image("x", 48, 14, 14), 32, 3, pad=0),
    "8x8 map": lambda net: net.conv(net.image("x", 32, 8, 8), 32, 3),
    "padding": lambda net: net.conv(net.image("x", 16, 13, 10), 24, 5),
    "strides": lambda net: net.conv(net.image("x", 24, 15, 15), 24, 3, stride=2),
    "depthwise": lambda net: net.conv(net.image("x", 64, 12, 12), 64, 3, pad=0, depthwise=True),
    "depthwise, padding": lambda net: net.conv(net.image("x", 80, 12, 12, zero=37), 80, 3, depthwise=True),
    "slices": lambda net: net.conv(net.image("x", 16, 160, 160), 16, 3),
    "addition": lambda net: net.conv(net.image("x", 32, 14, 14), 32, added=net.image("a", 32, 14, 14, zero=21)),
    "addition, 3 planes": lambda net: net.conv(net.image("x", 32, 7, 7), 48, 3, added=net.image("a", 48, 7, 7)),
    "per-channel": lambda net: net.conv(net.image("x", 32, 14, 14), 40, 3, factors=True),
    "per-channel, depthwise": lambda net: net.conv(net.image("x", 64, 12, 12), 64, 3, depthwise=True, factors=True),
    "one channel": lambda net: net.conv(net.image("x", 1, 28, 28), 16, 3),
    "lookup table": lambda net: net.conv(net.image("x", 32, 20, 20), 32, 3, factors=True, curve="Swish"),
    "network": lambda net: net.network(net.image("x", 3, 64, 64)),
}
"""What each step runs, from the simplest on."""


@dataclass(frozen=True)
class StepResult:
    """What became of one step.

    :ivar compared: bytes; *different* of them are not those of the native engine, by at most *largest*
    :ivar first: the first differences as layer, row, column, channel, expected and given value
    :ivar error: why the step did not run to its end; empty if it did
    """

    name: str
    compared: int = 0
    different: int = 0
    largest: int = 0
    first: tuple[tuple[Any, ...], ...] = ()
    error: str = ""

    @property
    def passed(self) -> bool:
        """Whether it ran and every byte is right."""
        return not self.error and not self.different


def make_program(build: _Step, seed: int) -> Program:
    """The program of a step."""
    net = _Net(np.random.default_rng(seed))
    last = build(net)
    inputs = tuple(tensor for tensor in net.tensors if not any(tensor in layer.outputs for layer in net.layers))
    return Program(inputs, (last,), net.tensors, tuple(net.layers), MemoryPlan({}, 0))


def run_ladder(device: str = "") -> Iterator[StepResult]:
    """Run all steps on a device; a step that fails does not end the others.

    :param device: path of the device node, ``emulated``, or empty for the node that this machine has
    :raises DeviceUnavailable: there is no such device, or it may not be opened
    """
    open_file = opener(device)
    for number, (name, build) in enumerate(STEPS.items()):
        try:
            runner = Runner(plan(make_program(build, number)), open_file())
            try:
                yield _compared(name, runner)
            finally:
                runner.close()
        except AnynpuError as error:
            yield StepResult(name, error=error.message)


def _compared(name: str, runner: Runner) -> StepResult:
    """Run the layers one after the other, each compared on what the device made of the layers before it."""
    program, control, native = runner.streams.program, RunControl(), NativeEngine(threads=1)
    compared, wrong = 0, np.zeros(0, np.int64)
    first: list[tuple[Any, ...]] = []
    for tensor in program.inputs:
        runner.fill(tensor)
    for index, layer in enumerate(program.layers):
        if index not in runner.streams.lowered:
            return StepResult(name, error=f"{layer.name} has no command stream: {runner.streams.reasons[index]}")
        runner.run_layer(index, control)
        output = runner.read(layer.outputs[0], control)
        expected = expected_output(native, program, index, {each: runner.read(each, control) for each in layer.inputs})
        different = output != expected
        compared += output.size
        wrong = np.append(wrong, np.abs(output.astype(np.int64) - expected)[different])
        for place in np.argwhere(different)[: _SHOWN - len(first)].tolist():
            first.append((layer.name, *place[1:], int(expected[tuple(place)]), int(output[tuple(place)])))
    if len(program.layers) > 1:
        arrays = {each: runner.read(each, control) for each in (*program.inputs, *program.outputs)}
        for part in runner.streams.parts:
            runner.run(part, arrays, control)
        again = np.abs(arrays[program.outputs[0]].astype(np.int64) - output)
        compared, wrong = compared + again.size, np.append(wrong, again[again > 0])
    return StepResult(name, compared, wrong.size, int(wrong.max(initial=0)), tuple(first))


def make_report(device: str, results: list[StepResult]) -> dict[str, Any]:
    """What a user sends: this machine, the driver, and every step."""
    from importlib.metadata import version  # here: slow to load

    opened = opener(device)()
    try:
        driver = opened.version() if isinstance(opened, KernelFile) else ("emulated", (0, 0, 0))
    finally:
        opened.close()
    machine = {"kernel": platform.release(), "machine": platform.machine(), "page_bytes": os.sysconf("SC_PAGESIZE")}
    steps = [{**vars(each), "passed": each.passed} for each in results]
    return {"anynpu": version("anynpu"), "driver": driver[0], "driver_version": list(driver[1]), **machine, "steps": steps}
