"""The formats of Allwinner's chips: names, weights, fixed point, bfloat16, the pre-process node, and their files."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
from documentation import blocks, section

import anynpu
from anynpu import modelfile
from anynpu.compiler.lower.formats import format_of, known_types
from anynpu.errors import AnynpuError, CompileError, ModelFormatError, TensorNameError
from anynpu.modelfile.container import unpack
from anynpu.npu.context import CustomCall
from anynpu.program import Binary, Conv, ConvTranspose, Dense, Epilogue, Float, Model, Pool, Preprocess, Weights, convert
from anynpu.program.arithmetic import WeightScales, quantize_weights
from anynpu.tensor import Affine, DType, DynamicFixedPoint

from .onnx_builders import Net, feeds
from .random_nets import RandomNet
from .running import execute, run_fp32, run_model


def classifier() -> onnx.ModelProto:
    """Convolutions with all kinds of fused layers, and a fully connected end."""
    net = Net()
    x = net.op("Relu", net.conv(net.input("x", (1, 3, 16, 16)), 8, pads=[1, 1, 1, 1]))
    y = net.op("HardSwish" if net.opset >= 14 else "Sigmoid", net.conv(x, 8, cin=8, pads=[1, 1, 1, 1], group=8))
    y = net.op("Add", net.op("Mul", x, y), x)
    y = net.op("LeakyRelu", net.conv(y, 12, cin=8, strides=[2, 2]), alpha=0.1)
    y = net.op("Flatten", net.op("GlobalAveragePool", y))
    net.output(net.op("Gemm", y, net.weights(12, 10, scale=0.3), net.weights(10, scale=0.1)))
    return net.proto()


def compiled(dtype: str, target: str = "t527", **options: Any) -> Model:
    proto = classifier()
    return anynpu.compile(proto, target, dataset=feeds(proto, 4), dtype=dtype, algorithm="minmax", **options)


def products(model: Model) -> list[Conv | ConvTranspose | Dense]:
    return [layer.op for layer in model.programs[0].layers if isinstance(layer.op, (Conv, ConvTranspose, Dense))]


# names

NAMES = {
    "w8a8": "w8a8",
    "uint8": "w8a8",
    "asymmetric_affine": "w8a8",
    "i8": "i8",
    "int8": "i8",
    "asymmetric_affine-i8": "i8",
    "pcq": "i8",
    "perchannel_symmetric_affine": "i8",
    "i8dfp": "i8dfp",
    "int8_dfp": "i8dfp",
    "dynamic_fixed_point-i8": "i8dfp",
    "w16a16": "w16a16",
    "int16": "w16a16",
    "dynamic_fixed_point": "w16a16",
    "dynamic_fixed_point-i16": "w16a16",
    "fp16": "fp16",
    "float16": "fp16",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "qbfloat16": "bf16",
}


@pytest.mark.parametrize(("name", "dtype"), NAMES.items())
def test_types_have_the_names_that_users_know(name: str, dtype: str) -> None:
    chip = anynpu.chips.get("a733")
    assert format_of(name, chip).name == dtype
    assert anynpu.check(classifier(), "a733", dtype=name).chip == "a733"


@pytest.mark.parametrize(
    ("target", "dtype", "words"),
    [
        ("v853", "bfloat16", ("v853", "bf16", "w8a8, fp16, w16a16, i8, i8dfp")),
        ("rk3588", "i8", ("rk3588", "i8", "w8a8, fp16")),
        ("rk3588", "uint8", ("rk3588", "uint8", "w8a8, fp16")),
        ("rk3588", "dynamic_fixed_point-i16", ("rk3588", "dynamic_fixed_point-i16")),
        ("rv1106", "int8_dfp", ("rv1106", "int8_dfp", "w8a8, w16a16")),
        ("t527", "int4", ("int4", ", ".join(known_types()))),
    ],
)
def test_a_type_that_a_chip_lacks_is_named_with_those_it_has(target: str, dtype: str, words: tuple[str, ...]) -> None:
    with pytest.raises(CompileError) as failure:
        anynpu.compile(classifier(), target, dataset=feeds(classifier(), 1), dtype=dtype)
    for word in words:
        assert word in str(failure.value)


@pytest.mark.parametrize("dtype", ["w8a8", "i8", "i8dfp", "w16a16"])
def test_quantised_types_need_data(dtype: str) -> None:
    with pytest.raises(CompileError, match=f"a {dtype} model needs calibration data"):
        anynpu.compile(classifier(), "t527", dtype=dtype)


# weights


def test_uint8_has_one_scale_and_zero_point_for_all_weights_of_a_layer() -> None:
    for op in products(compiled("uint8")):
        assert len(set(op.weight_zero.tolist())) == 1
        assert len(set(op.epilogue.multiplier.tolist())) == 1
        assert (op.weights.min(), op.weights.max()) == (-128, 127)  # zero point and scale use all quantized values


def test_int8_has_scales_by_channel_without_zero_points() -> None:
    for dtype in ("int8", "pcq"):
        made = products(compiled(dtype))
        assert all(not op.weight_zero.any() for op in made)
        assert all(len(set(op.epilogue.multiplier.tolist())) == len(op.bias) for op in made)
        assert all(np.abs(op.weights.reshape(len(op.bias), -1)).max(axis=1).tolist() == [127] * len(op.bias) for op in made)


@pytest.mark.parametrize("options", [{"dtype": "int8", "per_channel": False}, {"dtype": "asymmetric_affine-i8"}])
def test_int8_can_have_one_scale_and_then_equals_uint8(options: dict[str, Any]) -> None:
    one, other = compiled(**options), compiled("uint8")
    assert (one.dtype, other.dtype) == ("i8", "w8a8")
    for a, b in zip(products(one), products(other), strict=True):
        np.testing.assert_array_equal(a.weights, b.weights)
        np.testing.assert_array_equal(a.weight_zero, b.weight_zero)


def test_rockchip_has_zero_points_by_channel_unless_told_otherwise() -> None:
    usual, one = compiled("int8", "rk3588"), compiled("int8", "rk3588", per_channel=False)
    assert all(len(set(op.weight_zero.tolist())) > 1 for op in products(usual))
    assert all(len(set(op.weight_zero.tolist())) == 1 for op in products(one))
    assert usual.dtype == one.dtype == "w8a8"
    wide = compiled("int16", "rv1106")
    mantissas = [np.frexp(op.epilogue.multiplier)[0] for op in products(wide)]
    assert all((mantissa != 0.5).any() for mantissa in mantissas)  # only a VIP's weights are fixed point


@pytest.mark.parametrize("dtype", ["uint8", "int8_dfp", "int16"])
def test_weights_by_channel_are_refused_where_the_format_has_none(dtype: str) -> None:
    with pytest.raises(CompileError, match="one scale for all channels") as failure:
        compiled(dtype, per_channel=True)
    assert "int8" in failure.value.hint


def test_scales_by_channel_are_closer_to_float32() -> None:
    net = Net()
    net.output(net.conv(net.input("x", (1, 4, 12, 12)), 8))
    proto = net.proto()
    weights = (
        onnx.numpy_helper.to_array(proto.graph.initializer[0]) * np.geomspace(0.01, 1.0, 8, dtype=np.float32)[:, None, None, None]
    )
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weights.astype(np.float32), proto.graph.initializer[0].name))

    def small_channel_error(dtype: str) -> float:
        run = execute(proto, "t527", dtype=dtype)
        weights_of = products(run.model)[0]
        scale = weights_of.epilogue.multiplier.astype(np.float64)[0]
        source = run.program.tensors["x"].quantization
        result = run.program.outputs[0]
        assert source is not None
        target = run.program.tensors[result].quantization
        assert target is not None
        values = (weights_of.weights[0].astype(np.float64) - weights_of.weight_zero[0]) * scale * target.scale / source.scale
        return float(np.abs(values - weights[0].transpose(1, 2, 0)).max())

    assert small_channel_error("int8") < 0.1 * small_channel_error("uint8")


@pytest.mark.parametrize("target", ["v853", "t527", "a733"])
def test_there_are_no_channel_groups(target: str) -> None:
    with pytest.raises(CompileError, match="no channel groups"):
        compiled("uint8", target, channel_groups=2)
    model = compiled("uint8", target, channel_groups=1)
    tensors = model.programs[0].tensors.values()
    assert all(spec.quantization.is_per_tensor for spec in tensors if spec.quantization is not None)


@pytest.mark.parametrize("dtype", [DType.INT8, DType.INT16])
def test_fixed_point_weights_are_covered_and_no_coarser_than_needed(dtype: DType) -> None:
    rng = np.random.default_rng(3)
    for scale in (*np.geomspace(1e-3, 1e6, 40), 127.0, 1.0, 2.0**-7 * 127, 32767.0):
        weights = rng.uniform(-1.0, 1.0, (4, 9)) * scale
        weights[0, 0] = scale
        codes, scales, zeros = quantize_weights(weights, dtype, scales=WeightScales.FIXED_POINT)
        assert len(set(scales.tolist())) == 1
        assert np.frexp(scales[0])[0] == 0.5
        assert not zeros.any()
        assert np.abs(codes * scales[0].astype(np.float64) - weights).max() <= scales[0] * 0.5000001  # none is cut off
        assert np.abs(codes.astype(np.int32)).max() >= dtype.limits[1] // 2  # half the scale would not do


def test_a_large_bias_keeps_its_scale_a_power_of_two() -> None:
    net = Net()
    x = net.input("x", (1, 2, 4, 4))
    tiny = net.constant(np.full((3, 2, 1, 1), 1e-9, np.float32))
    net.output(net.op("Conv", x, tiny, net.constant(np.array([900.0, -5.0, 0.0], np.float32))))
    run = execute(net.proto(), "t527", dtype="int8_dfp")
    (op,) = products(run.model)
    assert np.frexp(op.epilogue.multiplier)[0].tolist() == [0.5] * 3
    assert max(run.relative_errors()) < 0.02


# fixed point


def scale_factors(model: Model) -> Iterator[np.ndarray]:
    """Every number by which quantized values are scaled."""
    for layer in model.programs[0].layers:
        op = layer.op
        epilogue: Epilogue | None = getattr(op, "epilogue", None)
        if isinstance(op, Binary):
            yield from (op.a_multiplier, op.b_multiplier)
        if epilogue is not None:
            yield epilogue.multiplier
            assert not np.any(epilogue.zero_point)
            if epilogue.residual_multiplier is not None:
                yield epilogue.residual_multiplier


@pytest.mark.parametrize(("dtype", "codes"), [("int8_dfp", DType.INT8), ("int16", DType.INT16)])
def test_every_scale_is_a_power_of_two(dtype: str, codes: DType) -> None:
    kinds: set[type[Any]] = set()
    for proto in (classifier(), *(RandomNet(seed).build() for seed in range(12))):
        model = anynpu.compile(proto, "t527", dataset=feeds(proto, 2), dtype=dtype)
        for spec in model.programs[0].tensors.values():
            if spec.quantization is not None:
                assert spec.dtype is codes
                assert isinstance(spec.quantization, DynamicFixedPoint)
        for factors in scale_factors(model):
            assert (np.frexp(factors)[0] == 0.5).all()
        assert not any(op.weight_zero.any() for op in products(model))
        kinds |= {type(layer.op) for layer in model.programs[0].layers}
    assert kinds >= {Conv, Dense, Binary, Pool}


def shifted(accumulator: np.ndarray, bits: int) -> np.ndarray:
    """accumulator / 2**bits, rounded half to even, in integers."""
    quotient, rest = accumulator >> bits, accumulator & ((1 << bits) - 1)
    half = 1 << (bits - 1)
    return quotient + ((rest > half) | ((rest == half) & (quotient % 2 == 1)))


@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize("dtype", ["int8_dfp", "int16"])
def test_a_change_of_scale_is_a_shift(dtype: str, engine: str) -> None:
    net = Net()
    net.output(net.op("MatMul", net.input("x", (64, 24)), net.weights(24, 32, scale=0.3)))
    proto = net.proto()
    model = anynpu.compile(proto, "t527", dataset=feeds(proto, 2), dtype=dtype, algorithm="minmax")
    (op,) = products(model)
    spec = model.inputs[0]
    given = np.random.default_rng(8).integers(*spec.dtype.limits, (64, 24), endpoint=True).astype(spec.dtype.storage)
    with anynpu.Device("t527", engine=engine) as device, device.load(model) as loaded, loaded.context() as context:
        (codes,) = context.run({"x": given}, dequantize=False)
    accumulator = given.astype(np.int64) @ op.weights.astype(np.int64).T + op.bias.astype(np.int64)
    (bits,) = {round(-float(np.log2(value))) for value in op.epilogue.multiplier}
    exact = np.clip(shifted(accumulator, bits), *spec.dtype.limits)
    if dtype == "int8_dfp":  # accumulators of 8 bits are exact in float32
        assert np.abs(accumulator).max() < 1 << 24
        np.testing.assert_array_equal(codes, exact)
    else:
        assert np.abs(codes - exact).max() <= 1
        assert (codes == exact).mean() > 0.99


@pytest.mark.parametrize(("dtype", "worst"), [("uint8", 0.03), ("int8", 0.03), ("int8_dfp", 0.06), ("int16", 3e-4)])
def test_results_are_near_float32(dtype: str, worst: float) -> None:
    run = execute(classifier(), "t527", dtype=dtype)
    assert max(run.relative_errors()) < worst


# bfloat16


def rounded(values: np.ndarray) -> np.ndarray:
    """Values as bfloat16 holds them."""
    return convert.bfloat16_to_float32(convert.float32_to_bfloat16(np.ascontiguousarray(values, np.float32)))


@pytest.mark.parametrize("opset", [9, 13])
@pytest.mark.parametrize("engine", ["native", "reference"])
def test_bfloat16_rounds_weights_inputs_and_outputs(engine: str, opset: int) -> None:
    net = Net(opset=opset)
    matrix = net.random.normal(size=(24, 32)).astype(np.float32)
    net.output(net.op("MatMul", net.input("x", (4, 24)), net.constant(matrix)))
    model = anynpu.compile(net.proto(), "t527", dtype="bf16")
    assert [spec.dtype for spec in (*model.inputs, *model.outputs)] == [DType.BFLOAT16] * 2
    (op,) = (layer.op for layer in model.programs[0].layers if isinstance(layer.op, Float))
    (stored,) = (constant for constant in op.constants.values() if isinstance(constant, Weights))
    assert stored.dtype == "bfloat16"
    np.testing.assert_array_equal(stored.value, convert.float32_to_bfloat16(matrix))
    x = np.random.default_rng(2).normal(size=(4, 24)).astype(np.float32)
    with anynpu.Device("t527", engine=engine) as device, device.load(model) as loaded, loaded.context() as context:
        (values,) = context.run({"x": x})
        (codes,) = context.run({"x": x}, dequantize=False)
    assert codes.dtype == np.uint16
    np.testing.assert_array_equal(convert.bfloat16_to_float32(codes), values)
    wanted = rounded(x) @ rounded(matrix)
    np.testing.assert_allclose(values, wanted, rtol=2.0**-8, atol=1e-5)
    assert np.abs(values - x @ matrix).max() > 1e-3  # it is not float32 all the way


def test_bfloat16_halves_the_weights_and_survives_the_file() -> None:
    run = execute(classifier(), "a733", dtype="bf16", dataset=None)
    assert max(run.relative_errors()) < 0.03
    half = anynpu.compile(classifier(), "a733", dtype="fp16")
    assert modelfile.weight_size(run.model) == modelfile.weight_size(half)
    assert modelfile.to_bytes(run.model)[:4] == b"VPMN"


def double(call: CustomCall) -> None:
    call.outputs[0].array[:] = 2 * call.inputs[0].array


def test_bfloat16_around_custom_operators() -> None:
    net = Net()
    x = net.conv(net.input("x", (1, 3, 8, 8)), 8)
    doubled = net.op("Double", x, domain="acme")
    net.opsets["acme"] = 1
    net.output(net.conv(doubled, 4, cin=8))
    proto = net.proto()
    model = anynpu.compile(proto, "t527", dtype="bf16", custom_ops={"Double": lambda shapes, attributes: shapes})
    sample = feeds(proto, 1)[0]
    outputs = []
    for engine in ("native", "reference"):
        with anynpu.Device("t527", engine=engine) as device, device.load(model) as loaded, loaded.context() as context:
            context.register_custom_operator("Double", double)
            outputs.append(context.run(sample)[0])
    plain = Net()
    features = plain.conv(plain.input("x", (1, 3, 8, 8)), 8)
    plain.output(plain.conv(plain.op("Add", features, features), 4, cin=8))
    (wanted,) = run_fp32(plain.proto(), [sample])[0]
    for output in outputs:
        np.testing.assert_allclose(output, wanted, rtol=0.03, atol=0.03)


# the pre-process node


def pictures(count: int, seed: int = 5) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, (1, 16, 16, 3), np.uint8) for _ in range(count)]


def with_node(order: str, dtype: str = "uint8", dataset: Any = None, **options: Any) -> Model:
    samples = [{"x": picture[..., ::-1] if order == "bgr" else picture} for picture in pictures(4)]
    return anynpu.compile(
        classifier(),
        "t527",
        dataset=samples if dataset is None else dataset,
        std=(255.0,) * 3,
        dtype=dtype,
        preprocess=order,
        **options,
    )


@pytest.mark.parametrize("dtype", ["uint8", "int16", "fp16", "bf16"])
def test_a_node_takes_either_order_of_channels(dtype: str) -> None:
    rgb, bgr = with_node("rgb", dtype), with_node("bgr", dtype)
    assert rgb.preprocess["x"] == Preprocess((0.0,) * 3, (255.0,) * 3, "rgb")
    assert bgr.preprocess["x"].picture == "bgr"
    proto = classifier()
    for picture in pictures(2, seed=6):
        (one,) = run_model(rgb, [{"x": picture}], layout="nhwc")[0]
        (other,) = run_model(bgr, [{"x": picture[..., ::-1]}], layout="nhwc")[0]
        (wanted,) = run_fp32(proto, [{"x": picture.transpose(0, 3, 1, 2).astype(np.float32) / 255.0}])[0]
        np.testing.assert_allclose(one, other, atol=1e-6 if dtype in ("fp16", "bf16") else 0)
        assert np.abs(one - wanted).max() < 0.05 * np.abs(wanted).max()


def test_a_model_that_was_trained_with_bgr_takes_bgr_as_it_is() -> None:
    same, turned = with_node("bgr", channel_order="bgr"), with_node("rgb", channel_order="bgr")
    picture = pictures(1)[0]
    (wanted,) = run_fp32(classifier(), [{"x": picture.transpose(0, 3, 1, 2).astype(np.float32) / 255.0}])[0]
    (one,) = run_model(same, [{"x": picture}], layout="nhwc")[0]
    (other,) = run_model(turned, [{"x": picture[..., ::-1]}], layout="nhwc")[0]
    for output in (one, other):
        assert np.abs(output - wanted).max() < 0.05 * np.abs(wanted).max()


def test_image_files_are_turned_for_a_node_that_takes_bgr(tmp_path: Path) -> None:
    for index, picture in enumerate(pictures(4)):
        cv2.imwrite(str(tmp_path / f"{index}.png"), picture[0, ..., ::-1])
    from_files, from_arrays = with_node("bgr", dataset=tmp_path), with_node("bgr")
    tensors = zip(from_files.programs[0].tensors.values(), from_arrays.programs[0].tensors.values(), strict=True)
    assert all(a.quantization == b.quantization for a, b in tensors)


def test_bytes_of_a_picture_have_codes_of_their_own() -> None:
    spec = with_node("rgb").inputs[0]
    assert spec.quantization == Affine.per_tensor(float(np.float32(1 / 255)), -128)


def two_inputs() -> onnx.ModelProto:
    net = Net()
    picture = net.op("Flatten", net.op("GlobalAveragePool", net.conv(net.input("picture", (1, 3, 8, 8)), 4)))
    net.output(net.op("Add", picture, net.input("offset", (1, 4))))
    return net.proto()


def test_a_node_for_one_input_of_several() -> None:
    model = anynpu.compile(two_inputs(), "a733", dtype="fp16", preprocess="bgr")
    assert dict(model.preprocess) == {"picture": Preprocess((0.0,) * 3, (1.0,) * 3, "bgr")}
    again = anynpu.compile(two_inputs(), "a733", dtype="fp16", preprocess={"picture": "rgb"})
    assert again.preprocess["picture"].picture == "rgb"


def no_picture() -> onnx.ModelProto:
    net = Net()
    net.output(net.op("Relu", net.input("x", (1, 4, 8, 8))))
    return net.proto()


@pytest.mark.parametrize(
    ("make", "target", "preprocess", "error", "message"),
    [
        (classifier, "rk3588", "rgb", CompileError, "rk3588 have no pre-process node"),
        (classifier, "t527", "yuv", CompileError, "no preprocess 'yuv'"),
        (no_picture, "t527", "rgb", CompileError, "no input is one"),
        (no_picture, "t527", {"x": "rgb"}, CompileError, "not an image"),
        (classifier, "t527", {"y": "rgb"}, TensorNameError, "preprocess is given for 'y'"),
    ],
)
def test_a_node_that_cannot_be(make: Any, target: str, preprocess: Any, error: type[AnynpuError], message: str) -> None:
    with pytest.raises(error, match=message):
        anynpu.compile(make(), target, dtype="fp16", preprocess=preprocess)


# files


def test_the_node_is_in_the_file() -> None:
    model = with_node("bgr")
    again = modelfile.read(modelfile.to_bytes(model))
    assert dict(again.preprocess) == dict(model.preprocess)
    plain = replace(model, preprocess={"x": Preprocess((0.0,) * 3, (1.0,) * 3)})
    assert b"picture" in modelfile.encode(model).header
    assert b"picture" not in modelfile.encode(plain).header  # files without a node are those of before


def test_a_damaged_node_is_refused() -> None:
    encoded = modelfile.encode(with_node("bgr"))
    assert b'"bgr"' in encoded.header
    memory = modelfile.aligned_memory(encoded.weight_size)
    encoded.write_weights(memory)
    with pytest.raises(ModelFormatError, match="picture: takes one of , rgb, bgr, got 'yuv'"):
        modelfile.decode(encoded.header.replace(b'"bgr"', b'"yuv"'), memory)


def test_a_node_needs_a_picture() -> None:
    model = anynpu.compile(no_picture(), "t527", dtype="fp16")
    with pytest.raises(ModelFormatError, match="'x' has a pre-process node, but is no image"):
        modelfile.to_bytes(replace(model, preprocess={"x": Preprocess((0.0,), (1.0,), "rgb")}))


@pytest.mark.parametrize("dtype", ["uint8", "int8_dfp", "int16", "bf16"])
def test_a_damaged_file_is_refused(dtype: str) -> None:
    data = modelfile.to_bytes(compiled(dtype, "v853" if dtype == "uint8" else "a733"))
    assert data[:4] == b"VPMN"
    assert modelfile.read(data).dtype == NAMES[dtype]
    choice = random.Random(7)
    for part in unpack(data).values():
        start = data.index(bytes(part))  # between sections lies padding, which states nothing
        for _ in range(20 if len(part) else 0):
            broken = bytearray(data)
            broken[start + choice.randrange(len(part))] ^= 1 << choice.randrange(8)
            with pytest.raises(ModelFormatError):
                modelfile.read(bytes(broken))
    for end in sorted(choice.sample(range(len(data)), 20)):
        with pytest.raises(ModelFormatError):
            modelfile.read(data[:end])


def test_a_file_with_the_start_of_the_other_family_is_refused() -> None:
    data = modelfile.to_bytes(compiled("uint8"))
    with pytest.raises(ModelFormatError):
        modelfile.read(b"RKNN" + data[4:])


# the page


def test_the_example_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks(section("how-it-works", "Formats of Allwinner's chips"))
    exec(compile(block, "how-it-works.md", "exec"), {})
    said = [line.partition("  # ")[2] for line in block.splitlines() if line.startswith("print(")]
    assert capsys.readouterr().out.splitlines() == said
