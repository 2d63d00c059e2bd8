"""The reference engine against the oracle: equal to the last bit, whatever the block size and the number type of the sums."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from anynpu.errors import DeviceError, ShapeError, TensorTypeError
from anynpu.npu.engines import reference_common
from anynpu.npu.engines.reference import execute, execute_layer
from anynpu.program import (
    Conv,
    Convert,
    Dense,
    Epilogue,
    Float,
    Layer,
    MemoryPlan,
    Pool,
    Program,
    Slice,
    Table,
)
from anynpu.tensor import Affine, DType, Layout, TensorSpec

from . import oracle
from .cases import BUILDERS, case, expected
from .ingredients import Case, nhwc, plain
from .support import run_guarded, same

SEEDS = 30
DTYPES = (DType.INT8, DType.INT16)


def test_the_oracle_rounds_half_to_even() -> None:
    for bits in (0, 1, 5, 40):
        for product in (*range(-100, 101), 3 << 39, -(3 << 39), (5 << 39) + 1, (1 << 62) + (1 << 39)):
            assert oracle.half_even(product, bits) == round(Fraction(product, 2**bits)), (product, bits)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("operator", sorted(BUILDERS))
def test_equals_the_oracle(operator: str, dtype: DType) -> None:
    for seed in range(SEEDS):
        assert same(run_guarded(case(operator, dtype, seed)), expected(operator, dtype, seed)), f"seed {seed}"


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("operator", sorted(BUILDERS))
def test_outputs_are_off_the_rails(operator: str, dtype: DType) -> None:
    """Quantized values at the limits of their type would hide errors from all tests here."""
    low, high = dtype.limits
    on_rails = total = 0
    for seed in range(SEEDS):
        for spec, output in zip(case(operator, dtype, seed).output_specs, expected(operator, dtype, seed), strict=True):
            if spec.dtype is dtype:
                count = int(np.sum((output == low) | (output == high)))
                assert output.size < 100 or count < 0.05 * output.size, f"seed {seed}"
                on_rails, total = on_rails + count, total + output.size
    assert on_rails <= 0.05 * total


@pytest.mark.parametrize("block_bytes", [1, 700])
@pytest.mark.parametrize("operator", sorted(BUILDERS))
def test_small_blocks_change_nothing(operator: str, block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_common, "BLOCK_BYTES", block_bytes)
    for seed in range(SEEDS // 2):
        assert same(run_guarded(case(operator, DType.INT8, seed)), expected(operator, DType.INT8, seed)), f"seed {seed}"


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("operator", ["conv", "conv_grouped", "conv_depthwise", "conv_transpose", "dense", "matmul"])
def test_sums_beyond_a_float_change_nothing(operator: str, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the limits of the floats set low, every sum takes the way of the largest ones: split products, 64-bit integers."""
    monkeypatch.setattr(reference_common, "EXACT_FLOAT32", 1 << 8)
    monkeypatch.setattr(reference_common, "EXACT_FLOAT64", 1 << (17 if dtype is DType.INT8 else 33))
    for seed in range(SEEDS // 2):
        assert same(run_guarded(case(operator, dtype, seed)), expected(operator, dtype, seed)), f"seed {seed}"


def constant_dense(depth: int, dtype: DType, remainder: int) -> Case:
    """One sum of the largest products there are; the bias takes all of it away but the *remainder*."""
    low, high = dtype.limits
    largest = (high - low) ** 2 * depth
    op = Dense(
        np.full((1, depth), high, dtype.storage),
        np.array([low], np.int32),
        np.array([remainder - largest], np.int64),
        Epilogue(np.ones(1, np.float32), np.zeros(1, np.int32)),
    )
    source = plain("x", (1, depth), dtype, Affine.per_tensor(1.0, low))
    return Case(op, (np.full((1, depth), high, dtype.storage),), (source,), (plain("y", (1, 1), dtype),))


@pytest.mark.parametrize("depth", [257, 258, 259, 300, 70_001])
def test_the_largest_sums_of_8_bits_are_exact(depth: int) -> None:
    """From 259 products on float32 cannot hold the sum any more."""
    assert run_guarded(constant_dense(depth, DType.INT8, 7))[0].tolist() == [[7]]


@pytest.mark.parametrize("depth", [4_001, 2_200_001])
def test_the_largest_sums_of_16_bits_are_exact(depth: int) -> None:
    """2.2 million products exceed what float64 holds."""
    assert run_guarded(constant_dense(depth, DType.INT16, -5))[0].tolist() == [[-5]]


def test_rounds_half_to_even() -> None:
    op = Dense(
        np.ones((1, 1), np.int8),
        np.zeros(1, np.int32),
        np.zeros(1, np.int32),
        Epilogue(np.array([0.5], np.float32), np.zeros(1, np.int32)),
    )
    x = np.array([[-5], [-3], [-1], [1], [3], [5], [7]], np.int8)
    made = Case(op, (x,), (plain("x", (7, 1), DType.INT8),), (plain("y", (7, 1), DType.INT8),))
    assert run_guarded(made)[0].ravel().tolist() == [-2, -2, 0, 0, 2, 2, 4]


def test_padding_has_the_value_zero() -> None:
    """The border of a convolution with a zero point of -128 sees zero, not the code 0."""
    op = Conv(
        np.ones((1, 3, 3, 1), np.int8),
        np.zeros(1, np.int32),
        np.zeros(1, np.int32),
        Epilogue(np.ones(1, np.float32), np.zeros(1, np.int32)),
        pads=(1, 1, 1, 1),
    )
    source = nhwc("x", (1, 3, 3, 1), DType.INT8, Affine.per_tensor(1.0, -128))
    made = Case(op, (np.full((1, 3, 3, 1), -127, np.int8),), (source,), (nhwc("y", (1, 3, 3, 1), DType.INT8),))
    assert run_guarded(made)[0].reshape(3, 3).tolist() == [[4, 6, 4], [6, 9, 6], [4, 6, 4]]


def test_convert_leaves_the_padding_of_rows_alone() -> None:
    source = TensorSpec("x", (1, 2, 2, 3), DType.INT8, Layout.NHWC, w_stride=4)
    target = TensorSpec("y", (1, 2, 2, 3), DType.FLOAT32, Layout.NCHW, w_stride=5, h_stride=3)
    x = np.arange(16, dtype=np.int8).reshape(source.memory_shape)
    y = np.full(target.memory_shape, 99.0, np.float32)
    execute(Convert(), [x], [source], [target], [y])
    assert np.array_equal(y[:, :, :2, :3], x[:, :, :3].transpose(0, 3, 1, 2))
    assert np.all(y[:, :, 2] == 99.0)
    assert np.all(y[..., 3:] == 99.0)


def test_convert_saturates() -> None:
    source = plain("x", (1, 5), DType.FLOAT32)
    x = np.array([[np.inf, -np.inf, 1e30, -1e30, 0.0]], np.float32)
    codes = plain("y", (1, 5), DType.INT8, Affine.per_tensor(0.5, 3))
    assert run_guarded(Case(Convert(), (x,), (source,), (codes,)))[0].tolist() == [[127, -128, 127, -128, 3]]
    half = plain("y", (1, 5), DType.FLOAT16)
    assert run_guarded(Case(Convert(), (x,), (source,), (half,)))[0].tolist() == [[np.inf, -np.inf, np.inf, -np.inf, 0.0]]


def test_groups_along_another_axis_are_another_quantization() -> None:
    """The channels of a plain tensor are its last axis, those of an image its second: equal groups do not mean equal quantized values."""
    groups = Affine((0.5, 0.25), (3, -7), (1, 3))
    source = TensorSpec("x", (2, 4, 3, 4), DType.INT8, Layout.NHWC, groups)
    target = TensorSpec("y", (2, 4, 3, 4), DType.INT8, Layout.PLAIN, groups)
    x = np.random.default_rng(0).integers(-30, 30, source.memory_shape).astype(np.int8)
    made = Case(Convert(), (x,), (source,), (target,))
    wanted = tuple(oracle.run(made.op, made.inputs, made.input_specs, made.output_specs))
    assert same(run_guarded(made), wanted)
    assert not np.array_equal(wanted[0], x.transpose(0, 3, 1, 2))


def test_convert_of_a_scalar() -> None:
    source, target = plain("x", (), DType.FLOAT32), plain("y", (), DType.INT8, Affine.per_tensor(0.25, 1))
    made = Case(Convert(), (np.array(2.0, np.float32),), (source,), (target,))
    assert run_guarded(made)[0].tolist() == 9


def test_a_slice_counts_negative_starts_from_the_end() -> None:
    made = Case(
        Slice(((-1,),), ((-2,),)),
        (np.arange(5, dtype=np.int8),),
        (plain("x", (5,), DType.INT8),),
        (plain("y", (3,), DType.INT8),),
    )
    assert run_guarded(made)[0].tolist() == [4, 2, 0]


def test_execute_layer_finds_its_tensors_by_name() -> None:
    tensors = {name: plain(name, (1, 4), DType.INT8) for name in ("x", "y", "z")}
    layer = Layer("double", "Table", Table(np.arange(256).astype(np.uint8).view(np.int8)[None] // 2), ("x",), ("z",))
    program = Program(("x",), ("z",), tensors, (layer,), MemoryPlan({}, 0))
    arrays = {name: np.array([[2, 4, 6, 8]], np.int8) for name in tensors}
    execute_layer(program, layer, arrays)
    assert arrays["z"].tolist() == [[1, 2, 3, 4]]
    assert arrays["y"].tolist() == [[2, 4, 6, 8]]


def test_refuses_arrays_that_are_not_the_tensors() -> None:
    spec = nhwc("image", (1, 4, 4, 3), DType.INT8)
    good = np.zeros((1, 4, 4, 3), np.int8)
    op = Pool("max", (1, 1))
    with pytest.raises(ShapeError, match="'image'"):
        execute(op, [np.zeros((1, 3, 4, 4), np.int8)], [spec], [spec], [good])
    with pytest.raises(TensorTypeError, match="'image'"):
        execute(op, [good], [spec], [spec], [good.astype(np.uint8)])
    with pytest.raises(ShapeError, match="2 arrays for 1 tensors"):
        execute(op, [good, good], [spec], [spec], [good])


def test_refuses_what_it_cannot_execute() -> None:
    spec = plain("x", (2,), DType.FLOAT32)
    array = np.zeros(2, np.float32)
    with pytest.raises(DeviceError, match="Float"):
        execute(Float(()), [array], [spec], [spec], [array])
    packed = plain("packed", (2,), DType.INT4)
    with pytest.raises(DeviceError, match="'packed'"):
        execute(Convert(), [array], [spec], [packed], [np.zeros(2, np.uint8)])
    image = nhwc("image", (1, 2, 2, 1), DType.INT8)
    codes = np.zeros((1, 2, 2, 1), np.int8)
    with pytest.raises(DeviceError, match="average"):
        execute(Pool("average", (1, 1)), [codes], [image], [image], [codes.copy()])
