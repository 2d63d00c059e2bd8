"""The chip's integers in the fast kernels: they are taken, and they give the reference engine's bytes on ties and at the limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from anynpu.npu.engines.native import NativeEngine
from anynpu.npu.engines.native_levels import available
from anynpu.program import Binary, Conv, FixedPoint
from anynpu.program.arithmetic.lookup_tables import CURVES, curve_of, evaluate
from anynpu.tensor import Affine, DType

from .cases_large import FIXED, large_case, reference_result
from .ingredients import Array, Case, codes, nhwc
from .native_support import guarded_scratch, kernel_of, run_native
from .support import same

FAST = [level for level in available() if level != "generic"]
INT8 = DType.INT8


@pytest.fixture(params=FAST)
def engine(request: pytest.FixtureRequest) -> NativeEngine:
    return NativeEngine(isa=request.param)


def _numbers(*values: int) -> Array:
    return np.array(values, np.int32)


def _stage(multiplier: int, shift: int, zero: int = 0, **other: object) -> FixedPoint:
    return FixedPoint(_numbers(16384), _numbers(multiplier), _numbers(shift), _numbers(zero), **other)  # type: ignore[arg-type]


def _conv(
    stage: FixedPoint, depth: int = 16, depthwise: bool = False, bias: int = 0, full: bool = False, residual: bool = False
) -> Case:
    """A convolution of small weights, whose sums meet every remainder of a small power of two; *full*: of the largest weights."""
    rng = np.random.default_rng(depth)
    channels = 40 if depthwise else 37
    shape = (40, 3, 3, 1) if depthwise else (channels, 1, 1, depth)
    weights = rng.choice([-128, 127], shape).astype(np.int8) if full else rng.integers(-3, 4, shape).astype(np.int8)
    stage = replace(stage, channel_multiplier=rng.choice([16384, 8192, 4096, 12288], channels).astype(np.int32))
    op = Conv(
        weights, _numbers(0), _numbers(bias), stage, groups=40 if depthwise else 1, pads=(1, 1, 1, 1) if depthwise else (0,) * 4
    )  # type: ignore[arg-type]
    spec = nhwc("x", (1, 9, 21, 40 if depthwise else depth), INT8, Affine.per_tensor(1.0, -3))
    out = nhwc("y", (1, 9, 21, channels), INT8, Affine.per_tensor(1.0, 5))
    inputs = [codes(rng, spec.memory_shape, INT8)]
    specs = [spec]
    if residual:
        specs.append(out.renamed("r"))
        inputs.append(codes(rng, out.memory_shape, INT8))
    return Case(op, tuple(inputs), tuple(specs), (nhwc("y", out.memory_shape, INT8),))


def _checked(made: Case, engine: NativeEngine, monkeypatch: pytest.MonkeyPatch) -> Array:
    wanted = reference_result(made)
    with guarded_scratch(monkeypatch):
        outputs = run_native(made, engine)
    kernel = kernel_of(made, engine)
    assert kernel not in ("", "plain"), "a fast kernel"
    assert same(outputs, wanted), f"kernel '{kernel}'"
    return wanted[0]


@pytest.mark.parametrize("operator", sorted(FIXED))
def test_fast_kernels_take_the_cases(operator: str, engine: NativeEngine) -> None:
    cases = [large_case(f"{operator}, fixed point", seed) for seed in range(12)]
    if operator == "matmul":  # products with an activation of their own are rare, and stay in plain C
        cases = [made for made in cases if not made.op.epilogue.curves and made.op.epilogue.slope is None]
    taken = [kernel_of(made, engine) not in ("", "plain") for made in cases]
    assert np.mean(taken) >= 0.5


@pytest.mark.parametrize("depthwise", [False, True], ids=["dense", "depthwise"])
@pytest.mark.parametrize("zero", [0, 5, -128])
def test_ties_in_both_stages_go_to_even(
    depthwise: bool, zero: int, engine: NativeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Channel multipliers of a quarter, a half and three quarters; a second stage of a half and of an eighth."""
    for multiplier, shift in ((16384, 15), (16384, 17), (24576, 17)):
        seen = _checked(_conv(_stage(multiplier, shift, zero), depthwise=depthwise), engine, monkeypatch)
        assert len(np.unique(seen)) > 50


@pytest.mark.parametrize("depthwise", [False, True], ids=["dense", "depthwise"])
def test_bounds_between_codes(depthwise: bool, engine: NativeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    for low, high in ((0, 2**31 - 1), (-37, 101), (3, 3), (-(2**31), -5)):
        stage = _stage(16384, 16, -7, bounds=np.array([[low], [high]], np.int32))
        _checked(_conv(stage, depthwise=depthwise), engine, monkeypatch)


@pytest.mark.parametrize("residual", [False, True], ids=["alone", "residual"])
@pytest.mark.parametrize("depthwise", [False, True], ids=["dense", "depthwise"])
@pytest.mark.parametrize("form", ["plain", "slope", "curve"])
def test_forms(depthwise: bool, residual: bool, form: str, engine: NativeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    extra: dict[str, object] = {"residual_multiplier": 24576, "residual_shift": 15} if residual else {}
    if form == "slope":
        extra["slope"] = _numbers(1638)
    multiplier, shift = 20000, 17
    shapes = [CURVES[name] for name in sorted(CURVES)] if form == "curve" else [None]
    for shape in shapes:
        if shape is not None:
            extra["curves"] = (curve_of(shape, shape.half / 300),)
            multiplier, shift = 32000, 23
        seen = _checked(
            _conv(_stage(multiplier, shift, -20, **extra), depthwise=depthwise, residual=residual), engine, monkeypatch
        )
        assert len(np.unique(seen)) > 20


@pytest.mark.parametrize("depthwise", [False, True], ids=["dense", "depthwise"])
def test_curves_of_scattered_channels(depthwise: bool, engine: NativeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every channel has a curve of its own, but all have one of two functions and one of two ranges of quantized values."""
    channels = 40 if depthwise else 37
    shapes = [CURVES[("Swish", "Sigmoid")[channel // 3 % 2]] for channel in range(channels)]
    curves = tuple(curve_of(shape, shape.half / (200 + 7 * channel)) for channel, shape in enumerate(shapes))
    stage = replace(
        _stage(32000, 23, -20, curves=curves, curve_groups=(1,) * channels),
        multiplier=np.resize(_numbers(32000, 20000), channels),
        shift=np.full(channels, 23, np.int32),
        zero_point=np.resize(_numbers(-20, -90), channels),
    )
    assert len(np.unique(_checked(_conv(stage, depthwise=depthwise), engine, monkeypatch))) > 50


@pytest.mark.parametrize("index", [8192, -501, 16500, 0])
@pytest.mark.parametrize("bits", [15, 19, 22, 24, 26, 28])
def test_curves_of_sums_of_any_size(bits: int, index: int, engine: NativeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums around a tie between two indices, where quantized values differ by several from one to the next; float32 does not
    hold the larger sums."""
    curve = replace(curve_of(CURVES["Swish"], 1.0), multiplier=16384, shift=bits)
    tie = (2 * index + 1) << bits - 15
    value = int(evaluate(curve, np.array([tie]))[0])
    stage = _stage(32767, 14, -2 * value, curves=(curve,))
    seen = _checked(_conv(stage, bias=tie), engine, monkeypatch)
    assert np.any((seen > -128) & (seen < 127)), "not the limits alone"


def _every_index(stage: FixedPoint, channels: int) -> Case:
    """Sums that take every value from -16000 to 16000, and with the biases of the channels those around them."""
    high, low = np.meshgrid(np.arange(-128, 128), np.arange(-64, 64), indexing="ij")
    values = np.stack([high, low], axis=-1)[None].astype(np.int8)
    weights = np.tile(np.array([127, 1], np.int8), (channels, 1)).reshape(channels, 1, 1, 2)
    bias = np.linspace(-6000, 6000, channels).astype(np.int32)
    spec = nhwc("x", values.shape, INT8, Affine.per_tensor(1.0, 0))
    op = Conv(weights, _numbers(0), bias, stage)
    return Case(op, (values,), (spec,), (nhwc("y", (*values.shape[:3], channels), INT8),))


@pytest.mark.parametrize("name", sorted(CURVES))
def test_codes_of_every_index_of_a_curve(name: str, engine: NativeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables from flat to so steep that quantized values are skipped from one index to the next, in tiles of all widths."""
    unit = replace(curve_of(CURVES[name], 1.0), multiplier=16384, shift=14, offset=0)
    for shift, channels, zero in (
        (15, 8, 0),
        (18, 24, 0),
        (20, 16, -118),
        (21, 64, -118),
        (22, 21, 0),
        (23, 32, -118),
        (25, 8, 0),
    ):
        _checked(_every_index(_stage(32000, shift, zero, curves=(unit,)), channels), engine, monkeypatch)


@pytest.mark.parametrize("residual", [False, True], ids=["alone", "residual"])
def test_bounds_before_curves(residual: bool, engine: NativeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    extra: dict[str, object] = {"residual_multiplier": 24576, "residual_shift": 15} if residual else {}
    shape = CURVES["Mish"]
    for low, high in ((0, 2**31 - 1), (-37, 101), (3, 3), (-(2**31), -5), (5000, 6000), (-6000, -5000)):
        stage = _stage(
            32000, 23, -20, bounds=np.array([[low], [high]], np.int32), curves=(curve_of(shape, shape.half / 300),), **extra
        )
        _checked(_conv(stage, residual=residual), engine, monkeypatch)


def test_sums_that_float32_does_not_hold(engine: NativeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums up to 2**31, on which no float32 step is exact: odd ones, and results on ties."""
    for shift in (24, 30, 31):
        _checked(_conv(_stage(16384, shift, 1), depth=3000, full=True), engine, monkeypatch)
    _checked(_conv(_stage(16385, 31, 1), depth=16, bias=2**31 - 1 - 255 * 128 * 16), engine, monkeypatch)


@pytest.mark.parametrize("depthwise", [False, True], ids=["dense", "depthwise"])
@pytest.mark.parametrize("curve", [False, True], ids=["plain", "curve"])
def test_channels_of_which_nothing_is_left(
    depthwise: bool, curve: bool, engine: NativeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Channels with weights of nearly nothing have sums of any size and the multiplier 0; others are clamped."""
    extra: dict[str, object] = {"curves": (curve_of(CURVES["Swish"], 1e-3),)} if curve else {}
    for bias in (-(2**30), 2**30, 20_000_000):
        made = _conv(_stage(16384, 22, 3, **extra), depthwise=depthwise)
        channels = made.op.weights.shape[0]  # type: ignore[union-attr]
        empty = np.arange(channels) % 3 == 0
        stage = replace(made.op.epilogue, channel_multiplier=np.where(empty, 0, 16384).astype(np.int32))  # type: ignore[union-attr]
        bias_of = np.where(empty, bias, 700).astype(np.int32)
        _checked(replace(made, op=replace(made.op, epilogue=stage, bias=bias_of)), engine, monkeypatch)


@pytest.mark.parametrize("depthwise", [False, True], ids=["dense", "depthwise"])
@pytest.mark.parametrize("residual", [False, True], ids=["alone", "residual"])
def test_channels_that_are_nearly_always_zero(
    depthwise: bool, residual: bool, engine: NativeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their scale is so small that the second factor sends sums of a few units to the limits; other channels have usual factors."""
    extra: dict[str, object] = {"residual_multiplier": 16384, "residual_shift": 14} if residual else {}
    bounds = {"bounds": np.array([[0], [17749]], np.int32)}
    for multiplier, shift, zero in (
        (32767, 0, -128),
        (32767, 3, 127),
        (16384, 7, 0),
        (32767, 11, -128),
        (1, 0, 5),
        (20000, 15, 3),
    ):
        for bounded in ({}, bounds):
            made = _conv(_stage(16384, 22, zero, **extra, **bounded), depthwise=depthwise, residual=residual)
            channels = made.op.weights.shape[0]  # type: ignore[union-attr]
            quiet = np.arange(channels) % 3 == 0
            second = {
                "multiplier": np.where(quiet, multiplier, 16384).astype(np.int32),
                "shift": np.where(quiet, shift, 22).astype(np.int32),
            }
            for factor in (16384, 9000, 3):
                stage = replace(
                    made.op.epilogue,  # type: ignore[union-attr]
                    channel_multiplier=np.where(quiet, factor, 16384).astype(np.int32),
                    **second,
                )
                bias = np.where(quiet, np.arange(channels) - channels // 2, 700).astype(np.int32)
                _checked(replace(made, op=replace(made.op, epilogue=stage, bias=bias)), engine, monkeypatch)


@pytest.mark.parametrize("kind", ["add", "sub", "mul", "max", "min"])
def test_ties_of_two_operands(kind: str, engine: NativeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    specs = tuple(nhwc(name, (1, 7, 9, 24), INT8, Affine.per_tensor(1.0, zero)) for name, zero in (("a", -128), ("b", 127)))
    factor, shift = (16384, 20) if kind == "mul" else (16384, 29)
    stage = FixedPoint(np.zeros(0, np.int32), _numbers(factor), _numbers(shift), _numbers(3))
    factors = (np.zeros(0, np.int32),) * 2 if kind == "mul" else (_numbers(16384), _numbers(24576))
    op = Binary(kind, *factors, stage, shifts=(0, 0) if kind == "mul" else (0, 2))  # type: ignore[arg-type]
    inputs = tuple(codes(rng, spec.memory_shape, INT8) for spec in specs)
    _checked(Case(op, inputs, specs, (nhwc("y", (1, 7, 9, 24), INT8),)), engine, monkeypatch)
