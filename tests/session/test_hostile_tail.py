"""Tails of strangers: what onnxruntime would do for them is rejected before it sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from anynpu.errors import CompileError, DeviceError, DeviceTimeout
from anynpu.modelfile import post_processing as tails
from anynpu.modelfile.post_processing import Tail, checked_tail

FLOAT = TensorProto.FLOAT


def tail_of(nodes: list[Any], constants: Sequence[Any] = (), domains: tuple[str, ...] = ("",)) -> onnx.ModelProto:
    """A tail that reads x and makes y."""
    ends = [helper.make_tensor_value_info("x", FLOAT, [4])], [helper.make_tensor_value_info("y", FLOAT, None)]
    graph = helper.make_graph(nodes, "tail", *ends, constants)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid(name, 17 if not name else 1) for name in domains], ir_version=8
    )


def elsewhere(location: str) -> TensorProto:
    """Sixteen bytes of a file."""
    tensor = TensorProto(name="k", data_type=TensorProto.UINT8, dims=[16], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, "offset": "0", "length": "16"}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def reading(location: str) -> onnx.ModelProto:
    """A tail whose output is what a file holds."""
    nodes = [
        helper.make_node("Cast", ["k"], ["bytes"], to=FLOAT),
        helper.make_node("ReduceSum", ["x"], ["nothing"], keepdims=0),
        helper.make_node("Add", ["bytes", "nothing"], ["y"]),
    ]
    return tail_of(nodes, [elsewhere(location)])


def refusal(model: onnx.ModelProto) -> str:
    with pytest.raises(CompileError, match="this is no post-processing file of a model") as caught:
        Tail(model.SerializeToString())
    return str(caught.value)


@pytest.mark.parametrize("form", ["relative", "beside", "absolute", "memory"])
def test_a_tail_reads_no_files(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its output was the content of any file that it named."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"of sixteen bytes")
    monkeypatch.chdir(tmp_path)
    places = {"relative": os.path.relpath(secret), "beside": "secret", "absolute": str(secret), "memory": "*/_ORT_MEM_ADDR_/*"}
    assert "lies elsewhere" in refusal(reading(places[form]))


def test_a_constant_inside_a_branch_reads_no_files(tmp_path: Path) -> None:
    made = [helper.make_tensor_value_info("made", FLOAT, None)]
    bytes_of_a_file = helper.make_graph(
        [helper.make_node("Cast", ["k"], ["made"], to=FLOAT)], "one", [], made, [elsewhere("secret")]
    )
    itself = helper.make_graph([helper.make_node("Identity", ["x"], ["made"])], "two", [], made)
    branch = helper.make_node("If", ["yes"], ["y"], then_branch=bytes_of_a_file, else_branch=itself)
    yes = helper.make_tensor("yes", TensorProto.BOOL, [], [True])
    assert "lies elsewhere" in refusal(tail_of([branch], [yes]))
    constant = helper.make_node("Constant", [], ["k"])
    constant.attribute.append(helper.make_attribute("value", elsewhere("secret")))
    assert "lies elsewhere" in refusal(tail_of([constant, helper.make_node("Cast", ["k"], ["y"], to=FLOAT)]))


def test_a_branch_is_no_loop() -> None:
    made = [helper.make_tensor_value_info("made", FLOAT, None)]
    graphs = [helper.make_graph([helper.make_node(kind, ["x"], ["made"])], kind, [], made) for kind in ("Neg", "Identity")]
    branch = helper.make_node("If", ["yes"], ["y"], then_branch=graphs[0], else_branch=graphs[1])
    yes = helper.make_tensor("yes", TensorProto.BOOL, [], [True])
    (found,) = Tail(tail_of([branch], [yes]).SerializeToString()).run({"x": np.ones(4, np.float32)})
    assert found.tolist() == [-1] * 4


def loop() -> onnx.ModelProto:
    ends = [
        helper.make_tensor_value_info("round", TensorProto.INT64, []),
        helper.make_tensor_value_info("on", TensorProto.BOOL, []),
    ]
    body = helper.make_graph(
        [helper.make_node("Identity", ["on"], ["still"]), helper.make_node("Identity", ["value"], ["next"])],
        "body",
        [*ends, helper.make_tensor_value_info("value", FLOAT, [4])],
        [helper.make_tensor_value_info("still", TensorProto.BOOL, []), helper.make_tensor_value_info("next", FLOAT, [4])],
    )
    yes = helper.make_tensor("yes", TensorProto.BOOL, [], [True])
    return tail_of([helper.make_node("Loop", ["", "yes", "x"], ["y"], body=body)], [yes])


def test_a_tail_without_an_end_is_refused() -> None:
    assert "'Loop' may run for ever" in refusal(loop())


def test_functions_and_operators_of_others_are_refused() -> None:
    identity = helper.make_node("Identity", ["x"], ["y"])
    model = tail_of([helper.make_node("twice", ["x"], ["y"], domain="own")], domains=("", "own"))
    assert "no operator of ONNX" in refusal(model)
    model = tail_of([identity], domains=("", "own"))
    body = [helper.make_node("Add", ["a", "a"], ["b"])]
    model.functions.append(helper.make_function("own", "twice", ["a"], ["b"], body, [helper.make_opsetid("", 17)]))
    assert "functions" in refusal(model)
    large = TensorProto(name="k", data_type=FLOAT, dims=[1 << 20, 1 << 20])
    assert "too large" in refusal(tail_of([identity], [large]))


def test_what_our_reader_does_not_know_is_left_out() -> None:
    """A later onnxruntime may have a meaning for it."""
    plain = tail_of([helper.make_node("Identity", ["x"], ["y"])]).SerializeToString()
    unknown = bytes([0xFA, 0x3E, 3]) + b"abc"  # field 1007, of three bytes
    assert checked_tail(plain + unknown) == checked_tail(plain)


def test_what_a_tail_makes_are_numbers() -> None:
    model = tail_of([helper.make_node("SequenceConstruct", ["x"], ["y"])])
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_sequence_value_info("y", FLOAT, None))
    assert "'y' is seq(tensor(float))" in refusal(model)


def test_a_tail_that_fails_is_an_error_of_ours() -> None:
    places = helper.make_tensor("places", TensorProto.INT64, [1], [1000])
    tail = Tail(tail_of([helper.make_node("Gather", ["x", "places"], ["y"])], [places]).SerializeToString())
    with pytest.raises(DeviceError, match="failed in onnxruntime"):
        tail.run({"x": np.ones(4, np.float32)})


def test_a_tail_stops_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """As layers do: between two operators."""
    tail = Tail(tail_of([helper.make_node("Identity", ["x"], ["y"])]).SerializeToString())

    class Slow:
        def run(self, names: None, feed: object, options: Any) -> list[Any]:
            while not options.terminate:  # as onnxruntime looks between two operators
                threading.Event().wait(0.001)
            raise RuntimeError("Exiting due to terminate flag being set to true.")

    monkeypatch.setattr(tail, "_session", Slow())
    with pytest.raises(DeviceTimeout, match="did not finish"):
        tail.run({"x": np.ones(4, np.float32)}, timeout=0.01)


VALUES_OF_LARGE_TENSORS = """
import json, resource, sys
import onnx
from onnx import helper
import anynpu
from anynpu.errors import CompileError
from anynpu.modelfile.post_processing import checked_tail

resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
LARGE = 1 << 31

def number(name, values, dims=()):
    return helper.make_tensor(name, onnx.TensorProto.INT64, dims, values)

one, node = number("one", [1], [1]), helper.make_node
WAYS = {
    "range": ([node("Range", ["a", "n", "b"], ["r"])], [number("a", [0]), number("n", [LARGE]), number("b", [1])]),
    "tile": ([node("Tile", ["one", "n"], ["r"])], [one, number("n", [LARGE], [1])]),
    "pad": ([node("Pad", ["one", "n"], ["r"])], [one, number("n", [0, LARGE], [2])]),
    "hann": ([node("HannWindow", ["n"], ["r"])], [number("n", [LARGE])]),
    "by values": ([node("Mul", ["n", "n"], ["m"]), node("Expand", ["one", "m"], ["r"])], [one, number("n", [46341], [1])]),
    "in steps": (
        [
            node("Mul", ["n", "n"], ["m"]),
            node("Expand", ["one", "m"], ["e"]),
            node("Concat", ["e"] * 64, ["f"], axis=0),
            node("Concat", ["f"] * 64, ["r"], axis=0),
        ],
        [one, number("n", [1000], [1])],
    ),
}
found = {}
for name, (nodes, constants) in WAYS.items():
    nodes = [*nodes, node("Cast", ["r"], ["f32"], to=1), node("ReduceSum", ["f32"], ["s"], keepdims=0), node("Add", ["x", "s"], ["y"])]
    ends = [helper.make_tensor_value_info(end, 1, [1, 4]) for end in "xy"]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], constants)
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    for way, read in {"tail": checked_tail, "model": lambda data: anynpu.compile(data, "rk3588", dtype="fp16")}.items():
        try:
            read(data)
            found[f"{name}, {way}"] = "accepted"
        except CompileError as error:
            found[f"{name}, {way}"] = str(error).partition("\\n")[0]
# not ru_maxrss, which begins with that of the process that started this one
print(json.dumps([found, int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) >> 10]))
"""


def test_values_of_large_tensors_are_not_followed() -> None:
    """Shape inference kept 100 bytes for each of 2^31 elements."""
    done = subprocess.run([sys.executable, "-c", VALUES_OF_LARGE_TENSORS], capture_output=True, text=True, check=True)
    found, peak_mb = json.loads(done.stdout)
    for name, message in found.items():
        assert "takes more than 1024 MB" in message or "more than 268435456 elements" in message, name
    assert peak_mb < 400


def test_operators_through_which_onnx_follows_values() -> None:
    """An operator that is missing here would be given tensors of any size."""
    history = onnx.defs.get_all_schemas_with_history()
    following = {schema.name for schema in history if getattr(schema, "has_data_propagation_function", False)}
    assert following <= tails._PROPAGATING
    bodies = {
        schema.name
        for schema in history
        if (schema.has_function or schema.has_context_dependent_function)
        and not schema.has_type_and_shape_inference_function
        and not schema.domain
    }
    assert bodies <= tails._FUNCTIONS


def test_shapes_from_values_of_small_tensors_are_inferred() -> None:
    """Behind nodes that have to wait for a size, too."""
    node, number = helper.make_node, TensorProto.INT64
    nodes = [
        node("Shape", ["x"], ["n"]),
        node("Expand", ["one", "n"], ["e"]),
        node("Cast", ["e"], ["f"], to=FLOAT),
        node("Mul", ["f", "x"], ["g"]),
        node("Shape", ["g"], ["h"]),
        node("Concat", ["h", "h"], ["i"], axis=0),
        node("ConstantOfShape", ["i"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info("x", FLOAT, [40])], [helper.make_tensor_value_info("y", FLOAT, None)]
    graph = helper.make_graph(nodes, "net", *ends, [helper.make_tensor("one", number, [1], [1])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = tails.infer_shapes(model, lambda inferred: None)
    assert [entry.dim_value for entry in found.graph.output[0].type.tensor_type.shape.dim] == [40, 40]
    assert len(found.graph.node) == len(nodes)


@pytest.mark.parametrize("through", ["constant", "product"])
def test_sizes_in_a_branch_that_follow_from_outside_are_checked(through: str) -> None:
    """onnx follows no value into a branch: a file of 400 bytes asked for 17 GB when it ran."""
    helper, types = onnx.helper, onnx.TensorProto
    size = helper.make_node("Mul", ["wide", "two"], ["size"])
    fill = helper.make_node("ConstantOfShape", ["wide" if through == "constant" else "size"], ["filled"])
    least = helper.make_node("ReduceSum", ["filled"], ["y"], keepdims=0)
    out = helper.make_tensor_value_info("y", types.FLOAT, [])
    big = helper.make_graph([size, fill, least], "big", [], [out])
    none = helper.make_graph(
        [helper.make_node("Constant", [], ["z"], value_float=0.0)],
        "none",
        [],
        [helper.make_tensor_value_info("z", types.FLOAT, [])],
    )
    node = helper.make_node("If", ["flag"], ["r"], then_branch=none, else_branch=big)
    constants = [
        onnx.numpy_helper.from_array(np.array([1 << 31], np.int64), "wide"),
        onnx.numpy_helper.from_array(np.array([2], np.int64), "two"),
    ]
    inputs = [helper.make_tensor_value_info("flag", types.BOOL, [])]
    outputs = [helper.make_tensor_value_info("r", types.FLOAT, [])]
    graph = helper.make_graph([node], "tail", inputs, outputs, constants)
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    with pytest.raises(CompileError, match="takes more than"):
        checked_tail(data)
