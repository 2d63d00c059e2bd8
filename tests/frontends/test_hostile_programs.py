"""Files of PyTorch, Keras and TensorFlow that would run code when they are read: refused before their libraries see them."""

from __future__ import annotations

import io
import json
import pickle
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest

import anynpu
from anynpu.errors import CompileError
from anynpu.frontends.programs import check_exported_program, check_keras_file, check_saved_model, check_script

TENSOR = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(ctorch\nFloatStorage\nK\x00ccollections\nOrderedDict\n)RtR."
"""A pickle as torch writes one for a tensor."""
SYSTEM = b"\x80\x02cposix\nsystem\nX\x04\x00\x00\x00true\x85R."
PROGRAM: dict[str, Any] = {
    "graph_module": {
        "graph": {
            "nodes": [{"target": "torch.ops.aten.add.Tensor"}, {"target": "_operator.getitem"}, {"target": "torch.sym_max"}],
            "sizes": [
                {"expr_str": "224*CeilToInt(IntTrueDiv(2*s1 - 4, 1))"},
                {"expr_str": "Mul(Integer(112), Symbol('s53', positive=True, integer=True))"},
            ],
        }
    },
    "guards_code": ["L['x'].size()[0] >= 2 and L['x'].stride()[1] != 0"],
}


def archive(path: Path, parts: dict[str, bytes | str]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in parts.items():
            file.writestr(name, content)
    return path


def saved(pickled: bytes, **parts: bytes) -> bytes:
    """What ``torch.save`` writes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as inner:
        inner.writestr("archive/data.pkl", pickled)
        for name, content in parts.items():
            inner.writestr(name, content)
    return file.getvalue()


def program(path: Path, document: Any = PROGRAM, **parts: bytes) -> Path:
    whole: dict[str, bytes | str] = {
        "net/models/model.json": json.dumps(document),
        "net/data/sample_inputs/model.pt": saved(TENSOR),
        "net/data/weights/weight_0": b"c\x81&\xbd\n\xff\n" * 8,  # begins like a pickle, by chance
        "net/archive_format": "pt2",
    }
    return archive(path, {**whole, **{f"net/{name}": content for name, content in parts.items()}})


def test_a_program_as_torch_writes_it(tmp_path: Path) -> None:
    check_exported_program(program(tmp_path / "net.pt2"))


class Evil:
    def __reduce__(self) -> Any:
        return eval, ("1",)


PARTS: dict[str, tuple[str, bytes]] = {
    "an example that is a call": ("data/sample_inputs/evil.pt", saved(SYSTEM)),
    "weights that are a call": ("data/weights/weight_1", SYSTEM),
    "weights in an archive": ("data/weights/weight_1", saved(SYSTEM)),
    "a pickle of the newest kind": ("data/constants/tensor_0", pickle.dumps(Evil(), 5)),
    "a name that is put together": ("data/weights/weight_1", b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x930."),
    "an older form of torch.save": ("serialized_state_dict.pt", SYSTEM),
    "a pickle that is damaged": ("data/sample_inputs/evil.pt", saved(b"\x80\x02(")),
    "a script in the place of an example": ("data/sample_inputs/evil.pt", saved(TENSOR, **{"archive/code/__torch__.py": b""})),
    "native code": ("data/aotinductor/model/model.so", b"\x7fELF"),
}


@pytest.mark.parametrize("which", PARTS)
def test_parts_that_would_run(which: str, tmp_path: Path) -> None:
    name, content = PARTS[which]
    with pytest.raises(CompileError, match="could run code"):
        check_exported_program(program(tmp_path / "net.pt2", **{name: content}))


@pytest.mark.parametrize(
    "document",
    [
        {"target": "torch.serialization.os.system"},
        {"target": "torch.ops.aten.from_file.default"},
        {"target": "torch.ops.load_library"},
        {"target": "_operator.methodcaller"},
        {"target": "#extension"},
        {"expr_str": "__import__('os').system('true')"},
        {"expr_str": "eval('1')"},
        {"expr_str": "Symbol('a b')"},
        {"expr_str": "(lambda: 1)()"},
        {"expr_str": "s0.__class__"},
        {"expr_str": 5},
        {"expr_str": "(" * 100_000},
        {"guards_code": ["L['x'].tofile()"]},
        {"guards_code": ["exec('1')"]},
        {"in_spec": '[1, {"default_factory_module": "this"}]'},
    ],
)
def test_calls_and_expressions_that_are_none_of_a_network(document: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="could run code"):
        check_exported_program(program(tmp_path / "net.pt2", {"nodes": [{}, document]}))


def test_an_archive_that_hides_parts(tmp_path: Path) -> None:
    path = program(tmp_path / "net.pt2")
    whole = path.read_bytes()
    for data in (whole + b"behind", b"before" + whole):
        path.write_bytes(data)
        with pytest.raises(CompileError, match="hide"):
            check_exported_program(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("net/models/model.json", "{}")
        with pytest.warns(UserWarning, match="Duplicate"):
            file.writestr("net/models/model.json", "{}")
    with pytest.raises(CompileError, match="hide"):
        check_exported_program(path)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CompileError, match="damaged"):
        check_exported_program(path)


def test_torch_never_sees_a_file_that_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("it was loaded")

    package: Any = types.ModuleType("torch")
    package.jit = types.SimpleNamespace(load=load)
    exporter: Any = types.ModuleType("torch.export")
    exporter.load = load
    monkeypatch.setitem(sys.modules, "torch", package)
    monkeypatch.setitem(sys.modules, "torch.export", exporter)
    with pytest.raises(CompileError, match=r"names posix\.system") as caught:
        anynpu.compile(program(tmp_path / "net.pt2", evil=saved(SYSTEM)), "rk3588", dtype="fp16")
    assert "if you trust it" in caught.value.hint
    script = archive(tmp_path / "net.pt", {"net/code/__torch__.py": "torch.save(x, 'y')", "net/data.pkl": b""})
    with pytest.raises(CompileError, match="calls save"):
        anynpu.compile(script, "rk3588", dtype="fp16", shapes={"x": (1, 4)})


@pytest.mark.parametrize(
    ("code", "sound"),
    [
        ("y = torch.conv2d(x, w); z = ops.prim.NumToTensor(torch.size(x, 0)); ops.torchvision.nms(a, b, 0.5)", True),
        ("w : __torch__.torch.classes.quantized.LinearPackedParamsBase", True),
        ("torch.from_file('a', True, 8)", False),
        ("torch.save (x, 'a')", False),
        ("ops.image.write_file('a', x)", False),
        ("__torch__.torch.classes.mine.Thing", False),
    ],
)
def test_code_of_torchscript(code: str, sound: bool, tmp_path: Path) -> None:
    path = archive(tmp_path / "net.pt", {"net/code/__torch__/net.py": f"def forward(self, x):\n  {code}\n", "net/data.pkl": b""})
    if sound:
        check_script(path)
    else:
        with pytest.raises(CompileError, match="calls"):
            check_script(path)


KERAS = {
    "module": "keras",
    "class_name": "Functional",
    "config": {
        "layers": [
            {
                "module": "keras.layers",
                "class_name": "Conv2D",
                "config": {"kernel_initializer": {"module": "keras.initializers"}},
            },
            {"module": "keras.src.ops.numpy", "class_name": "Add", "args": [{"class_name": "__tuple__"}]},
            {"module": None, "class_name": "Dense", "registered_name": "mine>Dense"},
        ]
    },
    "compile_config": {"loss": {"module": "builtins", "class_name": "function", "config": "my_loss"}},
}


@pytest.mark.parametrize(
    "layer",
    [
        {"module": "keras.layers", "class_name": "Lambda"},
        {"class_name": "__lambda__"},
        {"module": "builtins", "class_name": "exec"},
        {"module": "os", "class_name": "System"},
        {"module": "keras.utils", "class_name": "get_file"},
        {"module": "keras.layers", "class_name": "TorchModuleWrapper"},
        {"module": ["keras"], "class_name": "Dense"},
        {"class_name": ["Lambda"], "module": "keras.models.os.path", "config": {"class_name": "function"}},
    ],
)
def test_layers_of_keras_that_are_code(layer: dict[str, Any], tmp_path: Path) -> None:
    path = archive(tmp_path / "net.keras", {"config.json": json.dumps(KERAS), "model.weights.h5": b""})
    check_keras_file(path)
    archive(path, {"config.json": json.dumps({**KERAS, "more": [layer]})})
    with pytest.raises(CompileError, match="could run code"):
        check_keras_file(path)


def test_an_older_file_of_keras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class File:
        attrs: dict[str, Any] = {}  # noqa: RUF012  each case has its own

        def __init__(self, path: Path, mode: str) -> None:
            assert mode == "r"

        def __enter__(self) -> File:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setitem(sys.modules, "h5py", types.SimpleNamespace(File=File))
    path = tmp_path / "net.h5"
    path.write_bytes(b"\x89HDF")
    with pytest.raises(CompileError, match="no model of Keras"):
        check_keras_file(path)
    File.attrs = {"model_config": json.dumps({"class_name": "Sequential"}).encode()}
    check_keras_file(path)
    File.attrs = {"model_config": json.dumps({"class_name": "Sequential", "config": [{"class_name": "Lambda"}]})}
    with pytest.raises(CompileError, match="Lambda"):
        check_keras_file(path)


def test_operators_of_tensorflow_that_are_code(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"\x12\x06Conv2D\x12\x09RestoreV2")
    check_saved_model(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(b"\x12\x06Conv2D\x12\x09WriteFile")
    with pytest.raises(CompileError, match="WriteFile"):
        check_saved_model(tmp_path)
