"""Where a value lies between two quantized values, the vendor's simulator goes where its float32 operations lead: the anynpu
model goes there too.

The formulas are those that give every code of the toolkit's own simulator, layer by layer.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import anynpu
from anynpu.compiler import pipeline as driver
from anynpu.program import Conv, Epilogue, Model

from .onnx_builders import Net
from .running import run_model

F = np.float32


def _compiled(net: Net, ranges: dict[str, tuple[float, int]], shape: tuple[int, ...], **options: str) -> Model:
    sample = np.linspace(-4, 4, int(np.prod(shape)), dtype=F).reshape(shape)
    return anynpu.compile(
        net.proto(),
        "rk3588",
        dataset=[{"x": sample}],
        quantizer="vendor",
        ranges=ranges,
        **{"arithmetic": "simulator", **options},  # type: ignore[arg-type]
    )


def _codes(model: Model, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """The quantized values of the output for one input."""
    (output,) = model.outputs
    ((values,),) = run_model(model, [{"x": x}])
    assert output.quantization is not None
    codes: npt.NDArray[np.float64] = np.rint(values / F(output.quantization.scale)) + output.quantization.zero_point
    return codes


def test_every_code_of_a_hard_sigmoid_is_a_tie_and_goes_where_float32_leads() -> None:
    """Its input has 255 steps for five, its result 255 for one: alpha is 0.2, so each result is half a step off."""
    net = Net()
    net.output(net.op("HardSigmoid", net.input("x", (1, 1, 16, 16)), alpha=0.2, beta=0.5))
    scale, step = 0.019607842845075274, 0.00392156862745098
    model = _compiled(net, {"x": (scale, 0), net.outputs[0]: (step, -128)}, (1, 1, 16, 16))
    codes = np.arange(-128, 128).astype(F).reshape(1, 1, 16, 16)
    value = np.clip(codes * F(scale) * F(0.2) + F(0.5), F(0), F(1))
    wanted = np.clip(np.rint(value / F(step)) - 128, -128, 127)
    assert np.array_equal(_codes(model, codes * F(scale)), wanted)
    exact = np.clip(np.rint(np.clip(codes.astype(float) * scale * 0.2 + 0.5, 0, 1) / step) - 128, -128, 127)
    assert (exact != wanted).sum() > 20  # so the order of roundings does matter here


def test_the_stairs_of_sums_in_integers_are_the_simulators_operations_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every edge of the stairs, and just below it: models with custom operators have them."""
    monkeypatch.setattr(driver, "sums_in_float32", lambda _: False)
    functions = {
        "Swish": lambda x: x * (F(1) / (F(1) + np.exp(-x))),
        "HardSwish": lambda x: x * np.clip(x * F(1 / 6) + F(0.5), F(0), F(1)),
    }
    for name, function in functions.items():
        net = Net(opset=14)
        made = net.conv(net.input("x", (1, 8, 4, 4)), 8)
        net.output(net.op("Mul", made, net.op("Sigmoid", made)) if name == "Swish" else net.op("HardSwish", made))
        (layer,) = _compiled(net, {net.outputs[0]: (0.021583501249551773, -115)}, (1, 8, 4, 4)).programs[0].layers
        assert isinstance(layer.op, Conv)
        assert isinstance(layer.op.epilogue, Epilogue)
        (stairs,) = layer.op.epilogue.staircases
        for places, found in (
            (stairs.edges, stairs.codes[1:]),
            (np.nextafter(stairs.edges, F(-np.inf)), stairs.codes[:-1]),
        ):
            wanted = np.clip(np.rint(function(places) / F(0.021583501249551773)) - 115, -128, 127)
            assert np.array_equal(found, wanted), name


def test_a_channel_without_weights_keeps_its_bias() -> None:
    """Weight reconstruction leaves such channels; a scale that fits the weights alone has no space for the bias in 32 bits."""
    net = Net()
    net.input("x", (1, 8, 4, 4))
    weights = np.zeros((8, 8, 1, 1), F)
    weights[:4, :4, 0, 0] = np.eye(4)
    weights[5] = 1e-7
    bias = np.linspace(-0.6, 0.6, 8).astype(F)
    net.output(net.op("Conv", "x", net.constant(weights), net.constant(bias)))
    model = _compiled(net, {net.outputs[0]: (0.01, 0)}, (1, 8, 4, 4))
    ((result,),) = run_model(model, [{"x": np.zeros((1, 8, 4, 4), F)}])
    assert np.abs(result[0, :, 0, 0] - bias).max() < 0.006


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("op", ["Resize", "MaxPool"])
def test_a_nearest_resize_and_a_max_pool_copy_codes_whatever_the_configuration_says(op: str, alone: bool) -> None:
    """Both tensors have the scale of the result where nothing else reads the other one, and that of the other one elsewhere."""
    net = Net()
    made = net.conv(net.input("x", (1, 8, 4, 4)), 8)
    if op == "Resize":
        large = net.op("Resize", made, "", net.constant(np.array([1, 1, 2, 2], F)), mode="nearest")
    else:
        large = net.op("MaxPool", made, kernel_shape=[2, 2])
    net.output(net.op("Concat", large, net.op("Relu", large), axis=1))
    if not alone:
        net.output(net.op("Relu", made))
    ranges = {made: (0.05, 3), large: (0.04, 5)}
    program = _compiled(net, ranges, (1, 8, 4, 4)).programs[0]
    scales = {spec.quantization.scale for name, spec in program.tensors.items() if name in (made, large) and spec.quantization}
    assert scales == {float(F(0.04 if alone else 0.05))}
    assert not any("Requantize" in layer.kind for layer in program.layers)
    if op == "Resize":
        board = _compiled(net, ranges, (1, 8, 4, 4), arithmetic="chip").programs[0]
        assert any("Requantize" in layer.kind for layer in board.layers)  # a board was seen to do it
