"""Single convolutions as programs, made by hand: what a layer reaches beside what the processor has at the most.

Each ends in three ways: in rounding mode ``simulator`` with a table, by the chip's integers with a limit (Relu), and by the
chip's integers with an activation on the unrounded sum (Swish).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from anynpu._native import ffi, lib
from anynpu.npu.control import RunControl
from anynpu.npu.engines.native import NativeEngine
from anynpu.program import Conv, Epilogue, Finish, FixedPoint, Layer, MemoryPlan, Program
from anynpu.program.arithmetic.fixed_point import multiplier_and_shift
from anynpu.program.arithmetic.lookup_tables import CURVES, curve_of
from anynpu.tensor import Affine, DType, Layout, TensorSpec

from . import print_table
from .engine_timing import cpu_times

__all__ = ["CHIP", "LAYERS", "ConvLayer", "layer_runner", "peak_runner", "print_layers"]

GOAL = 0.8
GOAL_3X3 = 0.85
FLOAT, CHIP, CURVE = RULES = ("float rule", "chip, Relu", "chip, Swish")
SECONDS = 0.5
_PEAK_ROUNDS = {"avx512vnni": 100_000, "avx2": 200_000, "neon_dotprod": 200_000, "neon": 400_000, "generic": 5_000}


@dataclass(frozen=True)
class ConvLayer:
    """A convolution of an input that is *extent* pixels high and wide; *has_goal*: enough channels to keep the multipliers busy."""

    name: str
    channels: tuple[int, int]
    extent: int
    kernel: int = 1
    stride: int = 1
    groups: int = 1
    has_goal: bool = False

    @property
    def macs(self) -> int:
        return (self.extent // self.stride) ** 2 * self.channels[1] * self.kernel**2 * self.channels[0] // self.groups


def _pointwise(source: int, target: int, extent: int, has_goal: bool = False) -> ConvLayer:
    return ConvLayer(f"1x1 {source}-{target} @{extent}", (source, target), extent, has_goal=has_goal)


def _dense(source: int, target: int, extent: int) -> ConvLayer:
    return ConvLayer(f"3x3 {source}-{target} @{extent}", (source, target), extent, kernel=3, has_goal=True)


def _depthwise(kernel: int, channels: int, extent: int, stride: int = 1) -> ConvLayer:
    name = f"depthwise {kernel}x{kernel}{' stride 2' if stride == 2 else ''} {channels} @{extent}"
    return ConvLayer(name, (channels, channels), extent, kernel, stride, channels)


LAYERS = (
    _pointwise(16, 32, 240),
    _pointwise(48, 48, 120),
    _pointwise(96, 96, 60),
    _pointwise(192, 192, 30, has_goal=True),
    _pointwise(256, 256, 40, has_goal=True),
    _pointwise(384, 384, 15, has_goal=True),
    _dense(96, 24, 120),
    _dense(64, 64, 160),
    _dense(128, 128, 80),
    ConvLayer("3x3 stride 2 3-16 @480", (3, 16), 480, kernel=3, stride=2),
    _depthwise(3, 48, 120),
    _depthwise(3, 96, 60),
    _depthwise(5, 192, 30),
    _depthwise(5, 384, 15),
    _depthwise(3, 32, 240, stride=2),
)


def _finish(rule: str, channels: int, rng: np.random.Generator) -> Finish:
    """How a layer ends, with other numbers for each channel, as the compiler makes them."""
    zero = np.full(1, 4, np.int32)
    if rule == FLOAT:
        table = rng.permutation(256).astype(np.uint8).view(np.int8)[None]
        return Epilogue(rng.uniform(1e-4, 1e-3, channels).astype(np.float32), zero, table=table)
    factors = rng.integers(4000, 16385, channels, np.int32)
    shape = CURVES["Swish"]
    multiplier, shift = multiplier_and_shift(1e-3 if rule == CHIP else 1.0 / (shape.table_scale * 0.05))
    stage = np.array([multiplier], np.int32), np.array([shift], np.int32)
    if rule == CHIP:
        return FixedPoint(factors, *stage, zero, bounds=np.array([[0], [2**31 - 1]], np.int32))
    return FixedPoint(factors, *stage, zero, curves=(curve_of(shape, 5e-5),))


def _program(layer: ConvLayer, rule: str, spread: int) -> Program:
    """The layer alone, with weights whose zero points differ from 0 by up to *spread*, per channel."""
    rng = np.random.default_rng(layer.macs)
    source, target = layer.channels
    extent = layer.extent // layer.stride
    tensors = {
        "x": TensorSpec("x", (1, source, layer.extent, layer.extent), DType.INT8, Layout.NHWC, Affine.per_tensor(0.02, -3)),
        "y": TensorSpec("y", (1, target, extent, extent), DType.INT8, Layout.NHWC, Affine.per_tensor(0.05, 4)),
    }
    conv = Conv(
        rng.integers(-128, 128, (target, layer.kernel, layer.kernel, source // layer.groups), np.int8),
        rng.integers(-spread, spread + 1, target, np.int32),
        rng.integers(-1000, 1000, target, np.int32),
        _finish(rule, target, rng),
        strides=(layer.stride, layer.stride),
        pads=(layer.kernel // 2,) * 4,
        groups=layer.groups,
    )
    return Program(("x",), ("y",), tensors, (Layer(layer.name, "Conv", conv, ("x",), ("y",)),), MemoryPlan({}, 0))


def layer_runner(layer: ConvLayer, engine: NativeEngine, rule: str = FLOAT, spread: int = 20) -> Callable[[], object]:
    """Runs the layer on memory of its own; *spread* is that of the weights' zero points."""
    program = _program(layer, rule, spread)
    rng = np.random.default_rng(1)
    arrays: dict[str, Any] = {name: rng.integers(-128, 128, spec.memory_shape, np.int8) for name, spec in program.tensors.items()}
    bound = engine.prepare(program).bind(arrays)
    control = RunControl()
    return lambda: bound.run(control)


def peak_runner(isa: str) -> Callable[[], int]:
    """Does nothing but multiply and add; gives how many multiply-accumulates that were."""
    rounds = _PEAK_ROUNDS[isa]

    def run() -> int:
        before = ffi.string(lib.anynpu_level())
        lib.anynpu_use_level(isa.encode())
        done: int = lib.anynpu_peak(rounds)
        lib.anynpu_use_level(before)
        return done

    return run


def print_layers(engine: NativeEngine) -> None:
    """Each layer in turn with the peak, so that both see the same clock of the processor."""
    peak = peak_runner(engine.isa)
    peak_macs = peak()
    rows = []
    for layer in LAYERS:
        times = cpu_times({**{rule: layer_runner(layer, engine, rule) for rule in RULES}, "peak": peak}, SECONDS)
        limit = peak_macs / times["peak"].best
        shares = [layer.macs / times[rule].best / limit for rule in RULES]
        wanted = GOAL_3X3 if layer.kernel == 3 else GOAL
        goal = f"{wanted:.0%} {'ok' if min(shares[:2]) >= wanted else 'MISSED'}" if layer.has_goal else ""
        best = [f"{times[rule].best * 1e3:.2f}" for rule in RULES]
        rows.append([layer.name, *best, f"{limit / 1e9:.0f}", *(f"{share:.0%}" for share in shares), goal])
    header = ["ms CPU, best", *RULES, "peak, GMAC/s", *(f"of peak, {rule}" for rule in RULES), "goal"]
    print_table(
        f"single layers, one thread, {engine.isa}, beside the measured peak of its multiply-add instructions", header, rows
    )
