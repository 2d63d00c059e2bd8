"""Custom operators from ONNX to the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from documentation import blocks, section
from onnx import TensorProto, helper, numpy_helper

import anynpu
from anynpu import modelfile
from anynpu.compiler import CustomOperator
from anynpu.errors import CalibrationError, CompileError, UnsupportedOperatorError
from anynpu.modelfile.validate import validate_model
from anynpu.npu import CustomCall
from anynpu.program import Custom, Model, Placement
from anynpu.tensor import DType

from .onnx_builders import Net, feeds
from .running import run_fp32

Array = npt.NDArray[Any]
ENGINES = ["native", "reference"]


def gain_compute(arrays: list[Array], attributes: Mapping[str, Any]) -> list[Array]:
    """y = x * gain + shift; total = sum of x over an axis."""
    x, shift = arrays
    return [x * attributes["gain"] + shift, x.sum(int(attributes["axis"]), keepdims=True)]


def gain_shapes(shapes: Sequence[tuple[int, ...]], attributes: Mapping[str, Any]) -> list[tuple[int, ...]]:
    total = list(shapes[0])
    total[int(attributes["axis"])] = 1
    return [shapes[0], tuple(total)]


GAIN = CustomOperator(gain_shapes, gain_compute)


def gain_net(*, custom: bool, shape: Sequence[int | str] = (1, 3, 8, 8)) -> onnx.ModelProto:
    """Conv, the custom operator with two outputs, then a Conv and a Softmax. Without *custom* the same in operators of ONNX."""
    net = Net()
    x = net.input("x", shape)
    features = net.op("Relu", net.conv(x, 4, pads=[1, 1, 1, 1]))
    shift = net.constant(np.arange(4, dtype=np.float32).reshape(1, 4, 1, 1))
    if custom:
        net.opsets["acme"] = 1
        attributes = {
            "gain": 1.5,
            "axis": 1,
            "sizes": [1, 2, 3],
            "weights": [0.5, 0.25],
            "mode": "fast",
            "names": ["a", "ä"],
            "grid": numpy_helper.from_array(np.arange(4, dtype=np.float64).reshape(2, 2)),
        }
        y, total = net.ops("Gain", features, shift, count=2, domain="acme", **attributes)
    else:
        y = net.op("Add", net.op("Mul", features, net.constant(1.5)), shift)
        total = net.op("ReduceSum", features, net.constant([1]), keepdims=1)
    net.output(net.conv(y, 5, cin=4), net.op("Softmax", total, axis=3))
    return net.proto()


def run_custom(
    model: Model, samples: Sequence[Mapping[str, Array]], computes: Mapping[str, Any], engine: str = "native", **options: Any
) -> list[list[Array]]:
    """The outputs for each sample, with functions that compute custom operators as calibration does."""

    def adapted(compute: Any) -> Any:
        def function(call: CustomCall) -> None:
            results = compute([entry.array for entry in call.inputs], call.attributes)
            for entry, result in zip(call.outputs, results, strict=True):
                np.copyto(entry.array, result, casting="same_kind")

        return function

    validate_model(model)
    with anynpu.Device(model.chip, engine=engine) as device, device.load(model).context(**options) as context:
        for name, compute in computes.items():
            context.register_custom_operator(name, adapted(compute))
        return [context.run(dict(sample)) for sample in samples]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("target", "dtype", "tolerance"), [("rk3588", "w8a8", 0.02), ("rk3588", "fp16", 2e-3), ("t527", "w16a16", 1e-3)]
)
def test_in_the_middle(target: str, dtype: str, tolerance: float, engine: str) -> None:
    proto = gain_net(custom=True)
    samples = feeds(proto, 3)
    model = anynpu.compile(proto, target, dtype=dtype, dataset=samples, algorithm="minmax", custom_ops={"Gain": GAIN})
    assert model.custom_operators == ("Gain",)
    results = run_custom(model, samples, {"Gain": gain_compute}, engine)
    for given, wanted in zip(results, run_fp32(gain_net(custom=False), samples), strict=True):
        for one, other in zip(given, wanted, strict=True):
            assert np.abs(one - other).max() <= tolerance * np.abs(other).max()
    again = run_custom(modelfile.read(modelfile.to_bytes(model)), samples, {"Gain": gain_compute}, engine)
    np.testing.assert_array_equal(again[0][0], results[0][0])


@pytest.mark.parametrize("dtype", ["w8a8", "fp16"])
def test_engines_agree(dtype: str) -> None:
    proto = gain_net(custom=True)
    samples = feeds(proto, 2)
    model = anynpu.compile(proto, dtype=dtype, dataset=samples, custom_ops={"Gain": GAIN})
    native, reference = (run_custom(model, samples, {"Gain": gain_compute}, engine) for engine in ENGINES)
    for one, other in zip(native, reference, strict=True):
        np.testing.assert_allclose(one[0], other[0], rtol=0, atol=0 if dtype == "w8a8" else 2e-3)
        np.testing.assert_allclose(one[1], other[1], rtol=0, atol=1e-3)


def test_the_layer() -> None:
    proto = gain_net(custom=True)
    model = anynpu.compile(proto, dataset=feeds(proto, 1), custom_ops={"Gain": GAIN})
    program = model.programs[0]
    (layer,) = [layer for layer in program.layers if isinstance(layer.op, Custom)]
    assert (layer.kind, layer.placement, layer.reason) == ("Gain", Placement.CPU, "custom operator 'Gain'")
    tensors = [program.tensors[name] for name in (*layer.inputs, *layer.outputs)]
    assert [spec.dtype for spec in tensors] == [DType.FLOAT32] * 3
    assert [spec.layout.value for spec in tensors] == ["nchw"] * 3
    assert all(name in program.memory.offsets for name in (*layer.inputs, *layer.outputs))
    assert layer.weight_bytes == 16
    assert [(entry.position, entry.value.shape) for entry in layer.op.constants] == [(1, (1, 4, 1, 1))]
    attributes = layer.op.attributes
    arrays = {name: value for name, value in attributes.items() if isinstance(value, np.ndarray)}
    assert {name: (value.dtype.name, value.shape) for name, value in arrays.items()} == {
        "gain": ("float32", ()),
        "axis": ("int64", ()),
        "sizes": ("int64", (3,)),
        "weights": ("float32", (2,)),
        "grid": ("float64", (2, 2)),
    }
    assert arrays["sizes"].tolist() == [1, 2, 3]
    assert arrays["grid"].tolist() == [[0, 1], [2, 3]]
    assert (attributes["mode"], attributes["names"]) == ("fast", ("a", "ä"))
    # one layer takes the quantized values apart before it, and one makes quantized values of what the next convolution reads
    assert [entry.kind for entry in program.layers][:5] == ["ConvRelu", "Dequantize", "Gain", "Quantize", "Conv"]


def at_the_end(**changes: Any) -> onnx.ModelProto:
    net = Net()
    x = net.input("x", changes.get("shape", (1, 3, 6, 6)))
    y = net.conv(x, 4)
    net.output(y, net.op("Swap", y, domain="acme", **changes.get("attributes", {})))
    net.opsets["acme"] = 1
    proto = net.proto()
    if "stated" in changes:
        proto.graph.output[1].CopyFrom(
            helper.make_tensor_value_info(proto.graph.output[1].name, TensorProto.FLOAT, changes["stated"])
        )
    return proto


def swap(arrays: list[Array], attributes: Mapping[str, Any]) -> list[Array]:
    return [arrays[0].transpose(0, 2, 3, 1)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", ["w8a8", "fp16"])
def test_at_the_end_it_sees_exactly_what_was_stored(dtype: str, engine: str) -> None:
    """Nothing quantized comes after it: calibration needs no function, and the shape is the one in the file."""
    proto = at_the_end(stated=[1, 4, 4, 4])
    samples = feeds(proto, 2)
    model = anynpu.compile(proto, dtype=dtype, dataset=samples)
    for y, turned in run_custom(model, samples, {"Swap": swap}, engine):
        np.testing.assert_array_equal(turned, y.transpose(0, 2, 3, 1))
    assert model.outputs[1].dtype is DType.FLOAT32


def test_of_the_input_itself() -> None:
    net = Net()
    x = net.input("x", (1, 4))
    net.output(net.op("Double", x, domain="acme"))
    net.opsets["acme"] = 1
    model = anynpu.compile(net.proto(), dtype="fp16", custom_ops={"Double": lambda shapes, attributes: shapes})
    assert model.inputs[0].dtype is DType.FLOAT32
    value = np.array([[1e5, 1e-8, 1 / 3, 0]], np.float32)  # float16 holds none of the first three
    (result,) = run_custom(model, [{"x": value}], {"Double": lambda arrays, attributes: [arrays[0] * 2]})[0]
    np.testing.assert_array_equal(result, value * 2)


def test_standard_operators_by_name() -> None:
    """ArgMax and Softmax of ONNX, computed by the user; the result of the one is of integers."""
    net = Net()
    y = net.conv(net.input("x", (1, 3, 6, 6)), 4)
    net.output(net.op("ArgMax", y, axis=1, keepdims=0), net.op("Softmax", y, axis=1))
    proto = net.proto()
    samples = feeds(proto, 1)
    model = anynpu.compile(proto, dataset=samples, custom_ops=["ArgMax", "Softmax"])
    assert model.custom_operators == ("ArgMax", "Softmax")
    assert [spec.dtype for spec in model.outputs] == [DType.INT64, DType.FLOAT32]

    def largest(arrays: list[Array], attributes: Mapping[str, Any]) -> list[Array]:
        return [arrays[0].argmax(int(attributes["axis"]))]

    def doubled(arrays: list[Array], attributes: Mapping[str, Any]) -> list[Array]:
        return [arrays[0] * 2]

    place, twice = run_custom(model, samples, {"ArgMax": largest, "Softmax": doubled})[0]
    np.testing.assert_array_equal(place, twice.argmax(1))
    assert np.abs(twice).max() > 1  # no softmax


def test_an_unknown_operator_of_the_standard_domain_has_to_be_named() -> None:
    proto = at_the_end(stated=[1, 4, 4, 4])
    proto.graph.node[1].domain = ""
    with pytest.raises(CompileError, match="Swap") as caught:
        anynpu.check(proto)
    assert "custom_ops=['Swap']" in caught.value.hint
    report = anynpu.check(proto, custom_ops=["Swap"])
    assert report.cpu_reasons == {"Swap: custom operator 'Swap'": 1}


def test_chips_whose_api_has_no_custom_operators() -> None:
    proto = at_the_end(stated=[1, 4, 4, 4])
    for chip in ("rv1106", "t527"):
        (reason,) = anynpu.check(proto, chip).cpu_reasons
        assert reason == f"Swap: custom operator 'Swap'; the vendor's API of {chip} has no call to register one"


def test_contrib_operators_of_onnxruntime_are_no_custom_ones() -> None:
    net = Net()
    net.output(net.op("Gelu", net.input("x", (1, 4)), domain="com.microsoft"))
    net.opsets["com.microsoft"] = 1
    assert anynpu.compile(net.proto(), dtype="fp16").custom_operators == ()


def chain(net: Net) -> str:
    """Two custom operators, one after the other, with shapes that are computed from the input and from the first one's result."""
    x = net.input("x", (1, 3, 6, 6))
    last = net.op("Slice", net.op("Shape", x), net.constant([1]), net.constant([2]))  # 3, the index of the last axis
    first = net.op("Swap", net.conv(x, 4), domain="acme")
    depth = net.op("Slice", net.op("Shape", first), last, net.constant([4]))
    rows = net.op("Reshape", first, net.op("Concat", net.constant([1, -1]), depth, axis=0))
    second = net.op("Swap2", net.op("MatMul", rows, net.weights(4, 5)), net.op("Mul", first, first), domain="acme")
    net.opsets["acme"] = 1
    return net.op("Relu", net.op("MatMul", second, net.weights(5, 3)))


def test_one_after_the_other() -> None:
    net = Net()
    net.output(chain(net))
    proto = net.proto()
    samples = feeds(proto, 2)

    def swap2(arrays: list[Array], attributes: Mapping[str, Any]) -> list[Array]:
        return [arrays[0] + arrays[1].mean()]

    operators = {
        "Swap": CustomOperator(lambda shapes, attributes: [(1, 4, 4, 4)], swap),
        "Swap2": CustomOperator(lambda shapes, attributes: shapes[:1], swap2),
    }
    model = anynpu.compile(proto, dataset=samples, custom_ops=operators)
    assert model.outputs[0].shape == (1, 16, 3)
    weights = {entry.name: numpy_helper.to_array(entry) for entry in proto.graph.initializer}
    convolved = Net()
    convolved.output(convolved.conv(convolved.input("x", (1, 3, 6, 6)), 4))
    for sample, (result,) in zip(samples, run_custom(model, samples, {"Swap": swap, "Swap2": swap2}), strict=True):
        ((y,),) = run_fp32(convolved.proto(), [sample])
        first = y.transpose(0, 2, 3, 1)
        by_shape = {value.shape: value for value in weights.values()}
        second = first.reshape(1, 16, 4) @ by_shape[4, 5] + (first * first).mean()
        wanted = np.maximum(second @ by_shape[5, 3], 0)
        assert np.abs(result - wanted).max() <= 0.03 * np.abs(wanted).max()


def test_nothing_but_constants_as_inputs() -> None:
    net = Net()
    x = net.input("x", (1, 4))
    made = net.op(
        "Make",
        net.constant(np.arange(4, dtype=np.float64)),
        net.constant([7, 8]),
        net.constant(np.zeros(0, np.float32)),
        domain="acme",
    )
    net.opsets["acme"] = 1
    net.output(net.op("Add", x, made))
    model = anynpu.compile(net.proto(), dtype="fp16", custom_ops={"Make": lambda shapes, attributes: [(1, 4)]})
    seen: list[list[Array]] = []

    def make(arrays: list[Array], attributes: Mapping[str, Any]) -> list[Array]:
        seen.append(arrays)
        return [arrays[0][None] + arrays[1][0]]

    (result,) = run_custom(model, [{"x": np.zeros((1, 4), np.float32)}], {"Make": make})[0]
    np.testing.assert_array_equal(result, [[7, 8, 9, 10]])
    assert [value.dtype for value in seen[0]] == [np.float32, np.int64, np.float32]
    assert [value.size for value in seen[0]] == [4, 2, 0]


def test_the_example_of_the_page_runs() -> None:
    (block,) = blocks(section("import-models", "Custom operators"))
    names: dict[str, Any] = {}
    exec(compile(block, "import-models.md", "exec"), names)
    run_custom(names["model"], [{"x": names["samples"][0]}], {"cstSharpen": names["compute"]})


@pytest.mark.parametrize("stated", [True, False], ids=["axes by name in the file", "a function"])
def test_dynamic_shapes(stated: bool) -> None:
    proto = at_the_end(shape=(1, 3, "height", 6), **({"stated": [1, "height", 4, 4]} if stated else {}))
    proto.graph.node[0].attribute.append(helper.make_attribute("pads", [1, 0, 1, 0]))
    operators = {} if stated else {"Swap": lambda shapes, attributes: [(shapes[0][0], *shapes[0][2:], shapes[0][1])]}
    samples = [{"x": np.random.default_rng(1).normal(size=(1, 3, height, 6)).astype(np.float32)} for height in (6, 9)]
    shapes = [{"x": sample["x"].shape} for sample in samples]
    model = anynpu.compile(proto, dataset=samples[:1], shapes=shapes, custom_ops=operators)
    for index, sample in enumerate(samples):
        ((y, turned),) = run_custom(model, [sample], {"Swap": swap}, shapes=index)
        np.testing.assert_array_equal(turned, y.transpose(0, 2, 3, 1))


def test_a_shape_in_the_file_does_not_hold_for_another_batch() -> None:
    proto = at_the_end(stated=[1, 4, 4, 4])
    with pytest.raises(CompileError, match="the shape of an output of a custom operator is not known"):
        anynpu.compile(proto, dtype="fp16", batch=2)
    operators = {"Swap": lambda shapes, attributes: [(shapes[0][0], *shapes[0][2:], shapes[0][1])]}
    model = anynpu.compile(proto, dtype="fp16", batch=2, custom_ops=operators)
    assert model.outputs[1].shape == (2, 4, 4, 4)


def raising(*_: object) -> Any:
    raise KeyError("axis")


SHAPES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "raises": (raising, ("shape function", "KeyError", "Swap")),
    "too few": (lambda shapes, attributes: [], ("gave []", "1 shapes")),
    "not positive": (lambda shapes, attributes: [(1, 0)], ("gave [(1, 0)]",)),
    "no shapes": (lambda shapes, attributes: 3, ("shape function", "TypeError")),
    "far too large": (lambda shapes, attributes: [(1 << 20, 1 << 20)], ("elements",)),
    "too many axes": (lambda shapes, attributes: [(1,) * 9], ("axes",)),
    "no function": ("nonsense", ("described by a str", "CustomOperator")),
}


@pytest.mark.parametrize("name", SHAPES)
def test_wrong_shape_functions(name: str) -> None:
    value, words = SHAPES[name]
    with pytest.raises(CompileError) as caught:
        anynpu.check(at_the_end(), custom_ops={"Swap": value})
    assert caught.value.hint
    for word in words:
        assert word in str(caught.value)


def test_names_that_are_not_in_the_model() -> None:
    with pytest.raises(CompileError, match="no operator 'Swop'") as caught:
        anynpu.check(at_the_end(stated=[1, 4, 4, 4]), custom_ops=["Swop"])
    assert "did you mean 'Swap'" in caught.value.hint
    anynpu.check(at_the_end(stated=[1, 4, 4, 4]), custom_ops={"Swop": None})  # a mapping may describe more than one model has
    with pytest.raises(CompileError, match="names operators"):
        anynpu.check(at_the_end(), custom_ops=[3])  # type: ignore[list-item]


class Described:
    """Any object with these two is a description."""

    def shapes(self, inputs: list[tuple[int, ...]], attributes: Mapping[str, Any]) -> list[tuple[int, ...]]:
        return gain_shapes(inputs, attributes)

    def compute(self, inputs: list[Array], attributes: Mapping[str, Any]) -> list[Array]:
        return gain_compute(inputs, attributes)


def test_any_object_can_describe_an_operator() -> None:
    proto = gain_net(custom=True)
    samples = feeds(proto, 2)
    one, other = (anynpu.compile(proto, dataset=samples, custom_ops={"Gain": entry}) for entry in (Described(), GAIN))
    assert modelfile.to_bytes(one) == modelfile.to_bytes(other)


def test_calibration_has_to_compute_what_integers_follow() -> None:
    proto = gain_net(custom=True)
    samples = feeds(proto, 1)
    with pytest.raises(CalibrationError, match="calibration cannot compute it") as caught:
        anynpu.compile(proto, dataset=samples, custom_ops={"Gain": gain_shapes})
    assert caught.value.operator == "Gain"
    for word in ("compute=", "hybrid", "fp16"):
        assert word in caught.value.hint
    last = proto.graph.output[0].name
    model = anynpu.compile(proto, dataset=samples, custom_ops={"Gain": gain_shapes}, hybrid=[last])
    assert [layer.kind for layer in model.programs[0].layers if layer.placement is Placement.CPU] == ["Gain"]
    run_custom(model, samples, {"Gain": gain_compute})


COMPUTES: dict[str, tuple[Any, str]] = {
    "raises": (raising, "KeyError"),
    "too few": (lambda inputs, attributes: inputs[:1], "gave arrays of"),
    "another shape": (lambda inputs, attributes: [inputs[0][:, :1], inputs[0][:, :1]], "gave arrays of"),
    "not finite": (lambda inputs, attributes: [inputs[0] * np.nan, inputs[0][:, :1]], "NaN"),
}


@pytest.mark.parametrize("name", COMPUTES)
def test_wrong_computations_in_calibration(name: str) -> None:
    compute, words = COMPUTES[name]
    proto = gain_net(custom=True)
    with pytest.raises(CalibrationError, match=words) as caught:
        anynpu.compile(proto, dataset=feeds(proto, 1), custom_ops={"Gain": CustomOperator(gain_shapes, compute)})
    assert caught.value.hint


def test_ports_that_are_left_out() -> None:
    proto = at_the_end(stated=[1, 4, 4, 4])
    proto.graph.node[1].input.append("")
    assert anynpu.check(proto).cpu_reasons
    proto.graph.node[1].input.insert(0, "")
    with pytest.raises(CompileError, match="only the last ones may be left out"):
        anynpu.check(proto)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (TensorProto.FLOAT16, DType.FLOAT32),
        (TensorProto.DOUBLE, DType.FLOAT32),
        (TensorProto.BOOL, DType.BOOL),
        (TensorProto.INT8, DType.INT8),
        (TensorProto.BFLOAT16, DType.FLOAT32),
        (TensorProto.INT4, None),
        (TensorProto.STRING, None),
    ],
)
def test_types_of_outputs(kind: int, dtype: DType | None) -> None:
    proto = at_the_end(stated=[1, 4, 4, 4])
    proto.graph.output[1].type.tensor_type.elem_type = kind
    if dtype is None:
        with pytest.raises(CompileError, match="the type"):
            anynpu.check(proto)
        return
    assert anynpu.compile(proto, dtype="fp16").outputs[1].dtype is dtype


def test_attributes_that_are_no_data() -> None:
    proto = at_the_end(stated=[1, 4, 4, 4], attributes={"body": helper.make_graph([], "body", [], [])})
    with pytest.raises(CompileError, match="attribute 'body'"):
        anynpu.check(proto)
    proto = at_the_end(stated=[1, 4, 4, 4], attributes={"key": b"\xff\x00"})
    model = anynpu.compile(proto, dtype="fp16")
    (op,) = [layer.op for layer in model.programs[0].layers if isinstance(layer.op, Custom)]
    key = op.attributes["key"]
    assert isinstance(key, np.ndarray)
    assert (key.dtype, key.tolist()) == (np.uint8, [255, 0])


def test_an_operator_whose_shape_depends_on_data_can_be_a_custom_one_of_fixed_shape() -> None:
    net = Net()
    rows = net.op("Cast", net.op("Transpose", net.op("NonZero", net.input("x", (4,)))), to=1)
    net.output(net.op("Gemm", rows, net.weights(1, 4)))
    proto = net.proto()
    with pytest.raises(UnsupportedOperatorError):
        anynpu.check(proto)
    report = anynpu.check(proto, custom_ops={"NonZero": lambda shapes, attributes: [(1, 4)]})
    assert report.layers[0].output_shapes == ((1, 4),)
