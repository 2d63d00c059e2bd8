"""Programs that use the provider without Python, and releases of onnxruntime to run them with."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Literal, overload

from dropin.running import clean_environment
from tools import need

from anynpu.dropin.environment import include_folder

PROGRAMS = Path(__file__).parent / "programs"
SOURCES = Path(__file__).parents[2] / "src" / "anynpu"
TIMEOUT = 600


def onnxruntime_library(release: Path | None = None) -> Path:
    """``libonnxruntime.so`` of the installed onnxruntime, or of one in the folder *release*."""
    if release is None:
        spec = importlib.util.find_spec("onnxruntime")
        assert spec is not None
        assert spec.origin is not None
        package = Path(spec.origin).parent
    else:
        package = release / "onnxruntime"
    (library,) = (package / "capi").glob("libonnxruntime.so.*")
    return library


def linkable(folder: Path, release: Path | None = None) -> Path:
    """A folder with the library under the names that linkers and loaders look for."""
    library = onnxruntime_library(release)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        if not (folder / name).exists():
            (folder / name).symlink_to(library)
    shared = library.with_name("libonnxruntime_providers_shared.so")
    if not (folder / shared.name).exists():
        (folder / shared.name).symlink_to(shared)
    return folder


def compiled(command: list[str | Path]) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr


def build_library(target: Path, source: Path, compiler: str | None = None) -> Path:
    """A shared library of one file."""
    flags = ["-std=c11", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-Wl,-z,nodelete"]
    folders = [f"-I{include_folder()}", f"-I{SOURCES / 'dropin' / 'ort_ep'}"]
    compiled([compiler or need("cc"), *flags, *folders, source, "-o", target, "-ldl"])
    return target


def build_nothing(folder: Path, compiler: str | None = None) -> Path:
    """The RKNN library that does nothing."""
    return build_library(folder / "librknnrt_nothing.so", PROGRAMS / "nothing.c", compiler)


def build_provider(folder: Path, compiler: str, *flags: str) -> Path:
    """The provider, compiled without warnings."""
    target = folder / "libanynpu_ep.so"
    sources = sorted((SOURCES / "dropin" / "ort_ep").glob("*.c"))
    usual = [
        "-std=c11",
        "-O2",
        "-g",
        "-Wall",
        "-Wextra",
        "-Wmissing-prototypes",
        "-Werror",
        "-fvisibility=hidden",
        "-shared",
        "-fPIC",
        "-ffp-contract=off",
    ]
    links = ["-Wl,--no-undefined", "-Wl,-z,nodelete", "-ldl", "-lm", "-pthread"]
    compiled([compiler, *usual, '-DANYNPU_VERSION="0.1.0"', *sources, "-o", target, *flags, *links])
    return target


def build_host(folder: Path, compiler: str | None = None, release: Path | None = None) -> Path:
    """The program, compiled as C++ or by another *compiler* as C, and linked with the installed onnxruntime or a *release*."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "host"
    libraries = linkable(folder / "onnxruntime", release)
    language = ["-std=c11"] if compiler else ["-x", "c++", "-std=c++17"]
    command = [compiler or need("c++"), *language, "-O2", "-Wall", "-Wextra", "-Werror", f"-I{SOURCES / 'dropin' / 'ort_ep'}"]
    link = ["-x", "none", f"-L{libraries}", "-lonnxruntime", f"-Wl,-rpath,{libraries}", "-Wl,--allow-shlib-undefined"]
    compiled([*command, PROGRAMS / "host.c", "-o", target, *link])
    return target


def build_rust_host(folder: Path) -> Path:
    """The program in Rust, linked with the installed onnxruntime."""
    target = folder / "rust-host"
    libraries = linkable(folder / "onnxruntime")
    link = [f"-Clink-arg=-Wl,-rpath,{libraries}", "-Clink-arg=-lonnxruntime", f"-Lnative={libraries}"]
    compiled([need("rustc"), "--edition", "2021", "-D", "warnings", "-O", *link, "-o", target, PROGRAMS / "host.rs"])
    return target


@overload
def run_python(
    script: Path, *arguments: str | Path, path: str = "", with_errors: Literal[False] = False, seconds: float = TIMEOUT
) -> str: ...
@overload
def run_python(
    script: Path, *arguments: str | Path, path: str = "", with_errors: Literal[True], seconds: float = TIMEOUT
) -> tuple[str, str]: ...
def run_python(
    script: Path, *arguments: str | Path, path: str = "", with_errors: bool = False, seconds: float = TIMEOUT
) -> str | tuple[str, str]:
    """Run a script; the standard output, and the standard error. *path* is searched before the installed packages."""
    environment = clean_environment(LD_LIBRARY_PATH=None, PYTHONPATH=path or None, ORT_DISABLE_TELEMETRY="1")
    command = [sys.executable, str(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds, env=environment)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}{done.stderr}"
    return (done.stdout, done.stderr) if with_errors else done.stdout
