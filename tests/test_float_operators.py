"""The table of float operators: what ONNX states, no more and no less; and files that try to bring an ONNX graph of their own."""

from __future__ import annotations

import json
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import every_operator_model
from compiler.onnx_builders import Net

import anynpu
from anynpu import modelfile
from anynpu.errors import CompileError, ModelFormatError, ModelVersionError
from anynpu.modelfile.container import HEADER, WEIGHTS, Section, pack, unpack
from anynpu.modelfile.float_rules import SHAPES
from anynpu.modelfile.recognize import MARKER
from anynpu.program import FLOAT_OPERATORS
from anynpu.program.float_operators import FloatSignature

KINDS = {"INT": "int", "FLOAT": "float", "STRING": "str", "INTS": "ints", "FLOATS": "floats", "STRINGS": "strs"}
OWN = {name: signature for name, signature in FLOAT_OPERATORS.items() if not signature.domain}
IMPOSSIBLE = {"If", "Loop", "Scan", "SequenceMap", "Constant", "ImageDecoder", "RegexFullMatch", "StringConcat", "StringSplit"}


def schema_of(name: str, signature: FloatSignature) -> Any:
    return onnx.defs.get_schema(name, max_inclusive_version=signature.opset)


@pytest.mark.parametrize("name", sorted(OWN))
def test_a_row_says_what_onnx_says(name: str) -> None:
    signature = OWN[name]
    schema = schema_of(name, signature)
    assert not schema.deprecated
    assert signature.inputs[0] == schema.min_input
    assert signature.inputs[1] == min(schema.max_input, 1024)
    assert signature.outputs == (schema.min_output, min(schema.max_output, 1024))
    assert {key: rule.kind for key, rule in signature.attributes.items()} == {
        key: KINDS[str(entry.type).rpartition(".")[2]] for key, entry in schema.attributes.items()
    }
    for key, entry in schema.attributes.items():
        rule = signature.attributes[key]
        assert rule.required is entry.required, key
        if rule.default is None:
            continue
        default = onnx.helper.get_attribute_value(entry.default_value)
        assert rule.default == (default.decode() if isinstance(default, bytes) else pytest.approx(default, rel=1e-6)), key


def test_no_row_takes_graphs_tensors_sequences_or_texts() -> None:
    assert not IMPOSSIBLE & set(FLOAT_OPERATORS)
    for signature in FLOAT_OPERATORS.values():
        assert {rule.kind for rule in signature.attributes.values()} <= set(KINDS.values())
        assert signature.shape in SHAPES


def test_what_networks_are_made_of_is_in_the_table() -> None:
    """All operators of ONNX that make tensors of numbers whose shape does not depend on the data."""
    from_data = {"Compress", "NonMaxSuppression", "NonZero", "Unique", "TfIdfVectorizer", "StringNormalizer"}
    folded = {"ConstantOfShape", "Range", "Shape", "Size", "BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix"}
    lists = ("Sequence", "Optional", "SplitToSequence", "ConcatFromSequence")
    replaced = {"Scatter", "Upsample"}
    expected = (
        {
            schema.name
            for schema in onnx.defs.get_all_schemas()
            if not schema.domain and schema.since_version <= 24 and not schema.name.startswith(lists)
        }
        - from_data
        - folded
        - replaced
        - IMPOSSIBLE
    )
    assert expected - set(FLOAT_OPERATORS) == set()


# ---- graphs in files ----


def hostile_graph(location: str, offset: str = "0") -> bytes:
    """An ONNX model with an input of integers, whose constant is said to lie in a file, or at an address."""
    helper, proto = onnx.helper, onnx.TensorProto
    secret = proto(name="w", data_type=proto.UINT8, dims=[16], data_location=proto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", "16")):
        secret.external_data.add(key=key, value=value)
    nodes = [
        helper.make_node("Cast", ["x"], ["c"], to=proto.UINT8),
        helper.make_node("Add", ["c", "w"], ["y"]),
    ]
    values = [helper.make_tensor_value_info("x", proto.INT32, [16]), helper.make_tensor_value_info("y", proto.UINT8, [16])]
    graph = helper.make_graph(nodes, "hostile", values[:1], values[1:], [secret])
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString())


def hostile_document(size: int) -> dict[str, Any]:
    def spec(name: str, dtype: str) -> dict[str, Any]:
        return {"name": name, "shape": [16], "dtype": dtype, "layout": "plain"}

    layer = {"name": "y", "kind": "Add", "op": {"type": "Float", "island": 0}, "inputs": ["x"], "outputs": ["y"]}
    island = {"model": {"offset": 0, "size": size}, "inputs": ["x"], "outputs": ["y"]}
    program = {
        "inputs": ["x"],
        "outputs": ["y"],
        "tensors": {"x": spec("x", "int32"), "y": spec("y", "uint8")},
        "layers": [layer],
        "memory": {"offsets": {}, "size": 0},
        "islands": [island],
    }
    digest = "cae66941d9efbd404e4d88758ea67670"  # of nothing
    return {"weights": {"size": 0, "digest": digest}, "model": {"chip": "rk3588", "dtype": "fp16", "programs": [program]}}


def first_version(header: bytes, graph: bytes) -> bytes:
    """A file as version 1 had it: header, graphs, weights."""
    start = 32 + 3 * 24
    parts, table, body = {1: header, 2: graph, 3: b""}, b"", b""
    for kind, part in parts.items():
        body += bytes(-(start + len(body)) % 64)
        table += struct.pack("<IIQQ", kind, zlib.crc32(part), start + len(body), len(part))
        body += part
    prefix = struct.Struct("<4s8sIIIQ")
    length = start + len(body)
    checksum = zlib.crc32(prefix.pack(b"RKNN", MARKER, 1, 3, 0, length) + table)
    return prefix.pack(b"RKNN", MARKER, 1, 3, checksum, length) + table + body


def test_a_file_cannot_bring_a_graph_that_reads_other_files_or_memory(tmp_path: Path) -> None:
    """With onnxruntime 1.22 and 1.23 the first file gave the bytes of the file that it names, the second ended the process."""
    secret = tmp_path / "secret.bin"
    secret.write_bytes(b"S" * 64)
    for location, offset in ((str(secret), "0"), ("*/_ORT_MEM_ADDR_/*", "4096")):
        graph = hostile_graph(location, offset)
        document = hostile_document(len(graph))
        with pytest.raises(ModelVersionError, match="compile the model again"):
            modelfile.read(first_version(json.dumps(document).encode(), graph))
        # the same in the form of today: there is no field that could hold it
        parts = {HEADER: json.dumps(document).encode(), WEIGHTS: b""}
        today = b"".join(pack(b"RKNN", [Section(kind, len(part), lambda part=part: [part]) for kind, part in parts.items()]))
        with pytest.raises(ModelFormatError, match="unknown field 'island"):
            modelfile.read(today)


def test_a_constant_is_an_array_of_the_file_and_nothing_else() -> None:
    data = modelfile.to_bytes(every_operator_model(sides=(4,)))
    sections = {kind: bytes(part) for kind, part in unpack(memoryview(data)).items()}
    for wrong in ({"location": "secret.bin"}, {"external": True}, {"offset": 0, "dtype": "uint8", "shape": [1 << 40]}):
        document = json.loads(sections[HEADER])
        constant = document["model"]["programs"][0]["layers"][-2]["op"]["constants"]["w"]
        if "shape" in wrong:
            constant["value"] = wrong
        else:
            constant["value"].update(wrong)
        parts = {HEADER: json.dumps(document).encode(), WEIGHTS: sections[WEIGHTS]}
        with pytest.raises(ModelFormatError):
            modelfile.read(
                b"".join(pack(b"RKNN", [Section(kind, len(part), lambda part=part: [part]) for kind, part in parts.items()]))
            )


def test_constants_of_a_file_are_read_where_they_lie() -> None:
    model = modelfile.read(modelfile.to_bytes(every_operator_model(sides=(4,))))
    op: Any = model.programs[0].layers[-2].op
    assert op.constants["w"].value.dtype == np.float16
    assert op.constants["w"].value.base is not None


def test_what_a_reader_would_refuse_is_not_compiled() -> None:
    net = Net()
    net.output(net.op("Conv", net.input("x", (1, 3, 8, 8)), net.weights(4, 3, 1, 1), strides=[10**12, 1]))
    with pytest.raises(CompileError, match="Conv has strides 1000000000000") as caught:
        anynpu.compile(net.proto(), dtype="fp16")
    assert caught.value.hint


def test_models_of_other_domains_are_told_apart() -> None:
    """A product that turns batches is one of the few operators of onnxruntime that have no plain form."""
    helper = onnx.helper
    shapes = {"a": [4, 2, 5], "b": [2, 5, 3], "y": [2, 4, 3]}
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    node = helper.make_node("FusedMatMul", ["a", "b"], ["y"], domain="com.microsoft", transBatchA=1)
    imports = [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(helper.make_graph([node], "product", values[:2], values[2:]), opset_imports=imports, ir_version=8)
    model = anynpu.compile(proto, dtype="fp16")
    assert [layer.op.names for layer in model.programs[0].layers] == [("com.microsoft.FusedMatMul",)]  # type: ignore[union-attr]
    a, b = (np.linspace(-1, 1, math.prod(shapes[name]), dtype=np.float32).reshape(shapes[name]) for name in "ab")
    with anynpu.Device("rk3588") as device, device.load(model).context() as context:
        np.testing.assert_allclose(context.run([a, b])[0], a.swapaxes(0, 1) @ b, atol=1e-2)
