"""ONNX models that are not compiled: parts on the NPU, the rest on onnxruntime's CPU provider."""

from __future__ import annotations

import itertools
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from real_models import find_real_models

import anynpu
from anynpu.compiler import CompileOptions
from anynpu.errors import CalibrationError
from anynpu.session.onnxruntime.parts import compile_parts, default_dtype, write_parts

from .building import run_python
from .conftest import Provider

Array = np.ndarray[Any, np.dtype[np.float32]]


def convolutions(inside: str = "", side: int | str = 16) -> onnx.ModelProto:
    """Convolutions with ReLU; *inside* is an operator of another domain, or NonMaxSuppression and the like, between them."""
    rng = np.random.default_rng(2)
    constants, nodes, name, depth = [], [], "x", 3
    for index, channels in enumerate((16, 16, 16, 4)):
        weights = (rng.standard_normal((channels, depth, 3, 3)) * 0.1).astype(np.float32)
        constants.append(numpy_helper.from_array(weights, f"w{index}"))
        nodes.append(helper.make_node("Conv", [name, f"w{index}"], [f"c{index}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{index}"], [f"r{index}"]))
        name, depth = f"r{index}", channels
        if index == 1 and inside:
            constants.append(numpy_helper.from_array(np.zeros(16, np.float32), "bias"))
            nodes.append(helper.make_node(inside, [name, "bias"], ["g"], domain="com.microsoft"))
            name = "g"
    graph = helper.make_graph(
        nodes,
        "convolutions",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, side, side])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, side, side])],
        constants,
        value_info=[helper.make_tensor_value_info("g", TensorProto.FLOAT, [1, 16, side, side])] if inside else [],
    )
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def saved(proto: onnx.ModelProto, path: Path) -> Path:
    onnx.save(proto, path)
    return path


def sessions(provider: Provider, model: Path, cache: Path, **options: str) -> tuple[Any, Any]:
    """A session on provider and CPU, and one on the CPU alone."""
    settings = provider.ort.SessionOptions()
    settings.log_severity_level = 3
    settings.add_provider_for_devices([provider.device], {"cache_dir": str(cache), **options})
    return provider.ort.InferenceSession(str(model), settings), provider.ort.InferenceSession(str(model))


def feed(side: int = 16) -> dict[str, Array]:
    return {"x": np.random.default_rng(3).random((1, 3, side, side), np.float32)}


def test_a_plan_claims_what_the_compiler_takes(tmp_path: Path) -> None:
    plan = compile_parts(saved(convolutions(), tmp_path / "m.onnx"), "rk3588", CompileOptions(dtype="fp16"))
    assert [part.nodes for part in plan.parts] == [tuple(range(8))]
    assert plan.reasons() == []
    plan = compile_parts(saved(convolutions("BiasGelu"), tmp_path / "m.onnx"), "rk3588", CompileOptions(dtype="fp16"))
    assert [part.nodes for part in plan.parts] == [(0, 1, 2, 3), (5, 6, 7, 8)]
    assert plan.reasons() == ["node 4: com.microsoft.BiasGelu is not a standard operator"]
    write_parts(plan, tmp_path)
    lines = (tmp_path / "plan").read_text(encoding="utf-8").splitlines()
    assert lines[:4] == ["nodes 9", "part part0.anynpu", "members 0 1 2 3", f"output {b'r1'.hex()}"]
    assert lines[-1] == "end"


def test_a_plan_leaves_dynamic_shapes_with_the_option_that_helps(tmp_path: Path) -> None:
    model = saved(convolutions(side="side"), tmp_path / "m.onnx")
    plan = compile_parts(model, "rk3588", CompileOptions(dtype="fp16"))
    assert not plan.parts
    assert all("set the option shape, such as x=" in reason for reason in plan.left.values())
    fixed = CompileOptions(dtype="fp16", shapes={"x": (1, 3, 16, 16)})
    assert [len(part.nodes) for part in compile_parts(model, "rk3588", fixed).parts] == [8]


def test_a_plan_leaves_values_without_elements(tmp_path: Path) -> None:
    """Such as the keys of earlier runs in the first one."""
    names = ["a", "b", "c", "y"]
    nodes = [helper.make_node("Concat", ["past", "x"], ["a"], axis=1)]
    nodes += [helper.make_node("Relu", [name], [result]) for name, result in itertools.pairwise(names)]
    sizes = {"past": 0, "x": 3, **dict.fromkeys(names, 3)}
    infos = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size, 4]) for name, size in sizes.items()}
    graph = helper.make_graph(
        nodes, "g", [infos["past"], infos["x"]], [infos["y"]], value_info=[infos[name] for name in names[:-1]]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    plan = compile_parts(saved(model, tmp_path / "m.onnx"), "rk3588", CompileOptions(dtype="fp16"))
    assert plan.reasons() == ["node 0: past has no elements"]
    assert [part.nodes for part in plan.parts] == [(1, 2, 3)]


def test_a_plan_for_int8_needs_data_or_scales(tmp_path: Path) -> None:
    model = saved(convolutions("BiasGelu"), tmp_path / "m.onnx")
    with pytest.raises(CalibrationError, match="needs calibration data"):
        compile_parts(model, "rk3588", CompileOptions(dtype="w8a8"))
    samples = np.random.default_rng(5).integers(0, 255, (3, 3, 16, 16)).astype(np.float32)
    np.save(tmp_path / "samples.npy", samples)
    assert (default_dtype(model, None), default_dtype(model, "samples")) == ("fp16", "w8a8")
    options = CompileOptions(dtype="w8a8", dataset=tmp_path / "samples.npy", std=255.0)
    plan = compile_parts(model, "rk3588", options)
    assert [len(part.nodes) for part in plan.parts] == [4, 4]
    for part in plan.parts:  # the tensors are ONNX's own: mean and std are not in the models
        assert part.model.dtype == "w8a8"
        assert not part.model.preprocess


def test_small_parts_stay_on_the_cpu(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Gelu", ["a"], ["b"], domain="com.microsoft"),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in ("x", "y")]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in ("a", "b")]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], value_info=info)
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft", 1)]
    model = saved(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    plan = compile_parts(model, "rk3588", CompileOptions(dtype="fp16"))
    assert not plan.parts
    assert plan.reasons()[0].startswith("nodes 0, 2: a part of so few nodes")


@pytest.mark.full  # child processes
def test_a_model_is_compiled_when_its_session_is_created(provider: Provider, tmp_path: Path) -> None:
    """All of it on the NPU, equal to our session; a second session finds it in the cache."""
    model = saved(convolutions(), tmp_path / "m.onnx")
    session, cpu = sessions(provider, model, tmp_path / "cache")
    (got,), (expected,) = session.run(None, feed()), cpu.run(None, feed())
    np.testing.assert_allclose(got, expected, atol=2e-3)
    with anynpu.InferenceSession(str(anynpu.compile(model, dtype="fp16").save(tmp_path / "own.rknn"))) as own:
        np.testing.assert_array_equal(got, own.run(None, feed())[0])
    (entry,) = (tmp_path / "cache").iterdir()
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
    assert {path.name for path in entry.iterdir()} == {"log", "plan", "part0.anynpu"}
    again, _ = sessions(provider, model, tmp_path / "cache", compiler="/absent/anynpu")
    np.testing.assert_array_equal(again.run(None, feed())[0], got)
    (entry / "plan").write_text("nodes 7\nend\n")
    with pytest.raises(Exception, match="is damaged"):
        sessions(provider, model, tmp_path / "cache")


@pytest.mark.full  # child processes
def test_a_foreign_operator_splits_the_model(provider: Provider, tmp_path: Path) -> None:
    model = saved(convolutions("BiasGelu"), tmp_path / "m.onnx")
    script = tmp_path / "script.py"
    script.write_text(
        """
import sys
import numpy as np
import onnxruntime as ort
provider, model, cache = sys.argv[1:]
ort.register_execution_provider_library("anynpu", provider)
settings = ort.SessionOptions()
settings.log_severity_level = 1
devices = [device for device in ort.get_ep_devices() if device.ep_name == "AnynpuExecutionProvider"]
settings.add_provider_for_devices(devices, {"cache_dir": cache})
session = ort.InferenceSession(model, settings)
x = np.random.default_rng(3).random((1, 3, 16, 16), np.float32)
difference = session.run(None, {"x": x})[0] - ort.InferenceSession(model).run(None, {"x": x})[0]
print(float(np.abs(difference).max()))
"""
    )
    from anynpu.dropin.environment import execution_provider

    output, log = run_python(script, execution_provider(), model, tmp_path / "cache", with_errors=True)
    assert float(output) < 2e-3
    assert "claimed 8 of 9 nodes in 2 parts" in log
    assert "left to other providers: node 4: com.microsoft.BiasGelu is not a standard operator" in log


@pytest.mark.full  # child processes
def test_a_model_takes_each_of_several_shapes(provider: Provider, tmp_path: Path) -> None:
    model = saved(convolutions(side="side"), tmp_path / "m.onnx")
    session, cpu = sessions(provider, model, tmp_path / "cache", shape="x=1,3,16,16;x=1,3,24,24")
    for side in (16, 24, 16):
        np.testing.assert_allclose(session.run(None, feed(side))[0], cpu.run(None, feed(side))[0], atol=2e-3)
    with pytest.raises(Exception, match="add them to the option shape"):
        session.run(None, feed(32))


@pytest.mark.full  # child processes
@pytest.mark.parametrize("embed", ["0", "1"])
def test_context_models_are_written(provider: Provider, tmp_path: Path, embed: str) -> None:
    model = saved(convolutions("BiasGelu"), tmp_path / "m.onnx")
    session, _ = sessions(provider, model, tmp_path / "cache")
    expected = session.run(None, feed())[0]
    settings = provider.ort.SessionOptions()
    target = tmp_path / "out" / "m_ctx.onnx"
    target.parent.mkdir()
    for key, value in (("enable", "1"), ("file_path", str(target)), ("embed_mode", embed)):
        settings.add_session_config_entry(f"ep.context_{key}", value)
    settings.add_provider_for_devices([provider.device], {"cache_dir": str(tmp_path / "cache")})
    provider.ort.InferenceSession(str(model), settings)
    names = {"m_ctx.onnx"} | ({"m_ctx_part0.rknn", "m_ctx_part1.rknn"} if embed == "0" else set())
    assert {path.name for path in target.parent.iterdir()} == names
    proto = onnx.load(target)
    assert [node.op_type for node in proto.graph.node].count("EPContext") == 2
    texts = {entry.name: entry.s for entry in proto.graph.node[0].attribute}
    assert texts["source"] == b"AnynpuExecutionProvider"
    assert texts["hardware_architecture"] == b"rk3588"
    assert texts["ep_sdk_version"] == anynpu.__version__.encode()
    settings = provider.ort.SessionOptions()
    settings.add_provider_for_devices([provider.device], {"compiler": "/absent/anynpu"})
    reloaded = provider.ort.InferenceSession(str(target), settings)
    np.testing.assert_array_equal(reloaded.run(None, feed())[0], expected)


@pytest.mark.full  # child processes
def test_the_model_compiler_writes_context_models(provider: Provider, tmp_path: Path) -> None:
    model = saved(convolutions(), tmp_path / "m.onnx")
    settings = provider.ort.SessionOptions()
    settings.add_provider_for_devices([provider.device], {"cache_dir": str(tmp_path / "cache")})
    target = tmp_path / "m_ctx.onnx"
    provider.ort.ModelCompiler(settings, str(model), embed_compiled_data_into_model=True).compile_to_file(str(target))
    (node,) = onnx.load(target).graph.node
    assert node.op_type == "EPContext"
    cpu = provider.ort.InferenceSession(str(model)).run(None, feed())[0]
    np.testing.assert_allclose(provider.session(target).run(None, feed())[0], cpu, atol=2e-3)


@pytest.mark.full  # child processes
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compiler": "/absent/anynpu"}, "compiler '/absent/anynpu' cannot be started"),
        ({"compiler": "/bin/false"}, r"the compiler failed \(exit status 1\)"),
        ({"compiler": "/bin/true"}, "is damaged"),
        ({"target": "rk9"}, "there is no chip 'rk9'"),
        ({"dtype": "w8a8"}, "needs calibration data"),
        ({"device": "npu"}, "anynpu build"),
        ({"shape": "x"}, "is not a shape"),
    ],
)
def test_what_cannot_be_compiled_is_an_error(provider: Provider, tmp_path: Path, options: dict[str, str], message: str) -> None:
    """Never a run on the CPU without a word."""
    model = saved(convolutions(), tmp_path / "m.onnx")
    with pytest.raises(Exception, match=message) as raised:
        sessions(provider, model, tmp_path / "cache", **options)
    assert not isinstance(raised.value, ValueError | RuntimeError)
    if options.get("compiler") != "/bin/true":
        assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").iterdir())


def test_a_compiler_that_hangs_is_ended(provider: Provider, tmp_path: Path) -> None:
    """With its children, which hold its output open."""
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\nsleep 1000 & sleep 1000\n")
    compiler.chmod(0o700)
    model = saved(convolutions(), tmp_path / "m.onnx")
    with pytest.raises(Exception, match="compiling took longer than 1 s"):
        sessions(provider, model, tmp_path / "cache", compiler=str(compiler), compile_timeout="1")
    assert not list((tmp_path / "cache").iterdir())


def test_a_cache_that_others_can_write_to_is_not_used(provider: Provider, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    os.chmod(cache, 0o777)
    with pytest.raises(Exception, match="others can write to the cache folder"):
        sessions(provider, saved(convolutions(), tmp_path / "m.onnx"), cache)


@pytest.mark.full  # a real model
def test_text_detection_is_claimed_and_close_to_the_cpu(provider: Provider, tmp_path: Path) -> None:
    model = find_real_models().detection
    session, cpu = sessions(provider, model, tmp_path / "cache", shape="x=1,3,320,320")
    page = np.full((320, 320), 255, np.uint8)
    import cv2

    for line in range(6):
        cv2.putText(page, f"line {line} of the page", (10, 40 + 45 * line), cv2.FONT_HERSHEY_SIMPLEX, 0.8, 0, 2)
    image = np.repeat(((page.astype(np.float32) / 255 - 0.5) / 0.5)[None, None], 3, axis=1)
    (got,), (expected,) = session.run(None, {"x": image}), cpu.run(None, {"x": image})
    cosine = float((got * expected).sum() / np.linalg.norm(got) / np.linalg.norm(expected))
    assert cosine >= 0.9998
    (plan,) = (tmp_path / "cache").glob("*/plan")
    lines = plan.read_text(encoding="utf-8").splitlines()
    nodes = int(lines[0].removeprefix("nodes "))
    claimed = sum(len(line.split()) - 1 for line in lines if line.startswith("members "))
    assert claimed >= 0.9 * nodes
