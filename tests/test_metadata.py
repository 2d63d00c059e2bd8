"""What an ONNX model states about itself travels with the compiled model: to sessions, to inspect; and a file cannot abuse it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

import anynpu
from anynpu import modelfile
from anynpu._util import optional as _optional
from anynpu.cli.app import app
from anynpu.errors import ModelFormatError
from anynpu.modelfile.container import HEADER, Section, pack, unpack
from anynpu.modelfile.validate import MAX_METADATA_LENGTH, MAX_PROPERTIES
from anynpu.program import OnnxMetadata
from anynpu.session import InferenceSession

PROPERTIES = {"names": "{0: 'cat', 1: 'größer'}", "stride": "32", "character": "a\nb\n\u5927\n", "empty": ""}


def network(properties: dict[str, str] = PROPERTIES) -> Any:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "the graph", [x], [y], doc_string="of the graph")
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_operatorsetid("", 13)],
        ir_version=9,
        producer_name="the exporter",
        domain="example.org",
        doc_string="of the model",
        model_version=7,
    )
    helper.set_model_props(model, properties)
    return model


def compiled(target: str = "rk3588", **changes: Any) -> anynpu.Model:
    return anynpu.compile(network(), target=target, dtype="fp16", **changes)


def test_the_file_has_it(tmp_path: Path) -> None:
    expected = OnnxMetadata(PROPERTIES, "the exporter", "the graph", "example.org", "of the model", "of the graph", 7)
    assert compiled().metadata == expected
    assert modelfile.read(compiled().save(tmp_path / "a.rknn")).metadata == expected
    assert modelfile.read(compiled().save(tmp_path / "b.rknn", remove_weight=True)).metadata == expected


def same_as_onnxruntime(session: InferenceSession) -> None:
    theirs = _optional.onnxruntime().InferenceSession(network().SerializeToString()).get_modelmeta()
    ours = session.get_modelmeta()
    for name in ("producer_name", "graph_name", "domain", "description", "graph_description", "version", "custom_metadata_map"):
        assert getattr(ours, name) == getattr(theirs, name), name


@pytest.mark.parametrize("options", [{}, {"isolate": True}], ids=["", "isolated"])
def test_a_session_tells_it(options: dict[str, bool]) -> None:
    with InferenceSession(modelfile.to_bytes(compiled()), provider_options=options, device="sim") as session:
        same_as_onnxruntime(session)


def test_a_session_of_the_other_family_tells_it() -> None:
    model = anynpu.compile(network(), target="t527", dataset=[{"x": np.ones((1, 4), np.float32)}])
    with InferenceSession(modelfile.to_bytes(model), device="sim") as session:
        same_as_onnxruntime(session)


def test_beside_the_text_of_the_file() -> None:
    with InferenceSession(modelfile.to_bytes(compiled(custom_string="v7")), device="sim") as session:
        assert session.get_modelmeta().custom_metadata_map == {**PROPERTIES, "rknn_custom_string": "v7"}


def test_inspect_shows_it(tmp_path: Path) -> None:
    onnx.save(network({**PROPERTIES, "long": "x" * 500}), tmp_path / "a.onnx")
    anynpu.compile(tmp_path / "a.onnx", target="rk3588", dtype="fp16").save(tmp_path / "a.rknn")
    for name in ("a.rknn", "a.onnx"):
        shown = CliRunner().invoke(app, ["inspect", str(tmp_path / name)]).output
        assert "metadata     stride = 32" in shown
        assert "character = a\\nb\\n\u5927\\n" in shown
        assert f"long = {'x' * 60} ... (500 characters)" in shown
        as_json = json.loads(CliRunner().invoke(app, ["inspect", str(tmp_path / name), "--json"]).output)
        found = as_json["metadata"]
        assert (found["properties"] if name == "a.rknn" else found) == {**PROPERTIES, "long": "x" * 500}


def rebuilt(data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    sections = unpack(memoryview(data))
    document = json.loads(bytes(sections[HEADER]))
    change(document["model"]["metadata"])
    header = json.dumps(document).encode()
    parts = {kind: header if kind == HEADER else bytes(part) for kind, part in sections.items()}
    return b"".join(pack(data[:4], [Section(kind, len(part), lambda part=part: [part]) for kind, part in parts.items()]))


@pytest.mark.parametrize(
    "change",
    [
        lambda metadata: metadata["properties"].update({str(index): "" for index in range(MAX_PROPERTIES)}),
        lambda metadata: metadata["properties"].update(names="x" * MAX_METADATA_LENGTH),
        lambda metadata: metadata["properties"].update({"x" * 5000: ""}),
        lambda metadata: metadata["properties"].update(names=3),
        lambda metadata: metadata["properties"].update(names="\ud800"),
        lambda metadata: metadata.update(properties=["names"]),
        lambda metadata: metadata.update(version=1 << 63),
        lambda metadata: metadata.update(version="7"),
        lambda metadata: metadata.update(description="x" * (MAX_METADATA_LENGTH + 1)),
        lambda metadata: metadata.update(more=1),
    ],
)
def test_a_file_that_claims_too_much_is_refused(change: Callable[[dict[str, Any]], None]) -> None:
    data = modelfile.to_bytes(compiled())
    assert modelfile.read(rebuilt(data, lambda metadata: None)).metadata == compiled().metadata
    with pytest.raises(ModelFormatError):
        modelfile.read(rebuilt(data, change))


def test_a_file_from_before_it_was_kept() -> None:
    model = modelfile.read(modelfile.to_bytes(replace(compiled(), metadata=None)))
    assert model.metadata is None
    with InferenceSession(modelfile.to_bytes(model), device="sim") as session:
        assert session.get_modelmeta().custom_metadata_map == {}
        assert session.get_modelmeta().version == 0


def test_what_a_file_cannot_hold_is_left_out_and_said() -> None:
    model = anynpu.compile(network({"long": "x" * (MAX_METADATA_LENGTH + 1)}), target="rk3588", dtype="fp16")
    assert model.metadata == OnnxMetadata()
    assert model.provenance["metadata"].startswith("left out: metadata of ")


def test_text_that_is_not_utf8_is_left_out_and_said() -> None:
    damaged = network().SerializeToString().replace(b"the graph", b"the\xffgraph")
    model = anynpu.compile(damaged, target="rk3588", dtype="fp16")
    modelfile.read(modelfile.to_bytes(model))
    assert model.metadata == OnnxMetadata()
    assert model.provenance["metadata"] == "left out: metadata that is not valid Unicode"


def test_entries_and_back() -> None:
    whole = compiled().metadata
    assert whole is not None
    assert OnnxMetadata.of_entries(whole.entries()) == whole
    assert OnnxMetadata.of_entries({"anynpu.onnx.version": "x"}).version == 0
