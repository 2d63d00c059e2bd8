"""Ways in besides ONNX and TFLite: PyTorch and Keras through exporters that tests stand in for, and formats that are rejected."""

from __future__ import annotations

import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import anynpu
from anynpu.errors import CompileError, MissingDependencyError


def network(name: str = "x") -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(entry, TensorProto.FLOAT, [1, 4]) for entry in (name, "y")]
    graph = helper.make_graph([helper.make_node("Relu", [name], ["y"])], "net", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Module:
    """What tests take for ``torch.nn.Module``."""

    training = True

    def forward(self, x: Any) -> Any:
        return x

    def eval(self) -> None:
        self.training = False

    def train(self) -> None:
        self.training = True


class ScriptModule(Module):
    """What tests take for a module of TorchScript."""


class ExportedProgram:
    """What tests take for a program of torch.export."""


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package that stands in for torch and notes how its exporter is called."""
    package: Any = types.ModuleType("torch")
    package.calls = []
    package.broken = False

    def export(model: Any, args: Any, file: Any = None, **options: Any) -> Any:
        assert not getattr(model, "training", False), "a module is exported as it is used"
        package.calls.append((model, args, options))
        if options["dynamo"]:
            if package.broken:
                raise RuntimeError("torch.export failed\nmore")
            return types.SimpleNamespace(model_proto=network())
        file.write(network().SerializeToString())
        return None

    package.nn = types.SimpleNamespace(Module=Module)
    package.onnx = types.SimpleNamespace(export=export)
    package.jit = types.SimpleNamespace(ScriptModule=ScriptModule, load=lambda path, map_location: ScriptModule())
    package.zeros = lambda shape: np.zeros(shape, np.float32)
    package.from_numpy = lambda value: ("tensor", value.shape)
    exporter: Any = types.ModuleType("torch.export")
    exporter.ExportedProgram = ExportedProgram
    exporter.load = lambda path: ExportedProgram()
    monkeypatch.setitem(sys.modules, "torch", package)
    monkeypatch.setitem(sys.modules, "torch.export", exporter)
    return package


def test_a_module_of_pytorch_is_exported_and_compiled(torch: Any) -> None:
    module = Module()
    model = anynpu.compile(module, "rk3588", dtype="fp16", example_inputs=np.zeros((1, 4), np.float32))
    assert [spec.name for spec in model.inputs] == ["x"]
    (call,) = torch.calls
    assert call[:2] == (module, (("tensor", (1, 4)),))
    assert call[2]["dynamo"] is True
    assert module.training, "the caller's module stays as it was"


def test_inputs_may_be_given_by_name(torch: Any) -> None:
    anynpu.check(Module(), "rk3588", dtype="fp16", example_inputs={"x": np.zeros((1, 4), np.float32)})
    assert torch.calls[0][2]["kwargs"] == {"x": ("tensor", (1, 4))}


def test_the_older_exporter_takes_over(torch: Any) -> None:
    torch.broken = True
    anynpu.compile(Module(), "rk3588", dtype="fp16", example_inputs=(np.zeros((1, 4), np.float32),))
    assert [call[2]["dynamo"] for call in torch.calls] == [True, False]
    assert torch.calls[1][2]["input_names"] == ["x"]


def test_what_no_exporter_can_do_is_one_error(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **options: Any) -> None:
        raise RuntimeError(f"no {'new' if options['dynamo'] else 'old'} way\ndetails")

    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(CompileError, match=r"export: no new way; trace: no old way"):
        anynpu.compile(Module(), "rk3588", dtype="fp16", example_inputs=np.zeros((1, 4), np.float32))


def test_text_of_torch_is_escaped(torch: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("\x1b[96mstep 2/3\x1b[0m \u202eof a model")

    monkeypatch.setattr(torch.onnx, "export", fail)
    with caplog.at_level("INFO", "anynpu.compiler"), pytest.raises(CompileError, match="step 2/3") as caught:
        anynpu.compile(Module(), "rk3588", dtype="fp16", example_inputs=np.zeros((1, 4), np.float32))
    for text in (str(caught.value).partition("\n")[0], *(record.message for record in caplog.records)):
        assert text.isprintable()


def test_a_module_needs_inputs_or_shapes(torch: Any) -> None:
    with pytest.raises(CompileError, match="shapes of a PyTorch model") as caught:
        anynpu.compile(Module(), "rk3588", dtype="fp16")
    assert "example_inputs" in caught.value.hint
    anynpu.compile(Module(), "rk3588", dtype="fp16", shapes={"x": (1, 4)})
    assert torch.calls[0][1][0].shape == (1, 4)
    assert torch.calls[0][2]["input_names"] == ["x"]


def archive(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            file.writestr(name, "{}")
    return path


def test_example_inputs_beside_an_onnx_model_are_refused() -> None:
    with pytest.raises(CompileError, match="example_inputs are for models of PyTorch") as caught:
        anynpu.compile(network(), "rk3588", dtype="fp16", example_inputs=np.zeros((1, 4), np.float32))
    assert "shapes=" in caught.value.hint


def test_an_exported_program_brings_its_shapes(torch: Any, tmp_path: Path) -> None:
    anynpu.compile(archive(tmp_path / "net.pt2", "net/models/model.json"), "rk3588", dtype="fp16", trust=True)
    assert isinstance(torch.calls[0][0], ExportedProgram)


def test_torchscript_goes_to_the_older_exporter_with_shapes(torch: Any, tmp_path: Path) -> None:
    path = archive(tmp_path / "net.pt", "net/code/__torch__.py", "net/data.pkl")
    anynpu.compile(path, "rk3588", dtype="fp16", shapes={"x": (1, 4)}, trust=True)
    assert [call[2]["dynamo"] for call in torch.calls] == [False]


@pytest.mark.parametrize("content", [("net/data.pkl", "net/data/0"), None])
def test_weights_alone_are_refused(torch: Any, tmp_path: Path, content: tuple[str, ...] | None) -> None:
    path = tmp_path / "best.pt"
    archive(path, *content) if content else path.write_bytes(b"\x80\x02")
    with pytest.raises(CompileError, match="weights or a pickled object") as caught:
        anynpu.compile(path, "rk3588", dtype="fp16")
    assert "yolo export" in caught.value.hint
    assert torch.calls == []


def test_torch_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match="needs the package 'torch'") as caught:
        anynpu.compile(archive(tmp_path / "net.pt2", "net/models/model.json"), "rk3588", dtype="fp16")
    assert "torch.onnx.export" in caught.value.hint


def test_keras_goes_through_its_converter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def from_keras(model: Any, opset: int, inputs_as_nchw: list[str]) -> tuple[onnx.ModelProto, None]:
        asked.append((model, inputs_as_nchw))
        return network("image"), None

    picture = types.SimpleNamespace(name="image", shape=(None, 8, 8, 3))
    loaded = types.SimpleNamespace(inputs=[picture])
    keras = types.SimpleNamespace(models=types.SimpleNamespace(load_model=lambda path, compile: loaded))
    for name, parts in {
        "tensorflow": {"keras": keras},
        "tf2onnx": {"convert": types.SimpleNamespace(from_keras=from_keras)},
        "tf2onnx.convert": {},
    }.items():
        module = types.ModuleType(name)
        vars(module).update(parts)
        monkeypatch.setitem(sys.modules, name, module)
    path = archive(tmp_path / "net.keras", "config.json")
    assert [spec.name for spec in anynpu.compile(path, "rk3588", dtype="fp16", trust=True).inputs] == ["image"]
    assert asked == [(loaded, ["image"])]


def test_keras_without_its_converter_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorflow", "tf2onnx"):
        monkeypatch.setitem(sys.modules, name, None)
    path = tmp_path / "net.h5"
    path.write_bytes(b"x")
    with pytest.raises(MissingDependencyError, match="tf2onnx") as caught:
        anynpu.compile(path, "rk3588", dtype="fp16")
    assert f"python -m tf2onnx.convert --keras {path}" in caught.value.hint
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(b"x")
    with pytest.raises(MissingDependencyError) as caught:
        anynpu.compile(folder, "rk3588", dtype="fp16")
    assert f"--saved-model {folder}" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("net.pb", "tf2onnx.convert --graphdef net.pb"),
        ("net.caffemodel", "--caffemodel net.caffemodel"),
        ("net.pdmodel", "paddle2onnx --model_dir . --model_filename net.pdmodel"),
        ("net.safetensors", "optimum-cli export onnx"),
        ("net.weights", "torch.onnx.export"),
        ("net.engine", "ONNX model that it was built from"),
    ],
)
def test_a_format_that_is_not_read_names_what_to_run(tmp_path: Path, name: str, command: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"something")
    with pytest.raises(CompileError, match="not read here") as caught:
        anynpu.compile(path, "rk3588", dtype="fp16")
    assert command in caught.value.hint


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("net.hef", "compiled for a Hailo NPU"),
        ("net.dlc", "compiled for Qualcomm's SNPE"),
        ("net.ort", "onnxruntime's own format"),
    ],
)
def test_compiled_files_are_named(tmp_path: Path, name: str, what: str) -> None:
    (tmp_path / name).write_bytes(b"something")
    with pytest.raises(CompileError, match=what) as caught:
        anynpu.compile(tmp_path / name, dtype="fp16")
    assert "take the ONNX model that it was made from" in caught.value.hint
