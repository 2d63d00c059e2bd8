"""What a caller can ask of the compiler, and that he gets it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import anynpu
from anynpu import modelfile
from anynpu.compiler.quantize.ranges import ALGORITHMS
from anynpu.modelfile.validate import validate_model
from anynpu.program import Conv, Dense, Float, Model, Weights
from anynpu.tensor import Affine, DType, DynamicFixedPoint

from .onnx_builders import Net, feeds
from .running import assert_close_in_steps, execute, run_fp32, run_model

Array = npt.NDArray[Any]


def classifier(height: int | str = 12, width: int | str = 12, batch: int | str = 1, opset: int = 13) -> onnx.ModelProto:
    """A small convolutional network that takes images of any size."""
    net = Net(opset)
    y = net.op("Relu", net.conv(net.input("x", (batch, 3, height, width)), 16, pads=[1, 1, 1, 1]))
    y = net.op("Relu", net.conv(y, 32, cin=16, strides=[2, 2]))
    y = net.op("Flatten", net.op("GlobalAveragePool", y))
    net.output(net.op("Gemm", y, net.weights(32, 10, scale=0.4), net.weights(10)))
    return net.proto()


def pictures(count: int, height: int = 12, width: int = 12, channels: int = 3, seed: int = 3) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, channels), np.uint8)


def relative(wanted: Array, given: Array) -> float:
    return float(np.abs(wanted - given).max() / np.abs(wanted).max())


# shapes and batch


@pytest.mark.parametrize("dtype", ["w8a8", "fp16"])
def test_several_shape_sets(dtype: str) -> None:
    proto = classifier("h", "w", "n")
    sets = [{"x": (1, 3, 12, 12)}, {"x": (1, 3, 16, 20)}, {"x": (2, 3, 9, 8)}]
    random = np.random.default_rng(0)
    samples = [{"x": random.uniform(-1, 1, entry["x"]).astype(np.float32)} for entry in sets]
    model = anynpu.compile(proto, dataset=samples[:1], shapes=sets, dtype=dtype)
    validate_model(model)
    assert [program.tensors["x"].shape for program in model.programs] == [entry["x"] for entry in sets]
    for index, sample in enumerate(samples):
        (wanted,), (given,) = run_fp32(proto, [sample])[0], run_model(model, [sample], shapes=index)[0]
        (chosen,) = run_model(model, [sample], shapes=sets[index])[0]
        np.testing.assert_array_equal(given, chosen)
        assert relative(wanted, given) < (0.1 if dtype == "w8a8" else 0.01)


def test_shape_sets_share_their_weights() -> None:
    sample = np.zeros((1, 3, 12, 12), np.float32)
    sets = [{"x": (1, 3, 12, 12)}, {"x": (1, 3, 16, 20)}, {"x": (1, 3, 24, 24)}]
    for arithmetic, more in (
        ("simulator", 0),
        ("chip", 4096),
    ):  # by the chip's rule an average has a multiplier per number of pixels
        one, three = (
            anynpu.compile(classifier("h", "w"), dataset=[{"x": sample}], shapes=shapes, arithmetic=arithmetic)
            for shapes in (sets[0], sets)
        )
        assert modelfile.weight_size(one) <= modelfile.weight_size(three) <= modelfile.weight_size(one) + more
    loaded = modelfile.read(modelfile.to_bytes(three))
    first, last = (program.layers[0].op for program in (loaded.programs[0], loaded.programs[-1]))
    assert isinstance(first, Conv)
    assert isinstance(last, Conv)
    assert np.shares_memory(first.weights, last.weights)


def test_shape_sets_whose_layers_differ() -> None:
    """In one set an Add is fused into the convolution, in the other it broadcasts and is not: both need ranges."""
    net = Net()
    y = net.conv(net.input("x", (1, 4, 6, 6)), 4, 1)
    net.output(net.op("Relu", net.op("Add", y, net.input("other", (1, 4, "h", "w")))))
    proto = net.proto()
    random = np.random.default_rng(0)

    def sample(shape: tuple[int, ...]) -> dict[str, Array]:
        return {
            name: random.uniform(-1, 1, extents).astype(np.float32) for name, extents in (("x", (1, 4, 6, 6)), ("other", shape))
        }

    shapes = ((1, 4, 6, 6), (1, 4, 1, 1))
    for order in (shapes, shapes[::-1]):
        sets = [{"other": shape} for shape in order]
        dataset = [sample(order[0]) for _ in range(20)]
        model = anynpu.compile(proto, dataset=dataset, shapes=sets, algorithm="minmax")
        validate_model(model)
        assert {len(program.layers) for program in model.programs} == {1, 2}
        for index, shape in enumerate(order):
            fed = [sample(shape)]
            assert relative(run_fp32(proto, fed)[0][0], run_model(model, fed, shapes=index)[0][0]) < 0.1


@pytest.mark.parametrize("declared", ["n", 1])
def test_batch(declared: int | str) -> None:
    proto = classifier(batch=declared)
    samples = np.random.default_rng(0).uniform(-1, 1, (4, 3, 12, 12)).astype(np.float32)
    model = anynpu.compile(proto, dataset=[{"x": samples}], batch=4)
    assert model.inputs[0].shape == (4, 3, 12, 12)
    assert model.outputs[0].shape == (4, 10)
    wanted = np.concatenate([run_fp32(proto, [{"x": sample[None]}])[0][0] for sample in samples])
    assert relative(wanted, run_model(model, [{"x": samples}])[0][0]) < 0.1


def test_batch_reads_samples_one_by_one() -> None:
    """The data set does not have to know the batch size: a batch is filled with samples."""
    samples = [{"x": sample[None]} for sample in np.random.default_rng(0).uniform(-1, 1, (4, 3, 12, 12)).astype(np.float32)]
    together = [{"x": np.concatenate([entry["x"] for entry in samples])}]
    one, other = (anynpu.compile(classifier(), dataset=data, batch=4, algorithm="minmax") for data in (samples, together))
    assert one.inputs[0].quantization == other.inputs[0].quantization


# preprocessing

MEAN, STD = (120.0, 110.0, 100.0), (60.0, 50.0, 70.0)


def normalised(images: Array) -> Array:
    return np.ascontiguousarray(((images.astype(np.float32) - MEAN) / STD).transpose(0, 3, 1, 2).astype(np.float32))


@pytest.mark.parametrize("dtype", ["w8a8", "fp16"])
def test_mean_and_std_are_folded_in(dtype: str) -> None:
    """A raw image gives what the original gives for the normalized one."""
    images = pictures(3)
    model = anynpu.compile(classifier(), dataset=images, mean=MEAN, std=STD, dtype=dtype)
    wanted = [entry[0] for entry in run_fp32(classifier(), [{"x": normalised(image[None])} for image in images])]
    given = [entry[0] for entry in run_model(model, [{"x": image[None]} for image in images], layout="nhwc")]
    assert relative(np.stack(wanted), np.stack(given)) < (0.06 if dtype == "w8a8" else 0.01)
    # the same image in the model's order of axes
    again = run_model(model, [{"x": np.ascontiguousarray(images[:1].transpose(0, 3, 1, 2))}])
    np.testing.assert_array_equal(again[0][0], given[0])


def test_a_pictures_range_is_known_without_calibration() -> None:
    """Quantized values cover a byte from 0 to 255, whatever the calibration images hold."""
    dark = np.full((1, 12, 12, 3), 100, np.uint8)
    model = anynpu.compile(classifier(), dataset=dark, mean=MEAN, std=STD)
    quantization = model.inputs[0].quantization
    assert isinstance(quantization, Affine)
    low, high = ((code - quantization.zero_point) * quantization.scale for code in (-128, 127))
    ends = [(level - mean) / std for level in (0, 255) for mean, std in zip(MEAN, STD, strict=True)]
    assert low <= min(ends) + quantization.scale
    assert high >= max(ends) - quantization.scale


def test_mean_and_std_by_input() -> None:
    net = Net()
    a, b = net.input("a", (1, 3, 6, 6)), net.input("b", (1, 1, 6, 6))
    net.output(net.op("Add", net.conv(a, 4, 1), net.conv(b, 4, 1)))
    random = np.random.default_rng(0)
    raw = {
        "a": random.integers(0, 256, (1, 3, 6, 6)).astype(np.uint8),
        "b": random.integers(0, 256, (1, 1, 6, 6)).astype(np.uint8),
    }
    values = {"a": (raw["a"].astype(np.float32) - 127.5) / 127.5, "b": (raw["b"].astype(np.float32) - 10.0) / 200.0}
    model = anynpu.compile(net.proto(), dataset=[raw], mean={"a": 127.5, "b": (10,)}, std={"a": (127.5,) * 3, "b": 200})
    (wanted,), (given,) = run_fp32(net.proto(), [values])[0], run_model(model, [raw])[0]
    assert relative(wanted, given) < 0.05


@pytest.mark.parametrize("first", ["Conv", "depthwise", "Relu"])
@pytest.mark.parametrize("dtype", ["w8a8", "fp16"])
def test_channel_order(first: str, dtype: str) -> None:
    """A model that was trained on BGR takes RGB images; mean and std are in the order of what is fed."""
    net = Net()
    x = net.input("x", (1, 3, 8, 8))
    if first == "Conv":
        y = net.conv(x, 4)
    elif first == "depthwise":
        y = net.conv(x, 3, group=3)
    else:
        y = net.conv(net.op("Relu", x), 4, cin=3)
    net.output(y)
    images = pictures(2, 8, 8)
    plain, turned = (
        anynpu.compile(net.proto(), dataset=images, mean=MEAN, std=STD, channel_order=order, dtype=dtype)
        for order in ("rgb", "bgr")
    )
    assert (
        run_model(plain, [{"x": images[:1]}], layout="nhwc")[0][0].shape
        == run_model(turned, [{"x": images[:1]}], layout="nhwc")[0][0].shape
    )
    samples = [{"x": normalised(image[None])} for image in images]
    for model, fed in ((plain, samples), (turned, [{"x": sample["x"][:, ::-1].copy()} for sample in samples])):
        wanted = np.stack([entry[0] for entry in run_fp32(net.proto(), fed)])
        given = np.stack([entry[0] for entry in run_model(model, [{"x": image[None]} for image in images], layout="nhwc")])
        assert relative(wanted, given) < (0.06 if dtype == "w8a8" else 0.01)


# types


def test_w16a16_is_much_closer_to_float32() -> None:
    proto = classifier()
    narrow, wide = (execute(proto, "rv1106", dtype=dtype) for dtype in ("w8a8", "w16a16"))
    assert wide.model.dtype == "w16a16"
    assert wide.program.tensors["x"].dtype is DType.INT16
    assert isinstance(wide.program.tensors["x"].quantization, DynamicFixedPoint)
    assert max(wide.relative_errors()) < 0.02 * max(narrow.relative_errors())
    assert max(wide.relative_errors()) < 1e-3


@pytest.mark.parametrize("name", ["int8", "w8a8", "float16", "int16"])
def test_types_have_usual_names(name: str) -> None:
    chip = "rv1106" if name == "int16" else "rk3588"
    model = anynpu.compile(classifier(), chip, dataset=feeds(classifier(), 1), dtype=name)
    assert model.dtype == {"int8": "w8a8", "w8a8": "w8a8", "float16": "fp16", "int16": "w16a16"}[name]


def test_fp16_needs_no_data_and_holds_weights_in_half() -> None:
    model = anynpu.compile(classifier(), dtype="fp16")
    assert all(isinstance(layer.op, Float) for layer in model.programs[0].layers)
    weights = [value for layer in model.programs[0].layers for value in layer.op.constants.values() if isinstance(value, Weights)]  # type: ignore[union-attr]
    assert weights
    assert all(value.value.dtype == np.float16 for value in weights)
    assert model.inputs[0].dtype is DType.FLOAT16


@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize("opset", [7, 9, 11])
def test_a_matrix_product_without_bias_in_old_operator_sets(opset: int, engine: str) -> None:
    net = Net(opset=opset)
    net.output(net.op("MatMul", net.input("x", (4, 24)), net.weights(24, 32)))
    model = anynpu.compile(net.proto(), dtype="fp16")
    (sample,) = feeds(net.proto(), 1)
    with anynpu.Device("rk3588", engine=engine) as device, device.load(model) as loaded, loaded.context() as context:
        (output,) = context.run(sample)
    np.testing.assert_allclose(output, run_fp32(net.proto(), [sample])[0][0], rtol=0.01, atol=0.01)


def test_hybrid_tensors_stay_in_float() -> None:
    net = Net()
    first = net.op("Relu", net.conv(net.input("x", (1, 3, 10, 10)), 8))
    second = net.op("Relu", net.conv(first, 8, cin=8))
    third = net.conv(second, 8, cin=8)
    net.output(net.conv(third, 4, cin=8))
    plain, mixed = (execute(net.proto(), hybrid=names) for names in ((), (second,)))
    assert plain.float_layers == []
    floats = [layer.name for layer in mixed.float_layers]
    made_it, reads_it = "node_Conv_2", "node_Conv_4"
    assert floats == [made_it, reads_it]
    assert {"Dequantize", "Quantize"} <= set(mixed.kinds)
    assert_close_in_steps(mixed, 5.0)
    everything = execute(net.proto(), hybrid=(first, second, third))
    assert max(everything.relative_errors()) < 0.5 * max(plain.relative_errors())


# calibration


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_algorithms(algorithm: str) -> None:
    run = execute(classifier(), algorithm=algorithm, count=4)
    assert max(run.relative_errors()) < 0.1
    assert algorithm in run.model.provenance["calibration"]


def test_percentile_cuts_rare_values_off_inside_but_not_at_the_outputs() -> None:
    net = Net()
    y = net.conv(net.input("x", (1, 2, 64, 64)), 4, 1)
    net.output(net.conv(y, 4, 1, cin=4))
    samples = feeds(net.proto(), 2)
    samples[0]["x"][0, :, 0, 0] = 50.0
    cut, whole = (
        anynpu.compile(net.proto(), dataset=samples, algorithm="percentile", percentile=percentile, channel_groups=1)
        for percentile in (99.0, 100.0)
    )
    scales = []
    for model in (cut, whole):
        inside, outside = model.programs[0].tensors[y].quantization, model.outputs[0].quantization
        assert inside is not None
        assert outside is not None
        scales.append((inside.scale, outside.scale))
    assert scales[0][0] < 0.3 * scales[1][0]
    assert scales[0][1] == scales[1][1]


def test_calibration_limit_and_progress() -> None:
    seen: list[tuple[str, int, int | None]] = []
    samples = feeds(classifier(), 5)
    limited = anynpu.compile(
        classifier(), dataset=samples, calibration_limit=2, algorithm="minmax", progress=lambda *event: seen.append(event)
    )
    stages = list(dict.fromkeys(stage for stage, _, _ in seen))
    assert stages == ["importing", "calibrating", "judging", "lowering"]
    assert [(done, total) for stage, done, total in seen if stage == "calibrating"] == [(1, 2), (2, 2)]
    for stage in stages:
        done = [entry[1] for entry in seen if entry[0] == stage]
        assert done == sorted(done)
        assert done[-1] == next(entry[2] for entry in seen[::-1] if entry[0] == stage)
    two = anynpu.compile(classifier(), dataset=samples[:2], algorithm="minmax")
    assert limited.inputs[0].quantization == two.inputs[0].quantization


def test_a_generator_is_read_once() -> None:
    samples = feeds(classifier(), 3)
    given = anynpu.compile(classifier(), dataset=(sample for sample in samples))
    assert given.inputs[0].quantization == anynpu.compile(classifier(), dataset=samples).inputs[0].quantization


# groups of channels


def uneven(opset: int = 13) -> onnx.ModelProto:
    """A convolution whose channels differ in size by a factor of a thousand, and a depthwise one that needs the small ones."""
    net = Net(opset)
    sizes = np.repeat([1.0, 0.03, 0.001], 4).astype(np.float32)
    x = net.input("x", (1, 3, 10, 10))
    weights = net.random.normal(size=(12, 3, 3, 3)).astype(np.float32) * 0.3 * sizes[:, None, None, None]
    y = net.op("Relu", net.op("Conv", x, net.constant(weights)))
    depthwise = net.random.normal(size=(12, 1, 3, 3)).astype(np.float32) * 0.3 / sizes[:, None, None, None]
    net.output(net.op("Conv", y, net.constant(depthwise), group=12, pads=[1, 1, 1, 1]))
    return net.proto()


def grouped(model: Model) -> list[Affine]:
    found = [spec.quantization for spec in model.programs[0].tensors.values()]
    return [entry for entry in found if isinstance(entry, Affine) and entry.group_sizes]


def test_channel_groups_lower_the_error() -> None:
    errors = []
    for most in (1, 2, 4):
        run = execute(uneven(), channel_groups=most)
        assert bool(grouped(run.model)) is (most > 1)
        assert all(len(set(entry.scales)) <= most for entry in grouped(run.model))
        errors.append(max(run.relative_errors()))
    assert errors[1] < 0.3 * errors[0]
    assert errors[2] < 0.3 * errors[1]


@pytest.mark.parametrize("activation", ["Relu", "HardSwish", "Tanh", "Clip"])
def test_groups_with_every_kind_of_activation(activation: str) -> None:
    """Clamps and tables are by group; a dense reader without padding takes the ratio of the scales into its weights."""
    net = Net(14)
    sizes = np.repeat([1.0, 0.02], 4).astype(np.float32)
    weights = net.random.normal(size=(8, 3, 3, 3)).astype(np.float32) * 0.3 * sizes[:, None, None, None]
    y = net.op("Conv", net.input("x", (1, 3, 10, 10)), net.constant(weights))
    bounds = [net.constant(0.0), net.constant(0.6)] if activation == "Clip" else []
    y = net.op(activation, y, *bounds)
    dense = net.random.normal(size=(5, 8, 1, 1)).astype(np.float32) / sizes[None, :, None, None]
    net.output(net.op("Conv", y, net.constant(dense)))
    one, two = (execute(net.proto(), channel_groups=most) for most in (1, 2))
    assert grouped(two.model)
    assert max(two.relative_errors()) < 0.5 * max(one.relative_errors())


def test_no_groups_where_they_gain_nothing() -> None:
    assert grouped(execute(classifier(), channel_groups=4).model) == []


# the rest


def test_custom_string_name_and_provenance(tmp_path: Path) -> None:
    path = tmp_path / "tiny.onnx"
    onnx.save(classifier(), path)
    model = anynpu.compile(path, dataset=feeds(classifier(), 1), custom_string="labels: a, b")
    assert (model.name, model.custom_string) == ("tiny", "labels: a, b")
    assert model.provenance["source"] == "tiny.onnx"
    assert model.provenance["opset"] == "13"
    assert model.provenance["nodes"] == str(len(classifier().graph.node))
    loaded = anynpu.load(model.save(tmp_path / "tiny.rknn"))
    assert (loaded.custom_string, dict(loaded.provenance)) == (model.custom_string, dict(model.provenance))
    assert anynpu.compile(classifier(), dtype="fp16", name="mine").name == "mine"


def test_path_bytes_and_proto_are_the_same_model(tmp_path: Path) -> None:
    path = tmp_path / "tiny.onnx"
    onnx.save(classifier(), path)
    before = classifier()
    kept = before.SerializeToString()
    models = [
        anynpu.compile(source, dataset=feeds(classifier(), 1), name="same")
        for source in (path, str(path), path.read_bytes(), before)
    ]
    assert before.SerializeToString() == kept, "the caller's model was changed"
    assert len({modelfile.weight_size(model) for model in models}) == 1
    sample = feeds(classifier(), 1)
    for model in models[1:]:
        np.testing.assert_array_equal(run_model(model, sample)[0][0], run_model(models[0], sample)[0][0])


def test_weights_in_another_file(tmp_path: Path) -> None:
    path = tmp_path / "tiny.onnx"
    onnx.save(classifier(), path, save_as_external_data=True, location="tiny.data", size_threshold=0)
    sample = feeds(classifier(), 1)
    inside, outside = (anynpu.compile(source, dataset=sample) for source in (classifier(), path))
    np.testing.assert_array_equal(run_model(inside, sample)[0][0], run_model(outside, sample)[0][0])


def test_weights_can_be_left_out(tmp_path: Path) -> None:
    sample = feeds(classifier(), 1)
    model = anynpu.compile(classifier(), dataset=sample)
    full, bare = model.save(tmp_path / "full.rknn"), model.save(tmp_path / "bare.rknn", remove_weight=True)
    assert full.stat().st_size - bare.stat().st_size >= modelfile.weight_size(model)
    assert anynpu.load(bare).weightless


def test_compiling_twice_gives_the_same_bytes() -> None:
    one, other = (modelfile.to_bytes(anynpu.compile(classifier(), dataset=feeds(classifier(), 2))) for _ in range(2))
    assert one == other


def test_an_input_that_nobody_reads_is_left_out() -> None:
    net = Net()
    net.input("unused", (3, 3))
    net.output(net.conv(net.input("x", (1, 3, 6, 6)), 4))
    assert [spec.name for spec in anynpu.compile(net.proto(), dtype="fp16").inputs] == ["x"]


def test_initialisers_that_are_listed_as_inputs_are_constants() -> None:
    proto = classifier(opset=8)
    for constant in proto.graph.initializer:
        proto.graph.input.append(onnx.helper.make_tensor_value_info(constant.name, constant.data_type, constant.dims))
    model = anynpu.compile(proto, dataset=[{"x": np.ones((1, 3, 12, 12), np.float32)}])
    assert [spec.name for spec in model.inputs] == ["x"]
    assert isinstance(model.programs[0].layers[-1].op, Dense)


def test_outputs_without_a_declared_shape() -> None:
    proto = classifier()
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    assert anynpu.compile(proto, dtype="fp16").outputs[0].shape == (1, 10)
    proto.graph.output[0].ClearField("type")
    assert anynpu.compile(proto, dtype="fp16").outputs[0].shape == (1, 10)


def test_costs_are_counted() -> None:
    model = anynpu.compile(classifier(), dataset=feeds(classifier(), 1))
    first, second, _, last = model.programs[0].layers
    assert first.macs == 12 * 12 * 16 * 27
    assert second.macs == 5 * 5 * 32 * 16 * 9
    assert last.macs == 32 * 10
    assert second.weight_bytes >= 32 * 16 * 9
    half = anynpu.compile(classifier(), dtype="fp16").programs[0].layers
    assert [layer.macs for layer in half] == [first.macs, second.macs, 0, 0, last.macs]
    assert half[1].weight_bytes >= 2 * 32 * 16 * 9
