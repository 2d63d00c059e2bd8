"""``anynpu compile``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

import anynpu
from anynpu import chips, modelfile
from anynpu.analysis.profile import profile_program
from anynpu.chips import timing
from anynpu.cli.helpers.compile_summary import brief, story
from anynpu.compiler.quantize.ranges import ALGORITHMS

Invoke = Callable[..., Any]


def test_int8_with_a_folder_of_pictures(invoke: Invoke, model_path: Path, pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.rknn"
    outcome = invoke("compile", model_path, "-o", out, "--target", "RK3588", "--dataset", pictures, "--std", "255,255,255")
    assert outcome.code == 0, outcome.err
    assert "layers " in outcome.out
    assert " on NPU, " in outcome.out
    assert "weights " in outcome.out
    assert "internal " in outcome.out
    assert f"wrote {out}" in outcome.out
    assert "compiling small for rk3588 (int8)" in outcome.err
    model = anynpu.load(out)
    assert (model.chip, model.dtype) == ("rk3588", "w8a8")
    assert model.preprocess["images"].std == (255.0, 255.0, 255.0)


def test_float16_needs_no_dataset(invoke: Invoke, model_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.rknn"
    outcome = invoke(
        "compile", model_path, "-o", out, "-t", "rk3588", "--dtype", "fp16", "--custom-string", "build 7", "--name", "tiny"
    )
    assert outcome.code == 0, outcome.err
    model = anynpu.load(out)
    assert (model.dtype, model.custom_string, model.name) == ("fp16", "build 7", "tiny")


def test_int8_without_a_dataset_fails_and_says_so(invoke: Invoke, model_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.rknn"
    outcome = invoke("compile", model_path, "-o", out, "--target", "rk3588")
    assert outcome.code == 1
    assert "dataset" in outcome.err
    assert "hint: " in outcome.err
    assert "compiling" not in outcome.err
    assert outcome.out == ""
    assert not out.exists()


def test_several_shapes_of_one_input_become_shape_sets(invoke: Invoke, dynamic_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "dynamic.rknn"
    shapes = ["--shape", "images=1,3,16,16", "--shape", "images=1,3,32,24"]
    outcome = invoke("compile", dynamic_path, "-o", out, "-t", "rk3588", "--dtype", "fp16", *shapes)
    assert outcome.code == 0, outcome.err
    assert "shape set 1: images 1x3x32x24" in outcome.out
    assert [program.input_specs[0].shape for program in anynpu.load(out).programs] == [(1, 3, 16, 16), (1, 3, 32, 24)]


def test_weights_can_be_left_out(invoke: Invoke, model_path: Path, tmp_path: Path) -> None:
    full, bare = tmp_path / "full.rknn", tmp_path / "bare.rknn"
    assert invoke("compile", model_path, "-o", full, "-t", "rk3588", "--dtype", "fp16").code == 0
    assert invoke("compile", model_path, "-o", bare, "-t", "rk3588", "--dtype", "fp16", "--remove-weight").code == 0
    assert anynpu.load(bare).weightless
    assert not anynpu.load(full).weightless


def test_a_wrong_shape_is_wrong_usage(invoke: Invoke, model_path: Path, tmp_path: Path) -> None:
    outcome = invoke("compile", model_path, "-o", tmp_path / "x", "-t", "rk3588", "--dtype", "fp16", "--shape", "1,3,16,16")
    assert outcome.code == 2
    assert "write it as NAME=1,3,480,480" in outcome.err


def test_a_shape_for_an_input_that_is_not_there_fails(invoke: Invoke, model_path: Path, tmp_path: Path) -> None:
    outcome = invoke("compile", model_path, "-o", tmp_path / "x", "-t", "rk3588", "--dtype", "fp16", "--shape", "image=1,3,16,16")
    assert outcome.code == 1
    assert "image" in outcome.err
    assert "images" in outcome.err


def test_a_mean_for_an_input_that_is_not_there_is_wrong_usage(invoke: Invoke, model_path: Path, tmp_path: Path) -> None:
    outcome = invoke("compile", model_path, "-o", tmp_path / "x", "-t", "rk3588", "--dtype", "fp16", "--mean", "depth=1")
    assert outcome.code == 2
    assert "no input 'depth'; its inputs: images" in outcome.err


def test_an_empty_dataset_fails(invoke: Invoke, model_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    outcome = invoke("compile", model_path, "-o", tmp_path / "x", "-t", "rk3588", "--dataset", folder)
    assert outcome.code == 1
    assert "no images in the folder" in outcome.err


def test_a_damaged_picture_fails_and_is_named(invoke: Invoke, model_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "broken.png").write_bytes(b"not a picture")
    outcome = invoke("compile", model_path, "-o", tmp_path / "x", "-t", "rk3588", "--dataset", folder)
    assert outcome.code == 1
    assert "broken.png" in outcome.err


def test_a_file_that_is_not_onnx_fails(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "text.onnx"
    path.write_text("hello")
    outcome = invoke("compile", path, "-o", tmp_path / "x", "-t", "rk3588", "--dtype", "fp16")
    assert outcome.code == 1
    assert "is not an ONNX model" in outcome.err


def test_a_folder_that_is_not_there_fails(invoke: Invoke, model_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "absent" / "small.rknn"
    outcome = invoke("compile", model_path, "-o", out, "-t", "rk3588", "--dtype", "fp16")
    assert outcome.code == 2
    assert "absent" in outcome.err


def test_the_flags_are_those_of_the_table(invoke: Invoke) -> None:
    shown = invoke("compile", "--help").out
    for name, entry in anynpu.CompileOptions.options().items():
        assert entry.flag is None or all(flag in shown for flag in entry.flag.split("/")), name
    assert "|".join(ALGORITHMS) in shown


def test_custom_operators(invoke: Invoke, custom_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "custom.rknn"
    arguments = ["compile", custom_path, "-o", out, "-t", "rk3588", "--dtype", "fp16"]
    refused = invoke(*arguments)
    assert refused.code == 1
    assert "--custom-op Stretch" in refused.err
    outcome = invoke(*arguments, "--custom-op", "Stretch", "--custom-op", "Softmax")
    assert outcome.code == 0, outcome.err
    assert "custom operator 'Stretch'" in outcome.out
    assert anynpu.load(out).custom_operators == ("Stretch", "Softmax")
    shown = invoke("inspect", out)
    assert "Stretch, Softmax: the program registers functions for these operators" in " ".join(shown.out.split())
    assert json.loads(invoke("inspect", out, "--json").out)["custom_operators"] == ["Stretch", "Softmax"]
    executed = invoke("run", out)
    assert executed.code == 1
    assert "'Stretch' of layer 'stretch' is not registered" in executed.err


def test_the_weights_of_a_vip_model(invoke: Invoke, model_path: Path, pictures: Path, tmp_path: Path) -> None:
    def compiled(*options: str) -> Any:
        out = tmp_path / "model.nb"
        outcome = invoke("compile", model_path, "-o", out, "-t", "t527", "--dataset", pictures, *options)
        assert outcome.code == 0, outcome.err
        assert "wrote" in outcome.out
        return anynpu.load(out).programs[0].layers[0].op.epilogue.multiplier.tolist()

    assert len(set(compiled("--dtype", "int8"))) == 8
    assert len(set(compiled("--dtype", "int8", "--per-tensor"))) == 1
    assert len(set(compiled("--dtype", "uint8"))) == 1
    refused = invoke("compile", model_path, "-o", tmp_path / "x", "-t", "t527", "--dataset", pictures, "--per-channel")
    assert refused.code == 1
    assert "one scale for all channels" in refused.err


def test_types_are_checked(invoke: Invoke, model_path: Path, tmp_path: Path) -> None:
    unknown = invoke("compile", model_path, "-o", tmp_path / "x", "-t", "t527", "--dtype", "int3")
    assert unknown.code == 2
    assert "int3" in unknown.err
    lacking = invoke("compile", model_path, "-o", tmp_path / "x", "-t", "v853", "--dtype", "bfloat16")
    assert lacking.code == 1
    assert "v853 does not take bf16 models" in lacking.err
    foreign = invoke("compile", model_path, "-o", tmp_path / "x", "-t", "rk3588", "--dtype", "asymmetric_affine")
    assert foreign.code == 1
    assert "rk3588 takes: w8a8, fp16" in foreign.err


def test_a_compiled_vip_model_is_predicted(invoke: Invoke, model_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.nb"
    assert invoke("compile", model_path, "-o", out, "-t", "a733", "--dtype", "bf16").code == 0
    outcome = invoke("predict", out, "--json")
    assert outcome.code == 0, outcome.err
    assert '"dtype": "bf16"' in outcome.out


def test_ranges_from_a_file(invoke: Invoke, model_path: Path, pictures: Path, tmp_path: Path) -> None:
    made = tmp_path / "net.rknn"
    arguments = [
        "compile",
        model_path,
        "-o",
        made,
        "-t",
        "rk3588",
        "--dataset",
        pictures,
        "--std",
        "255",
        "--quantizer",
        "vendor",
    ]
    invoke(*arguments)
    program = anynpu.load(made).programs[0]
    names = [*program.inputs, *program.outputs]
    ranges = tmp_path / "ranges.json"
    ranges.write_text(json.dumps({names[0]: {"scale": 0.25, "zero_point": 3}, names[1]: [0.5, -7]}))
    invoke(*arguments, "--ranges", ranges)
    tensors = anynpu.load(made).programs[0].tensors
    found = [tensors[name].quantization for name in names]
    assert [(entry.scale, entry.zero_point) for entry in found if entry is not None] == [(0.25, 3), (0.5, -7)]


def test_a_file_of_ranges_that_is_none_is_refused(invoke: Invoke, model_path: Path, pictures: Path, tmp_path: Path) -> None:
    ranges = tmp_path / "ranges.json"
    for text, message in (("{", "cannot be read as JSON"), ("[1]", "no ranges by name"), ('{"x": 3}', "the range of 'x' is 3")):
        ranges.write_text(text)
        out = tmp_path / "x.rknn"
        outcome = invoke("compile", model_path, "-o", out, "-t", "rk3588", "--dataset", pictures, "--ranges", ranges)
        assert outcome.code == 1
        assert message in " ".join(outcome.err.split())


@pytest.mark.parametrize("command", ["compile", "check"])
def test_operators_of_another_domain_have_to_be_named(invoke: Invoke, custom_path: Path, tmp_path: Path, command: str) -> None:
    """Without their names nobody said that a program of the user's own is there to compute them."""
    proto = onnx.load(custom_path)
    proto.graph.node[0].domain = "acme"
    proto.opset_import.append(onnx.helper.make_opsetid("acme", 1))
    path = tmp_path / "foreign.onnx"
    onnx.save(proto, path)
    arguments = [command, path, "-t", "rk3588", "--dtype", "fp16"]
    arguments += ["-o", tmp_path / "out.rknn"] if command == "compile" else []
    refused = invoke(*arguments)
    assert refused.code == 1
    assert "operators that are not ONNX's own: Stretch" in refused.err
    assert "--custom-op Stretch" in refused.err
    assert invoke(*arguments, "--custom-op", "Stretch").code == 0


def test_an_input_that_is_a_shape_gets_its_value(invoke: Invoke, tmp_path: Path) -> None:
    x, shape, y = (
        onnx.helper.make_tensor_value_info(name, kind, extents)
        for name, kind, extents in (
            ("x", onnx.TensorProto.FLOAT, [1, 12]),
            ("shape", onnx.TensorProto.INT64, [2]),
            ("y", 1, None),
        )
    )
    graph = onnx.helper.make_graph([onnx.helper.make_node("Reshape", ["x", "shape"], ["y"])], "reshape", [x, shape], [y])
    path, out = tmp_path / "reshape.onnx", tmp_path / "reshape.rknn"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8), path)
    refused = invoke("compile", path, "-o", out, "-t", "rk3588", "--dtype", "fp16")
    assert refused.code != 0
    assert "--constant shape=1,1" in refused.err
    outcome = invoke("compile", path, "-o", out, "-t", "rk3588", "--dtype", "fp16", "--constant", "shape=3,4")
    assert outcome.code == 0, outcome.err
    assert anynpu.load(out).outputs[0].shape == (3, 4)
    for wrong in ("shape", "shape=three", "=1"):
        assert invoke("compile", path, "-o", out, "-t", "rk3588", "--dtype", "fp16", "--constant", wrong).code == 2


def test_the_tail_is_written_beside_the_model(invoke: Invoke, tmp_path: Path) -> None:
    make = onnx.helper.make_tensor_value_info
    constants = [onnx.helper.make_tensor("limit", onnx.TensorProto.INT64, [1], [3])]
    nodes = [
        onnx.helper.make_node("Sigmoid", ["a"], ["boxes"]),
        onnx.helper.make_node("Sigmoid", ["b"], ["scores"]),
        onnx.helper.make_node("NonMaxSuppression", ["boxes", "scores", "limit"], ["selected"]),
    ]
    inputs = [make("a", onnx.TensorProto.FLOAT, [1, 8, 4]), make("b", onnx.TensorProto.FLOAT, [1, 2, 8])]
    graph = onnx.helper.make_graph(nodes, "detector", inputs, [make("selected", onnx.TensorProto.INT64, [None, 3])], constants)
    path, out = tmp_path / "detector.onnx", tmp_path / "detector.rknn"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8), path)
    outcome = invoke("compile", path, "-o", out, "-t", "rk3588", "--dtype", "fp16")
    assert outcome.code == 0, outcome.err
    assert "runs on the host: the model ends in 'boxes', 'scores'" in anynpu.load(out).provenance["tail"]
    assert f"wrote {tmp_path / 'detector.tail.onnx'}" in outcome.out.replace("\n", "")
    assert anynpu.compiler.Tail(out).inputs == ("boxes", "scores")


def test_the_verdict_is_first_and_details_need_verbosity(
    invoke: Invoke, model_path: Path, pictures: Path, tmp_path: Path
) -> None:
    arguments = (
        "compile",
        model_path,
        "-o",
        tmp_path / "small.rknn",
        "-t",
        "rk3588",
        "--dataset",
        pictures,
        "--std",
        "255,255,255",
    )
    first, second, *rest = invoke(*arguments).out.splitlines()
    assert first.startswith("int8: accuracy not measured") or re.fullmatch(
        r"int8 keeps 0\.\d{4} of the float output: good", first
    )
    assert "software NPU" in second
    assert "anynpu build" in second
    assert not [line for line in rest if line.startswith(("  tried", "  ranges"))]
    assert "\n  ranges " in invoke(*arguments, "-v").out


def test_a_finding_with_a_semicolon_is_one_line() -> None:
    findings = "warning: a: wide; channel ranges 0.2 to 4; warning: b: thin; and 3 more"
    model = anynpu.Model("rk3588", "w8a8", (), provenance={"warnings": findings})
    assert story(model) == ["  look at    a: wide; channel ranges 0.2 to 4", "  look at    b: thin", "  look at    and 3 more"]
    assert brief(story(model)) == ["  3 findings about int8 accuracy: -v prints them, 'anynpu lint' explains them"]


def test_public_objects_have_a_repr_of_one_line(model_path: Path) -> None:
    model = anynpu.compile(model_path, "rk3588", dtype="fp16")
    program = model.programs[0]
    made = [
        *(model, program, program.layers[0], anynpu.report(model), anynpu.check(model_path, "rk3588")),
        chips.get("rk3588"),
        *(modelfile.encode(model), timing.predict(program, chips.get("rk3588")), profile_program(program, chips.get("rk3588"))),
    ]
    for entry in made:
        assert "\n" not in repr(entry)
        assert len(repr(entry)) < 200
        assert repr(entry).startswith(type(entry).__name__)
