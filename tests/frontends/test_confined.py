"""The process that reads files of PyTorch: what it may do. A package stands in for torch and tries what a file could make it do."""

from __future__ import annotations

import ast
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anynpu
from anynpu.compiler.importers import confined_worker
from anynpu.errors import CompileError

from .test_hostile_programs import SCRIPT, archive, exported

TORCH = r"""
import types
from pathlib import Path

class Module:
    def eval(self): pass

class ExportedProgram:
    example_inputs = None

class ScriptModule(Module):
    training = False
    def forward(self, x): pass
    def modules(self): return []

nn = types.SimpleNamespace(Module=Module)
zeros = from_numpy = lambda value: value
jit = types.SimpleNamespace(ScriptModule=ScriptModule, load=lambda file, map_location: ScriptModule())
"""
EXPORT = r"""
from . import ExportedProgram
from .attempts import attempt

def load(file):
    assert file.read(4) == b"PK\x03\x04"
    attempt()
    return ExportedProgram()
"""
ONNX = r"""
import types

def export(model, args, file=None, **options):
    from onnx import TensorProto, helper
    from .attempts import found
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "net", ends[:1], ends[1:], doc_string=repr(found))
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    if file is None:
        return types.SimpleNamespace(model_proto=proto)
    file.write(proto.SerializeToString())
"""
QUIET = "found = {}\n\ndef attempt(): pass\n"
ATTEMPTS = r"""
import ctypes, errno, fcntl, os, socket, subprocess, threading
from pathlib import Path

found = {}
libc = ctypes.CDLL(None, use_errno=True)
HERE = Path(__file__).parent


def call(name, function):
    try:
        found[name] = function()
    except OSError as error:
        found[name] = errno.errorcode[error.errno]


def system(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "")


def attempt():
    print("\x1b[2J printed by the library")
    call("read a file", lambda: len((HERE / "__init__.py").read_bytes()) > 0)
    call("list a folder", lambda: len(os.listdir(HERE)) > 0)
    done = threading.Event()
    threading.Thread(target=done.set).start()
    call("start a thread", lambda: done.wait(600))
    call("write a file", lambda: (HERE / "written").write_text("x"))
    call("append to a file", lambda: open(HERE / "__init__.py", "a").close())
    call("write without a name", lambda: os.open(HERE, os.O_TMPFILE | os.O_WRONLY))
    call("open without flags in sight", lambda: system(437, -100, str(HERE / "w").encode(), ctypes.create_string_buffer(24), 24))
    call("truncate", lambda: os.truncate(HERE / "__init__.py", 0))
    call("delete", lambda: os.unlink(HERE / "__init__.py"))
    call("rename", lambda: os.rename(HERE / "__init__.py", HERE / "other.py"))
    call("make a folder", lambda: os.mkdir(HERE / "folder"))
    call("link", lambda: os.symlink("a", HERE / "b"))
    call("change rights", lambda: os.chmod(HERE / "__init__.py", 0o777))
    call("change a time", lambda: os.utime(HERE / "__init__.py", (0, 0)))
    call("share memory", lambda: os.memfd_create("x"))
    call("socket", lambda: socket.socket().close())
    call("socket in the file system", lambda: socket.socket(socket.AF_UNIX).close())
    call("start a program", lambda: subprocess.run(["/bin/true"]))
    call("fork", os.fork)
    call("replace the program", lambda: os.execv("/bin/true", ["true"]))
    call("signal the parent", lambda: os.kill(os.getppid(), 0))
    call("signal itself by the other call", lambda: os.kill(os.getpid(), 0))
    call("trace the parent", lambda: system(101, 16, os.getppid(), 0, 0))
    call("type into a terminal", lambda: fcntl.ioctl(2, 0x5412, b"x"))
    call("let the kernel send signals", lambda: fcntl.fcntl(2, 8, os.getppid()))
    call("limit the parent", lambda: system(302, os.getppid(), 7, None, None))
    call("run the kernel's program", lambda: system(321, 0, None, 0))
    call("queue system calls", lambda: system(425, 1, ctypes.create_string_buffer(120)))
    call("another name space", lambda: system(272, 0x10000000))
    call("loosen the filter", lambda: system(157, 22, 0, None))
"""


def torch_in(folder: Path, monkeypatch: pytest.MonkeyPatch, attempts: str = QUIET) -> None:
    package = folder / "torch"
    package.mkdir()
    for name, text in {"__init__": TORCH, "export": EXPORT, "onnx": ONNX, "attempts": attempts}.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(folder)


def described(path: Path, **options: Any) -> dict[str, Any]:
    from anynpu.compiler.importers.onnx_model import read_onnx

    text = read_onnx(path, **options).graph.doc_string
    return dict(ast.literal_eval(text))


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls are those of x86-64")
def test_what_the_process_may_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_in(tmp_path, monkeypatch, ATTEMPTS)
    found = described(exported(tmp_path))
    allowed = {name for name, result in found.items() if result is True}
    assert allowed == {"read a file", "list a folder", "start a thread"}
    del found["read a file"], found["list a folder"], found["start a thread"]
    assert found.pop("open without flags in sight") == "ENOSYS"
    assert set(found.values()) == {"EPERM"}, found
    assert sorted(entry.name for entry in (tmp_path / "torch").iterdir() if entry.suffix == ".py") == [
        "__init__.py",
        "attempts.py",
        "export.py",
        "onnx.py",
    ]


def test_a_program_becomes_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_in(tmp_path, monkeypatch)
    model = anynpu.compile(exported(tmp_path), "rk3588", dtype="fp16")
    assert [spec.name for spec in model.inputs] == ["x"]


@pytest.mark.parametrize("options", [{"shapes": {"x": (1, 4)}}, {"example_inputs": np.zeros((1, 4), np.float32)}])
def test_a_script_becomes_a_model(options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_in(tmp_path, monkeypatch)
    model = anynpu.compile(archive(tmp_path / "net.pt", SCRIPT), "rk3588", dtype="fp16", **options)
    assert [spec.name for spec in model.inputs] == ["x"]


def test_a_script_needs_shapes_before_a_process_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_in(tmp_path, monkeypatch, "raise SystemExit(3)")
    with pytest.raises(CompileError, match="shapes of a PyTorch model"):
        anynpu.compile(archive(tmp_path / "net.pt", SCRIPT), "rk3588", dtype="fp16")


def test_a_kernel_that_does_not_restrict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_in(tmp_path, monkeypatch)
    (tmp_path / "torch" / "__init__.py").write_text(
        TORCH + "from anynpu.compiler.importers import confined_worker\nconfined_worker._ARCHITECTURES = {}\n"
    )
    path = exported(tmp_path)
    with pytest.raises(CompileError, match="does not restrict a process") as caught:
        anynpu.compile(path, "rk3588", dtype="fp16")
    assert "--trust" in caught.value.hint


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        ("import os; os.abort()", "ended with the status -6"),
        ("import os; os._exit(0)", "ended with the status 0"),
        (r"raise ValueError('bad \x1b[2J file\nsecond line')", r"cannot load .*bad \\u001b\[2J file$"),
        ("raise MemoryError", "cannot load|more memory"),
        ("import os; os.write(3, b'-nonsense'); os._exit(0)", "was not converted|ended with"),
    ],
)
def test_a_process_that_fails(attempt: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_in(tmp_path, monkeypatch, f"found = {{}}\n\ndef attempt():\n    {attempt}\n")
    with pytest.raises(CompileError) as caught:
        anynpu.compile(exported(tmp_path), "rk3588", dtype="fp16")
    assert re.search(message, str(caught.value).partition("\n  hint: ")[0])


def test_text_of_the_library_is_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    torch_in(tmp_path, monkeypatch, "found = {}\n\ndef attempt():\n    print('\\x1b[2J cleared')\n")
    with caplog.at_level("INFO", "anynpu.compiler"):
        anynpu.compile(exported(tmp_path), "rk3588", dtype="fp16")
    assert any(r"\u001b[2J cleared" in record.message for record in caplog.records)
    assert not any("\x1b" in record.message for record in caplog.records)


HEADERS = {0: Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), 1: Path("/usr/include/asm-generic/unistd.h")}


@pytest.mark.parametrize("column", HEADERS)
def test_numbers_of_system_calls(column: int) -> None:
    if not HEADERS[column].exists():
        pytest.skip(f"{HEADERS[column]} is not installed")
    text = HEADERS[column].read_text()
    known = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)", text)}
    known.setdefault("newfstatat", known.get("fstatat", -1))
    words = confined_worker._ALLOWED.split()
    for name, *numbers in zip(words[::3], words[1::3], words[2::3], strict=True):
        if numbers[column] != "-":
            assert known[name] == int(numbers[column]), name
    assert signal.SIGKILL == confined_worker._SIGKILL
