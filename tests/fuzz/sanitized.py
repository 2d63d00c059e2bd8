"""The extension module with the C kernels, built with AddressSanitizer and UndefinedBehaviorSanitizer, in a folder of its own."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path

from native.building import NATIVE, CompilationError, compile_objects

__all__ = ["FLAGS", "build_extension", "sanitizer_environment"]

FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1", "-g", "-fno-omit-frame-pointer")


def build_extension(folder: Path, compiler: str = "gcc") -> Path:
    """Compile ``_native`` into *folder*; gives the path of the module."""
    folder.mkdir(parents=True, exist_ok=True)
    objects = compile_objects(folder, compiler, platform.machine(), FLAGS)
    source, module = folder / "_native.c", folder / "_native.abi3.so"
    headers = [str(NATIVE / name) for name in ("engine.h", "anynpu_native.h")]
    _call([sys.executable, str(NATIVE / "build_cffi.py"), str(source), *headers])
    include = sysconfig.get_path("include")
    command = [compiler, *FLAGS, "-shared", "-fPIC", "-DPy_LIMITED_API=0x030A0000", f"-I{include}", f"-I{NATIVE}"]
    _call([*command, str(source), *map(str, objects), "-lm", "-pthread", "-o", str(module)])
    return module


def sanitizer_environment(compiler: str = "gcc") -> dict[str, str]:
    """What a Python needs to load the module: the sanitizer's library before all others. Raises CompilationError where there is none."""
    libraries = []
    for name in ("libasan.so", "libubsan.so"):
        found = _call([compiler, f"-print-file-name={name}"]).strip()
        if not os.path.isabs(found):
            raise CompilationError(f"{compiler} has no {name}")
        libraries.append(os.path.realpath(found))
    # Python itself leaks on purpose; memory that cannot be had is an error of the model, not of the program
    options = "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=900:handle_segv=1:abort_on_error=1:quarantine_size_mb=32"
    return {
        "LD_PRELOAD": ":".join(libraries),
        "ASAN_OPTIONS": options,
        "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",
        "PYTHONMALLOC": "malloc",
    }


def _call(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CompilationError(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout
