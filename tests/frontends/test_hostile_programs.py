"""Files of PyTorch, Keras and TensorFlow that would run code or use files when they are read: rejected before their libraries see them."""

from __future__ import annotations

import copy
import io
import json
import pickle
import sys
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest

import anynpu
from anynpu.compiler.importers import program_files
from anynpu.compiler.importers.program_files import (
    check_graphs,
    check_keras_file,
    check_saved_model,
    written_again_exported,
    written_again_script,
)
from anynpu.errors import CompileError

SYSTEM = b"\x80\x02cposix\nsystem\nX\x04\x00\x00\x00true\x85R."
HARMLESS = b"\x80\x02K\x01."
TREE = (
    '[1, {"type": "builtins.tuple", "context": "null", "children_spec": [{"type": null, "context": null, "children_spec": []}]}]'
)


def meta(*shape: int) -> dict[str, Any]:
    strides = [1 if place else shape[-1] for place in range(len(shape))] if len(shape) == 2 else [1]
    return {
        "dtype": 7,
        "sizes": [{"as_int": size} for size in shape],
        "requires_grad": False,
        "device": {"type": "cuda", "index": 0},
        "strides": [{"as_int": stride} for stride in strides],
        "storage_offset": {"as_int": 0},
        "layout": 7,
    }


def tensor(name: str) -> dict[str, Any]:
    return {"as_tensor": {"name": name}}


def program() -> dict[str, Any]:
    """What torch.export writes for ``x + weight``."""
    node = {
        "target": "torch.ops.aten.add.Tensor",
        "inputs": [{"name": "self", "arg": tensor("x"), "kind": 1}, {"name": "other", "arg": tensor("p_w"), "kind": 1}],
        "outputs": [tensor("add")],
        "metadata": {"stack_trace": 'File "net.py"', "torch_fn": "add;builtin_function_or_method.add"},
        "is_hop_single_tensor_return": None,
        "name": "add",
    }
    size = {"as_expr": {"expr_str": "2*CeilToInt(IntTrueDiv(2*s1 - 4, 1))", "hint": {"as_int": 4}}}
    graph = {
        "inputs": [tensor("p_w"), tensor("x")],
        "outputs": [tensor("add")],
        "nodes": [node],
        "tensor_values": {"p_w": meta(2, 3), "x": meta(2, 3), "add": meta(2, 3)},
        "sym_int_values": {"s1": size},
        "sym_bool_values": {},
        "is_single_tensor_return": False,
        "custom_obj_values": {},
        "sym_float_values": {},
    }
    signature = {
        "input_specs": [{"parameter": {"arg": {"name": "p_w"}, "parameter_name": "w"}}, {"user_input": {"arg": tensor("x")}}],
        "output_specs": [{"user_output": {"arg": tensor("add")}}],
    }
    calls = [
        {"fqn": "", "signature": {"inputs": [], "outputs": [], "in_spec": TREE, "out_spec": TREE, "forward_arg_names": ["x"]}},
        {"fqn": "layer.0", "signature": None},
    ]
    return {
        "graph_module": {
            "graph": graph,
            "signature": signature,
            "module_call_graph": calls,
            "metadata": {},
            "treespec_namedtuple_fields": {},
        },
        "opset_version": {"aten": 10},
        "range_constraints": {"s1": {"min_val": 2, "max_val": None}},
        "schema_version": {"major": 8, "minor": 20},
        "verifiers": ["TRAINING"],
        "torch_version": "2.15.0+cpu",
        "guards_code": ["L['x'].size()[0] >= 2"],
    }


def payload(**changes: Any) -> dict[str, Any]:
    return {"path_name": "weight_0", "is_param": True, "use_pickle": False, "tensor_meta": meta(2, 3), **changes}


def archive(path: Path, parts: dict[str, bytes | str]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in parts.items():
            file.writestr(name, content)
    return path


def parts_of(document: Any = None, weights: Any = None, **more: bytes) -> dict[str, bytes | str]:
    parts: dict[str, bytes | str] = {
        "models/model.json": json.dumps(program() if document is None else document),
        "data/weights/model_weights_config.json": json.dumps({"config": {"w": payload()} if weights is None else weights}),
        "data/weights/weight_0": bytes(24),
        "data/constants/model_constants_config.json": '{"config": {}}',
        "data/sample_inputs/model.pt": SYSTEM,
        "archive_format": "pt2",
        "archive_version": "0",
        "byteorder": "little",
        ".data/version": "6",
        **more,
    }
    return {f"net/{name}": content for name, content in parts.items()}


def exported(path: Path, document: Any = None, weights: Any = None, **more: bytes) -> Path:
    return archive(path / "net.pt2", parts_of(document, weights, **more))


def contents(file: BinaryIO) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as read:
        return {name.partition("/")[2]: read.read(name) for name in read.namelist()}


def test_a_program_is_written_again_without_what_is_not_understood(tmp_path: Path) -> None:
    found = contents(written_again_exported(exported(tmp_path, **{"extra/notes.txt": b"mine"})))
    assert found["data/sample_inputs/model.pt"] == b"", "examples are a pickle"
    assert "extra/notes.txt" not in found
    assert found["data/weights/weight_0"] == bytes(24)
    document = json.loads(found["models/model.json"])
    assert document["graph_module"]["graph"]["nodes"][0]["metadata"] == {}
    assert document["guards_code"] == [], "conditions are Python code"
    assert [entry["fqn"] for entry in document["graph_module"]["module_call_graph"]] == [""]
    assert document["graph_module"]["graph"]["tensor_values"]["x"]["device"] == {"type": "cpu", "index": None}


def test_weights_that_share_their_bytes_share_them_in_the_copy(tmp_path: Path) -> None:
    found = contents(written_again_exported(exported(tmp_path, weights={"w": payload(), "v": payload()})))
    assert sorted(name for name in found if "weight_" in name) == ["data/weights/weight_0"]
    table = json.loads(found["data/weights/model_weights_config.json"])["config"]
    assert {entry["path_name"] for entry in table.values()} == {"weight_0"}


def refused(path: Path, match: str) -> None:
    with pytest.raises(CompileError, match=match) as caught:
        written_again_exported(path)
    assert "--trust" in caught.value.hint


def test_a_weight_in_a_pickle(tmp_path: Path) -> None:
    """A file in torch's legacy format is several pickles; the last of them was never read."""
    legacy = HARMLESS * 3 + SYSTEM
    refused(exported(tmp_path, weights={"w": payload(use_pickle=True)}, **{"data/weights/weight_0": legacy}), "in a pickle")


def test_a_constant_that_is_an_opaque_object(tmp_path: Path) -> None:
    constant = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": False, "tensor_meta": None}
    table = {"config": {"c": constant}}
    more = {"data/constants/model_constants_config.json": json.dumps(table).encode(), "data/constants/opaque_obj_0": SYSTEM}
    refused(exported(tmp_path, **more), "in place of an object")
    constant["tensor_meta"] = meta(2, 3)
    more["data/constants/model_constants_config.json"] = json.dumps(table).encode()
    more["data/constants/opaque_obj_0"] = SYSTEM.ljust(24, b".")
    found = contents(written_again_exported(exported(tmp_path, **more)))
    assert json.loads(found["data/constants/model_constants_config.json"])["config"]["c"]["path_name"] == "tensor_0"


def test_an_archive_with_two_directories(tmp_path: Path) -> None:
    """Python's reader takes the directory before the last record, torch's the one at the stated place."""
    sound, evil = io.BytesIO(), io.BytesIO()
    for file, document in ((sound, program()), (evil, {**program(), "schema_version": None})):
        with zipfile.ZipFile(file, "w") as written:
            for name, content in parts_of(document).items():
                written.writestr(name, content)
    path = tmp_path / "net.pt2"
    path.write_bytes(evil.getvalue()[:-22] + sound.getvalue())
    refused(path, "hide")
    for data in (sound.getvalue() + b"behind", b"before" + sound.getvalue(), sound.getvalue()[:-2] + b"\x01\x00x"):
        path.write_bytes(data)
        refused(path, "hide")
    path.write_bytes(sound.getvalue()[: len(sound.getvalue()) // 2])
    with pytest.raises(CompileError, match="damaged"):
        written_again_exported(path)


def test_a_directory_of_64_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 2)  # or it takes 65,536 parts
    path = exported(tmp_path)
    assert b"PK\x06\x06" in path.read_bytes()
    written_again_exported(path)
    data = bytearray(path.read_bytes())
    data[-98 + 48] ^= 1  # where the directory begins
    path.write_bytes(data)
    with pytest.raises(CompileError, match=r"hide|damaged"):
        written_again_exported(path)


def test_a_module_that_is_named_in_json_inside_json(tmp_path: Path) -> None:
    """The text is decoded twice, so an escape hides the name from a search in it."""
    factory = '{"default\\u005ffactory_module": "this", "default_factory_name": "s", "dict_context": "[]"}'
    tree = f'[1, {{"type": "collections.defaultdict", "context": {json.dumps(factory)}, "children_spec": []}}]'
    enum = '[1, {"type": "builtins.dict", "context": "[{\\"__enum__\\": true, \\"fqn\\": \\"this:s\\"}]", "children_spec": []}]'
    for spec in (tree, enum):
        document = program()
        document["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = spec
        refused(exported(tmp_path, document), "nests its arguments")


def test_bytes_that_a_tensor_does_not_have(tmp_path: Path) -> None:
    refused(exported(tmp_path, weights={"w": payload(tensor_meta=meta(1 << 30, 3))}), "elements in 24 bytes")
    refused(exported(tmp_path, **{"data/weights/weight_0": b""}), "elements in 0 bytes")
    repeated = meta(1 << 40)
    repeated["strides"] = [{"as_int": 0}]
    refused(exported(tmp_path, weights={"w": payload(tensor_meta=repeated)}), "1099511627776 elements")
    refused(exported(tmp_path, weights={"w": payload(tensor_meta={**meta(2, 3), "sizes": [{"as_int": -1}]})}), "fixed shape")


PARTS: dict[str, tuple[str, bytes]] = {
    "an older form": ("serialized_state_dict.pt", SYSTEM),
    "weights of an older form": ("data/weights/model.pt", SYSTEM),
    "a second model": ("models/other.json", b"{}"),
    "native code": ("data/aotinductor/model/model.so", b"\x7fELF"),
    "something else": ("evil.pkl", SYSTEM),
}


@pytest.mark.parametrize("which", PARTS)
def test_parts_that_are_not_known(which: str, tmp_path: Path) -> None:
    name, content = PARTS[which]
    refused(exported(tmp_path, **{name: content}), "has the part")


def node_calls(target: str) -> Callable[[Any], None]:
    return lambda document: document["graph_module"]["graph"]["nodes"][0].update(target=target)


def size_is(text: Any) -> Callable[[Any], None]:
    return lambda document: document["graph_module"]["graph"]["sym_int_values"].update(s1={"as_expr": {"expr_str": text}})


CHANGES: dict[str, Callable[[Any], None]] = {
    "a function of a module": node_calls("torch.serialization.os.system"),
    "a reader of files": node_calls("torch.ops.aten.from_file.default"),
    "a writer of files": node_calls("torch.ops.aten.save.default"),
    "a library": node_calls("torch.ops.load_library"),
    "a method by name": node_calls("_operator.methodcaller"),
    "an extension": node_calls("#extension"),
    "an unknown namespace": node_calls("torch.ops.image.write_file.default"),
    "import": size_is("__import__('os').system('true')"),
    "eval": size_is("eval('1')"),
    "a text": size_is("Symbol('a b')"),
    "lambda": size_is("(lambda: 1)()"),
    "an attribute": size_is("s0.__class__"),
    "a name": size_is("quit"),
    "no text": size_is(5),
    "a deep expression": size_is("(" * 9_000),
    "a large number": size_is("9" * 100),
    "a custom object": lambda document: document["graph_module"]["graph"]["outputs"].append(
        {"as_custom_obj": {"name": "a", "class_fqn": "b"}}
    ),
    "an operator as argument": lambda document: document["graph_module"]["graph"]["outputs"].append(
        {"as_operator": "torch.serialization.os.system"}
    ),
    "a name that is code": lambda document: document["graph_module"]["graph"]["nodes"][0].update(name="a'; x"),
    "the name of a parameter that is code": lambda document: document["graph_module"]["signature"]["input_specs"][0][
        "parameter"
    ].update(parameter_name='a"]'),
    "an unknown field": lambda document: document.update(more=1),
    "a field that is missing": lambda document: document.pop("graph_module"),
    "a verifier": lambda document: document["verifiers"].append("mine"),
    "a tuple class": lambda document: document["graph_module"]["treespec_namedtuple_fields"].update(a={"field_names": ["b"]}),
}


@pytest.mark.parametrize("which", CHANGES)
def test_descriptions_that_are_not_those_of_a_network(which: str, tmp_path: Path) -> None:
    document = copy.deepcopy(program())
    CHANGES[which](document)
    refused(exported(tmp_path, document), r"calls|expression|has |lacks|nests")


def test_graphs_that_are_nested_without_end(tmp_path: Path) -> None:
    document = json.dumps(program())
    graph = json.dumps(program()["graph_module"]["graph"])
    deep = graph
    for _ in range(300):
        deep = graph.replace(
            '"outputs": [{"as_tensor": {"name": "add"}}]', f'"outputs": [{{"as_graph": {{"name": "g", "graph": {deep}}}}}]', 1
        )
    path = archive(tmp_path / "net.pt2", {**parts_of(), "net/models/model.json": document.replace(graph, deep, 1)})
    refused(path, "too deep|in place of JSON")


@pytest.mark.parametrize("kind", ["exported", "script", "keras"])
def test_texts_that_unpack_to_far_more_than_the_file(kind: str, tmp_path: Path) -> None:
    """245 kB with 250 MB of brackets took more than 5.9 GB, since JSON takes 30 times its size."""
    large = b"[" * (9 << 20)
    parts, read = {
        "exported": ({**parts_of(), "net/models/model.json": large}, written_again_exported),
        "script": ({**SCRIPT, "net/code/more.py": large[: 5 << 20], "net/code/most.py": large[: 5 << 20]}, written_again_script),
        "keras": ({"config.json": large}, check_keras_file),
    }[kind]
    path = tmp_path / "net"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in parts.items():
            file.writestr(name, content, zipfile.ZIP_STORED if name.startswith("net/data/") else None)
    with pytest.raises(CompileError, match="texts of"):
        read(path)


def test_texts_of_a_sound_script_are_compressed(tmp_path: Path) -> None:
    code = SCRIPT["net/code/__torch__.py"] + b"".join(
        b"    x = torch.conv2d(x, CONSTANTS.c%d)\n" % index for index in range(200_000)
    )
    with zipfile.ZipFile(tmp_path / "net", "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in {**SCRIPT, "net/code/__torch__.py": code}.items():
            file.writestr(name, content, zipfile.ZIP_STORED if name.startswith("net/data/") else None)
    assert contents(written_again_script(tmp_path / "net"))["code/__torch__.py"] == code


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_archives_that_torch_does_not_write(method: int, tmp_path: Path) -> None:
    """The readers of these methods unpack a block whatever its size."""
    with zipfile.ZipFile(tmp_path / "net", "w", method) as file:
        for name, content in SCRIPT.items():
            file.writestr(name, content, zipfile.ZIP_STORED if name.startswith("net/data/") else None)
    with pytest.raises(CompileError, match="compressed"):
        written_again_script(tmp_path / "net")


SCRIPT = {
    "net/data.pkl": b"\x80\x02c__torch__\nNet\nq\x00)\x81}b.",
    "net/constants.pkl": b"\x80\x02).",
    "net/version": b"3",
    "net/code/__torch__.py": b"class Net(Module):\n  def forward(self, x: Tensor) -> Tensor:\n    return torch.relu(x)\n",
    "net/code/__torch__.py.debug_pkl": SYSTEM,
    "net/data/0": bytes(24),
}


def test_a_script_is_written_again_without_notes_about_its_source(tmp_path: Path) -> None:
    found = contents(written_again_script(archive(tmp_path / "net.pt", SCRIPT)))
    assert sorted(found) == ["code/__torch__.py", "constants.pkl", "data.pkl", "data/0", "version"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("net/code/__torch__.py", b"class Net(Module):\n  def __setstate__(self, x: Tensor) -> None:\n    pass\n"),
        ("net/code/__torch__.py", b"x : __torch__.torch.classes.mine.Thing\n"),
        ("net/data.pkl", SYSTEM),
        ("net/data.pkl", HARMLESS + SYSTEM),
        ("net/data.pkl", HARMLESS[:-1]),
        ("net/data.pkl", b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x930."),
        ("net/data.pkl", b"\x80\x02c__torch__.torch.classes.mine\nThing\n)\x81."),
        ("net/data.pkl", pickle.dumps(complex, 2)),
        ("net/extra.so", b"\x7fELF"),
        ("other/data.pkl", HARMLESS),
    ],
)
def test_scripts_that_run_code_while_they_are_read(name: str, content: bytes, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="only networks"):
        written_again_script(archive(tmp_path / "net.pt", {**SCRIPT, name: content}))


class Block:
    """A graph of TorchScript where it is looked at."""

    def __init__(self, *kinds: str | Block) -> None:
        self._kinds = kinds

    def nodes(self) -> list[Any]:
        return [
            types.SimpleNamespace(
                kind=lambda kind=kind: "prim::If" if isinstance(kind, Block) else kind,
                blocks=lambda kind=kind: [kind] if isinstance(kind, Block) else [],
                attributeNames=lambda: ["value"],
                kindOf=lambda name: "t",
            )
            for kind in self._kinds
        ]


def test_kinds_of_nodes(tmp_path: Path) -> None:
    sound = ("aten::conv2d", "aten::relu_", "prim::GetAttr", "prim::ListConstruct", "aten::__getitem__", "torchvision::nms")
    check_graphs(tmp_path, [Block(*sound, Block("aten::add"))], program_files.is_scripted)
    evil = (
        "aten::save",
        "aten::from_file",
        "prim::Print",
        "prim::PythonOp",
        "prim::CallMethod",
        "aten::_save",
        "image::write_file",
        "save",
    )
    for kind in evil:
        with pytest.raises(CompileError, match="calls"):
            check_graphs(tmp_path, [Block("aten::add", Block(Block(kind)))], program_files.is_scripted)


def test_no_listed_operator_uses_files() -> None:
    words = ("file", "save", "load", "print", "fork", "rpc", "python", "exec", "record")
    for table in (program_files.EXPORTED, program_files.SCRIPTED):
        for names in table.values():
            assert not [name for name in names if any(word in name for word in words)]


def test_torch_never_sees_a_file_that_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = exported(tmp_path, **{"evil.pkl": SYSTEM})
    with pytest.raises(CompileError, match=r"has the part 'evil\.pkl'") as caught:
        anynpu.compile(path, "rk3588", dtype="fp16")
    assert "--trust" in caught.value.hint
    script = archive(tmp_path / "net.pt", {**SCRIPT, "net/data.pkl": SYSTEM})
    with pytest.raises(CompileError, match="names 'posix system'"):
        anynpu.compile(script, "rk3588", dtype="fp16", shapes={"x": (1, 4)})
    assert not (tmp_path / "imported").exists()


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
    with pytest.raises(CompileError, match="only networks"):
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
