"""ONNX models with something wrong in them: damaged bytes, and damaged structure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .cases_elementwise import ELEMENTWISE
from .cases_graphs import GRAPHS
from .cases_movement import MOVEMENT
from .cases_products import PRODUCTS
from .onnx_builders import Net

Random = np.random.Generator
Mutation = Callable[[onnx.ModelProto, Random], None]

_BASES = (
    PRODUCTS["Conv asymmetric pads"],
    PRODUCTS["ConvTranspose output_padding"],
    PRODUCTS["Gemm transB, alpha and beta"],
    PRODUCTS["attention"],
    PRODUCTS["squeeze and excite"],
    PRODUCTS["Pad input folded into Conv"],
    ELEMENTWISE["Gelu chain after Conv"],
    ELEMENTWISE["PRelu per channel after Conv"],
    ELEMENTWISE["Clip inputs opset 11"],
    MOVEMENT["MaxPool ceil_mode and pads"],
    MOVEMENT["AveragePool count_include_pad"],
    MOVEMENT["Resize linear half_pixel scales 2"],
    MOVEMENT["Slice steps"],
    MOVEMENT["Split input"],
    MOVEMENT["DepthToSpace DCR"],
    MOVEMENT["focus"],
    MOVEMENT["channel shuffle"],
    GRAPHS["several stretches"],
    GRAPHS["LSTM"],
    GRAPHS["bytes, indices and a mask as inputs"],
    GRAPHS["computed reshape"],
    GRAPHS["Flatten before Gemm"],
)


def malformed(bytes_cases: int, structure_rounds: int, seed: int = 7) -> Iterator[tuple[str, bytes]]:
    """Names and serialized models: so many with damaged bytes, then so many rounds through all structural mutations."""
    random = np.random.default_rng(seed)
    protos = [*(case.proto() for case in _BASES), _with_custom_operator()]
    for index in range(bytes_cases):
        kind = ("flip", "truncate", "splice", "numbers")[index % 4]
        data = protos[int(random.integers(len(protos)))].SerializeToString()
        yield f"{kind} {index}", _damaged(data, kind, random)
    for turn in range(structure_rounds):
        for mutation in MUTATIONS:
            proto = onnx.ModelProto()
            proto.CopyFrom(protos[int(random.integers(len(protos)))])
            mutation(proto, random)
            yield f"{mutation.__name__} {turn}", proto.SerializeToString()


def _with_custom_operator() -> onnx.ModelProto:
    """A custom operator with two outputs, a constant input and attributes of all kinds; the file states the shapes."""
    net = Net()
    net.opsets["acme"] = 1
    attributes = {"a": 1, "b": [0.5], "c": "text", "d": ["x", "y"], "e": numpy_helper.from_array(np.eye(2))}
    x = net.conv(net.input("x", (1, 3, 6, 6)), 4)
    y, z = net.ops("Twin", x, net.weights(4), count=2, domain="acme", **attributes)
    net.output(net.op("Softmax", y), z)
    proto = net.proto()
    stated = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, 4, 4]) for name in (y, z)]
    proto.graph.value_info.append(stated[0])
    proto.graph.output[1].CopyFrom(stated[1])
    return proto


def _damaged(data: bytes, kind: str, random: Random) -> bytes:
    content = bytearray(data)
    if kind == "truncate":
        return bytes(content[: int(random.integers(len(content)))])
    if kind == "splice":
        start, length, target = (int(random.integers(len(content))) for _ in range(3))
        piece = content[start : start + length % 64]
        return bytes(content[:target] + piece + content[target:])
    # weights make up most bytes; the first and the last part hold names, attributes and shapes
    for _ in range(int(random.integers(1, 9))):
        place = int(random.integers(len(content)))
        content[place] = (
            int(random.choice([0, 1, 127, 128, 255])) if kind == "numbers" else content[place] ^ (1 << int(random.integers(8)))
        )
    return bytes(content)


def _node(proto: onnx.ModelProto, random: Random) -> Any:
    return proto.graph.node[int(random.integers(len(proto.graph.node)))]


def _attribute(proto: onnx.ModelProto, random: Random, kind: int) -> Any:
    """An attribute of that type, or a new one where there is none."""
    found = [entry for node in proto.graph.node for entry in node.attribute if entry.type == kind]
    if found:
        return found[int(random.integers(len(found)))]
    return _node(proto, random).attribute.add(name=str(random.choice(["axis", "pads", "strides", "group", "axes"])), type=kind)


_NUMBERS = (-(2**63), -(2**31), -1000, -1, 0, 1, 2, 3, 1000, 10**6, 2**31 - 1, 2**31, 10**12, 2**63 - 1)


def _number(random: Random) -> int:
    return _NUMBERS[int(random.integers(len(_NUMBERS)))]


def unknown_input_name(proto: onnx.ModelProto, random: Random) -> None:
    node = _node(proto, random)
    node.input[int(random.integers(len(node.input)))] = "nobody makes this"


def missing_inputs(proto: onnx.ModelProto, random: Random) -> None:
    node = _node(proto, random)
    del node.input[int(random.integers(len(node.input))) :]


def empty_input_name(proto: onnx.ModelProto, random: Random) -> None:
    node = _node(proto, random)
    node.input[int(random.integers(len(node.input)))] = ""


def extra_inputs(proto: onnx.ModelProto, random: Random) -> None:
    _node(proto, random).input.extend([proto.graph.input[0].name] * int(random.integers(1, 6)))


def swapped_inputs(proto: onnx.ModelProto, random: Random) -> None:
    one, other = _node(proto, random), _node(proto, random)
    one.input[0], other.input[-1] = other.input[-1], one.input[0]


def no_outputs_of_node(proto: onnx.ModelProto, random: Random) -> None:
    del _node(proto, random).output[:]


def extra_outputs_of_node(proto: onnx.ModelProto, random: Random) -> None:
    _node(proto, random).output.extend(["surplus 1", "surplus 2"])


def empty_output_name(proto: onnx.ModelProto, random: Random) -> None:
    _node(proto, random).output[0] = ""


def duplicate_output(proto: onnx.ModelProto, random: Random) -> None:
    _node(proto, random).output[0] = _node(proto, random).output[0]


def output_named_as_input(proto: onnx.ModelProto, random: Random) -> None:
    _node(proto, random).output[0] = proto.graph.input[0].name


def output_named_as_constant(proto: onnx.ModelProto, random: Random) -> None:
    if proto.graph.initializer:
        _node(proto, random).output[0] = proto.graph.initializer[0].name


def cycle(proto: onnx.ModelProto, random: Random) -> None:
    _node(proto, random).input[0] = proto.graph.node[-1].output[0]


def reversed_nodes(proto: onnx.ModelProto, random: Random) -> None:
    nodes = list(proto.graph.node)[::-1]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)


def duplicate_nodes(proto: onnx.ModelProto, random: Random) -> None:
    proto.graph.node.extend([_node(proto, random)] * 2)


def removed_node(proto: onnx.ModelProto, random: Random) -> None:
    del proto.graph.node[int(random.integers(len(proto.graph.node)))]


def same_names(proto: onnx.ModelProto, random: Random) -> None:
    for node in proto.graph.node:
        node.name = "all the same"


def unknown_operator(proto: onnx.ModelProto, random: Random) -> None:
    _node(proto, random).op_type = str(random.choice(["", "Frobnicate", "conv", "Conv\x00", "É", "If", "NonZero", "Loop"]))


def another_operator(proto: onnx.ModelProto, random: Random) -> None:
    names = [
        "Conv",
        "Gemm",
        "MatMul",
        "Add",
        "Concat",
        "Resize",
        "Softmax",
        "Split",
        "LSTM",
        "PRelu",
        "Clip",
        "Pad",
        "Reshape",
        "Gather",
    ]
    names += [
        "Transpose",
        "Slice",
        "MaxPool",
        "AveragePool",
        "GlobalAveragePool",
        "ReduceMean",
        "BatchNormalization",
        "Squeeze",
        "Expand",
    ]
    names += [
        "ConvTranspose",
        "DepthToSpace",
        "Cast",
        "Tile",
        "TopK",
        "Where",
        "Upsample",
        "Shape",
        "Range",
        "Identity",
        "Einsum",
        "QLinearConv",
    ]
    _node(proto, random).op_type = str(random.choice(names))


def unknown_domain(proto: onnx.ModelProto, random: Random) -> None:
    _node(proto, random).domain = str(random.choice(["com.example", "ai.onnx.ml", "ai.onnx", "com.microsoft"]))
    if random.integers(2):
        proto.opset_import.append(helper.make_opsetid("com.example", 1))


def wrong_opset(proto: onnx.ModelProto, random: Random) -> None:
    proto.opset_import[0].version = int(random.choice([-1, 0, 1, 6, 7, 8, 9, 10, 11, 12, 15, 18, 21, 26, 27, 1000, 2**31]))


def no_opset(proto: onnx.ModelProto, random: Random) -> None:
    del proto.opset_import[:]


def wrong_ir_version(proto: onnx.ModelProto, random: Random) -> None:
    proto.ir_version = int(random.choice([-1, 0, 1, 2, 3, 50, 2**40]))


def absurd_integer_list(proto: onnx.ModelProto, random: Random) -> None:
    entry = _attribute(proto, random, onnx.AttributeProto.INTS)
    count = len(entry.ints)
    for index in range(count):
        if random.integers(2) or count == 1:
            entry.ints[index] = _number(random)


def integer_list_of_another_length(proto: onnx.ModelProto, random: Random) -> None:
    entry = _attribute(proto, random, onnx.AttributeProto.INTS)
    if random.integers(2):
        entry.ints.extend([1] * int(random.integers(1, 5)))
    else:
        del entry.ints[int(random.integers(len(entry.ints) + 1)) :]


def absurd_integer(proto: onnx.ModelProto, random: Random) -> None:
    _attribute(proto, random, onnx.AttributeProto.INT).i = _number(random)


def absurd_window(proto: onnx.ModelProto, random: Random) -> None:
    """A window attribute of a convolution or pooling: zero kernels, negative strides, huge pads and dilations."""
    windowed = [node for node in proto.graph.node if node.op_type in ("Conv", "ConvTranspose", "MaxPool", "AveragePool")]
    if not windowed:
        absurd_integer_list(proto, random)
        return
    node = windowed[int(random.integers(len(windowed)))]
    name = str(random.choice(["kernel_shape", "strides", "pads", "dilations", "output_padding", "output_shape"]))
    kept = [entry for entry in node.attribute if entry.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, [_number(random) for _ in range(4 if name == "pads" else 2)])])


def absurd_group(proto: onnx.ModelProto, random: Random) -> None:
    node = _node(proto, random)
    node.attribute.append(helper.make_attribute("group", _number(random)))


def absurd_float(proto: onnx.ModelProto, random: Random) -> None:
    entry = _attribute(proto, random, onnx.AttributeProto.FLOAT)
    entry.f = float(random.choice([np.nan, np.inf, -np.inf, 3e38, -3e38, 0.0]))


def absurd_text(proto: onnx.ModelProto, random: Random) -> None:
    entry = _attribute(proto, random, onnx.AttributeProto.STRING)
    entry.s = bytes(random.choice([b"", b"nonsense", b"\xff\xfe", b"SAME_UPPER", b"linear", b"edge", b"a" * 10000]))


def wrong_attribute_type(proto: onnx.ModelProto, random: Random) -> None:
    node = _node(proto, random)
    if not node.attribute:
        node.attribute.append(helper.make_attribute("axis", 1.5))
        return
    name = node.attribute[0].name
    value: Any = [1.5, "text", [1.5], ["a", "b"], 3, [3, 4]][int(random.integers(6))]
    node.attribute[0].CopyFrom(helper.make_attribute(name, value))


def attribute_without_type(proto: onnx.ModelProto, random: Random) -> None:
    _node(proto, random).attribute.add(name="mystery", type=int(random.choice([0, 1, 5, 14])))


def duplicate_attribute(proto: onnx.ModelProto, random: Random) -> None:
    node = _node(proto, random)
    node.attribute.append(helper.make_attribute(node.attribute[0].name if node.attribute else "axis", 1))


def dims_against_data(proto: onnx.ModelProto, random: Random) -> None:
    if proto.graph.initializer:
        tensor = proto.graph.initializer[int(random.integers(len(proto.graph.initializer)))]
        if tensor.dims:
            tensor.dims[int(random.integers(len(tensor.dims)))] = _number(random)
        else:
            tensor.dims.append(_number(random))


def dims_permuted(proto: onnx.ModelProto, random: Random) -> None:
    """As many elements as before, in another shape."""
    if proto.graph.initializer:
        tensor = proto.graph.initializer[int(random.integers(len(proto.graph.initializer)))]
        dims = random.permutation(list(tensor.dims)).tolist()
        del tensor.dims[:]
        tensor.dims.extend([*dims[:-2], dims[-1] * dims[-2]] if len(dims) > 1 and random.integers(2) else dims)


def constant_of_another_type(proto: onnx.ModelProto, random: Random) -> None:
    if proto.graph.initializer:
        tensor = proto.graph.initializer[int(random.integers(len(proto.graph.initializer)))]
        tensor.data_type = int(random.choice([0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 14, 16, 17, 21, 22, 99]))


def absurd_values(proto: onnx.ModelProto, random: Random) -> None:
    """Constants of the right type with numbers that make no sense: scales, pads, axes, weights."""
    if proto.graph.initializer:
        tensor = proto.graph.initializer[int(random.integers(len(proto.graph.initializer)))]
        values = np.array(onnx.numpy_helper.to_array(tensor))
        if values.dtype.kind == "i":
            values = np.full_like(values, np.clip(_number(random), np.iinfo(values.dtype).min, np.iinfo(values.dtype).max))
        elif values.dtype.kind == "f":
            values = np.full_like(values, random.choice([np.nan, np.inf, -np.inf, 3e38, -3e38, 0.0, 1e-42]))
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))


def empty_constant(proto: onnx.ModelProto, random: Random) -> None:
    if proto.graph.initializer:
        tensor = proto.graph.initializer[int(random.integers(len(proto.graph.initializer)))]
        kind = tensor.data_type
        tensor.CopyFrom(TensorProto(name=tensor.name, data_type=kind, dims=[0] * max(1, len(tensor.dims))))


def truncated_constant(proto: onnx.ModelProto, random: Random) -> None:
    if proto.graph.initializer:
        tensor = proto.graph.initializer[int(random.integers(len(proto.graph.initializer)))]
        tensor.raw_data = tensor.raw_data[: len(tensor.raw_data) // 2]


def duplicate_constant(proto: onnx.ModelProto, random: Random) -> None:
    if proto.graph.initializer:
        proto.graph.initializer.append(proto.graph.initializer[0])


def constant_without_name(proto: onnx.ModelProto, random: Random) -> None:
    if proto.graph.initializer:
        proto.graph.initializer[0].name = ""


def external_data(proto: onnx.ModelProto, random: Random) -> None:
    if proto.graph.initializer:
        tensor = proto.graph.initializer[int(random.integers(len(proto.graph.initializer)))]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        location = str(random.choice(["../../../etc/passwd", "/etc/passwd", "missing.bin", "", "weights", "/dev/zero", ".."]))
        for key, value in (("location", location), ("offset", str(_number(random))), ("length", str(_number(random)))):
            tensor.external_data.add(key=key, value=value)


def sparse_constant(proto: onnx.ModelProto, random: Random) -> None:
    values = helper.make_tensor("sparse", TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("places", TensorProto.INT64, [1], [_number(random)])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [10**9]))


def absurd_input_shape(proto: onnx.ModelProto, random: Random) -> None:
    shape = proto.graph.input[0].type.tensor_type.shape
    for dim in shape.dim:
        if random.integers(2):
            dim.dim_value = int(random.choice([0, -1, 1, 10**4, 10**6, 10**9, 2**31, 2**62]))


def huge_input(proto: onnx.ModelProto, random: Random) -> None:
    for dim in proto.graph.input[0].type.tensor_type.shape.dim:
        dim.dim_value = 10**9


def large_image(proto: onnx.ModelProto, random: Random) -> None:
    """Larger than any image, but not absurd for a single axis: too much for the memory, or nearly."""
    extent = int(random.choice([5000, 9000, 13000, 20000]))
    for dim in list(proto.graph.input[0].type.tensor_type.shape.dim)[2:]:
        dim.dim_value = extent


def another_input_shape(proto: onnx.ModelProto, random: Random) -> None:
    dims = proto.graph.input[0].type.tensor_type.shape.dim
    dims[int(random.integers(len(dims)))].dim_value = int(random.integers(1, 20))


def input_of_another_rank(proto: onnx.ModelProto, random: Random) -> None:
    dims = proto.graph.input[0].type.tensor_type.shape.dim
    if random.integers(2):
        del dims[int(random.integers(len(dims))) :]
    else:
        for _ in range(int(random.integers(1, 12))):
            dims.add().dim_value = 2


def input_of_another_type(proto: onnx.ModelProto, random: Random) -> None:
    proto.graph.input[0].type.tensor_type.elem_type = int(random.choice([0, 2, 3, 6, 7, 8, 9, 10, 11, 14, 16, 17, 22, 99]))


def input_without_type(proto: onnx.ModelProto, random: Random) -> None:
    proto.graph.input[0].ClearField("type")


def sequence_input(proto: onnx.ModelProto, random: Random) -> None:
    proto.graph.input[0].type.CopyFrom(helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, [1])))


def dynamic_input(proto: onnx.ModelProto, random: Random) -> None:
    for dim in proto.graph.input[0].type.tensor_type.shape.dim:
        dim.dim_param = "n"


def duplicate_input(proto: onnx.ModelProto, random: Random) -> None:
    proto.graph.input.append(proto.graph.input[0])


def no_inputs(proto: onnx.ModelProto, random: Random) -> None:
    del proto.graph.input[:]


def input_without_name(proto: onnx.ModelProto, random: Random) -> None:
    proto.graph.input[0].name = ""


def no_outputs(proto: onnx.ModelProto, random: Random) -> None:
    del proto.graph.output[:]


def unknown_output(proto: onnx.ModelProto, random: Random) -> None:
    proto.graph.output[0].name = str(random.choice(["nobody makes this", "", proto.graph.input[0].name]))


def constant_output(proto: onnx.ModelProto, random: Random) -> None:
    if proto.graph.initializer:
        proto.graph.output[0].name = proto.graph.initializer[0].name


def duplicate_output_of_graph(proto: onnx.ModelProto, random: Random) -> None:
    proto.graph.output.append(proto.graph.output[0])


def wrong_output_shape(proto: onnx.ModelProto, random: Random) -> None:
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info(proto.graph.output[0].name, TensorProto.FLOAT, [3, 1, 4, 1, 5]))


def all_tensors_are_outputs(proto: onnx.ModelProto, random: Random) -> None:
    for node in proto.graph.node[:-1]:
        for name in node.output:
            proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))


def empty_graph(proto: onnx.ModelProto, random: Random) -> None:
    del proto.graph.node[:]
    if random.integers(2):
        proto.ClearField("graph")


def wrong_value_info(proto: onnx.ModelProto, random: Random) -> None:
    for node in proto.graph.node:
        proto.graph.value_info.append(helper.make_tensor_value_info(node.output[0], TensorProto.INT64, [2**40]))


def subgraph(proto: onnx.ModelProto, random: Random) -> None:
    body = onnx.GraphProto()
    body.CopyFrom(proto.graph)
    kind = str(random.choice(["If", "Loop", "Scan", "Conv"]))
    proto.graph.node.append(helper.make_node(kind, [proto.graph.input[0].name], ["branch"], then_branch=body, body=body))
    proto.graph.output[0].name = "branch"


def deep_subgraphs(proto: onnx.ModelProto, random: Random) -> None:
    graph = helper.make_graph([], "inner", [], [])
    for _ in range(30):
        graph = helper.make_graph([helper.make_node("If", ["x"], ["y"], then_branch=graph, else_branch=graph)], "g", [], [])
        if graph.ByteSize() > 1 << 16:
            break
    proto.graph.node.append(graph.node[0])


def local_function(proto: onnx.ModelProto, random: Random) -> None:
    function = helper.make_function(
        "local", "Twice", ["a"], ["b"], [helper.make_node("Twice", ["a"], ["b"], domain="local")], [helper.make_opsetid("", 13)]
    )
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("local", 1))
    proto.graph.node[0].op_type, proto.graph.node[0].domain = "Twice", "local"


def computed_size(proto: onnx.ModelProto, random: Random) -> None:
    """A tensor whose huge shape is data."""
    extents = [int(random.choice([10**5, 10**9, 2**40, -5])) for _ in range(2)]
    proto.graph.initializer.append(helper.make_tensor("extents", TensorProto.INT64, [2], extents))
    kind = str(random.choice(["ConstantOfShape", "Expand", "Tile", "Reshape"]))
    first = proto.graph.input[0].name
    proto.graph.node.append(helper.make_node(kind, ["extents"] if kind == "ConstantOfShape" else [first, "extents"], ["large"]))
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("large", TensorProto.FLOAT, None))


def growing_concat(proto: onnx.ModelProto, random: Random) -> None:
    """Each node doubles its input: forty of them are more than any memory."""
    name = proto.graph.input[0].name
    for index in range(40):
        proto.graph.node.append(helper.make_node("Concat", [name, name], [f"double {index}"], axis=0))
        name = f"double {index}"
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))


def long_chain(proto: onnx.ModelProto, random: Random) -> None:
    """Deep nesting of one operator: nothing may recurse once per node."""
    kind = str(random.choice(["Relu", "Identity", "Concat", "Slice", "Reshape", "Add"]))
    proto.graph.initializer.extend(
        [helper.make_tensor("c.zero", TensorProto.INT64, [1], [0]), helper.make_tensor("c.end", TensorProto.INT64, [1], [10**6])]
    )
    name = proto.graph.output[0].name
    for index in range(700):
        inputs = {"Concat": [name], "Slice": [name, "c.zero", "c.end"], "Add": [name, name]}.get(kind, [name])
        attributes: dict[str, Any] = {"axis": 0} if kind == "Concat" else {}
        proto.graph.node.append(
            helper.make_node("Flatten" if kind == "Reshape" else kind, inputs, [f"link {index}"], **attributes)
        )
        name = f"link {index}"
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))


def strange_names(proto: onnx.ModelProto, random: Random) -> None:
    """Names that the compiler itself could have made, and unprintable ones."""
    suffix = str(random.choice(["@int8", "@float", ".inside", ".bias", ".half", "@nhwc", "\n", "\x00", "/../", "é" * 3000]))
    first = proto.graph.node[0].output[0]
    for node in proto.graph.node:
        for index, name in enumerate(node.input):
            if name == first:
                node.input[index] = proto.graph.input[0].name + suffix
    proto.graph.node[0].output[0] = proto.graph.input[0].name + suffix


MUTATIONS: tuple[Mutation, ...] = tuple(
    value
    for name, value in list(globals().items())
    if callable(value) and not name.startswith("_") and getattr(value, "__module__", "") == __name__ and name != "malformed"
)
