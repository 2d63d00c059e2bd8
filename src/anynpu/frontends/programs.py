"""Files of PyTorch, Keras and TensorFlow, looked through before their libraries read them: such a file is a program.

A ``.pt2`` file has pickles, expressions that torch evaluates and names of functions that it calls. A TorchScript file has code. A Keras
file names classes and functions. Each is held against a list of what an exporter writes for a network. What is not on the list is refused
before torch or Keras sees the file. Whoever trusts it loads it in a program of his own and passes the object.

This keeps a file from running code of its choice. It does not make those libraries safe: see the page about security.
"""

from __future__ import annotations

import ast
import importlib
import json
import pickle
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from ..errors import CompileError

__all__ = ["check_exported_program", "check_keras_file", "check_saved_model", "check_script"]

MAX_TEXT = 1 << 28
"""Bytes of one text or pickle in an archive."""

_TRUST = "if you trust it, load it in a program of your own and pass the object: anynpu.compile(model, ...)"

_REBUILD = (
    "_rebuild_parameter",
    "_rebuild_parameter_with_state",
    "_rebuild_tensor",
    "_rebuild_tensor_v2",
    "_rebuild_tensor_v3",
    "_rebuild_qtensor",
    "_rebuild_sparse_tensor",
    "_rebuild_meta_tensor_no_storage",
)
_PICKLED = frozenset(
    (
        *(f"torch._utils.{name}" for name in _REBUILD),
        *("collections.OrderedDict", "torch._tensor._rebuild_from_type_v2", "torch.nn.parameter.Parameter", "torch.Tensor"),
        *("torch.Size", "torch.device", "torch.serialization._get_layout", "torch.storage.UntypedStorage"),
    )
)
"""What pickles of tensors name: a subset of what torch takes with ``weights_only``."""
_PICKLED_KINDS = re.compile(r"torch\.(\w+Storage|u?int\d+|float\d+(_\w+)?|bfloat16|bool|complex\d+|qu?int\d+)")

_TARGET = re.compile(
    r"torch\.ops\.(aten|prim|prims|quantized|quantized_decomposed|torchvision|higher_order)\.(?!from_file|save)\w+(\.\w+)?"
    r"|torch\._?sym_\w+|math\.\w+"
    r"|_operator\.(add|sub|mul|floordiv|truediv|mod|pow|neg|pos|abs|eq|ne|lt|le|gt|ge|and_|or_|xor|not_|invert|lshift|rshift|getitem)"
)
_EXPRESSION = re.compile(
    r"OpaqueUnaryFn_\w+|"
    r"Abs|Add|And|BitwiseFn_bitwise_and|BitwiseFn_bitwise_or|BitwiseFn_bitwise_xor|CeilDiv|CeilToInt|CleanDiv|Eq|Equality|"
    r"ExprCondPair|Float|FloatPow|FloatTrueDiv|FloorDiv|FloorToInt|Ge|GreaterThan|Gt|Identity|Integer|IntTrueDiv|Le|LessThan|"
    r"LShift|Lt|Max|Min|Mod|ModularIndexing|Mul|Ne|Not|Or|Piecewise|Pow|PowByNatural|PythonMod|Rational|RoundDecimal|"
    r"RoundToInt|RShift|StrictGreaterThan|StrictLessThan|Symbol|ToFloat|TruncToFloat|TruncToInt|Tuple|Unequality|Where|"
    r"ceiling|exp|floor|log|log2|sqrt"
)
"""Functions of sizes."""
_SHAPE_METHODS = frozenset(("size", "stride", "storage_offset", "dim", "numel"))
_PLAIN_NODES = (
    *(ast.Expression, ast.Constant, ast.Name, ast.Load, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Tuple, ast.List),
    *(ast.keyword, ast.IfExp, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.Subscript),
)

_SCRIPT_CALL = re.compile(
    r"\b(?:torch\.(save|load|from_file)\s*\(|ops\.(?!(?:aten|prim|quantized|torchvision)\.)(\w+\.\w+)|torch\.(classes\.(?!quantized\.)\w+))"
)
_NATIVE = (".so", ".o", ".a", ".dll", ".dylib", ".cpp", ".cubin", ".ptx")
_WORDS = re.compile(r"[A-Za-z0-9_]*")

_KERAS_MODULE = re.compile(
    r"(keras|keras\.src|tf_keras|tf_keras\.src|tensorflow\.keras|tensorflow\.python\.keras)"
    r"(\.(layers|models|engine|initializers|regularizers|constraints|optimizers|losses|metrics|activations|dtype_policies|quantizers|ops)(\.\w+)*)?"
)
_KERAS_CODE = frozenset(("Lambda", "__lambda__", "function", "TorchModuleWrapper", "TFSMLayer", "JaxLayer", "FlaxLayer"))
_TENSORFLOW_CODE = (b"EagerPyFunc", b"PyFunc", b"WriteFile", b"ReadFile", b"LoadLibrary")


def check_exported_program(path: Path) -> None:
    """Refuse a ``.pt2`` file with anything but a network, its weights and examples."""
    with _opened(path) as archive:
        for entry in archive.infolist():
            if "aotinductor" in entry.filename or entry.filename.endswith(_NATIVE):
                raise _refusal(path, f"has native code ({entry.filename})")
            with archive.open(entry) as file:
                head = file.read(4)
            if head == b"PK\x03\x04":
                with archive.open(entry) as file:
                    _check_tensors(path, file)
            elif entry.filename.endswith(".json"):
                _check_program(path, _text(path, archive, entry))
            elif entry.filename.endswith((".pt", ".pth", ".pkl")):
                raise _refusal(path, f"has a part that is no archive of tensors ({entry.filename})")
            else:
                with archive.open(entry) as file:
                    _check_pickle(path, file, must_be_one=False)


def check_script(path: Path) -> None:
    """Refuse a TorchScript file whose code reads or writes files, or calls functions of other libraries."""
    with _opened(path) as archive:
        for entry in archive.infolist():
            if "/code/" in entry.filename and entry.filename.endswith(".py"):
                found = _SCRIPT_CALL.search(_text(path, archive, entry))
                if found is not None:
                    raise _refusal(path, f"calls {next(name for name in found.groups() if name)}")


def check_keras_file(path: Path) -> None:
    """Refuse a Keras file that names anything but Keras' own layers."""
    if zipfile.is_zipfile(path):
        with _opened(path) as archive:
            if "config.json" not in archive.namelist():
                raise _refusal(path, "has no config.json")
            text = _text(path, archive, archive.getinfo("config.json"))
    else:
        try:
            with importlib.import_module("h5py").File(path, "r") as file:
                raw = file.attrs["model_config"]
        except (OSError, KeyError, ImportError) as error:
            raise CompileError(
                f"{path} is no model of Keras: {error}", hint="save the whole model: model.save('model.keras')"
            ) from None
        text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
    document = _json(path, text)
    if isinstance(document, dict):
        document.pop("compile_config", None)  # what a model is trained with is not read
    for key, value in _entries(document):
        if key == "class_name" and str(value) in _KERAS_CODE:
            raise _refusal(path, f"has a part of the kind {value}, which runs code of the file")
        if key == "class_name" and isinstance(value, str) and not value[:1].isupper() and not value.startswith("__"):
            raise _refusal(path, f"names the function {value[:60]!r}")
        if key == "module" and value is not None and not (isinstance(value, str) and _KERAS_MODULE.fullmatch(value)):
            raise _refusal(path, f"names the module {str(value)[:60]!r}")


def check_saved_model(folder: Path) -> None:
    """Refuse a SavedModel whose graph runs Python or uses files."""
    data = (folder / "saved_model.pb").read_bytes()
    for name in _TENSORFLOW_CODE:
        if name in data:
            raise _refusal(folder, f"has the operator {name.decode()}")


def _refusal(path: Path, what: str) -> CompileError:
    return CompileError(f"{path} {what}: that is no part of a network, and could run code of the file", hint=_TRUST)


def _opened(path: Path) -> zipfile.ZipFile:
    """An archive in which another reader cannot see other parts than this one."""
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise CompileError(f"{path} is damaged: {error}", hint="save it again") from None
    names = archive.namelist()
    with path.open("rb") as file:
        head = file.read(4)
        file.seek(-22, 2)
        tail = file.read(4)
    if head != b"PK\x03\x04" or tail != b"PK\x05\x06" or len(set(names)) != len(names):
        archive.close()
        raise _refusal(path, "is an archive with parts that hide others")
    return archive


def _text(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> str:
    if entry.file_size > MAX_TEXT:
        raise CompileError(f"{path} has a text of {entry.file_size} bytes ({entry.filename})", hint="save it again")
    try:
        return archive.read(entry).decode("utf-8", "replace")
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError) as error:
        raise CompileError(f"{path} is damaged: {error}", hint="save it again") from None


def _json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise CompileError(f"{path} is damaged: its description is no JSON", hint="save it again") from None


def _entries(document: Any) -> Iterator[tuple[str, Any]]:
    """All names with their values, at any depth."""
    left = [document]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            yield from one.items()
            left += one.values()
        elif isinstance(one, list):
            left += one


def _check_tensors(path: Path, file: IO[bytes]) -> None:
    """What ``torch.save`` wrote: an archive of its own, with a pickle."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            if len(set(names)) != len(names):
                raise _refusal(path, "is an archive with parts that hide others")
            for entry in archive.infolist():
                if entry.filename.endswith(".pkl"):
                    with archive.open(entry) as pickled:
                        _check_pickle(path, pickled, must_be_one=True)
                elif "/code/" in entry.filename or entry.filename.endswith(_NATIVE):
                    raise _refusal(path, f"has code ({entry.filename})")
    except (zipfile.BadZipFile, OSError, NotImplementedError) as error:
        raise CompileError(f"{path} is damaged: {error}", hint="save it again") from None


class _Forbidden(Exception):
    """A pickle names what it must not."""


class _Inert:
    """Stands for everything that a pickle makes: nothing that it does has an effect."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        del arguments, options

    def __new__(cls, *arguments: Any, **options: Any) -> _Inert:
        del arguments, options
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        del state

    def __setitem__(self, key: Any, value: Any) -> None:
        del key, value

    def append(self, value: Any) -> None:
        """As a list takes it."""

    def extend(self, value: Any) -> None:
        """As a list takes it."""


class _Reader(pickle.Unpickler):
    """Reads a pickle without making what it names."""

    def find_class(self, module: str, name: str) -> Any:
        """Something without effect, for what is on the list."""
        whole = f"{module}.{name}"
        if whole in _PICKLED or _PICKLED_KINDS.fullmatch(whole):
            return _Inert
        raise _Forbidden(whole)

    def persistent_load(self, pid: Any) -> Any:
        """The storage of a tensor."""
        return _Inert()


def _check_pickle(path: Path, file: IO[bytes], *, must_be_one: bool) -> None:
    """
    :param must_be_one: refuse what is no pickle; else it is data of a tensor, which only by chance begin like one
    """
    try:
        _Reader(file).load()
    except _Forbidden as error:
        name = str(error)
        if must_be_one or (name.isascii() and re.fullmatch(r"[\w.]+", name)):
            raise _refusal(path, f"has a pickle that names {name[:100]}") from None
    except Exception as error:  # whatever reading a damaged pickle may raise; nothing of it was run
        if must_be_one:
            raise _refusal(path, f"has a pickle that cannot be read ({type(error).__name__})") from None


def _check_program(path: Path, text: str) -> None:
    for key, value in _entries(_json(path, text)):
        if key == "target" and isinstance(value, str) and value.startswith(("torch", "_operator", "math", "#")):
            if not _TARGET.fullmatch(value):
                raise _refusal(path, f"calls {value[:100]!r}")
        elif key == "expr_str":
            _check_expression(path, value, guard=False)
        elif key == "guards_code":
            for each in value if isinstance(value, list) else [value]:
                _check_expression(path, each, guard=True)
        elif isinstance(value, str) and "default_factory_module" in value:
            raise _refusal(path, "imports a module for its arguments")


def _check_expression(path: Path, text: Any, *, guard: bool) -> None:
    """Of sizes; torch evaluates it as Python."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
        sound = all(_is_plain(node, guard) for node in ast.walk(tree))
    except (SyntaxError, ValueError, AttributeError, RecursionError, MemoryError):
        sound = False
    if not sound:
        raise _refusal(path, f"has the expression {str(text)[:100]!r}")


def _is_plain(node: ast.AST, guard: bool) -> bool:
    if isinstance(node, ast.Call):
        called = node.func
        if isinstance(called, ast.Name):
            return _EXPRESSION.fullmatch(called.id) is not None
        return guard and isinstance(called, ast.Attribute) and called.attr in _SHAPE_METHODS
    if isinstance(node, ast.Attribute):
        return guard and node.attr in _SHAPE_METHODS
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float)) or (isinstance(node.value, str) and bool(_WORDS.fullmatch(node.value)))
    if isinstance(node, ast.Subscript):
        return guard
    return isinstance(node, _PLAIN_NODES)
