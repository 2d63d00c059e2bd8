"""quantizer="vendor": where int8 values stand, as Rockchip's toolkit has it. docs/validation.md has these rows as a table.

A layer is written as its operator and what is fused to it: ``Conv~Swish`` takes Swish on the unrounded sum, ``Conv|Swish`` on a code,
``ConvRelu`` has a limit and one rounding. Between two layers there always is a code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import anynpu
from anynpu import chips
from anynpu.compiler.export import Handover, handover
from anynpu.compiler.importers.onnx_graph import import_onnx
from anynpu.compiler.lower.forms import forms_of
from anynpu.compiler.lower.fuse import build_steps, toolkit_rules
from anynpu.compiler.quantize.tensor_scales import Ranges
from anynpu.compiler.toolkit.quantizer import toolkit_bias, toolkit_ends, toolkit_quantization, toolkit_weights
from anynpu.program import FixedPoint, Layer, Model
from anynpu.tensor import Quantization

from .onnx_builders import Net
from .running import run_fp32, run_model

Array = npt.NDArray[Any]
Build = Callable[[Net, str], str]


def compiled(build: Build, target: str = "rk3588", *, reach: float = 2.0, shape: tuple[int, ...] = (1, 8, 9, 9)) -> Model:
    net = Net(opset=18)
    net.output(build(net, net.input("x", shape)))
    random = np.random.default_rng(0)
    samples = [{"x": random.uniform(-reach, reach, shape).astype(np.float32)} for _ in range(2)]
    return anynpu.compile(net.proto(), target, dataset=samples, quantizer="vendor")


def described(layer: Layer) -> str:
    ending = getattr(layer.op, "epilogue", None)
    if isinstance(ending, FixedPoint) and layer.activation:
        mark = "~" if ending.curves else "|" if ending.table is not None else ""
        return layer.kind.removesuffix(layer.activation) + mark + layer.activation
    return layer.kind


def layers(model: Model) -> list[str]:
    return [described(layer) for layer in model.programs[0].layers]


def conv(net: Net, x: str, outs: int = 8, *, kernel: int = 3, group: int = 1, ins: int = 8, scale: float = 1.0) -> str:
    weights = net.weights(outs, ins // group, kernel, kernel, scale=scale)
    return net.op("Conv", x, weights, net.weights(outs), group=group, pads=[kernel // 2] * 4)


def depthwise(net: Net, x: str) -> str:
    return conv(net, x, group=8)


def transposed(net: Net, x: str, outs: int = 4) -> str:
    return net.op("ConvTranspose", x, net.weights(8, outs, 2, 2), strides=[2, 2])


def swish(net: Net, x: str) -> str:
    return net.op("Mul", x, net.op("Sigmoid", x))


def gelu(net: Net, x: str) -> str:
    erf = net.op("Erf", net.op("Div", x, net.constant(float(np.sqrt(2.0)))))
    return net.op("Mul", net.op("Mul", x, net.op("Add", erf, net.constant(1.0))), net.constant(0.5))


def prelu(net: Net, x: str) -> str:
    return net.op("PRelu", x, net.constant(np.full((8, 1, 1), 0.2, np.float32)))


def clip(net: Net, x: str) -> str:
    return net.op("Clip", x, net.constant(0.0), net.constant(6.0))


def scaled(net: Net, x: str) -> str:
    return net.op("Add", net.op("Mul", x, net.constant(1.3)), net.constant(0.2))


def dense(net: Net, x: str) -> str:
    return net.op("Gemm", net.op("Flatten", x), net.weights(8 * 81, 5))


def op(name: str, **attributes: Any) -> Build:
    return lambda net, x: net.op(name, x, **attributes)


def after(*parts: Build) -> Build:
    """One part after the other."""

    def build(net: Net, x: str) -> str:
        for part in parts:
            x = part(net, x)
        return x

    return build


def plus_input(part: Build) -> Build:
    return lambda net, x: net.op("Add", part(net, x), x)


ONE_ROUNDING = {"Relu": op("Relu"), "Clip": clip, "LeakyRelu": op("LeakyRelu", alpha=0.1), "PRelu": prelu}
ON_SUMS = {name: op(name) for name in ("Sigmoid", "Tanh", "HardSwish", "Mish", "Elu", "Softplus")} | {
    "Swish": swish,
    "Gelu": gelu,
}


@pytest.mark.parametrize("name", list(ONE_ROUNDING))
def test_limits_and_slopes_have_one_rounding(name: str) -> None:
    assert layers(compiled(after(conv, ONE_ROUNDING[name]))) == [f"Conv{name}"]


@pytest.mark.parametrize("name", list(ON_SUMS))
def test_an_activation_takes_the_unrounded_sum_of_a_convolution(name: str) -> None:
    assert layers(compiled(after(conv, ON_SUMS[name]))) == [f"Conv~{name}"]


def test_grouped_convolutions_and_fully_connected_layers_do_so_too() -> None:
    assert layers(compiled(after(lambda net, x: conv(net, x, group=2), swish))) == ["Conv~Swish"]
    assert layers(compiled(after(dense, op("Sigmoid"))))[-1] == "Gemm~Sigmoid"


def test_a_convolution_of_one_channel_is_no_depthwise_layer() -> None:
    model = compiled(after(lambda net, x: conv(net, x, 1, ins=1), swish), shape=(1, 1, 9, 9))
    assert layers(model) == ["Conv~Swish"]


def test_hard_sigmoid_as_a_board_has_it() -> None:
    """The toolkit's simulator has a code before it; 768 bytes of an RV1103 state that the chip has none."""
    for target in ("rk3588", "rv1106"):
        assert layers(compiled(after(conv, op("HardSigmoid")), target)) == ["Conv~HardSigmoid"]


def test_exp_takes_codes() -> None:
    assert layers(compiled(after(lambda net, x: conv(net, x, scale=0.02), op("Exp")))) == ["Conv|Exp"]


@pytest.mark.parametrize("name", ["Sigmoid", "Swish", "Tanh", "HardSwish", "Mish", "HardSigmoid"])
def test_after_a_depthwise_convolution_tables_take_codes(name: str) -> None:
    activation = ON_SUMS.get(name) or op(name)
    assert layers(compiled(after(depthwise, activation))) == [f"Conv|{name}"]


def test_after_a_depthwise_convolution_a_leaky_relu_takes_codes_and_elu_the_sum() -> None:
    assert layers(compiled(after(depthwise, op("LeakyRelu", alpha=0.1)))) == ["Conv", "LeakyRelu"]
    assert layers(compiled(after(depthwise, op("Elu")))) == ["Conv~Elu"]


@pytest.mark.parametrize("name", ["Relu", "Clip", "PRelu"])
def test_a_depthwise_convolution_with_a_limit_or_prelu_has_one_rounding(name: str) -> None:
    assert layers(compiled(after(depthwise, ONE_ROUNDING[name]))) == [f"Conv{name}"]


@pytest.mark.parametrize("name", ["Sigmoid", "Swish"])
def test_after_a_transposed_convolution_tables_take_codes(name: str) -> None:
    assert layers(compiled(after(transposed, ON_SUMS[name]))) == [f"ConvTranspose|{name}"]


def test_a_constant_after_a_transposed_convolution_is_not_folded() -> None:
    """Quantized values after it, after the Add, and after the normalization with its Relu."""

    def head(net: Net, x: str) -> str:
        shifted = net.op("Add", transposed(net, x), net.weights(1, 4, 1, 1))
        return net.op("Relu", net.batch_norm(shifted, 4))

    assert layers(compiled(head)) == ["ConvTranspose", "Conv", "ConvRelu"]

    def last(net: Net, x: str) -> str:
        return net.op("Sigmoid", net.op("Add", transposed(net, x, 1), net.weights(1)))

    assert layers(compiled(last)) == ["ConvTranspose|Add", "Sigmoid"]
    assert layers(compiled(after(transposed, lambda net, x: net.batch_norm(x, 4), op("Relu")))) == ["ConvTransposeRelu"]


@pytest.mark.parametrize("target", ["rk3588", "rk3566", "rk3568"])
def test_an_add_after_a_depthwise_convolution_takes_codes_on_some_chips(target: str) -> None:
    assert layers(compiled(plus_input(depthwise), target)) == ["Conv", "Add"]


@pytest.mark.parametrize("target", ["rk3576", "rk3562", "rv1106", "rv1103"])
def test_an_add_after_a_depthwise_convolution_is_part_of_it_on_others(target: str) -> None:
    assert layers(compiled(plus_input(depthwise), target)) == ["ConvAdd"]


def test_an_add_is_part_of_the_convolution_before_it() -> None:
    assert layers(compiled(plus_input(conv))) == ["ConvAdd"]
    assert layers(compiled(after(plus_input(conv), op("Relu")))) == ["ConvAddRelu"]


def test_an_activation_takes_the_code_of_a_convolution_with_an_add() -> None:
    assert layers(compiled(after(plus_input(conv), swish))) == ["ConvAdd|Swish"]


def test_an_add_takes_the_code_of_an_activation() -> None:
    assert layers(compiled(plus_input(after(conv, swish)))) == ["Conv~Swish", "Add"]


def test_scale_and_shift_after_an_activation_take_codes() -> None:
    """Each of them: seen in the toolkit's simulator, all quantized values of three layers."""
    assert layers(compiled(after(conv, op("HardSwish"), scaled))) == ["Conv~HardSwish", "Mul", "Add"]
    assert layers(compiled(after(depthwise, op("HardSwish"), scaled))) == ["Conv|HardSwish", "Mul", "Add"]


def test_two_convolutions_of_one_input_are_one() -> None:
    """With the sum of the weights, and of the biases: the smaller kernel lies inside the larger one."""

    def block(net: Net, x: str) -> str:
        return net.op("Relu", net.op("Add", conv(net, x, kernel=1), conv(net, x, kernel=3)))

    assert layers(compiled(block)) == ["ConvRelu"]

    def strides(net: Net, x: str) -> str:
        other = net.op("Conv", x, net.weights(8, 8, 3, 3), pads=[2] * 4, dilations=[2, 2])
        return net.op("Add", conv(net, x), other)

    assert layers(compiled(strides)) == ["Conv", "ConvAdd"]

    def read_twice(net: Net, x: str) -> str:
        one = conv(net, x)
        return net.op("Concat", net.op("Add", one, conv(net, x)), one, axis=1)

    assert sorted(layers(compiled(read_twice))) == ["Concat", "Conv", "ConvAdd"]


@pytest.mark.parametrize(
    ("sizes", "outs", "expected"),
    [
        ((5, 3), 4, ["Conv", "ConvAddRelu"]),
        ((8, 8, 12), 4, ["Conv", "ConvAdd", "ConvAddRelu"]),
        ((8, 8), 8, ["Concat", "ConvRelu"]),
        ((16, 16), 12, ["Conv", "ConvAddRelu"]),
        ((32, 32), 32, ["Concat", "ConvRelu"]),
        ((40, 32), 32, ["Conv", "ConvAddRelu"]),
        ((48, 48), 32, ["Conv", "ConvAddRelu"]),
        ((48, 48), 48, ["Concat", "ConvRelu"]),
        ((64, 64, 64), 48, ["Conv", "ConvAdd", "ConvAddRelu"]),
        ((64, 64, 64), 64, ["Concat", "ConvRelu"]),
        ((32, 96), 56, ["Conv", "ConvAddRelu"]),
        ((32, 96), 64, ["Concat", "ConvRelu"]),
    ],
)
def test_a_convolution_of_a_concat_is_split(sizes: tuple[int, ...], outs: int, expected: list[str]) -> None:
    def build(net: Net, x: str) -> str:
        joined = net.op("Concat", *(conv(net, x, size, kernel=1) for size in sizes), axis=1)
        return net.op("Relu", conv(net, joined, outs, ins=sum(sizes)))

    found = layers(compiled(build, shape=(1, 8, 3, 3)))
    assert sorted(found) == sorted(["Conv"] * len(sizes) + expected)
    assert found[-1] == expected[-1]


def test_a_concat_that_two_convolutions_read_stays_whole() -> None:
    def build(net: Net, x: str) -> str:
        joined = net.op("Concat", *(conv(net, x, 16, kernel=1) for _ in range(2)), axis=1)
        return net.op("Mul", *(net.op("Relu", conv(net, joined, 8, ins=32)) for _ in range(2)))

    assert "Concat" in layers(compiled(build, shape=(1, 8, 3, 3)))


def test_so_does_one_whose_parts_fit_no_block() -> None:
    def build(net: Net, x: str) -> str:
        joined = net.op("Concat", *(conv(net, x, size, kernel=1) for size in (5, 3)), axis=1)
        return net.op("Mul", *(net.op("Relu", conv(net, joined, 8, ins=8)) for _ in range(2)))

    assert layers(compiled(build, shape=(1, 8, 3, 3))).count("Concat") == 1


def test_channels_in_another_order_are_a_convolution() -> None:
    """Behind a Concat whose parts fit no block it is split as any other one."""

    def alone(net: Net, x: str) -> str:
        return net.op("Gather", net.op("Relu", conv(net, x)), net.constant([3, 1, 0]), axis=1)

    model = compiled(alone, shape=(1, 8, 3, 3))
    assert layers(model) == ["ConvRelu", "Conv"]
    assert model.programs[0].output_specs[0].shape == (1, 3, 3, 3)

    def joined(net: Net, x: str) -> str:
        parts = [conv(net, x, size, kernel=1) for size in (5, 3)]
        return net.op("Gather", net.op("Concat", *parts, axis=1), net.constant([7, 1, 2, 3, 4, 5, 6, 0]), axis=1)

    assert layers(compiled(joined, shape=(1, 8, 3, 3))) == ["Conv", "Conv", "Conv", "ConvAdd"]


def test_channels_in_another_order_before_a_convolution_are_a_convolution() -> None:
    """The same function as with a Gather of its own, which our own quantization leaves as it is."""
    net = Net(opset=18)
    x = net.input("x", (1, 8, 3, 3))
    net.output(conv(net, net.op("Gather", net.op("Relu", x), net.constant([7, 1, 2, 3, 4, 5, 6, 0, 0]), axis=1), ins=9))
    sample = {"x": np.random.default_rng(1).uniform(-2, 2, (1, 8, 3, 3)).astype(np.float32)}
    model = anynpu.compile(net.proto(), "rk3588", dataset=[sample], quantizer="vendor")
    assert layers(model) == ["Relu", "Conv", "Conv"]
    (expected,), (given,) = run_fp32(net.proto(), [sample])[0], run_model(model, [sample])[0]
    np.testing.assert_allclose(given, expected, atol=0.05 * np.abs(expected).max())


def test_channels_of_a_concat_in_another_order_go_into_the_convolutions_that_read_them() -> None:
    for other, expected in ((False, ["Relu", "Relu", "Concat", "Conv", "Conv"]), (True, ["Relu", "Relu", "Concat", "ConvRelu"])):
        net = Net(opset=18)
        x = net.input("x", (1, 8, 3, 3))
        joined = net.op("Concat", net.op("Relu", x), net.op("Relu", net.op("Neg", x)), axis=1)
        chosen = net.op("Gather", joined, net.constant([15, 1, 2, 3, 4, 5, 6, 0]), axis=1)
        results = [net.op("Relu", chosen)] if other else [conv(net, chosen), conv(net, chosen)]
        net.output(*results)
        sample = {"x": np.random.default_rng(1).uniform(-2, 2, (1, 8, 3, 3)).astype(np.float32)}
        model = anynpu.compile(net.proto(), "rk3588", dataset=[sample], quantizer="vendor")
        assert [kind for kind in layers(model) if kind != "Neg"] == expected
        for wanted, given in zip(run_fp32(net.proto(), [sample])[0], run_model(model, [sample])[0], strict=True):
            np.testing.assert_allclose(given, wanted, atol=0.05 * np.abs(wanted).max())


@pytest.mark.parametrize("group", [1, 2, 8])
def test_channels_of_a_convolution_in_another_order_are_part_of_it(group: int) -> None:
    def build(net: Net, x: str) -> str:
        return net.op("Relu", net.op("Gather", conv(net, x, group=group), net.constant([7, 1, 2, 3, 4, 5, 6, 0]), axis=1))

    assert layers(compiled(build)) == ["ConvRelu"]


@pytest.mark.parametrize("group", [1, 2])
def test_a_convolution_that_is_split_is_one_convolution_per_part(group: int) -> None:
    """Each part has its own activation and range. One that a third operator reads is left whole, and so is a depthwise one."""

    def build(net: Net, x: str, group: int = group, *, other: bool = False) -> str:
        made = conv(net, x, group=group)
        first, second = net.ops("Split", made, net.constant([3, 5]), count=2, axis=1)
        parts = [net.op("Relu", first), net.op("Tanh", second), *([net.op("Relu", made)] * other)]
        return net.op("Concat", *parts, axis=1)

    assert layers(compiled(build)) == ["ConvRelu", "Conv~Tanh", "Concat"]
    for left in (lambda net, x: build(net, x, other=True), lambda net, x: build(net, x, 8)):
        assert "Split" in layers(compiled(left))


def test_a_hard_swish_after_a_fully_connected_layer_takes_codes() -> None:
    assert layers(compiled(after(dense, op("HardSwish"))))[-1] == "Gemm|HardSwish"
    assert layers(compiled(after(dense, op("Tanh"))))[-1] == "Gemm~Tanh"


def test_the_parts_of_a_concat_are_computed_when_they_are_there() -> None:
    """The part that is made first is added unrounded, wherever it stands in the Concat."""
    names: list[str] = []

    def build(net: Net, x: str, *, reverse: bool) -> str:
        early = net.op("Relu", conv(net, x))
        late = net.op("Relu", conv(net, early))
        names[:] = [early, late]
        return conv(net, net.op("Concat", *([late, early] if reverse else [early, late]), axis=1), 4, kernel=1, ins=16)

    for reverse in (False, True):
        model = compiled(lambda net, x, reverse=reverse: build(net, x, reverse=reverse))
        assert model.programs[0].layers[-1].inputs == (names[0], f"{names[1]}_conv")


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_convolutions_that_are_added_the_earlier_one_is_fused(first: int) -> None:
    """Seen in the toolkit's simulator with both orders of the operands: its result is unrounded there."""
    names: list[str] = []

    def build(net: Net, x: str) -> str:
        names[:] = [conv(net, net.op("Relu", conv(net, x, kernel=1)), kernel=1) for _ in range(2)]
        return net.op("Add", names[first], names[1 - first])

    model = compiled(build, shape=(1, 8, 3, 3))
    assert layers(model)[-1] == "ConvAdd"
    assert model.programs[0].layers[-1].inputs[1] == names[1]


def test_the_stem_of_a_detector_is_split() -> None:
    """Four images of every second pixel, joined."""

    def focus(net: Net, x: str) -> str:
        parts = []
        for row, column in ((0, 0), (1, 0), (0, 1), (1, 1)):
            bounds = [net.constant(values) for values in ([row, column], [8, 8], [2, 3], [2, 2])]
            parts.append(net.op("Slice", x, *bounds))
        return conv(net, net.op("Concat", *parts, axis=1), 8, ins=12)

    found = layers(compiled(focus, shape=(1, 3, 8, 8)))
    assert (found.count("Conv"), found.count("ConvAdd")) == (1, 3)
    assert "Concat" not in found


def test_the_second_operand_of_a_product_is_symmetric() -> None:
    model = compiled(lambda net, x: net.op("MatMul", conv(net, x), conv(net, net.op("Relu", x))))
    (product,) = (layer for layer in model.programs[0].layers if layer.operator == "MatMul")
    first, second = (quantization(model, name) for name in product.inputs)
    assert (first.zero_point != 0, second.zero_point) == (True, 0)


@pytest.mark.parametrize(("extent", "stages"), [(7, 1), (8, 2), (50, 3)])
def test_global_averages_are_computed_in_stages(extent: int, stages: int) -> None:
    shape = (1, 8, extent, extent)
    assert layers(compiled(op("GlobalAveragePool"), shape=shape)) == ["Conv"] * stages
    means = [lambda net, x, keep=keep: net.op("ReduceMean", x, net.constant([2, 3]), keepdims=keep) for keep in (0, 1)]
    for mean in means:
        assert layers(compiled(mean, shape=shape)) == ["Conv"] * stages


def test_means_over_channels_and_quotients_have_codes_on_both_sides() -> None:
    assert layers(compiled(lambda net, x: net.op("ReduceMean", x, net.constant([1])))) == ["Conv"]

    def quotient(net: Net, x: str) -> str:
        return net.op("Div", *(net.op("Sigmoid", conv(net, x, scale=0.01)) for _ in range(2)))

    model = compiled(quotient)
    assert all(quantization(model, name) is not None for name in model.programs[0].outputs)
    assert [layer.operator for layer in model.programs[0].layers if layer.placement.value == "cpu"] == ["Div"]


def test_an_average_has_the_scale_of_its_input() -> None:
    model = compiled(op("AveragePool", kernel_shape=[2, 2]))
    assert quantization(model, model.programs[0].outputs[0]) == quantization(model, "x")


def test_operators_alone_stay_alone() -> None:
    """An activation on its own, and arithmetic with constants around it."""
    assert layers(compiled(after(op("MaxPool", kernel_shape=[2, 2]), op("Sigmoid")))) == ["MaxPool", "Sigmoid"]
    double = lambda net, x: net.op("Mul", x, net.constant(2.0))  # noqa: E731
    assert layers(compiled(after(op("MaxPool", kernel_shape=[2, 2]), double, op("Sigmoid")))) == ["MaxPool", "Mul", "Sigmoid"]
    assert layers(compiled(after(conv, op("Sigmoid"), double))) == ["Conv~Sigmoid", "Mul"]


def test_softmax_is_float() -> None:
    assert "Softmax" in layers(compiled(after(conv, op("Softmax", axis=1))))


# ranges


def quantization(model: Model, name: str) -> Quantization:
    found = model.programs[0].tensors[name].quantization
    assert found is not None
    return found


def span(model: Model, name: str) -> tuple[float, float]:
    """What the quantized values of a tensor can state."""
    found = quantization(model, name)
    return (-128 - found.zero_point) * found.scale, (127 - found.zero_point) * found.scale


@pytest.mark.parametrize(
    ("activation", "low", "high"),
    [
        (op("Relu"), 0.0, None),
        (clip, 0.0, 6.0),
        (op("Sigmoid"), -7.0, 7.0),
        (op("Tanh"), -3.2, 3.2),
        (op("HardSwish"), -3.0, None),
        (op("HardSigmoid", alpha=0.2, beta=0.5), -2.5, 2.5),
        (op("Elu"), None, None),
    ],
    ids=["Relu", "Clip", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "Elu"],
)
def test_a_range_goes_no_further_than_the_activation_behind_it(activation: Build, low: float | None, high: float | None) -> None:
    """Where quantized values stand before it: here those of a Concat, whose values go from -40 to 40."""

    def build(net: Net, x: str) -> str:
        double = net.op("Add", net.op("MaxPool", x, kernel_shape=[1, 1]), x)
        names.append(net.op("Concat", double, x, axis=1))
        return activation(net, names[0])

    names: list[str] = []
    found = span(compiled(build, reach=20.0), names[0])
    assert found[0] == pytest.approx(-40.0 if low is None else low, abs=0.4)
    assert found[1] == pytest.approx(40.0 if high is None else high, abs=0.4)


def test_parts_of_a_concat_keep_their_scales() -> None:
    def build(net: Net, x: str) -> str:
        small, large = conv(net, x, scale=0.01), conv(net, x, scale=1.0)
        names.extend([small, large])
        return net.op("Concat", small, large, axis=1)

    names: list[str] = []
    model = compiled(build)
    assert quantization(model, names[0]).scale < 0.5 * quantization(model, names[1]).scale


def test_what_a_max_pooling_reads_has_the_range_of_its_result() -> None:
    def build(net: Net, x: str) -> str:
        names.append(conv(net, x))
        return net.op("MaxPool", names[0], kernel_shape=[3, 3])

    names: list[str] = []
    model = compiled(build)
    assert quantization(model, names[0]) == quantization(model, model.programs[0].outputs[0])


def test_a_factor_before_a_fully_connected_layer_goes_into_its_weights() -> None:
    """As exports have it between the last activation of a classifier and its Dropout."""

    def build(net: Net, x: str) -> str:
        return dense(net, net.op("Mul", conv(net, net.op("MaxPool", x, kernel_shape=[1, 1])), net.constant(0.8)))

    assert layers(compiled(build)) == ["MaxPool", "Conv", "Gemm"]
    assert layers(compiled(lambda net, x: dense(net, net.op("Mul", net.op("Relu", x), net.constant(0.8))))) == ["Relu", "Gemm"]

    def read_twice(net: Net, x: str) -> str:
        small = net.op("Mul", net.op("MaxPool", x, kernel_shape=[1, 1]), net.constant(0.8))
        return net.op("Add", dense(net, small), dense(net, net.op("Relu", small)))

    assert "Mul" in layers(compiled(read_twice))


@pytest.mark.parametrize("shaped", [False, True])
def test_a_softmax_at_the_end_gives_float(shaped: bool) -> None:
    def build(net: Net, x: str) -> str:
        result = net.op("Softmax", dense(net, x), axis=1)
        return net.op("Reshape", result, net.constant([5])) if shaped else result

    (output,) = compiled(build).programs[0].output_specs
    assert output.dtype.is_float
    (codes,) = compiled(dense).programs[0].output_specs
    assert codes.quantization is not None


def _handed_over(build: Build, reach: float = 2.0) -> Handover:
    net = Net(opset=18)
    net.output(build(net, net.input("x", (1, 8, 9, 9))))
    random = np.random.default_rng(0)
    samples = [{"x": random.uniform(-reach, reach, (1, 8, 9, 9)).astype(np.float32)} for _ in range(2)]
    return handover(net.proto(), "rk3588", refit=False, dataset=samples)


def test_no_range_goes_beyond_what_its_only_reader_can_tell_apart() -> None:
    """The toolkit would cut it, and the scale of its file would be another than that of the anynpu model."""
    names: list[str] = []

    def hard_swish(net: Net, x: str) -> str:
        names.append(depthwise(net, x))
        return conv(net, net.op("HardSwish", names[0]))

    low, high = _handed_over(hard_swish, reach=20.0).ranges[names[0]]
    assert low == -3.0
    assert high > 3.0


def test_no_part_of_a_concat_has_a_wider_range_than_the_whole() -> None:
    net = Net(opset=18)
    x = net.input("x", (1, 8, 9, 9))
    parts = [conv(net, x, 8), conv(net, x, 8, scale=0.1)]
    joined = net.op("Concat", *parts, axis=1)
    net.output(conv(net, net.op("Relu", joined), ins=16))
    graph = import_onnx(net.proto(), {}, None, {})
    steps = build_steps(graph, forms_of(graph), toolkit_rules(chips.get("rk3588")))
    reach = {joined: (-2.0, 5.0)}
    ranges: Ranges = lambda name, *, exact: reach.get(name, (-3.0, 4.0))  # noqa: E731
    found = toolkit_ends(graph, steps, toolkit_quantization(graph, steps, ranges, {}, {}))
    whole = found[joined]
    for part in parts:
        assert found[part][0] >= whole[0]
        assert found[part][1] == pytest.approx(4.0, abs=0.05)


def test_a_part_of_a_concat_that_is_joined_again_has_the_limits_of_the_last_whole() -> None:
    """The zero points are rounded: each whole is moved by less than a step, and its parts with it."""
    net = Net(opset=18)
    x = net.input("x", (1, 8, 9, 9))
    parts = [conv(net, x, 8), conv(net, x, 8)]
    inner = net.op("Concat", *parts, axis=1)
    outer = net.op("Concat", inner, conv(net, x, 8), axis=1)
    net.output(conv(net, net.op("Relu", outer), ins=24))
    graph = import_onnx(net.proto(), {}, None, {})
    steps = build_steps(graph, forms_of(graph), toolkit_rules(chips.get("rk3588")))
    reach = {parts[0]: (-2.2222, 3.66), inner: (-2.2222, 3.66), outer: (-2.86, 3.66)}
    ranges: Ranges = lambda name, *, exact: reach.get(name, (-1.0, 1.0))  # noqa: E731
    found = toolkit_ends(graph, steps, toolkit_quantization(graph, steps, ranges, {}, {}))
    for name, whole in ((inner, outer), (parts[0], inner)):
        assert found[name][0] >= found[whole][0]
        assert found[name][1] <= found[whole][1]


def test_a_global_average_has_a_range_of_its_own() -> None:
    names: list[str] = []

    def build(net: Net, x: str) -> str:
        names.extend([net.op("Relu", conv(net, x))])
        names.append(net.op("GlobalAveragePool", names[0]))
        return conv(net, names[1], kernel=1)

    ranges = _handed_over(build).ranges
    assert ranges[names[1]][1] < 0.7 * ranges[names[0]][1]


@pytest.mark.parametrize(
    ("low", "high", "bias", "source", "expected"),
    [
        (-0.32261601090431213, 0.32548344135284424, 2.770019054412842, 0.01865844614803791, 58413),
        (-0.12403403967618942, 0.18237584829330444, -0.18333695828914642, 0.02720935083925724, -5608),
        (-0.060847584158182144, 0.05837615206837654, -0.045962657779455185, 0.03198522329330444, -3074),
        (-0.560459315776825, 0.5184779763221741, -1.4503453969955444, 0.02053743042051792, -16690),
        (-1.1576225757598877, 1.3992133140563965, 6.258144378662109, 0.015390945598483086, 40552),
        (-0.2223188877105713, 0.2793741822242737, -2.326671838760376, 0.029746033251285553, -39756),
        (-0.10806957632303238, 0.1290198564529419, -5.046795845031738, 0.1046845018863678, -51852),
        (-0.10774952173233032, 0.1104104220867157, -5.242325305938721, 0.13318368792533875, -46009),
        (-0.14385218918323517, 0.14056514203548431, -4.329061031341553, 0.13318368792533875, -29142),
    ],
)
def test_a_bias_has_the_code_of_the_toolkit_at_ties(low: float, high: float, bias: float, source: float, expected: int) -> None:
    """Seen in its simulator: ends of a channel's weights, its bias and the scale of its input."""
    weights = np.array([[low, high]], np.float32)
    assert toolkit_bias(np.array([bias], np.float32), np.array([source]), weights).tolist() == [expected]


def test_weights_have_the_codes_of_the_toolkit_at_ties() -> None:
    """Seen in its simulator: the scale is rounded once, to float32, before weights are divided by it."""
    low, high = np.float32(-0.06497222185134888), np.float32(0.02398303523659706)
    scale = np.float32((float(high) - float(low)) / 255)
    steps = np.array([2.5, 12.5, -7.5, 22.5, -97.5, 32.5], np.float32)
    codes, scales, zeros = toolkit_weights(np.concatenate([[low, high], steps * scale])[None])
    assert scales[0] == scale
    assert (codes[0, 2:] - zeros[0]).tolist() == [2, 12, -8, 22, -98, 32]


def test_the_factor_of_a_gelu_stays_with_it() -> None:
    """A factor before a fully connected layer goes into its weights otherwise."""
    model = compiled(after(dense, gelu, lambda net, x: net.op("MatMul", x, net.weights(5, 3))))
    assert layers(model)[-2:] == ["Gemm~Gelu", "Gemm"]


@pytest.mark.parametrize("group", [1, 2, 8])
def test_the_toolkit_is_given_no_reordered_channels_of_a_convolution(group: int) -> None:
    """It reorders the weights of a grouped convolution without the inputs of its groups."""
    net = Net(opset=18)
    made = conv(net, net.input("x", (1, 8, 3, 3)), group=group)
    order = net.constant([0, 4, 1, 5, 2, 6, 3, 7])
    net.output(net.op("Relu", net.op("Gather", made, order, axis=1)))
    samples = [{"x": np.random.default_rng(1).uniform(-2, 2, (1, 8, 3, 3)).astype(np.float32)}]
    given = handover(net.proto(), "rk3588", dataset=samples, refit=False)
    assert [node.op_type for node in given.model.graph.node] == ["Conv", "Relu"]
    (expected,), (found,) = (run_fp32(proto, samples)[0] for proto in (net.proto(), given.model))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
