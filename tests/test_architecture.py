"""Who may import whom, and what importing the package must not do.

Every module belongs to a space, the folder or module directly in the package that it lies in, and every arrow between rooms is in a table.
No arrow goes in a circle.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from documentation import section

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "anynpu"


def load_tool() -> ModuleType:
    """What reads the imports, for this test and for the image in docs/architecture.md."""
    spec = importlib.util.spec_from_file_location("architecture_page", ROOT / "tools" / "architecture_page.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = tool  # dataclasses look their module up
    spec.loader.exec_module(tool)
    return tool


tool = load_tool()
module_name = tool.module_name
room_of = tool.room_of
part_of = tool.part_of

ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "tensor": set(),
    "_util": {"errors"},
    "devtools": set(),
    "devtools.faults": {"_util", "errors"},
    "devtools.recording": {"_util", "errors"},
    "devtools.sanitizer": {"_util", "errors", "tensor"},
    "program": {"_util", "tensor"},
    "program.arithmetic": {"_util", "program", "tensor"},
    "program.convert": {"_util", "errors", "native", "program", "program.arithmetic", "tensor"},
    "tasks": {"_util", "errors", "native"},
    "chips": {"_util", "errors"},
    "chips.timing": {"_util", "chips", "errors", "program", "tensor"},
    "vendors": {"chips", "devtools.faults", "devtools.recording", "errors", "program.arithmetic", "tensor"},
    "modelfile": {"_util", "chips", "errors", "program", "tensor", "vendors"},
    "compiler": {
        "_util",
        "chips",
        "chips.timing",
        "errors",
        "modelfile",
        "native",
        "program",
        "program.arithmetic",
        "program.convert",
        "tasks",
        "tensor",
        "vendors",
    },
    "compiler.board": {"_util", "chips", "compiler", "errors", "modelfile", "program", "tensor", "vendors"},
    "npu": {
        "_util",
        "chips",
        "chips.timing",
        "devtools.faults",
        "devtools.sanitizer",
        "errors",
        "modelfile",
        "native",
        "program",
        "program.arithmetic",
        "program.convert",
        "tensor",
    },
    "analysis": {
        "_util",
        "analysis.pages",
        "chips",
        "chips.timing",
        "compiler",
        "errors",
        "npu",
        "program",
        "program.arithmetic",
        "program.convert",
        "tensor",
        "vendors",
    },
    "analysis.pages": set(),
    "dropin": {"chips", "devtools.sanitizer", "errors", "npu", "vendors"},
    "session": {
        "_util",
        "chips",
        "errors",
        "modelfile",
        "npu",
        "program",
        "program.convert",
        "session.protocol",
        "tensor",
        "vendors",
    },
    "session.onnxruntime": {"_util", "chips", "compiler", "errors", "modelfile", "program", "session", "tensor", "vendors"},
    "session.protocol": {"_util", "errors", "modelfile", "tensor"},
    "rknn": {
        "_util",
        "chips",
        "chips.timing",
        "devtools.recording",
        "devtools.sanitizer",
        "errors",
        "modelfile",
        "native",
        "npu",
        "program",
        "program.arithmetic",
        "program.convert",
        "session",
        "tensor",
        "vendors",
    },
    "rknn.lite": {"_util", "chips", "compiler", "errors", "modelfile", "rknn", "vendors"},
    "rknn.toolkit": {
        "_util",
        "analysis",
        "chips",
        "compiler",
        "errors",
        "modelfile",
        "program",
        "rknn",
        "rknn.lite",
        "tensor",
        "vendors",
    },
    "serve": {"_util", "analysis.pages", "errors", "modelfile", "session", "session.protocol", "tensor", "vendors"},
    "serve.cluster": {"_util", "errors", "npu", "serve", "session.protocol"},
    "serve.playground": {
        "_util",
        "analysis",
        "analysis.pages",
        "chips",
        "chips.timing",
        "compiler",
        "errors",
        "modelfile",
        "npu",
        "program",
        "serve",
        "tasks",
        "vendors",
    },
    "vip": {
        "_util",
        "chips",
        "devtools.recording",
        "devtools.sanitizer",
        "errors",
        "modelfile",
        "npu",
        "program",
        "program.arithmetic",
        "program.convert",
        "session",
        "tensor",
        "vendors",
    },
    "cli": {
        "_util",
        "analysis",
        "chips",
        "chips.timing",
        "cli.demo",
        "cli.networks",
        "compiler",
        "compiler.board",
        "devtools.faults",
        "devtools.recording",
        "devtools.sanitizer",
        "dropin",
        "errors",
        "modelfile",
        "npu",
        "program",
        "serve",
        "serve.cluster",
        "serve.playground",
        "session",
        "session.onnxruntime",
        "tasks",
        "tensor",
        "vendors",
    },
    "cli.demo": {"_util", "compiler", "errors", "modelfile", "session", "tasks"},
    "cli.networks": {"errors"},
    "__main__": {"cli"},
}
"""What each package, and each sub-package of ``PARTS``, imports: no less and no more. Only its own sub-packages import a vendor's package:
it is found through the list of vendors."""

ONLY_ITS_FACE = {("rknn", "session"), ("vip", "session")}
"""Pairs in which the first may import the second package, but no module inside it."""

OPTIONAL = {
    *("onnx", "onnxruntime", "cv2", "pyopencl", "typer", "rich"),
    *("httptools", "grpc", "google", "prometheus_client", "opentelemetry", "ray"),
}
"""Packages that are loaded at first use. The command line may import its own two at once, and so may commands of vendors."""

RAY_ROOM = "serve.cluster"
"""Modules in here may import Ray at once, and nothing outside imports them at once."""

WITH_RAY = {f"anynpu.{RAY_ROOM}.{name}" for name in ("application", "ray_platform", "router", "server", "virtual")}
"""Those that do. Everything else of the space works without."""


def in_ray_room(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.{RAY_ROOM}.")


def complaint(module: str, package: str, found: tool.Import) -> str:
    """What is wrong with one import of *module*; empty if nothing is."""
    room = part_of(module)
    outside, _, _ = found.target.partition(".")
    if outside != package:
        if outside == "onnxruntime" and module != f"{package}._util.optional" and not found.typing:
            return "imports onnxruntime itself, past the helper that switches its telemetry off"
        of_the_command_line = room_of(module) == "cli" or module.split(".")[-1] == "command"
        own = (of_the_command_line and outside in ("typer", "rich")) or (in_ray_room(module, package) and outside == "ray")
        if outside in OPTIONAL and not (found.lazy or found.typing) and not own:
            return f"imports {outside} at once instead of at first use"
        return ""
    if in_ray_room(found.target, package) and not (found.lazy or found.typing or in_ray_room(module, package)):
        return f"imports {found.target} at once, which needs Ray"
    if module == package:
        # the public names are loaded on demand from wherever they live; the fork hook must be there before those imports begin
        return (
            "" if found.lazy or found.typing or found.target == f"{package}._util.lifetime" else f"imports {found.target} at once"
        )
    if found.target == package:
        return "" if room_of(module) == "cli" else "imports a public name of the package, which hides where it comes from"
    other = part_of(found.target)
    if other == room:
        return ""
    if other not in ARROWS.get(room, ()):
        return f"{room} must not import {other} ({found.target})"
    if (room, other) in ONLY_ITS_FACE and found.target != f"{package}.{other}":
        return f"{room} must not import the insides of {other} ({found.target})"
    return ""


def complaints(package: Path) -> list[str]:
    """Everything that is wrong with the imports of a package."""
    files = tool.files_of(package)
    modules = {module_name(path, package) for path in files}
    modules |= {f"{package.name}.{name}" for name in (*ARROWS, *tool.EXTENSIONS)}
    rooms = {part_of(module_name(path, package)) for path in files} - {package.name}
    wrong = [f"{room}: a space that the table of arrows does not have" for room in sorted(rooms - set(ARROWS))]
    for path in files:
        module = module_name(path, package)
        for found in tool.imports_of(path, package, modules):
            reason = complaint(module, package.name, found)
            if reason:
                wrong.append(f"{path.relative_to(package).as_posix()}:{found.line}: {reason}")
    return wrong


def test_nobody_imports_whom_it_must_not_know() -> None:
    assert complaints(PACKAGE) == []


def test_the_table_allows_no_more_than_there_is() -> None:
    assert tool.room_graph(PACKAGE, part_of) == ARROWS


def test_no_rooms_import_each_other_in_a_circle() -> None:
    """Neither in the sources, with imports inside functions and for type checkers, nor by what the table allows."""
    assert tool.cycle(tool.room_graph(PACKAGE)) == []
    assert tool.cycle(ARROWS) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert tool.cycle(tool.module_graph(PACKAGE)) == []


def test_the_passes_of_the_compiler_are_modules() -> None:
    """Each row of the table in docs/how-it-works.md names a module that exists."""
    rows = re.findall(r"^\| \w+ \| `([\w/.]+)` \| ", section("how-it-works", "What happens"), re.MULTILINE)
    assert len(rows) == 7
    assert [name for name in rows if not (PACKAGE / "compiler" / name).is_file()] == []


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"npu/a.py": "from ..session import x", "session/x.py": "def f():\n    from ..npu import a"}, ["npu", "session", "npu"]),
        ({"npu/a.py": "from ..vip import x", "vip/x.py": "if TYPE_CHECKING:\n    from ..npu import a"}, ["npu", "vip", "npu"]),
        ({"npu/a.py": "from ..vip import x", "vip/x.py": "from . import y", "vip/y.py": ""}, []),
    ],
)
def test_a_circle_is_found(tmp_path: Path, files: dict[str, str], expected: list[str]) -> None:
    assert tool.cycle(tool.room_graph(written(tmp_path, files))) == expected


def test_a_circle_of_modules_is_found(tmp_path: Path) -> None:
    package = written(tmp_path, {"npu/a.py": "def f():\n    from . import b", "npu/b.py": "from .a import x"})
    assert tool.cycle(tool.module_graph(package)) == ["anynpu.npu.a", "anynpu.npu.b", "anynpu.npu.a"]


def written(folder: Path, files: dict[str, str]) -> Path:
    package = folder / "anynpu"
    for name, text in {"__init__.py": "", **files}.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return package


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("tensor.py", "from .npu import memory", "tensor must not import npu"),
        ("tensor.py", "def f():\n    from anynpu.npu.memory import Buffer", "tensor must not import npu"),
        ("tensor.py", "import anynpu.compiler", "tensor must not import compiler"),
        ("tensor.py", "if TYPE_CHECKING:\n    from .session import Session", "tensor must not import session"),
        ("tensor.py", "import importlib\nimportlib.import_module('anynpu.npu')", "tensor must not import npu"),
        ("tensor.py", "import importlib\nimportlib.import_module('.npu', __package__)", "tensor must not import npu"),
        ("chips/chip.py", "from ..compiler import place", "chips must not import compiler"),
        ("program.py", "def f():\n    from .modelfile import write", "program must not import modelfile"),
        ("chips/chip.py", "from .. import vendors", "chips must not import vendors"),
        ("session/session.py", "from ..serve import options", "session must not import serve"),
        ("brand_new.py", "", "a space that the table of arrows does not have"),
        ("npu/cores.py", "from ..compiler import graph", "npu must not import compiler"),
        ("npu/engines/native.py", "from ...rknn import software", "npu must not import rknn"),
        ("npu/cores.py", "from ..session import queue", "npu must not import session"),
        ("chips/timing/model.py", "from ...npu.memory import Buffer", "chips.timing must not import npu"),
        ("chips/timing/model.py", "from ...compiler import place", "chips.timing must not import compiler"),
        ("compiler/lower/placement.py", "from ... import npu", "compiler must not import npu"),
        ("compiler/lower/placement.py", "from ...npu.memory import Buffer", "compiler must not import npu"),
        ("compiler/lower/placement.py", "from anynpu import compile", "hides where it comes from"),
        ("rknn/context.py", "from ..vip import context", "rknn must not import vip"),
        ("vip/context.py", "from .. import rknn", "vip must not import rknn"),
        ("session/session.py", "from ..rknn.context import Context", "session must not import rknn"),
        ("cli/profile.py", "from ..rknn import Context", "cli must not import rknn"),
        ("dropin/table.py", "from ..vip.software import library", "dropin must not import vip"),
        ("npu/cores.py", "import typer", "at once instead of at first use"),
        ("rknn/backend.py", "from ..session.queue import Queue", "the insides of session"),
        ("session/session.py", "from ..compiler import place", "session must not import compiler"),
        ("dropin/table.py", "from ..serve import server", "dropin must not import serve"),
        ("serve/server.py", "from ..rknn import context", "serve must not import rknn"),
        ("serve/server.py", "from ..cli import app", "serve must not import cli"),
        ("serve/server.py", "from .cluster import engine", "which needs Ray"),
        ("serve/server.py", "import ray", "at once instead of at first use"),
        ("cli/cluster.py", "from ..serve.cluster import ClusterServer", "which needs Ray"),
        ("cli/demo/pages.py", "from ..helpers import console", "cli.demo must not import cli"),
        ("__init__.py", "from .npu import memory", "imports anynpu.npu.memory at once"),
        ("novel/room.py", "", "a space that the table of arrows does not have"),
        ("npu/engines/float_onnxruntime.py", "def f():\n    import onnxruntime", "past the helper"),
        ("tensor.py", "import onnx", "at once instead of at first use"),
        ("compiler/lower/placement.py", "from onnx import numpy_helper", "at once instead of at first use"),
        ("program/report.py", "class Table:\n    import rich.table", "at once instead of at first use"),
        ("cli/app.py", "import cv2", "at once instead of at first use"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, file: str, text: str, expected: str) -> None:
    neighbours = {
        f"{room}/{name}.py": ""
        for room, name in [("npu", "__init__"), ("npu", "memory"), ("rknn", "context"), ("vip", "context"), ("compiler", "place")]
    }
    found = complaints(written(tmp_path, {**neighbours, file: text}))
    assert len(found) == 1, found
    assert expected in found[0]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("compiler/custom_operators.py", "from .. import tensor\nfrom .._native import lib\nfrom ..errors import X"),
        ("__init__.py", "def __getattr__(name):\n    from .npu import memory\n    return memory"),
        ("__init__.py", "if TYPE_CHECKING:\n    from .compiler import compile"),
        (
            "npu/engines/native.py",
            "from ... import program\nfrom ...tensor import DType\nfrom ..memory import Buffer\nfrom . import x",
        ),
        ("compiler/lower/placement.py", "from ... import chips\nfrom ...chips import Chip\nfrom ..graph import Graph"),
        ("compiler/lower/placement.py", "from ...chips.timing import predict"),
        ("chips/timing/model.py", "from ...program import Program\nfrom .. import get"),
        ("compiler/lower/placement.py", "def f():\n    import onnx\n    from rich.progress import Progress"),
        ("compiler/lower/placement.py", "if TYPE_CHECKING:\n    import onnx\n    import onnxruntime"),
        ("session/session.py", "from ..npu.memory import Buffer\nfrom ..vendors import registry"),
        ("vip/command.py", "import typer\nfrom .vpmrun import run"),
        ("rknn/backend.py", "from ..session import Backend\nfrom ..npu import memory"),
        ("dropin/table.py", "from ..vendors import registry\nfrom ..npu import memory"),
        ("serve/server.py", "from ..session import InferenceSession"),
        (
            "serve/cluster/ray_platform.py",
            "import ray\nfrom ray import serve\nfrom ..options import ServeOptions\nfrom .plan import x",
        ),
        ("cli/cluster.py", "def f():\n    from ..serve.cluster import ClusterServer"),
        ("cli/app.py", "import typer\nimport rich\nimport anynpu\nfrom .demo import pages\nfrom ..compiler.place import x"),
        ("_util/optional.py", "def onnxruntime():\n    import onnxruntime\n    return onnxruntime"),
    ],
)
def test_an_allowed_import_is_not_blamed(tmp_path: Path, file: str, text: str) -> None:
    neighbours = dict.fromkeys(("tensor.py", "program.py", "chips/__init__.py", "npu/memory.py", "rknn/context.py"), "")
    assert complaints(written(tmp_path, {**neighbours, file: text})) == []


FRESH_INTERPRETER = """
import json, locale, logging, os, random, signal, sys, threading, warnings
import numpy

def state():
    tasks = "/proc/self/task"
    return {
        "logging handlers": [repr(handler) for handler in logging.getLogger().handlers],
        "logging level": logging.getLogger().level,
        "logging class": repr(logging.getLoggerClass()),
        "logging disabled": logging.root.manager.disable,
        "logging record factory": repr(logging.getLogRecordFactory()),
        "logging names": {number: logging.getLevelName(number) for number in (10, 20, 30, 40, 50)},
        "locale": locale.setlocale(locale.LC_ALL),
        "environment": dict(os.environ),
        "working directory": os.getcwd(),
        "warnings filters": [repr(entry) for entry in warnings.filters],
        "warnings display": repr(warnings.showwarning),
        "signals": {int(number): repr(signal.getsignal(number)) for number in sorted(signal.valid_signals())},
        "threads": [thread.name for thread in threading.enumerate()],
        "native threads": len(os.listdir(tasks)) if os.path.isdir(tasks) else 0,
        "thread exceptions": repr(threading.excepthook),
        "sys.path": list(sys.path),
        "sys.meta_path": [repr(finder) for finder in sys.meta_path],
        "sys.excepthook": repr(sys.excepthook),
        "sys.streams": [repr(sys.stdout), repr(sys.stderr)],
        "recursion limit": sys.getrecursionlimit(),
        "numpy errors": numpy.geterr(),
        "numpy printing": repr(numpy.get_printoptions()),
        "numpy random": repr(numpy.random.get_state()[1][:4]),
        "random": hash(random.getstate()),
    }

report = {"changed": [], "loaded": []}
before = state()
for name in sys.argv[1:]:
    __import__(name)
    after = state()
    report["changed"] += [f"{name}: {key}" for key in before if before[key] != after[key]]
    report["loaded"] += [
        f"{name}: {package}"
        for package in (
            "onnx", "onnxruntime", "cv2", "typer", "rich", "click", "httptools", "grpc", "prometheus_client", "ray",
            "importlib.metadata",  # which looks through all that is installed
        )
        if package in sys.modules
    ]
print(json.dumps(report))
"""


def import_in_fresh_interpreter(*modules: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("COV_", "COVERAGE_", "PYTEST_"))}
    command = [sys.executable, "-c", FRESH_INTERPRETER, *modules]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)


def test_importing_the_package_changes_nothing_and_loads_nothing_heavy() -> None:
    result = import_in_fresh_interpreter("anynpu")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert len(result.stdout.splitlines()) == 1, "importing prints something"
    assert json.loads(result.stdout) == {"changed": [], "loaded": []}


def test_importing_any_module_but_the_command_line_changes_nothing_and_loads_nothing_heavy() -> None:
    runs_when_imported = {"__main__"}
    modules = [
        module_name(path, PACKAGE)
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in ("cli", "native")
        and "generate" not in path.parts
        and path.stem not in (*runs_when_imported, "command")
        and not (path.parent == PACKAGE and path.stem in tool.ALIASES)  # each adds the finder of the modules below it
        and module_name(path, PACKAGE) not in WITH_RAY
    ]
    assert {"anynpu", "anynpu.chips", "anynpu.errors", "anynpu.program"} <= set(modules)
    result = import_in_fresh_interpreter(*modules)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert len(result.stdout.splitlines()) == 1, "importing prints something"
    assert json.loads(result.stdout) == {"changed": [], "loaded": []}


@pytest.mark.parametrize(
    ("statement", "key"),
    [
        ("import logging; logging.basicConfig()", "logging handlers"),
        ("import os; os.environ['ANYNPU_X'] = '1'", "environment"),
        ("import warnings; warnings.simplefilter('ignore')", "warnings filters"),
        # a function of its own is new whatever the parent did with its signals: nohup and shells ignore some for their children
        ("import signal; signal.signal(signal.SIGINT, lambda number, frame: None)", "signals"),
        ("import threading; threading.Thread(target=threading.Event().wait, args=(30,), daemon=True).start()", "threads"),
        ("import sys; sys.path.append('x')", "sys.path"),
        ("import numpy; numpy.seterr(all='raise')", "numpy errors"),
        ("import numpy; numpy.set_printoptions(precision=3)", "numpy printing"),
        ("import locale; locale.setlocale(locale.LC_ALL, 'C')", "locale"),
    ],
)
def test_a_side_effect_is_noticed(tmp_path: Path, statement: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "culprit.py").write_text(statement, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    if key == "locale":
        monkeypatch.setenv("LC_ALL", "C.UTF-8")
    result = import_in_fresh_interpreter("culprit")
    assert result.returncode == 0, result.stderr
    assert f"culprit: {key}" in json.loads(result.stdout)["changed"]
