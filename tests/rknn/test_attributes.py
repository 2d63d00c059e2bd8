"""What attribute queries answer: as logged on boards, and consistent on every chip."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
import pytest
from compiler.onnx_builders import Net

import anynpu
from anynpu import chips
from anynpu._rknn import ffi
from anynpu.chips import Chip
from anynpu.errors import ShapeError, TensorTypeError, UnsupportedCall
from anynpu.program.convert import convert, dequantize_affine
from anynpu.rknn.constants import rknn_tensor_format, rknn_tensor_qnt_type, rknn_tensor_type
from anynpu.rknn.info import DTYPE_OF, TYPE_OF, TensorAttr, View, fill, input_attr, memory_spec, output_attr
from anynpu.tensor import Affine, DType, DynamicFixedPoint, Layout, Quantization, TensorSpec

NCHW, NHWC = rknn_tensor_format.RKNN_TENSOR_NCHW, rknn_tensor_format.RKNN_TENSOR_NHWC
NC1HWC2, UNDEFINED = rknn_tensor_format.RKNN_TENSOR_NC1HWC2, rknn_tensor_format.RKNN_TENSOR_UNDEFINED
INT8, FP16 = rknn_tensor_type.RKNN_TENSOR_INT8, rknn_tensor_type.RKNN_TENSOR_FLOAT16
FP32, UINT8 = rknn_tensor_type.RKNN_TENSOR_FLOAT32, rknn_tensor_type.RKNN_TENSOR_UINT8
AFFINE = rknn_tensor_qnt_type.RKNN_TENSOR_QNT_AFFINE_ASYMMETRIC
DFP = rknn_tensor_qnt_type.RKNN_TENSOR_QNT_DFP

RKNN = [chip for chip in chips.all_chips() if chip.family == "rknn"]
RK3588, RV1106, RV1126B = (chips.get(name) for name in ("rk3588", "rv1106", "rv1126b"))

every_chip = pytest.mark.parametrize("chip", RKNN, ids=lambda chip: chip.name)


def codes(name: str, shape: tuple[int, ...], zero_point: int = -128, scale: float = 1 / 255) -> TensorSpec:
    """A tensor as the compiler makes it: int8, channels last."""
    layout = Layout.NHWC if len(shape) == 4 else Layout.PLAIN
    return TensorSpec(name, shape, DType.INT8, layout, Affine.per_tensor(scale, zero_point))


def halves(name: str, shape: tuple[int, ...]) -> TensorSpec:
    return TensorSpec(name, shape, DType.FLOAT16, Layout.row_major(len(shape)))


def logged(attr: TensorAttr) -> tuple[Any, ...]:
    """The fields that boards print, in that order."""
    return (
        *(list(attr.dims), attr.n_elems, attr.size, attr.w_stride, attr.size_with_stride),
        *(attr.fmt, attr.type, attr.qnt_type, attr.zp, f"{attr.scale:.6f}"),
    )


IMAGES = ([1, 640, 640, 3], 1228800, 1228800, 640, 1228800, NHWC, INT8, AFFINE, -128, "0.003922")
YOLO_SCALES = {80: 0.003860, 40: 0.003922, 20: 0.003915}


# boards


@pytest.mark.parametrize("name", ["rk3588", "rk3576"])
def test_yolov5_on_rk3588_and_rk3576(name: str) -> None:
    chip = chips.get(name)
    assert logged(input_attr(codes("images", (1, 3, 640, 640)), chip, 0, View.LOGICAL)) == IMAGES
    for side, room in ((80, 1638400), (40, 491520), (20, 163840)):
        attr = output_attr(codes("out", (1, 255, side, side), -128, YOLO_SCALES[side]), chip, 1, View.LOGICAL)
        elements = 255 * side * side
        scale = f"{YOLO_SCALES[side]:.6f}"
        assert logged(attr) == ([1, 255, side, side], elements, elements, 0, room, NCHW, INT8, AFFINE, -128, scale)
    for side, room in ((80, 307200), (40, 92160), (20, 30720)):
        assert output_attr(codes("out", (1, 36, side, side)), chip, 0, View.LOGICAL).size_with_stride == room


def test_yolov5_on_rv1106() -> None:
    assert logged(input_attr(codes("images", (1, 3, 640, 640)), RV1106, 0, View.LOGICAL)) == IMAGES
    for side, scale in YOLO_SCALES.items():
        attr = output_attr(codes("output", (1, 255, side, side), -128, scale), RV1106, 0, View.NHWC)
        elements = 255 * side * side
        assert (attr.dims, attr.n_elems, attr.size) == ((1, side, side, 255), elements, elements)
        assert (attr.fmt, attr.type, attr.qnt_type, attr.zp, f"{attr.scale:.6f}") == (NHWC, INT8, AFFINE, -128, f"{scale:.6f}")


def test_yolov8_native_on_rk3588() -> None:
    assert logged(input_attr(codes("images", (1, 3, 640, 640)), RK3588, 0, View.NATIVE)) == IMAGES
    sizes = {80: (409600, 614400, 204800), 40: (102400, 153600, 51200), 20: (25600, 38400, 12800)}
    for side, expected in sizes.items():
        for channels, blocks, size in zip((64, 80, 1), (4, 6, 2), expected, strict=True):
            attr = output_attr(codes("318", (1, channels, side, side), -58, 0.117659), RK3588, 0, View.NATIVE)
            dims = [1, blocks, side, side, 16]
            assert logged(attr) == (dims, size, size, 0, size, NC1HWC2, INT8, AFFINE, -58, "0.117659")


def test_mobilenet_v2_on_rk3588() -> None:
    data = codes("data", (1, 3, 224, 224), -13, 0.018317)
    for view in (View.LOGICAL, View.NATIVE):
        expected = ([1, 224, 224, 3], 150528, 150528, 224, 150528, NHWC, INT8, AFFINE, -13, "0.018317")
        assert logged(input_attr(data, RK3588, 0, view)) == expected
    prob = halves("prob", (1, 1000, 1, 1))
    normal, native = (output_attr(prob, RK3588, 0, view) for view in (View.LOGICAL, View.NATIVE))
    assert logged(normal) == ([1, 1000, 1, 1], 1000, 2000, 0, 16000, NCHW, FP16, AFFINE, 0, "1.000000")
    assert logged(native) == ([1, 125, 1, 1, 8], 1000, 2000, 0, 2000, NC1HWC2, FP16, AFFINE, 0, "1.000000")


def test_yolov5_on_rv1126b() -> None:
    rooms = {80: 1638400, 40: 409600, 20: 122880}
    for side, room in rooms.items():
        assert output_attr(codes("out", (1, 255, side, side)), RV1126B, 0, View.LOGICAL).size_with_stride == room


def test_classes_of_two_axes() -> None:
    attr = output_attr(codes("classes", (1, 1001), -128, 1 / 256), chips.get("rk3562"), 0, View.LOGICAL)
    assert (attr.dims, attr.size, attr.fmt) == ((1, 1001), 1001, UNDEFINED)


def test_13_channels_on_rk3568() -> None:
    assert input_attr(codes("x", (1, 13, 4, 4)), chips.get("rk3568"), 0, View.NATIVE).dims == (1, 2, 4, 4, 8)


def test_rows_of_24_pixels_are_stored_as_32() -> None:
    attr = input_attr(codes("x", (1, 3, 24, 24)), RK3588, 0, View.LOGICAL)
    assert (attr.w_stride, attr.size, attr.size_with_stride) == (32, 24 * 24 * 3, 24 * 32 * 3)


# what the compiler gives


def compiled(net: Net, **options: Any) -> anynpu.Model:
    proto = net.proto()
    shape = net.shapes["images"]
    pictures = [{"images": np.random.default_rng(seed).integers(0, 256, shape).astype(np.float32)} for seed in range(2)]
    return anynpu.compile(proto, "rk3588", dataset=pictures, **options)


def test_a_compiled_detector_with_three_heads() -> None:
    net = Net()
    picture = net.input("images", (1, 3, 640, 640))
    pooled = net.op("MaxPool", picture, kernel_shape=[2, 2], strides=[2, 2])
    x = net.conv(pooled, 8, 1, cin=3, strides=[4, 4])
    for _ in range(3):
        net.output(net.op("Sigmoid", net.conv(x, 255, 1, cin=8)))
        x = net.conv(x, 8, 2, cin=8, strides=[2, 2])
    model = compiled(net, std=(255.0, 255.0, 255.0))
    assert logged(input_attr(model.inputs[0], RK3588, 0, View.LOGICAL)) == IMAGES
    for spec, side, room in zip(model.outputs, (80, 40, 20), (1638400, 491520, 163840), strict=True):
        attr = output_attr(spec, RK3588, 0, View.LOGICAL)
        assert isinstance(spec.quantization, Affine)
        meaning = (AFFINE, spec.quantization.zero_point, f"{spec.quantization.scale:.6f}")
        assert logged(attr) == ([1, 255, side, side], 255 * side**2, 255 * side**2, 0, room, NCHW, INT8, *meaning)
        assert attr.name == spec.name


def test_a_compiled_detector_in_the_native_layout() -> None:
    net = Net()
    x = net.conv(net.input("images", (1, 3, 160, 160)), 8, 2, strides=[2, 2])
    for channels in (64, 80, 1):
        net.output(net.conv(x, channels, 1, cin=8))
    model = compiled(net, std=(255.0, 255.0, 255.0))
    attrs = [output_attr(spec, RK3588, index, View.NATIVE) for index, spec in enumerate(model.outputs)]
    assert [attr.dims for attr in attrs] == [(1, blocks, 80, 80, 16) for blocks in (4, 6, 2)]
    assert [attr.size for attr in attrs] == [attr.size_with_stride for attr in attrs] == [409600, 614400, 204800]
    assert [(attr.zp, attr.scale) for attr in attrs] == [
        (spec.quantization.zero_point, np.float32(spec.quantization.scale)) for spec in model.outputs if spec.quantization
    ]


def test_a_compiled_classifier_that_ends_in_softmax() -> None:
    net = Net()
    x = net.op("GlobalAveragePool", net.conv(net.input("images", (1, 3, 224, 224)), 4, 1, strides=[7, 7]))
    net.output(net.op("Softmax", net.conv(x, 1000, 1, cin=4), axis=1))
    model = compiled(net, mean=(123.68, 116.78, 103.94), std=(58.82, 58.82, 58.82), keep_float_outputs=True)
    (data,), (prob,) = model.inputs, model.outputs
    expected = ([1, 224, 224, 3], 150528, 150528, 224, 150528, NHWC, INT8, AFFINE, -13, "0.018317")
    assert logged(input_attr(data, RK3588, 0, View.LOGICAL)) == expected
    normal, native = (output_attr(prob, RK3588, 0, view) for view in (View.LOGICAL, View.NATIVE))
    assert logged(normal) == ([1, 1000, 1, 1], 1000, 2000, 0, 16000, NCHW, FP16, AFFINE, 0, "1.000000")
    assert logged(native) == ([1, 125, 1, 1, 8], 1000, 2000, 0, 2000, NC1HWC2, FP16, AFFINE, 0, "1.000000")


def test_a_compiled_float16_model() -> None:
    net = Net()
    net.output(net.conv(net.input("images", (1, 3, 16, 20)), 10, 3))
    model = anynpu.compile(net.proto(), "rk3588", dtype="fp16")
    attr = input_attr(model.inputs[0], RK3588, 0, View.LOGICAL)
    assert logged(attr) == ([1, 16, 20, 3], 960, 1920, 24, 16 * 24 * 3 * 2, NHWC, FP16, AFFINE, 0, "1.000000")
    assert output_attr(model.outputs[0], RK3588, 0, View.NATIVE).dims == (1, 2, 14, 18, 8)


# every chip

SHAPES = [
    (1, 3, 640, 640),
    (1, 1, 7, 13),
    (4, 4, 5, 17),
    (1, 2, 9, 31),
    (2, 13, 3, 5),
    (1, 33, 1, 1),
    (1, 255, 20, 20),
    (1, 1001),
    (7,),
    (1, 84, 2100),
    (1, 3, 2, 4, 5),
    (),
]
QUANTIZATIONS: list[tuple[DType, Quantization | None]] = [
    (DType.INT8, Affine.per_tensor(0.25, 3)),
    (DType.INT16, DynamicFixedPoint(7)),
    (DType.FLOAT16, None),
    (DType.FLOAT32, None),
    (DType.INT32, None),
    (DType.INT64, None),
    (DType.UINT64, None),
    (DType.BOOL, None),
]


def program_tensors() -> list[TensorSpec]:
    result = []
    for shape in SHAPES:
        for dtype, quantization in QUANTIZATIONS:
            layouts = [Layout.row_major(len(shape)), Layout.NHWC] if len(shape) > 2 else [Layout.PLAIN]
            result += [TensorSpec("tensor", shape, dtype, layout, quantization) for layout in layouts]
    return result


def block(values: Any, attr: TensorAttr) -> int:
    """An entry of the catalogue for the type of *attr*."""
    dtype = DTYPE_OF[attr.type]
    return int(values.get(dtype.value, values["int8"] * 8 // dtype.bits))


def check_attr(attr: TensorAttr, spec: TensorSpec) -> None:
    itemsize = DTYPE_OF[attr.type].bits // 8
    assert attr.n_elems == math.prod(attr.dims)
    assert attr.size == attr.n_elems * itemsize
    assert attr.size <= attr.size_with_stride
    assert attr.spec.nbytes <= attr.size_with_stride
    assert (attr.spec.name, attr.spec.shape, attr.spec.dtype) == ("tensor", spec.shape, DTYPE_OF[attr.type])
    assert attr.type is not FP32
    assert (attr.pass_through, attr.h_stride) == (0, 0)
    if attr.fmt is NC1HWC2:
        n, c1, h, w, c2 = attr.dims
        assert (n, h, w) == (spec.shape[0], *spec.shape[2:])
        assert c1 * c2 >= spec.shape[1]
        assert attr.size == attr.size_with_stride
    else:
        order = (0, 2, 3, 1) if attr.fmt is NHWC else range(len(spec.shape))
        assert attr.dims == tuple(spec.shape[axis] for axis in order)
        assert (attr.fmt is UNDEFINED) == (len(spec.shape) != 4)
    if spec.quantization is None:
        assert (attr.qnt_type, attr.fl, attr.zp, attr.scale) == (AFFINE, 0, 0, 1.0)
    elif spec.dtype is DType.INT8:
        zero = 3 if attr.type is INT8 else 3 + 128
        assert (attr.qnt_type, attr.fl, attr.zp, attr.scale) == (AFFINE, 0, zero, 0.25)
    else:
        assert (attr.qnt_type, attr.fl, attr.zp, attr.scale) == (DFP, 7, 0, 2.0**-7)


@every_chip
def test_inputs_of_every_shape_and_type(chip: Chip) -> None:
    for spec in program_tensors():
        for view in View:
            attr = input_attr(spec, chip, 3, view)
            check_attr(attr, spec)
            if len(spec.shape) != 4:
                assert attr.w_stride == 0
                assert attr.size_with_stride % chip.input_width_alignment["int8"] == 0
                assert attr.size_with_stride - attr.size < chip.input_width_alignment["int8"]
                continue
            _, channels, _, width = spec.shape
            npu = attr.type in (INT8, UINT8, FP16, rknn_tensor_type.RKNN_TENSOR_INT16)
            alignment = block(chip.input_width_alignment, attr) if npu and channels in (1, 3, 4) else 1
            assert attr.w_stride == -(-width // alignment) * alignment
            assert attr.spec.nbytes == attr.size_with_stride
            assert attr.size_with_stride * width == attr.size * attr.w_stride
            general = view is View.NHWC or (view is View.LOGICAL and chip.library == "librknnrt")
            native = NCHW if not npu else NHWC if channels in (1, 3, 4) else NC1HWC2
            assert attr.fmt is (NHWC if general else native)
            if attr.fmt is NC1HWC2:
                assert attr.dims[4] == block(chip.channel_block, attr)
                assert attr.dims[1] == -(-channels // attr.dims[4])


@every_chip
def test_outputs_of_every_shape_and_type(chip: Chip) -> None:
    for spec in program_tensors():
        for view in (View.LOGICAL, View.NATIVE):
            attr = output_attr(spec, chip, 3, view)
            check_attr(attr, spec)
            assert attr.w_stride == 0
            assert attr.spec.nbytes == attr.size
            npu = attr.type in (INT8, FP16, rknn_tensor_type.RKNN_TENSOR_INT16)
            if len(spec.shape) != 4 or not npu:
                assert attr.size_with_stride == attr.size
                assert attr.fmt is (NCHW if len(spec.shape) == 4 else UNDEFINED)
                continue
            n, channels, height, width = spec.shape
            c2 = block(chip.channel_block, attr)
            if view is View.LOGICAL:
                row = block(chip.input_width_alignment, attr)
                padded = n * (-(-channels // c2) * c2) * height * (-(-width // row) * row)
                assert attr.size_with_stride == padded * DTYPE_OF[attr.type].bits // 8
            else:
                unit = c2 if spec.quantization is None else block(chip.channel_alignment, attr)
                assert (attr.fmt, attr.dims[4]) == (NC1HWC2, c2)
                assert attr.dims[1] * c2 == -(-channels // unit) * unit


@every_chip
def test_nhwc_outputs(chip: Chip) -> None:
    for spec in program_tensors():
        if chip.name in ("rv1103b", "rv1106b"):
            with pytest.raises(UnsupportedCall, match="no NHWC outputs"):
                output_attr(spec, chip, 0, View.NHWC)
        elif len(spec.shape) != 4 and chip.library == "librknnmrt":
            assert output_attr(spec, chip, 0, View.NHWC) == output_attr(spec, chip, 0, View.LOGICAL)
        elif len(spec.shape) != 4:
            with pytest.raises(ShapeError, match="4 axes"):
                output_attr(spec, chip, 0, View.NHWC)
        else:
            attr = output_attr(spec, chip, 0, View.NHWC)
            check_attr(attr, spec)
            assert (attr.fmt, attr.w_stride, attr.spec.nbytes) == (NHWC, 0, attr.size)


@every_chip
def test_nhwc_outputs_are_dense(chip: Chip) -> None:
    if chip.queries["RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR"]:
        attr = output_attr(codes("mask", (1, 1, 2048, 64)), chip, 0, View.NHWC)
        assert attr.size_with_stride == attr.size == 2048 * 64


@every_chip
def test_a_picture_is_bytes_for_clients_that_bind_the_nhwc_attributes_as_they_are(chip: Chip) -> None:
    attr = input_attr(codes("images", (1, 3, 32, 32), -128, 1 / 255), chip, 0, View.NHWC)
    expected = (UINT8, 0) if chip.library == "librknnmrt" else (INT8, -128)
    assert (attr.type, attr.zp, attr.fmt) == (*expected, NHWC)
    assert attr.size_with_stride == 32 * 32 * 3
    features = input_attr(codes("features", (1, 20, 8, 8)), chip, 0, View.NHWC)
    assert features.type is INT8


@every_chip
def test_floats_of_nhwc_outputs_have_no_room(chip: Chip) -> None:
    """EZ RKNN Async reads bound float16 outputs of 1, 3, 4 and 8 channels, which it rejects if they are not dense."""
    if chip.name in ("rv1103b", "rv1106b"):
        return
    for channels in (1, 3, 4, 8):
        spec = TensorSpec("out", (1, channels, 6, 7), DType.FLOAT16, Layout.NHWC)
        attr = output_attr(spec, chip, 0, View.NHWC)
        assert attr.size_with_stride == attr.size == channels * 6 * 7 * 2


@every_chip
def test_the_memory_of_an_attribute_holds_the_tensor(chip: Chip) -> None:
    for spec in program_tensors():
        for attr in (input_attr(spec, chip, 0, View.NATIVE), output_attr(spec, chip, 0, View.NATIVE)):
            check_that_it_holds(attr.spec, spec)


@functools.cache
def check_that_it_holds(memory: TensorSpec, spec: TensorSpec) -> None:
    """Most chips have the same memory for a tensor."""
    random = np.random.default_rng(5)
    raw = random.integers(0, 2 if spec.dtype is DType.BOOL else 100, spec.memory_shape).astype(spec.dtype.storage)
    there = convert(raw, spec, memory)
    assert there.nbytes == memory.nbytes
    np.testing.assert_array_equal(convert(there, memory, spec), raw)


def test_types_go_both_ways() -> None:
    assert set(DTYPE_OF) == set(rknn_tensor_type) - {rknn_tensor_type.RKNN_TENSOR_TYPE_MAX}
    assert {TYPE_OF[dtype]: dtype for dtype in TYPE_OF} == DTYPE_OF


def test_scales_by_group_are_shown_as_one_that_fits_all_bytes() -> None:
    grouped = Affine((0.5, 0.01), (-128, 20), (2, 3))
    spec = TensorSpec("grouped", (1, 5, 4, 4), DType.INT8, Layout.NHWC, grouped)
    raw = np.random.default_rng(6).integers(-128, 128, spec.memory_shape).astype(np.int8)
    scales, zeros = grouped.expand(5)
    values = (raw.astype(np.float32) - zeros) * scales
    attr = output_attr(spec, RK3588, 0, View.NHWC)
    bytes_for_the_caller = convert(raw, spec, attr.spec)
    seen = dequantize_affine(bytes_for_the_caller, zero_point=attr.zp, scale=attr.scale)
    assert np.abs(seen - values).max() <= attr.scale * 0.5001
    assert attr.scale < 0.6


def test_the_compiler_gives_no_groups_to_inputs_and_outputs() -> None:
    uneven = np.repeat([40.0, 0.01], [2, 6]).astype(np.float32)[:, None, None, None] * np.ones((1, 3, 1, 1), np.float32)
    for inner_is_output in (False, True):
        net = Net()
        inner = net.op("Conv", net.input("images", (1, 3, 12, 12)), net.constant(uneven))
        net.output(net.conv(inner, 8, 3, cin=8, group=8), *[inner] * inner_is_output)
        model = compiled(net, std=(255.0, 255.0, 255.0), channel_groups=2)
        grouped = [
            spec.name
            for spec in model.programs[0].tensors.values()
            if spec.quantization is not None and not spec.quantization.is_per_tensor
        ]
        assert grouped == ([] if inner_is_output else [inner])


# the struct


def test_fill_writes_every_byte() -> None:
    spec = TensorSpec("prob", (1, 1001), DType.INT16, Layout.PLAIN, DynamicFixedPoint(-3))
    attr = dataclasses.replace(output_attr(spec, RV1106, 5, View.LOGICAL), pass_through=1, h_stride=9, w_stride=8)
    struct = ffi.new("rknn_tensor_attr *")
    ffi.buffer(struct)[:] = b"\xa5" * ffi.sizeof("rknn_tensor_attr")
    fill(attr, struct)
    for name in ("index", "n_elems", "size", "fmt", "type", "qnt_type", "fl", "zp", "scale"):
        assert getattr(struct, name) == getattr(attr, name), name
    for name in ("w_stride", "size_with_stride", "pass_through", "h_stride"):
        assert getattr(struct, name) == getattr(attr, name), name
    assert (struct.index, struct.fl, struct.scale) == (5, -3, 8.0)
    assert (struct.n_dims, list(struct.dims)) == (2, [1, 1001] + [0] * 14)
    assert bytes(ffi.buffer(struct.name)) == b"prob" + bytes(252)
    assert b"\xa5" not in bytes(ffi.buffer(struct))


def test_fill_keeps_signs_and_fractions() -> None:
    struct = ffi.new("rknn_tensor_attr *")
    attr = input_attr(codes("x", (1, 3, 8, 8), -128, 0.1), RK3588, 0, View.LOGICAL)
    fill(attr, struct)
    assert (struct.zp, struct.scale) == (-128, attr.scale)
    assert attr.scale == np.float32(0.1)


@pytest.mark.parametrize(("name", "kept"), [("a" * 300, 255), ("é" * 200, 254), ("a" * 255, 255)])
def test_long_names_are_cut_between_characters(name: str, kept: int) -> None:
    struct = ffi.new("rknn_tensor_attr *")
    fill(output_attr(halves(name, (1, 4)), RK3588, 0, View.LOGICAL), struct)
    assert ffi.string(struct.name) == name.encode()[:kept]
    assert struct.name[255] == b"\0"


def test_what_the_struct_cannot_hold_is_refused() -> None:
    with pytest.raises(ShapeError, match="17 axes"):
        output_attr(halves("x", (1,) * 17), RK3588, 0, View.LOGICAL)
    with pytest.raises(ShapeError, match="counts to"):
        output_attr(halves("x", (2**31, 1)), RK3588, 0, View.LOGICAL)


# memory that the caller describes


def bound(spec: TensorSpec, chip: Chip, *, is_input: bool = True, pass_through: bool = False, **changes: Any) -> TensorSpec:
    """The memory for the native attributes, with the fields of *changes* set otherwise."""
    attr = (input_attr if is_input else output_attr)(spec, chip, 0, View.NATIVE)
    fields = {name: getattr(attr, name) for name in ("fmt", "type", "dims", "w_stride", "h_stride")}
    return memory_spec(spec, chip, **{**fields, **changes}, is_input=is_input, pass_through=pass_through)


@every_chip
def test_memory_as_queried_is_what_was_described(chip: Chip) -> None:
    for spec in program_tensors():
        output = output_attr(spec, chip, 0, View.NATIVE)
        assert bound(spec, chip, is_input=False) == output.spec
        described = input_attr(spec, chip, 0, View.NATIVE)
        assert bound(spec, chip, pass_through=True) == described.spec
        if described.fmt is NC1HWC2 and chip.library == "librknnrt":
            assert bound(spec, chip) == dataclasses.replace(described.spec, layout=Layout.NHWC, c1=0, c2=0)
        else:
            assert bound(spec, chip) == described.spec


def test_a_picture_of_bytes() -> None:
    memory = bound(codes("x", (1, 3, 24, 24)), RK3588, type=UINT8)
    assert memory == TensorSpec("x", (1, 3, 24, 24), DType.UINT8, Layout.NHWC, w_stride=32)
    assert bound(codes("x", (1, 3, 24, 24)), RK3588, type=UINT8, w_stride=0).nbytes == 24 * 24 * 3


def test_strides_of_a_batch() -> None:
    memory = bound(codes("x", (2, 3, 10, 16)), RK3588, h_stride=12, w_stride=20)
    assert memory.memory_shape == (2, 12, 20, 3)
    assert bound(codes("x", (1, 3, 10, 16)), RK3588, h_stride=12).memory_shape == (1, 10, 16, 3)
    for field in ("w_stride", "h_stride"):
        with pytest.raises(ShapeError, match=f"{field} 9"):
            bound(codes("x", (2, 3, 10, 16)), RK3588, **{field: 9})


def test_outputs_ignore_strides() -> None:
    memory = bound(codes("y", (1, 20, 4, 4)), RK3588, is_input=False, fmt=NCHW, w_stride=32, h_stride=7)
    assert memory.nbytes == 20 * 16


def test_an_output_as_floats_keeps_the_blocks_of_its_codes() -> None:
    memory = bound(codes("y", (1, 80, 4, 4)), RK3588, is_input=False, type=FP32)
    assert memory.memory_shape == (1, 6, 4, 4, 16)
    assert (memory.dtype, memory.quantization) == (DType.FLOAT32, None)


@pytest.mark.parametrize("fmt", [NCHW, NHWC])
def test_extents_of_another_order_are_taken_with_a_changed_format(fmt: rknn_tensor_format) -> None:
    spec = codes("y", (1, 80, 4, 5))
    layout = Layout.NCHW if fmt is NCHW else Layout.NHWC
    for dims in ((1, 6, 4, 5, 16), (1, 80, 4, 5), (1, 4, 5, 80), ()):
        memory = bound(spec, RK3588, is_input=False, fmt=fmt, dims=dims)
        assert memory == TensorSpec("y", (1, 80, 4, 5), DType.INT8, layout, spec.quantization)
    with pytest.raises(ShapeError, match="described as"):
        bound(spec, RK3588, is_input=False, fmt=fmt, dims=(1, 5, 4, 80))


def test_blocks_of_another_size_are_refused() -> None:
    with pytest.raises(ShapeError, match="described as"):
        bound(codes("y", (1, 80, 4, 4)), RK3588, is_input=False, dims=(1, 10, 4, 4, 8))


def test_passed_through_bytes_are_the_tensor_itself() -> None:
    spec = codes("x", (1, 3, 8, 16))
    assert bound(spec, RK3588, type=UINT8, pass_through=True) == bound(spec, RK3588, pass_through=True)
    with pytest.raises(TensorTypeError, match="pass_through"):
        bound(spec, RK3588, type=FP32, pass_through=True)
    with pytest.raises(ShapeError, match="pass_through"):
        bound(codes("x", (1, 20, 8, 8)), RK3588, fmt=NHWC, pass_through=True)


@pytest.mark.parametrize(
    ("spec", "accepted"),
    [
        (codes("x", (1, 3, 8, 8)), {"int8", "uint8", "float32"}),
        (halves("x", (1, 3, 8, 8)), {"float16", "uint8", "float32"}),
        (TensorSpec("x", (1, 8), DType.INT64), {"int64"}),
        (TensorSpec("x", (1, 8), DType.BOOL), {"bool"}),
    ],
    ids=lambda value: value.dtype.value if isinstance(value, TensorSpec) else "",
)
def test_types_of_inputs(spec: TensorSpec, accepted: set[str]) -> None:
    for kind, dtype in DTYPE_OF.items():
        if dtype.value in accepted:
            memory = bound(spec, RK3588, type=kind)
            assert memory.dtype is dtype
            assert (memory.quantization is not None) == (spec.quantization is not None and dtype is spec.dtype)
        else:
            with pytest.raises(TensorTypeError, match="does not take"):
                bound(spec, RK3588, type=kind)


def test_the_small_runtime_converts_less() -> None:
    picture, features = codes("x", (1, 3, 8, 8)), codes("y", (1, 20, 8, 8))
    assert bound(picture, RV1106, type=UINT8).dtype is DType.UINT8
    assert bound(features, RV1106).layout is Layout.NC1HWC2
    with pytest.raises(TensorTypeError, match="librknnmrt"):
        bound(picture, RV1106, type=FP32)
    assert bound(features, RV1106, is_input=False, type=FP32).dtype is DType.FLOAT32
    with pytest.raises(ShapeError, match="NCHW"):
        bound(picture, RV1106, fmt=NCHW)
    with pytest.raises(ShapeError, match="NHWC"):
        bound(features, chips.get("rv1106b"), is_input=False, fmt=NHWC)


def test_formats_that_do_not_exist() -> None:
    with pytest.raises(ShapeError, match="NC1HWC2"):
        bound(codes("x", (1, 3, 8, 8)), RK3588, fmt=NC1HWC2)
    with pytest.raises(ShapeError, match="UNDEFINED"):
        bound(codes("x", (1, 3, 8, 8)), RK3588, fmt=UNDEFINED)
    with pytest.raises(ShapeError, match="4 axes"):
        bound(codes("x", (1, 8)), RK3588, fmt=NC1HWC2)
    for fmt in (4, 77, -1):
        with pytest.raises(ShapeError, match="no format"):
            bound(codes("x", (1, 3, 8, 8)), RK3588, fmt=fmt)
    for kind in (12, 99, -1):
        with pytest.raises(TensorTypeError, match="unknown tensor type"):
            bound(codes("x", (1, 3, 8, 8)), RK3588, type=kind)


def test_a_tensor_without_four_axes_is_row_major_in_any_format() -> None:
    for fmt in (UNDEFINED, NCHW, NHWC):
        assert bound(codes("x", (1, 8)), RK3588, fmt=fmt).layout is Layout.PLAIN
