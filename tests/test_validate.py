from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import CLASSES, ProgramBuilder, epilogue, every_operator, every_operator_model, nearest, wide_model

from anynpu.errors import ModelFormatError
from anynpu.modelfile.validate import validate_model, validate_program
from anynpu.program import Binary, Conv, CustomConstant, Float, FloatOp, Pool, Program, Table, Transpose
from anynpu.tensor import Affine, DType, DynamicFixedPoint, Layout, TensorSpec

PROGRAM = every_operator(8)


def with_op(output: str, **changes: Any) -> Program:
    """The program with fields of the operator changed whose first output is *output*; ``epilogue_x`` is field x of its epilogue."""

    def changed(op: Any) -> Any:
        inner = {key.removeprefix("epilogue_"): value for key, value in changes.items() if key.startswith("epilogue_")}
        outer = {key: value for key, value in changes.items() if not key.startswith("epilogue_")}
        if inner:
            outer["epilogue"] = replace(op.epilogue, **inner)
        return replace(op, **outer)

    return replace(PROGRAM, layers=tuple(replace(x, op=changed(x.op)) if x.outputs[0] == output else x for x in PROGRAM.layers))


def with_layer(output: str, **changes: Any) -> Program:
    return replace(PROGRAM, layers=tuple(replace(x, **changes) if x.outputs[0] == output else x for x in PROGRAM.layers))


def with_tensor(name: str, **changes: Any) -> Program:
    return replace(PROGRAM, tensors={**PROGRAM.tensors, name: replace(PROGRAM.tensors[name], **changes)})


def with_offset(name: str, offset: int | None) -> Program:
    offsets = dict(PROGRAM.memory.offsets)
    offsets.pop(name, None)
    if offset is not None:
        offsets[name] = offset
    return replace(PROGRAM, memory=replace(PROGRAM.memory, offsets=offsets))


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_good_programs_pass() -> None:
    for side in (4, 8, 12):
        validate_program(every_operator(side))
    validate_model(every_operator_model())
    validate_model(wide_model())


def unary(name: str, source: str, target: str) -> Float:
    return Float((FloatOp(name, (source,), (target,)),))


def with_float(name: str, source: str, output: str = "probabilities") -> Program:
    """The last layer with another operator."""
    return with_layer("probabilities", op=unary(name, source, output))


OPERATORS: list[tuple[Program, str]] = [
    # products
    (with_op("c1", weights=np.zeros((8, 3, 3, 4), np.int8)), "weights for 4 x 1 input channels, the input has 3"),
    (with_op("c1", weights=np.zeros((8, 3, 3), np.int8)), "weights have shape"),
    (with_op("c1", weights=np.zeros((8, 3, 3, 3), np.float32)), "weights are float32"),
    (with_op("c1", weights=np.zeros((8, 0, 3, 3), np.int8)), "weights have shape"),
    (with_op("c1", bias=np.zeros(7, np.int32)), r"bias has shape \[7\], not 1 or 8"),
    (with_op("c1", bias=np.zeros(8, np.float32)), "bias is float32"),
    (with_op("c1", weight_zero=np.full(8, 1 << 20, np.int32)), "beyond 16 bits"),
    (with_op("c1", groups=2), "input channels"),
    (with_op("c1", groups=0), "0 groups"),
    (with_op("deep", groups=-16), "-16 groups"),
    (with_op("c1", strides=(0, 1)), "strides"),
    (with_op("c1", strides=(2, 1)), "8 pixels give 4, the output has 8"),
    (with_op("c1", dilations=(1, 0)), "dilations"),
    (with_op("c1", pads=(1, -1, 1, 1)), "pads"),
    (with_op("c1", pads=(0, 1, 1, 1)), "8 pixels give 7"),
    (with_op("c1", pads=(1 << 30, 0, 0, 0)), "pads"),
    (with_tensor("c1", shape=(2, 8, 8, 8)), "the input has 1 images, the output 2"),
    (with_tensor("image", quantization=None), "'image' has no quantization"),
    (with_tensor("image", layout=Layout.NCHW), "channels last"),
    (with_tensor("image", w_stride=16), "lies in blocks or with padding"),
    (with_layer("c1", inputs=("image", "image")), "takes 1 inputs, got 2"),
    (with_layer("deep", inputs=("joined",)), "takes 2 inputs, got 1"),
    (with_layer("deep", inputs=("joined", "added")), "do not broadcast"),
    (with_op("up", strides=(1, 2)), "8 pixels give at most 9, the output has 16"),
    (with_op("logits8", weights=np.zeros((10, 5), np.int8)), "rows of 5 elements do not divide"),
    (with_op("logits8", weights=np.zeros((10, 8), np.int8)), "2 rows of 10 are not 10"),
    (with_layer("product", inputs=("c1", "rows")), "rows of 8 meet columns of 16"),
    (with_tensor("product", shape=(1, 16, 17)), r"the product is \[1, 16, 16\]"),
    # epilogues
    (with_op("c1", epilogue_multiplier=floats(1, 2)), "multiplier has shape"),
    (with_op("c1", epilogue_multiplier=np.zeros(8, np.float64)), "multiplier is float64"),
    (with_op("c1", epilogue_multiplier=np.zeros(0, np.float32)), "multiplier has shape"),
    (with_op("c1", epilogue_multiplier=floats(*[np.inf] * 8)), "not finite"),
    (with_op("c1", epilogue_zero_point=ints(1 << 30)), "beyond 16 bits"),
    (with_op("c1", epilogue_clamp=ints(1, 2)), "clamp has shape"),
    (with_op("c1", epilogue_clamp=ints(-200, 100).reshape(2, 1)), "clamp leaves the range of int8"),
    (with_op("c1", epilogue_clamp=ints(5, 4).reshape(2, 1)), "clamp leaves"),
    (with_op("c1", epilogue_slope=floats(1, 2, 3)), "slope has shape"),
    (with_op("c1", epilogue_table=np.zeros((2, 255), np.int8)), "needs 256 entries"),
    (with_op("c1", epilogue_table=np.zeros((2, 256), np.int16)), "a table of int16 gives no int8"),
    (with_op("c1", epilogue_table=np.zeros((1, 256), np.int8)), "1 table rows for 2 groups"),
    (with_op("c1", epilogue_table_groups=(3, 4)), "table groups of 7 channels on 8"),
    (with_op("c1", epilogue_table_groups=(9, -1)), "group of channels is empty"),
    (with_op("c1", epilogue_table=None), "table groups without a table"),
    (with_op("mean", epilogue=None), "needs an epilogue"),
    (with_op("mean", epilogue_residual_multiplier=floats(1)), "takes no residual"),
    (with_op("largest", epilogue=epilogue(8)), "has no epilogue"),
    # element by element
    (with_op("t1", table_groups=()), "2 table rows for no groups"),
    (with_op("t1", table=np.zeros((2, 65536), np.int8)), "needs 256"),
    (with_op("added", a_multiplier=np.zeros(0, np.float32)), "a_multiplier has shape"),
    (with_op("added", b_multiplier=floats(np.nan)), "not finite"),
    (with_layer("added", inputs=("c1",)), "takes 2 inputs, got 1"),
    (with_op("joined", axis=4), "no axis 4"),
    (with_op("joined", axis=0), "does not fit"),
    (with_op("joined", tables=(None,)), "1 tables for 2 inputs"),
    (with_op("joined", tables=(None, Table(np.zeros((1, 4), np.int8)))), "needs 256"),
    (with_layer("joined", inputs=("mean",)), "add up to 8, the output has 16"),
    (with_layer("joined", inputs=()), "at least one input"),
    # custom operators
    (with_op("picked", op_type=""), "an operator name of 0 characters"),
    (with_op("picked", constants=(CustomConstant(2, "limits", floats(1)),)), r"constants at \[2\] of 2 inputs"),
    (with_op("picked", constants=(CustomConstant(-1, "limits", floats(1)),)), r"constants at \[-1\] of 2 inputs"),
    (
        with_op("picked", constants=(CustomConstant(0, "a", floats(1)), CustomConstant(0, "b", floats(1)))),
        r"constants at \[0, 0\]",
    ),
    (with_op("picked", constants=(CustomConstant(0, "", floats(1)),)), "without a name"),
    (with_op("picked", constants=(CustomConstant(0, "a", np.zeros(2, np.float16)),)), "constant 'a' is float16"),
    (with_op("picked", constants=(CustomConstant(0, "a", np.zeros((1,) * 9, np.float32)),)), "constant 'a' has 9 axes"),
    (with_op("picked", attributes={f"a{index}": "" for index in range(5000)}), "5000 attributes"),
    (with_layer("picked", inputs=("logits8",)), "'logits8' is quantized"),
    (with_layer("picked", outputs=()), "has no output"),
    (with_tensor("picked", dtype=DType.FLOAT16), "'picked' is float16"),
    (with_tensor("picked", layout=Layout.NHWC), "'picked' is not row-major"),
    (with_tensor("picked", w_stride=64, shape=(1, 1, 1, CLASSES), layout=Layout.NCHW), "with padding"),
    # moving elements
    (with_op("left", starts=((0, 0, 0, 9), (0, 7, 0, 8))), "takes elements 9 to 16 of 16"),
    (with_op("left", starts=((0, 0, 0, 0), (0, 5, 0, 8))), "takes elements 5 to -1 of 8"),
    (with_op("left", steps=((1, 1, 1, 1), (1, 0, 1, 1))), "'right' takes"),
    (with_op("left", steps=((1, 1, 1, 1),)), "as many starts and steps"),
    (with_op("left", starts=((0, 0, 0), (0, 0, 0, 8))), "number of axes"),
    (with_op("framed", before=(0, 2, 1, 0)), r"2 \+ 4 \+ 1 is not 6"),
    (with_op("framed", before=(0, -1, 1, 0), after=(0, 3, 2, 0)), "padding"),
    (with_op("framed", mode="constant", value=300), "300 is no int8"),
    (with_op("wide", rows=nearest(8, 5)), "rows lead outside the input of 4"),
    (with_op("wide", rows=-nearest(8, 4)), "rows lead outside"),
    (with_op("wide", columns=nearest(7, 4)), r"columns have shape \[7, 3\]"),
    (with_op("wide", columns=nearest(8, 4) + ints(0, 0, 2049)), "columns lead outside"),
    (with_op("wide", columns=nearest(8, 4).astype(np.int64)), "columns are int64"),
    (with_op("turned", view=(16, 17)), "does not hold the input's 256"),
    (with_op("turned", view=(-16, -16)), "a view of"),
    (with_op("turned", perm=(0, 0)), "is no order of 2 axes"),
    (with_op("turned", view=(2,) * 8 + (1,), perm=tuple(range(9))), "9 axes"),
    (with_tensor("logits", shape=(10, 1)), "the input is"),
    (with_op("c1", pads=(4099, 1, 1, 1)), "pads of 4099 for a kernel over 3 pixels; at most 4098"),
    (with_op("largest", kernel=(0, 3)), "kernel"),
    (with_op("largest", strides=(1, 2)), "8 pixels give 7"),
    (with_op("largest", pads=(3, 1, 0, 0), strides=(2, 2)), "give 5"),
    (with_tensor("largest", dtype=DType.INT16), "keeps the type"),
    (with_layer("probabilities", op=Float(())), "0 operators"),
    (with_float("Neg", "absent"), "reads 'absent', which nothing makes"),
    (with_float("Neg", "scores", output="nowhere"), "makes the unknown tensor 'nowhere'"),
    (with_float("Neg", "scores", output="scores"), "makes 'scores', which is there already"),
    (with_float("Neg", "scores", output="halved"), "none of its operators makes 'probabilities'"),
]


@pytest.mark.parametrize(("program", "message"), OPERATORS, ids=[message for _, message in OPERATORS])
def test_operators(program: Program, message: str) -> None:
    with pytest.raises(ModelFormatError, match=message) as caught:
        validate_program(program)
    assert caught.value.hint
    assert "layer '" in caught.value.message


SPEC = TensorSpec("odd", (1, 8, 4, 4), DType.INT8, Layout.NHWC, Affine.per_tensor(0.1, 0))
TENSORS = [
    (replace(SPEC, shape=(1, 0, 4, 4)), "has the shape"),
    (replace(SPEC, shape=(1, 8, -4, -4)), "has the shape"),
    (replace(SPEC, shape=(1,) * 9), "9 axes"),
    (replace(SPEC, shape=(1 << 40, 1 << 40)), "at most 4294967296"),
    (replace(SPEC, shape=(4,)), "cannot be in layout nhwc"),
    (replace(SPEC, layout=Layout.NC1HWC2), "channels in 0 blocks of 0"),
    (replace(SPEC, layout=Layout.NC1HWC2, c2=3, c1=2), "8 channels in 2 blocks of 3"),
    (replace(SPEC, w_stride=-1), "absurd block or stride"),
    (replace(SPEC, w_stride=1 << 31), "at most 4294967296"),
    (replace(SPEC, name=""), "name of 0 characters"),
    (replace(SPEC, name="x" * 5000), "name of 5000 characters"),
    (replace(SPEC, quantization=Affine.per_tensor(0.1, 128)), "zero point outside its type"),
    (replace(SPEC, quantization=Affine.per_tensor(1e38, 0)), "absurd scale"),
    (replace(SPEC, quantization=Affine((0.1, 0.2), (0, 0), (4, 5))), "for 9 channels and has 8"),
    (replace(SPEC, quantization=DynamicFixedPoint(1 << 40)), "fraction bits"),
]


@pytest.mark.parametrize(("spec", "message"), TENSORS, ids=[message for _, message in TENSORS])
def test_tensors(spec: TensorSpec, message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        validate_program(replace(PROGRAM, tensors={**PROGRAM.tensors, spec.name: spec}))


def moved(program: Program, output: str, place: int) -> Program:
    layer = next(layer for layer in program.layers if layer.outputs[0] == output)
    rest = [other for other in program.layers if other is not layer]
    rest.insert(place, layer)
    return replace(program, layers=tuple(rest))


STRUCTURE: list[tuple[Program, str]] = [
    (replace(PROGRAM, outputs=()), "without outputs"),
    (replace(PROGRAM, outputs=(*PROGRAM.outputs, "up")), "twice"),
    (replace(PROGRAM, outputs=(*PROGRAM.outputs, "image")), "twice"),
    (replace(PROGRAM, outputs=(*PROGRAM.outputs, "absent")), "not among its tensors"),
    (replace(PROGRAM, tensors={**PROGRAM.tensors, "alias": SPEC}), "'odd' is listed as 'alias'"),
    (replace(PROGRAM, layers=PROGRAM.layers[:-1] * 2), "exists already"),
    (replace(PROGRAM, layers=PROGRAM.layers[:-2]), "nothing makes the program's output 'probabilities'"),
    (moved(PROGRAM, "c1", 1), "'Table_t1' reads 'c1' before"),
    (moved(PROGRAM, "logits", 99), "'Float_scores' reads 'logits' before"),
    (with_layer("c1", inputs=("absent",)), "the tensor 'absent' is unknown"),
    (with_layer("c1", macs=-1), "negative costs"),
    (moved(PROGRAM, "scores", 99), "'Float_probabilities' reads 'scores' before"),
    (with_offset("halved", 1 << 40), "leaves the internal memory"),
    (replace(PROGRAM, views={**PROGRAM.views, "absent": "deep"}), "unknown tensor 'absent'"),
    (replace(PROGRAM, views={**PROGRAM.views, "deep": "rows"}), "is a view itself"),
    (replace(PROGRAM, views={**PROGRAM.views, "rows": "rows"}), "is a view itself"),
    (replace(PROGRAM, views={**PROGRAM.views, "rows": "wide"}), "of another type or size"),
    (replace(PROGRAM, views={**PROGRAM.views, "up": "wide"}), "cannot be a view"),
    (with_offset("c1", -64), "'c1' at -64"),
    (with_offset("c1", PROGRAM.memory.size - 1), "leaves the internal memory"),
    (with_offset("c1", None), "'c1' has no place in memory"),
    (with_offset("up", 0), "input or output of the program"),
    (with_offset("rows", 0), "is a view"),
    (with_offset("absent", 0), "unknown tensor 'absent'"),
    (with_offset("logits", 3), "not aligned"),
    (with_offset("t1", PROGRAM.memory.offsets["c1"] + 64), "'t1' overwrites 'c1'"),
    (with_offset("added", PROGRAM.memory.offsets["c1"] + 64), "'added' overwrites 'c1'"),
    (with_offset("added", PROGRAM.memory.offsets["t1"]), "'added' overwrites 't1'"),  # in place
    (with_offset("logits8", PROGRAM.memory.offsets["pooled"]), "'logits8' overwrites 'pooled'"),
    (replace(PROGRAM, memory=replace(PROGRAM.memory, size=1 << 33)), "at most 4294967296"),
    (replace(PROGRAM, memory=replace(PROGRAM.memory, size=-1)), "-1 bytes"),
]


@pytest.mark.parametrize(("program", "message"), STRUCTURE, ids=[message for _, message in STRUCTURE])
def test_structure(program: Program, message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        validate_program(program)


def test_memory_is_free_again_after_the_last_reader() -> None:
    validate_program(with_offset("deep", PROGRAM.memory.offsets["c1"]))


def test_a_view_keeps_its_owner_alive() -> None:
    """'rows' is a view of 'deep' and is read by the product, long after 'deep' itself."""
    with pytest.raises(ModelFormatError, match="'turned' overwrites 'deep'"):
        validate_program(with_offset("turned", PROGRAM.memory.offsets["deep"]))


def test_an_output_may_own_the_memory_that_a_layer_writes_under_another_shape() -> None:
    b = ProgramBuilder()
    x, y = b.tensor("x", (1, 8, 2, 2)), b.tensor("y", (1, 32))
    made = b.view("made", y, (1, 8, 2, 2))
    b.layer(Pool("max", (1, 1)), [x], [made])
    validate_program(b.program([x], [y]))


def test_float_layers_run_where_the_first_of_their_stretch_stands() -> None:
    """What a segment reads has to exist before its first layer, and what it makes overwrites nothing that it reads."""
    b = ProgramBuilder()
    for name in ("x", "y", "a", "b", "c"):
        b.tensor(name, (1, 16), DType.FLOAT32)
    b.layer(unary("Neg", "x", "a"), ["x"], ["a"])
    b.layer(Transpose((1, 16), (0, 1)), ["a"], ["b"])
    b.layer(unary("Exp", "x", "c"), ["x"], ["c"])
    b.layer(Float((FloatOp("Add", ("b", "c"), ("y",)),)), ["b", "c"], ["y"])
    program = b.program(["x"], ["y"])
    validate_program(program)
    assert [(stretch.inputs, stretch.outputs) for stretch in program.float_stretches()] == [
        (("x",), ("a",)),
        (("x", "b"), ("y",)),
    ]
    with pytest.raises(ModelFormatError, match="reads 'b' before"):
        validate_program(moved(program, "b", 3))
    without = {name: offset for name, offset in program.memory.offsets.items() if name != "c"}
    validate_program(replace(program, memory=replace(program.memory, offsets=without)))  # 'c' stays inside
    clash = {**without, "b": without["a"]}
    with pytest.raises(ModelFormatError, match="'b' overwrites 'a'"):
        validate_program(replace(program, memory=replace(program.memory, offsets=clash)))


@pytest.mark.parametrize(
    ("kernel", "stride", "pads", "dilation", "source", "target", "good"),
    [
        (2, 2, (0, 0), 1, 5, 2, True),
        (2, 2, (0, 0), 1, 5, 3, True),  # rounded up
        (2, 2, (0, 0), 1, 5, 4, False),
        (3, 2, (1, 1), 1, 5, 3, True),
        (2, 3, (0, 0), 1, 4, 2, True),
        (2, 3, (1, 0), 1, 4, 2, True),
        (2, 3, (1, 1), 1, 5, 3, False),  # the third window would begin behind the input
        (2, 1, (2, 0), 1, 5, 6, False),  # the first window would lie in the padding
        (2, 1, (1, 1), 4, 3, 1, False),  # both elements beside the input
        (3, 1, (2, 2), 2, 5, 5, True),
        (7, 2, (0, 0), 1, 6, 1, True),  # larger than the input, rounded up
        (2, 1 << 20, (0, 1 << 20), 1, 1, 1, False),  # padding that no window reaches
    ],
)
def test_every_pooling_window_meets_the_input(
    kernel: int, stride: int, pads: tuple[int, int], dilation: int, source: int, target: int, good: bool
) -> None:
    b = ProgramBuilder()
    x, y = b.tensor("x", (1, 4, source, 1)), b.tensor("y", (1, 4, target, 1))
    b.layer(Pool("max", (kernel, 1), (stride, 1), (pads[0], 0, pads[1], 0), (dilation, 1)), [x], [y])
    program = b.program([x], [y])
    if good:
        validate_program(program)
    else:
        with pytest.raises(ModelFormatError):
            validate_program(program)


def test_a_binary_operator_needs_a_channel_axis() -> None:
    b = ProgramBuilder()
    x, y, z = (b.tensor(name, ()) for name in "xyz")
    b.layer(Binary("add", floats(1), floats(1), epilogue(1, multiplier=floats())), [x, y], [z])
    with pytest.raises(ModelFormatError, match="both inputs are scalars"):
        validate_program(b.program([x, y], [z]))


def test_tensors_of_rank_three_are_images_of_height_one() -> None:
    b = ProgramBuilder()
    x, y = b.tensor("x", (1, 4, 9), layout=Layout.NHWC), b.tensor("y", (1, 6, 4), layout=Layout.NHWC)
    arrays = {**b.conv(6, 1, 4), "weights": b.codes(6, 1, 3, 4)}
    b.layer(Conv(**arrays, strides=(1, 2)), [x], [y])
    validate_program(b.program([x], [y]))


def test_programs_of_one_model_have_the_same_ports() -> None:
    model = every_operator_model()
    second = model.programs[1]
    other = replace(second, outputs=second.outputs[::-1])
    with pytest.raises(ModelFormatError, match="differ in the names"):
        validate_model(replace(model, programs=(model.programs[0], other)))


def test_values_are_left_alone_where_there_are_none() -> None:
    program = with_op("c1", epilogue_multiplier=np.broadcast_to(np.float32(np.nan), (8,)))
    validate_program(program, contents=False)
    with pytest.raises(ModelFormatError):
        validate_program(program)
