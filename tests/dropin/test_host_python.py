"""The libraries inside a running Python: loaded by ctypes, by cffi and by an extension module, with and without Python's lock."""

from __future__ import annotations

import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest
from tools import need

from anynpu.dropin.environment import library_folder

from .conftest import Models
from .running import build, clean_environment, run

HEAD = """
import ctypes, os, sys, threading
path, model = sys.argv[1:]
context = ctypes.c_uint64()
def infer(library):
    handle = ctypes.c_uint64()
    assert library.rknn_init(ctypes.byref(handle), model.encode(), 0, 0, None) == 0
    assert 0 < handle.value < 2**32
    assert library.rknn_destroy(handle) == 0
"""


def python(models: Models, code: str, environment: dict[str, str] | None = None, code_expected: int = 0) -> str:
    library = library_folder() / "librknnrt.so"
    command = [sys.executable, "-c", HEAD + textwrap.dedent(code), library, models.small]
    done = run(command, environment or clean_environment(), code=code_expected)
    assert done.stderr == ""
    return done.stdout


def test_ctypes_gives_up_the_lock(models: Models) -> None:
    assert python(models, "infer(ctypes.CDLL(path)); print('done')") == "done\n"


def test_ctypes_keeps_the_lock(models: Models) -> None:
    """Starting waits for other threads of the library, which need the lock."""
    code = """
    library = ctypes.PyDLL(path)
    threads = [threading.Thread(target=infer, args=(library,)) for _ in range(4)]
    for thread in threads: thread.start()
    infer(library)
    for thread in threads: thread.join()
    print('done')
    """
    assert python(models, code) == "done\n"


def test_cffi(models: Models) -> None:
    code = """
    import cffi
    ffi = cffi.FFI()
    ffi.cdef("int rknn_init(uint64_t *, void *, uint32_t, uint32_t, void *); int rknn_destroy(uint64_t);")
    library = ffi.dlopen(path)
    handle = ffi.new("uint64_t *")
    assert library.rknn_init(handle, ffi.from_buffer(model.encode() + bytes(1)), 0, 0, ffi.NULL) == 0
    assert library.rknn_destroy(handle[0]) == 0
    print("done")
    """
    assert python(models, code) == "done\n"


def test_both_libraries_in_one_process(models: Models) -> None:
    code = """
    infer(ctypes.CDLL(path))
    mini = ctypes.CDLL(path.replace("librknnrt", "librknnmrt"))
    infer(mini)
    print("done")
    """
    assert python(models, code) == "done\n"


def test_an_extension_module(models: Models, tmp_path: Path) -> None:
    headers = sysconfig.get_path("include")
    need("Python headers")
    build("extension.c", tmp_path / "careless.so", "-shared", "-fPIC", f"-I{headers}")
    code = """
    sys.path.insert(0, os.getcwd())
    import careless
    threads = [threading.Thread(target=careless.infer, args=(model,)) for _ in range(3)]
    for thread in threads: thread.start()
    assert careless.infer(model) == 0
    for thread in threads: thread.join()
    print("done")
    """
    command = [sys.executable, "-c", HEAD + textwrap.dedent(code), "", models.small]
    assert run(command, cwd=tmp_path).stdout == "done\n"


def test_names_of_the_program_are_left_alone(models: Models) -> None:
    code = """
    before = set(vars(sys.modules["__main__"]))
    infer(ctypes.CDLL(path))
    print(sorted(set(vars(sys.modules["__main__"])) - before - {"before"}))
    """
    assert python(models, code) == "[]\n"


def test_python_may_end_with_calls_in_flight(models: Models) -> None:
    """Daemon threads are in the middle of calls; without a gate the interpreter aborts the process.

    Calls that are rejected at the end must not raise in the threads: what they print then can abort an interpreter on its own.
    """
    code = """
    library = ctypes.CDLL(path)
    infer(library)
    def for_ever():
        handle = ctypes.c_uint64()
        while library.rknn_init(ctypes.byref(handle), model.encode(), 0, 0, None) == 0:
            library.rknn_destroy(handle)
    for _ in range(3): threading.Thread(target=for_ever, daemon=True).start()
    import time; time.sleep(0.3)
    print("ends")
    """
    for _ in range(2):
        library = library_folder() / "librknnrt.so"
        done = run([sys.executable, "-c", HEAD + textwrap.dedent(code), library, models.small])
        assert done.stdout == "ends\n"
        assert "Fatal" not in done.stderr


@pytest.mark.full
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(models: Models, method: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        HEAD
        + textwrap.dedent(
            """
            import multiprocessing
            def work(_):
                infer(ctypes.CDLL(path))
                return os.getpid()
            if __name__ == "__main__":
                infer(ctypes.CDLL(path))
                with multiprocessing.get_context(METHOD).Pool(2) as pool:
                    assert os.getpid() not in pool.map(work, range(4))
                print("done")
            """
        ).replace("METHOD", repr(method))
    )
    done = run([sys.executable, "-W", "ignore", script, library_folder() / "librknnrt.so", models.small])
    assert done.stdout == "done\n"
