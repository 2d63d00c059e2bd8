"""Every operator in the native engine, at every level of this machine: the bytes of the reference engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from anynpu._native import ffi, lib
from anynpu.errors import DeviceError, ShapeError
from anynpu.npu.engines import native_levels
from anynpu.npu.engines.native import NativeEngine
from anynpu.npu.engines.native_levels import VARIABLE, available, choose_level, level_names
from anynpu.program import Binary, Conv, Dense, Epilogue, Pool, Slice, Transpose
from anynpu.tensor import Affine, DType

from .cases import BUILDERS, case, expected
from .cases_large import LARGE_BUILDERS, large_case, reference_result, share_on_rails
from .ingredients import Case, codes, nhwc, plain
from .native_support import guarded_scratch, kernel_of, run_native, single_layer
from .support import same
from .test_reference import constant_dense

LEVELS = list(available())
SMALL_SEEDS = 24
LARGE_SEEDS = int(os.environ.get("ANYNPU_ENGINE_CASES", "48"))
"""Cases of each operator; `make soak` asks for more."""
DTYPES = (DType.INT8, DType.INT16)
MOVING = {"table", "concat", "slice", "resize nearest", "resize linear", "pool max"}
"""Operators that pass quantized values on: how many of them sit on the limits depends on the input."""


@pytest.fixture(params=LEVELS)
def engine(request: pytest.FixtureRequest) -> NativeEngine:
    return NativeEngine(isa=request.param)


def test_the_cases_are_enough() -> None:
    assert len(BUILDERS) * len(DTYPES) * SMALL_SEEDS + len(LARGE_BUILDERS) * LARGE_SEEDS >= 2000


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("operator", sorted(BUILDERS))
def test_small_cases_equal_the_oracle(operator: str, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    """All levels in one test, as the oracle is what takes time."""
    engines = [NativeEngine(isa=level) for level in LEVELS]
    for seed in range(SMALL_SEEDS):
        for engine in engines:
            with guarded_scratch(monkeypatch):
                outputs = run_native(case(operator, dtype, seed), engine)
            assert same(outputs, expected(operator, dtype, seed)), f"seed {seed} at level {engine.isa}"


def test_slices_of_pixels_of_any_width(engine: NativeEngine) -> None:
    """Every second pixel, and pixels from the right to the left."""
    rng = np.random.default_rng(5)
    for dtype in DTYPES:
        for channels in range(1, 18):
            values = codes(rng, (1, 3, 7, channels), dtype)
            outputs = tuple(plain(name, (1, 3, 4, channels), dtype) for name in ("y", "z"))
            op = Slice(((0, 0, 0, 0), (0, 0, 6, 0)), ((1, 1, 2, 1), (1, 1, -1, 1)))
            made = Case(op, (values,), (plain("x", values.shape, dtype),), outputs)
            assert same(run_native(made, engine), (values[:, :, ::2], values[:, :, :2:-1])), channels


@pytest.mark.parametrize("operator", sorted(LARGE_BUILDERS))
def test_large_cases_equal_the_reference_engine(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever lies after an input: a kernel may read it, but must not use it."""
    engines = [NativeEngine(isa=level) for level in LEVELS]
    on_rails = []
    for seed in range(LARGE_SEEDS):
        made = large_case(operator, seed)
        wanted = reference_result(made)
        on_rails.append(share_on_rails(wanted))
        for engine in engines:
            with guarded_scratch(monkeypatch):
                outputs = run_native(made, engine, around=(0x7F, 0x80, 0xFF)[seed % 3])
            assert same(outputs, wanted), f"seed {seed} at level {engine.isa}, kernel '{kernel_of(made, engine)}'"
    assert operator in MOVING or np.median(on_rails) < 0.05


@pytest.mark.parametrize("depth", [257, 33_000, 33_100, 66_100, 70_001])
def test_the_largest_sums_of_8_bits_are_exact(depth: int, engine: NativeEngine) -> None:
    """From about 33,000 products on 32 bits do not hold the sum any more."""
    assert run_native(constant_dense(depth, DType.INT8, 7), engine)[0].tolist() == [[7]]


def test_the_largest_sums_of_16_bits_are_exact(engine: NativeEngine) -> None:
    assert run_native(constant_dense(4_001, DType.INT16, -5), engine)[0].tolist() == [[-5]]


@pytest.mark.parametrize("zero", [-300, -129, 128, 40_000])
def test_zero_points_beyond_a_byte(zero: int, engine: NativeEngine) -> None:
    """No compiler writes them, but a program may hold them."""
    rng = np.random.default_rng(1)
    spread = 74 * 72**0.5 * (1.5 * abs(zero) + 74)  # of sums of 72 products
    op = Conv(
        codes(rng, (16, 3, 3, 8), DType.INT8),
        np.full(16, zero, np.int32),
        np.array([-72 * zero * (zero + 1)], np.int64),
        Epilogue(np.array([40 / spread], np.float32), np.zeros(1, np.int32)),
        pads=(1, 1, 1, 1),
    )
    spec = nhwc("x", (1, 6, 20, 8), DType.INT8, Affine.per_tensor(1.0, zero))
    made = Case(op, (codes(rng, spec.memory_shape, DType.INT8),), (spec,), (nhwc("y", (1, 6, 20, 16), DType.INT8),))
    wanted = reference_result(made)
    assert len(np.unique(wanted[0])) > 100
    assert same(run_native(made, engine), wanted)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("symmetric", [False, True])
def test_depthwise_rows_of_any_width(symmetric: bool, kernel: int, stride: int, engine: NativeEngine) -> None:
    """From less than half a tile of pixels to several tiles; the last of a row may overlap the one before."""
    rng = np.random.default_rng(3)
    weights, scale = codes(rng, (20, kernel, kernel, 1), DType.INT8), np.array([0.005 / kernel], np.float32)
    op = Conv(
        weights,
        np.zeros(20, np.int32) if symmetric else rng.integers(-20, 20, 20, np.int32),
        rng.integers(-1000, 1000, 20, np.int32),
        Epilogue(scale, np.array([4], np.int32)),
        strides=(stride, stride),
        pads=(kernel // 2,) * 4,
        groups=20,
    )
    for width in range(1, 37):
        spec = nhwc("x", (1, 3, width, 20), DType.INT8, Affine.per_tensor(0.02, -3))
        result = nhwc("y", (1, -(-3 // stride), -(-width // stride), 20), DType.INT8)
        made = Case(op, (codes(rng, spec.memory_shape, DType.INT8),), (spec,), (result,))
        assert same(run_native(made, engine), reference_result(made)), width


def test_depthwise_weights_without_zero_points(engine: NativeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """They fit bytes, for which an instruction set may have a kernel of its own: any kernel, stride, dilation, padding and epilogue."""
    kernels = set()
    for seed in range(SMALL_SEEDS):
        made = large_case("depthwise", seed)
        assert isinstance(made.op, Conv)
        made = replace(made, op=replace(made.op, weight_zero=np.zeros_like(made.op.weight_zero)))
        with guarded_scratch(monkeypatch):
            outputs = run_native(made, engine, around=(0x7F, 0x80, 0xFF)[seed % 3])
        assert same(outputs, reference_result(made)), f"seed {seed}, kernel '{kernel_of(made, engine)}'"
        kernels.add(kernel_of(made, engine))
    assert ("depthwise_bytes_vnni" in kernels) == (engine.isa == "avx512vnni")


def test_a_value_far_beyond_the_range_is_clamped(engine: NativeEngine) -> None:
    op = Dense(
        np.full((2, 1), 127, np.int8),
        np.zeros(1, np.int32),
        np.zeros(1, np.int32),
        Epilogue(np.array([3e38, -3e38], np.float32), np.array([-7, 9], np.int32)),
    )
    made = Case(op, (np.array([[127], [-128]], np.int8),), (plain("x", (2, 1), DType.INT8),), (plain("y", (2, 2), DType.INT8),))
    assert run_native(made, engine)[0].tolist() == [[127, -128], [-128, 127]]


def test_unsigned_codes_run_as_well(engine: NativeEngine) -> None:
    """C computes with signed quantized values only; the reference engine takes the rest."""
    rng = np.random.default_rng(2)
    quantization = Affine.per_tensor(0.1, 100)
    spec = nhwc("x", (1, 4, 4, 3), DType.UINT8, quantization)
    x = rng.integers(0, 256, spec.memory_shape).astype(np.uint8)
    pool = Case(Pool("max", (2, 2), (2, 2)), (x,), (spec,), (nhwc("y", (1, 2, 2, 3), DType.UINT8),))
    moved = Case(Transpose((48,), (0,)), (x,), (spec,), (nhwc("y", (1, 4, 4, 3), DType.UINT8),))
    for made in (pool, moved):
        assert same(run_native(made, engine), reference_result(made))


def test_a_broadcast_residual_runs_as_well(engine: NativeEngine) -> None:
    made = large_case("conv 1x1", next(seed for seed in range(100) if len(large_case("conv 1x1", seed).inputs) == 2))
    shape = (1, 1, 1, made.inputs[1].shape[-1])
    spec = replace(made.input_specs[1], shape=(1, shape[-1], 1, 1))
    narrow = replace(made, inputs=(made.inputs[0], made.inputs[1][:1, :1, :1]), input_specs=(made.input_specs[0], spec))
    assert same(run_native(narrow, engine), reference_result(narrow))


def test_many_axes(engine: NativeEngine) -> None:
    """Axes that lie side by side are one; what is left over may exceed what C has space for."""
    rng = np.random.default_rng(3)
    shape = (2, 1, 2, 2, 2, 2, 2, 3)
    other = (2, 1, 1, 2, 1, 2, 1, 3)
    quantization = Affine.per_tensor(0.1, 3)
    specs = (plain("a", shape, DType.INT8, quantization), plain("b", other, DType.INT8, quantization))
    op = Binary("add", np.ones(1, np.float32), np.ones(1, np.float32), Epilogue(np.zeros(0, np.float32), np.zeros(1, np.int32)))
    inputs = tuple(codes(rng, spec.shape, DType.INT8, spread=0.2) for spec in specs)
    made = Case(op, inputs, specs, (plain("y", shape, DType.INT8),))
    assert same(run_native(made, engine), reference_result(made))


def test_refuses_arrays_that_are_not_the_tensors() -> None:
    program = single_layer(case("table", DType.INT8, 0))
    good = {name: np.zeros(spec.memory_shape, spec.dtype.storage) for name, spec in program.tensors.items()}
    executable = NativeEngine().prepare(program)
    for wrong in (good["input 0"].ravel(), good["input 0"].astype(np.int16), np.repeat(good["input 0"], 2, axis=-1)[..., ::2]):
        with pytest.raises(ShapeError, match="'input 0'"):
            executable.bind({**good, "input 0": wrong})


@pytest.fixture
def level_restored() -> Iterator[None]:
    """What the environment states holds for the process: put it back."""
    before = ffi.string(lib.anynpu_level())
    yield
    lib.anynpu_use_level(before)


@pytest.mark.usefixtures("level_restored")
def test_the_environment_chooses_the_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    best = LEVELS[0]
    monkeypatch.delenv(VARIABLE, raising=False)
    assert lib.anynpu_use_level(best.encode())
    assert NativeEngine().isa == best
    assert NativeEngine(isa="generic").isa == "generic"
    assert ffi.string(lib.anynpu_level()).decode() == best
    monkeypatch.setenv(VARIABLE, "generic")
    assert NativeEngine().isa == "generic"
    assert ffi.string(lib.anynpu_level()) == b"generic", "conversions follow the environment"
    assert NativeEngine(isa=best).isa == best
    monkeypatch.setenv(VARIABLE, "abacus")
    with pytest.raises(DeviceError, match="abacus"):
        NativeEngine()


def test_an_instruction_set_that_the_processor_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_levels, "available", lambda: ("generic",))
    wanted = level_names()[0]
    with pytest.raises(DeviceError, match=f"does not have {wanted}") as caught:
        choose_level(wanted)
    assert "generic" in caught.value.hint
