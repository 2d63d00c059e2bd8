"""Where the drop-in libraries are, and the environment of a program that is to use them."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import util
from pathlib import Path

from .. import chips
from ..chips import Chip
from ..errors import DeviceUnavailable
from ..npu.board import HOLDERS, board_folder, require_board_name, runtime_folder
from ..vendors import registry

# Packages that a Python program finds under ``anynpu exec`` in place of those it was written for.
#
# A :class:`StandIn` is a distribution and its modules. Each module takes its names from a module of anynpu. They are written as
# small files into a folder of the user, which ``PYTHONPATH`` puts first, so that ``import``, ``find_spec`` and
# ``importlib.metadata`` find them as they find any package; nothing is installed, and outside of exec nothing is hidden.
#
# The program's Python need not have anynpu: one of the same version takes it from the folders that ``ANYNPU_SITE`` names.


@dataclass(frozen=True)
class StandIn:
    """A distribution that a program looks for.

    :ivar distribution: the name under which it is installed
    :ivar version: the one that it states it has
    :ivar modules: which module of anynpu each of its modules takes its names from; an empty text for a package without names
    :ivar files: other files of its packages, by path
    """

    distribution: str
    version: str
    modules: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)


_RKNN_VERSION = "2.3.2"

STAND_INS: Mapping[str, StandIn] = {
    "rknnlite": StandIn(
        "rknn-toolkit-lite2",
        _RKNN_VERSION,
        {
            "rknnlite": "",
            "rknnlite.api": "anynpu.rknn.lite",
            "rknnlite.api.rknn_lite": "anynpu.rknn.lite",
            "rknnlite.api.rknn_runtime": "anynpu.rknn.lite.runtime",
        },
    ),
    "rknn": StandIn(
        "rknn-toolkit2",
        _RKNN_VERSION,
        {
            "rknn": "",
            "rknn.api": "anynpu.rknn.toolkit",
            "rknn.api.rknn": "anynpu.rknn.toolkit",
            "rknn.api.custom_op": "anynpu.rknn.toolkit.customop",
            "rknn.utils": "anynpu.rknn.toolkit.onnx_edit",
        },
        {"rknn/VERSION": f"{_RKNN_VERSION}\n"},
    ),
    "ztu_somemodelruntime_ez_rknn_async": StandIn(
        "ztu-somemodelruntime-ez-rknn-async", "0.11.0", {"ztu_somemodelruntime_ez_rknn_async": "anynpu.session"}
    ),
    "onnxruntime": StandIn(
        "onnxruntime",
        "1.20.0",
        {
            "onnxruntime": "anynpu.session.onnxruntime",
            "onnxruntime.capi": "anynpu.session.onnxruntime.capi",
            "onnxruntime.capi._pybind_state": "anynpu.session.onnxruntime.exceptions",
            "onnxruntime.capi.onnxruntime_inference_collection": "anynpu.session.onnxruntime",
            "onnxruntime.capi.onnxruntime_pybind11_state": "anynpu.session.onnxruntime.exceptions",
        },
    ),
}
"""By the name of the package that a program imports."""

ON_REQUEST = ("onnxruntime",)
"""Those that hide a package which works here as it is."""

ALWAYS = tuple(name for name in STAND_INS if name not in ON_REQUEST)
"""Those that a program gets without asking."""

_LOADER = "_anynpu_stand_in"
_LOADER_TEXT = '''"""Written by anynpu exec: where the packages beside this file take their names from."""

import importlib
import os
import sys


def names(target):
    """The public names of a module of anynpu."""
    try:
        module = importlib.import_module(target)
    except ModuleNotFoundError as error:
        if error.name != "anynpu":
            raise
        here = ".".join(map(str, sys.version_info[:2]))
        wanted = os.environ.get("ANYNPU_PYTHON_VERSION", here)
        if wanted != here:
            raise ModuleNotFoundError(
                f"anynpu is installed for Python {wanted}, this program runs in {here}: install it for this one too", name="anynpu"
            ) from None
        import site

        for folder in filter(None, os.environ.get("ANYNPU_SITE", "").split(":")):
            site.addsitedir(folder)
        module = importlib.import_module(target)
    return {name: getattr(module, name) for name in module.__all__}
'''


def stand_in_folder(names: Iterable[str] = ALWAYS) -> Path:
    """A folder with the packages of these stand-ins, which is made where it is not there yet."""
    chosen = sorted(names)
    root = runtime_folder() / "-".join(("python", *chosen))
    files = {f"{_LOADER}.py": _LOADER_TEXT}
    for name in chosen:
        files.update(_stand_in_files(STAND_INS[name]))
    for name, text in files.items():
        path = root / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_name(f".{path.name}.{os.getpid()}")
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(path)
    return root


def with_stand_ins(environment: Mapping[str, str], names: Iterable[str] = ALWAYS) -> dict[str, str]:
    """*environment*, changed so that Python finds these stand-ins before anything that is installed."""
    folder = str(stand_in_folder(names))
    return {**environment, "PYTHONPATH": ":".join(filter(None, (folder, environment.get("PYTHONPATH"))))}


def _stand_in_files(stand_in: StandIn) -> dict[str, str]:
    modules = stand_in.modules
    packages = {name for name in modules for other in modules if other.startswith(f"{name}.")}
    files = dict(stand_in.files)
    for name, source in modules.items():
        path = name.replace(".", "/")
        text = f'"""Written by anynpu exec: {name}, with the names of {source or "its modules"}."""\n'
        if source:
            text += f'\nfrom {_LOADER} import names\n\nglobals().update(names("{source}"))\ndel names\n'
        files[f"{path}/__init__.py" if name in packages else f"{path}.py"] = text
    top = sorted({name.partition(".")[0] for name in modules})
    folder = f"{stand_in.distribution.replace('-', '_')}-{stand_in.version}.dist-info"
    files[f"{folder}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {stand_in.distribution}\nVersion: {stand_in.version}\n"
        f"Summary: written by anynpu exec; the names of {stand_in.distribution} on anynpu\n"
    )
    files[f"{folder}/top_level.txt"] = "".join(f"{name}\n" for name in top)
    files[f"{folder}/INSTALLER"] = "anynpu\n"
    return files


# The system files of a board, as a folder that ``libanynpu_board.so`` shows to a program in their place.
#
# A folder depends on the chip alone, so it is made once and used by all programs of a user. Nothing in it changes while programs
# run, except that the load of a core on a shared board is asked for when a program opens its file.


_HEAPS = ("system", "system-uncached", "system-dma32", "system-uncached-dma32", "cma", "cma-uncached")

_MAINLINE = {
    "dev/accel/accel0": "",
    "sys/class/accel/accel0/dev": "261:0\n",
    "sys/class/accel/accel0/device/uevent": "DRIVER=rocket\n",
    "sys/module/rocket/initstate": "live\n",
}
"""What a kernel with the driver ``rocket`` shows of it."""


def board_root(chip: str, board: str | None = None, *, mainline: bool = False) -> Path:
    """The folder with the files of a board of *chip*; *board* is the name of a shared one.

    :param mainline: its kernel has the driver ``rocket`` instead of the vendor's
    """
    entry = chips.get(chip)
    kernel = "-mainline" if mainline else ""
    root = runtime_folder() / f"system-{entry.name}{kernel}{'' if board is None else f'-{require_board_name(board)}'}"
    for name, text in _board_files(entry, mainline).items():
        path = root / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_name(f".{path.name}.{os.getpid()}")
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(path)
    return root


def _board_files(chip: Chip, mainline: bool) -> dict[str, str]:
    files = {f"dev/dma_heap/{name}": "" for name in _HEAPS}
    vendor = registry.of_chip(chip)
    for folder in ("proc/device-tree", "sys/firmware/devicetree/base"):
        files[f"{folder}/compatible"] = f"anynpu,{chip.name}-virtual\0{vendor.device_tree},{chip.name}\0"
        files[f"{folder}/model"] = f"anynpu virtual board ({chip.name})\0"
    files.update(_MAINLINE if mainline else vendor.board_files(chip))
    return files


SETTINGS = "anynpu-python.cfg"
"""The file next to libraries that names their Python, where who packages them writes one."""


@dataclass(frozen=True)
class Observation:
    """What is written down about a program's calls.

    :ivar log: a file for the calls, ``-`` for stderr, or nothing
    :ivar log_format: ``human`` or ``json``
    :ivar trace: a file that trace viewers open, or nothing
    """

    log: str | None = None
    log_format: str = "human"
    trace: str | None = None


@dataclass(frozen=True)
class Sanitizing:
    """What the sanitizer of a program does with its findings.

    :ivar report: a file for them, SARIF or JSON, or nothing
    :ivar suppressions: a file with what not to report, or nothing
    :ivar exit_code: of a program with findings; None for the usual one, 0 for the program's own
    """

    report: str | None = None
    suppressions: str | None = None
    exit_code: int | None = None


def prefix() -> Path:
    """The folder with ``lib`` and ``include``: beside the compiled modules, which an editable install keeps apart from the sources."""
    spec = util.find_spec("anynpu._native")
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent / "dropin"
    if folder is None or not (folder / "lib" / "libanynpu_board.so").is_file():
        raise DeviceUnavailable(
            "this installation has no drop-in libraries", hint="they are built on Linux: pip install --force-reinstall anynpu"
        )
    return folder


def library_folder() -> Path:
    """The folder with the vendors' libraries."""
    return prefix() / "lib"


def execution_provider() -> Path:
    """The plug-in execution provider of onnxruntime."""
    return library_folder() / "libanynpu_ep.so"


def include_folder() -> Path:
    """The folder with the vendors' headers."""
    return prefix() / "include"


def remember_python() -> Path:
    """Write to the user's cache which Python has this package, for programs that are started without :func:`program_environment`.

    Libraries in a ``site-packages`` folder find it by themselves, unless the interpreter has an unusual place. Nothing is written next to
    the libraries: the package manager would leave it behind.
    """
    path = settings_file(library_folder())
    text = "".join(f"{key} = {value}\n" for key, value in _python().items())
    try:
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_name(f"{path.name}.{os.getpid()}")
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(path)
    except OSError:  # no cache: the libraries find what they can by themselves
        pass
    return path


def settings_file(libraries: Path) -> Path:
    """The file in the user's cache that names the Python for the libraries in a folder, where ``native/settings.c`` looks for it."""
    value = 0xCBF29CE484222325  # FNV-1a with 64 bits
    for byte in os.fsencode(os.path.realpath(libraries)):
        value = (value ^ byte) * 0x100000001B3 % 2**64
    cache = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(cache) if cache.startswith("/") else Path(os.path.expanduser("~")) / ".cache"
    return home / "anynpu" / f"python-{value:016x}.cfg"


HOST_MACHINE = "host"
"""As ``machine``: what the processor of this machine is."""

_ARM_32 = ("rv1103", "rv1103b", "rv1106", "rv1106b", "v851", "v853", "r853")
"""Chips with processors of 32 bits (Cortex-A7); those of all others are of 64 bits."""


def board_machine(chip: str) -> str:
    """What ``uname`` reports on boards with this chip."""
    return "armv7l" if chips.get(chip).name in _ARM_32 else "aarch64"


def program_environment(
    environment: Mapping[str, str],
    *,
    chip: str | None = None,
    board: str | None = None,
    realtime: bool = False,
    observation: Observation | None = None,
    machine: str | None = None,
    stand_ins: Iterable[str] = (),
    api_version: str | None = None,
    sanitizing: Sanitizing | None = None,
    mainline: bool = False,
) -> dict[str, str]:
    """*environment*, changed so that a program finds the libraries, a board of *chip*, and the files of its system.

    :param board: name of a board that several programs share
    :param realtime: jobs take as long as on the chip
    :param machine: the machine type that ``uname`` reports, such as aarch64; ``host`` or None: that of this machine
    :param stand_ins: names of :data:`~anynpu.dropin.environment.STAND_INS`, which Python finds before anything that is installed
    :param api_version: what the library states that its version is
    :param sanitizing: watch the program with the sanitizer
    :param mainline: the board has the kernel's driver ``rocket`` and its device, instead of the vendor's driver
    """
    libraries = library_folder()
    changed = dict(environment)
    changed["LD_LIBRARY_PATH"] = _joined(str(libraries), environment.get("LD_LIBRARY_PATH"))
    changed["LD_PRELOAD"] = _joined(environment.get("LD_PRELOAD"), str(libraries / "libanynpu_board.so"))
    changed["ANYNPU_LIBRARIES"] = str(libraries)
    python = _python()
    changed["ANYNPU_PYTHON"] = python["python"]
    changed["ANYNPU_PYTHON_VERSION"] = python["version"]
    changed["ANYNPU_SITE"] = python["site"]
    if "libpython" in python:
        changed["ANYNPU_LIBPYTHON"] = python["libpython"]
    if chip is not None:
        changed["ANYNPU_CHIP"] = chip
        changed.pop("ANYNPU_DEVICE", None)
    if board is not None:
        changed["ANYNPU_BOARD"] = board
    if realtime:
        changed["ANYNPU_REALTIME"] = "1"
    if api_version is not None:
        changed["ANYNPU_API_VERSION"] = api_version
    name = chips.get(chip or registry.default().chips[0].name).name
    changed["ANYNPU_BOARD_ROOT"] = str(board_root(name, changed.get("ANYNPU_BOARD"), mainline=mainline))
    if "ANYNPU_BOARD" in changed:
        changed["ANYNPU_BOARD_CORES"] = str(board_folder(changed["ANYNPU_BOARD"], name) / HOLDERS)
    observation = observation or Observation()
    if observation.log is not None:
        changed["ANYNPU_CALL_LOG"] = _emptied(observation.log)
        changed["ANYNPU_CALL_LOG_FORMAT"] = observation.log_format
    if observation.trace is not None:
        changed["ANYNPU_TRACE"] = _emptied(observation.trace)
    if machine == HOST_MACHINE:
        changed.pop("ANYNPU_MACHINE", None)
    elif machine is not None:
        changed["ANYNPU_MACHINE"] = machine
    if sanitizing is not None:
        changed.update(_sanitized(sanitizing))
    chosen = tuple(stand_ins)
    return with_stand_ins(changed, chosen) if chosen else changed


def with_provider(environment: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    """*environment*, changed so that sessions of programs that link ONNX Runtime get the execution provider.

    :param options: of the provider, by name
    """
    libraries = library_folder()
    preload = _joined(environment.get("LD_PRELOAD"), str(libraries / "libanynpu_ort.so"))
    text = "\n".join(f"{name}={value}" for name, value in options.items())
    return {**environment, "LD_PRELOAD": preload, "ANYNPU_EP_OPTIONS": text}


def _sanitized(chosen: Sanitizing) -> dict[str, str]:
    found = {"ANYNPU_SANITIZE": "1"}
    if chosen.report is not None:
        found["ANYNPU_SANITIZE_REPORT"] = _emptied(os.path.abspath(chosen.report))
    if chosen.suppressions is not None:
        found["ANYNPU_SANITIZE_SUPPRESSIONS"] = os.path.abspath(chosen.suppressions)
    if chosen.exit_code is not None:
        found["ANYNPU_SANITIZE_EXITCODE"] = str(chosen.exit_code)
    return found


def _python() -> dict[str, str]:
    """The Python that runs this."""
    found = {"python": sys.executable, "version": f"{sys.version_info.major}.{sys.version_info.minor}"}
    name = sysconfig.get_config_var("INSTSONAME")
    for folder in (sysconfig.get_config_var("LIBDIR"), f"{sys.base_prefix}/lib"):
        if folder and name and ".so" in name and Path(folder, name).is_file():
            found["libpython"] = str(Path(folder, name))
            break
    folders = [str(prefix().parents[1]), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    found["site"] = ":".join(dict.fromkeys(folders))
    return found


def _joined(*parts: str | None) -> str:
    return ":".join(part for part in parts if part)


def _emptied(path: str) -> str:
    """*path* for all processes of a program, which append to it: absolute, and empty at first."""
    if path == "-":
        return path
    Path(path).write_bytes(b"")
    return os.path.abspath(path)
