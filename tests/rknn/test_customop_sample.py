"""The samples of sections 4.7.1 and 4.7.2 of the RKNN reference, line by line: two operators on the CPU, and the attribute axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import anynpu
from anynpu import modelfile
from anynpu._rknn import ffi
from anynpu.compiler import CustomOperator
from anynpu.program import Model
from anynpu.rknn import Context, OperatorCall, SoftwareLibrary, rknn_tensor_format, rknn_tensor_type
from anynpu.rknn import custom_operators as customop
from anynpu.rknn.constants import RKNN_MAX_NAME_LEN, rknn_target_type

Array = np.ndarray[Any, Any]
AXIS = 1


def classifier() -> onnx.ModelProto:
    """A convolution, its mean over the image, and of that the softmax and the best class; the last two by operators of our own."""
    rng = np.random.default_rng(5)
    weights = numpy_helper.from_array(rng.standard_normal((10, 3, 3, 3)).astype(np.float32), "weights")
    nodes = [
        helper.make_node("Conv", ["images", "weights"], ["features"], "conv", strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["features"], ["mean"], "pool"),
        helper.make_node("Flatten", ["mean"], ["scores"], "flatten"),
        helper.make_node("cstSoftmax", ["scores"], ["probabilities"], "softmax", domain="acme", axis=AXIS),
        helper.make_node("ArgMax", ["probabilities"], ["best"], "argmax", axis=AXIS, keepdims=1),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, 16, 16])],
        [
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 10]),
            helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [1, 10]),
            helper.make_tensor_value_info("best", TensorProto.INT64, [1, 1]),
        ],
        [weights],
    )
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("acme", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def same(shapes: Sequence[tuple[int, ...]], attributes: Any) -> Sequence[tuple[int, ...]]:
    return shapes[:1]


@pytest.fixture(scope="module")
def model() -> Model:
    rng = np.random.default_rng(6)
    data = [{"images": rng.random((1, 3, 16, 16), np.float32)} for _ in range(4)]
    softmax = CustomOperator(same, lambda arrays, attributes: [np.exp(arrays[0]) / np.exp(arrays[0]).sum(AXIS, keepdims=True)])
    return anynpu.compile(classifier(), "rk3588", dataset=data, custom_ops={"cstSoftmax": softmax, "ArgMax": CustomOperator()})


def virt_addr(tensor: Any) -> Any:
    return ffi.cast("unsigned char *", tensor.mem.virt_addr) + tensor.mem.offset


def test_two_operators_on_the_cpu(model: Model) -> None:
    library = SoftwareLibrary("rk3588")
    assert model.custom_operators == ("cstSoftmax", "ArgMax")
    calls: list[str] = []
    tensors = "rknn_custom_op_context *, rknn_custom_op_tensor *, uint32_t, rknn_custom_op_tensor *, uint32_t"

    def get_axis(op_ctx: Any) -> int:
        axis = 0
        op_attr = ffi.new("rknn_custom_op_attr *")
        library.rknn_custom_op_get_op_attr(op_ctx, ffi.new("char[]", b"axis"), op_attr)
        if op_attr.n_elems == 1 and op_attr.dtype == rknn_tensor_type.RKNN_TENSOR_INT64:
            axis = ffi.cast("int64_t *", op_attr.data)[0]
        return axis

    @ffi.callback(f"int({tensors})")
    def custom_op_init_callback(op_ctx: Any, inputs: Any, n_inputs: int, outputs: Any, n_outputs: int) -> int:
        calls.append(f"init {get_axis(op_ctx)}")
        return 0

    @ffi.callback("int(rknn_custom_op_context *)")
    def custom_op_destroy_callback(op_ctx: Any) -> int:
        calls.append("destroy")
        return 0

    @ffi.callback(f"int({tensors})")
    def compute_custom_softmax_float32(op_ctx: Any, inputs: Any, n_inputs: int, outputs: Any, n_outputs: int) -> int:
        calls.append("softmax")
        in_data = ffi.cast("float *", virt_addr(inputs[0]))
        out_data = ffi.cast("float *", virt_addr(outputs[0]))
        axis = get_axis(op_ctx)
        length = inputs[0].attr.dims[axis]
        assert length == inputs[0].attr.n_elems
        values = np.frombuffer(ffi.buffer(in_data, 4 * length), np.float32)
        raised = np.exp(values - values.max())
        for index in range(length):
            out_data[index] = raised[index] / raised.sum()
        return 0

    @ffi.callback(f"int({tensors})")
    def compute_custom_argmax_float32(op_ctx: Any, inputs: Any, n_inputs: int, outputs: Any, n_outputs: int) -> int:
        calls.append("argmax")
        in_data = ffi.cast("float *", virt_addr(inputs[0]))
        out_data = ffi.cast("int64_t *", virt_addr(outputs[0]))
        assert outputs[0].attr.type == rknn_tensor_type.RKNN_TENSOR_INT64
        length = inputs[0].attr.dims[get_axis(op_ctx)]
        out_data[0] = max(range(length), key=lambda index: in_data[index])
        return 0

    data = modelfile.to_bytes(model)
    ctx = ffi.new("rknn_context *")
    ret = library.rknn_init(ctx, ffi.from_buffer(data), len(data), 0, ffi.NULL)
    assert ret == 0

    # CPU operators
    user_op = ffi.new("rknn_custom_op[2]")
    ffi.memmove(user_op, bytes(2 * ffi.sizeof("rknn_custom_op")), 2 * ffi.sizeof("rknn_custom_op"))
    user_op[0].op_type = b"cstSoftmax"[: RKNN_MAX_NAME_LEN - 1]
    user_op[0].version = 1
    user_op[0].target = int(rknn_target_type.RKNN_TARGET_TYPE_CPU)
    user_op[0].init = custom_op_init_callback
    user_op[0].compute = compute_custom_softmax_float32
    user_op[0].destroy = custom_op_destroy_callback

    user_op[1].op_type = b"ArgMax"[: RKNN_MAX_NAME_LEN - 1]
    user_op[1].version = 1
    user_op[1].target = int(rknn_target_type.RKNN_TARGET_TYPE_CPU)
    user_op[1].init = custom_op_init_callback
    user_op[1].compute = compute_custom_argmax_float32
    user_op[1].destroy = custom_op_destroy_callback

    ret = library.rknn_register_custom_ops(ctx[0], user_op, 2)
    assert ret >= 0, f"rknn_register_custom_ops fail! ret = {ret}"
    assert calls == ["init 1", "init 1"]

    image = np.random.default_rng(7).random((1, 16, 16, 3), np.float32)
    given = ffi.new("rknn_input *")
    given.type, given.fmt = int(rknn_tensor_type.RKNN_TENSOR_FLOAT32), int(rknn_tensor_format.RKNN_TENSOR_NHWC)
    given.buf, given.size = ffi.from_buffer(image), image.nbytes
    assert library.rknn_inputs_set(ctx[0], 1, given) == 0
    assert library.rknn_run(ctx[0], ffi.NULL) == 0
    outputs = ffi.new("rknn_output[3]")
    for index in range(3):
        outputs[index].index, outputs[index].want_float = index, 1
    assert library.rknn_outputs_get(ctx[0], 3, outputs, ffi.NULL) == 0
    scores, probabilities, best = (
        np.frombuffer(bytes(ffi.buffer(outputs[index].buf, outputs[index].size)), np.float32) for index in range(3)
    )
    np.testing.assert_allclose(probabilities, np.exp(scores) / np.exp(scores).sum(), rtol=1e-5)
    assert best.tolist() == [scores.argmax()]
    assert library.rknn_outputs_release(ctx[0], 3, outputs) == 0
    assert library.rknn_destroy(ctx[0]) == 0
    assert calls[2:] == ["softmax", "argmax", "destroy", "destroy"]
    library.close()


def test_a_registered_standard_type_leaves_standard_layers_alone() -> None:
    """ArgMax that was not compiled as a custom operator stays the NPU's own."""
    proto = classifier()
    softmax = CustomOperator(same)
    model = anynpu.compile(proto, "rk3588", dtype="fp16", custom_ops={"cstSoftmax": softmax})
    assert model.custom_operators == ("cstSoftmax",)

    def compute(call: OperatorCall) -> None:
        calls.append(call.op_type)
        call.outputs[0].array[...] = call.inputs[0].array

    calls: list[str] = []
    with Context(model, device="sim:rk3588") as context:
        context.register_operators(*(customop.CustomOperator(name, compute) for name in ("cstSoftmax", "ArgMax")))
        scores, _, best = context.run([np.random.default_rng(8).random((1, 16, 16, 3), np.float32)])
    assert calls == ["cstSoftmax"]
    assert best.reshape(-1).tolist() == [scores.argmax()]
