"""Python programs under ``anynpu exec``: the vendor's packages by our classes, and a board that they recognize."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from anynpu.dropin import environment as standins
from anynpu.dropin.environment import STAND_INS, StandIn, stand_in_folder, with_stand_ins

from .conftest import Models
from .running import board_environment, clean_environment, python_environment, run

COMMAND = [sys.executable, "-m", "anynpu.cli", "exec"]

LOOK = """
import importlib.metadata, importlib.util, json, os, platform, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
found = {"machine": platform.machine(), "uname": os.uname().machine, "library": os.path.exists("/usr/lib/librknnrt.so")}
found["other"] = os.path.exists("/usr/lib/libnothing-of-ours.so")
try:
    found["tree"] = open("/proc/device-tree/compatible").read().rstrip("\\0").split(",")[-1]
except OSError:
    found["tree"] = None
for package, distribution, kind in (("rknnlite", "rknn-toolkit-lite2", "RKNNLite"), ("rknn", "rknn-toolkit2", "RKNN")):
    try:
        spec = importlib.util.find_spec(package + ".api")
    except ModuleNotFoundError:
        spec = None
    found[package] = None if spec is None else getattr(__import__(package + ".api").api, kind).__module__
    found[distribution] = version(distribution)
print(json.dumps(found))
"""


def execute(*arguments: str | Path, code: int | None = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    changed = clean_environment(ANYNPU_PYTHON=None, LD_LIBRARY_PATH=None, **environment)
    return run([*COMMAND, *arguments], changed, code=code)


@pytest.fixture
def vendor(tmp_path: Path) -> Path:
    """Packages of the vendor's names, as an installation has them."""
    folder = tmp_path / "vendor"
    for package, distribution, module, kind in (
        ("rknnlite", "rknn_toolkit_lite2", "rknn_lite", "RKNNLite"),
        ("rknn", "rknn_toolkit2", "rknn", "RKNN"),
    ):
        (folder / package / "api").mkdir(parents=True)
        (folder / package / "__init__.py").write_text("")
        (folder / package / "api" / "__init__.py").write_text(f"from .{module} import {kind}\n")
        (folder / package / "api" / f"{module}.py").write_text(f"class {kind}:\n    pass\n")
        info = folder / f"{distribution}-2.5.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution.replace('_', '-')}\nVersion: 2.5.0\n")
    return folder


@pytest.mark.full
def test_a_program_finds_the_board_that_it_looks_for() -> None:
    done = execute("--chip", "rk3588", "--", sys.executable, "-c", LOOK)
    found = json.loads(done.stdout)
    assert (found["machine"], found["uname"], found["tree"], found["library"], found["other"]) == (
        *("aarch64", "aarch64", "rk3588", True),
        False,
    )
    assert found["rknn-toolkit-lite2"] == STAND_INS["rknnlite"].version
    assert found["rknnlite"].startswith("anynpu.rknn.lite")


def test_without_it_the_machine_is_what_it_is() -> None:
    import platform

    found = json.loads(run([sys.executable, "-c", LOOK], board_environment()).stdout)
    assert found["machine"] == platform.machine()
    assert found["rknnlite"] is None


@pytest.mark.parametrize(
    ("options", "machine"),
    [
        (["--chip", "rv1106"], "armv7l"),
        (["--chip", "t527"], "aarch64"),
        (["--chip", "rk3588", "--machine", "riscv64"], "riscv64"),
        (["--chip", "rk3588", "--machine", "host"], os.uname().machine),
        ([], os.uname().machine),
    ],
    ids=str,
)
def test_exec_reports_the_machine_type_of_the_board(options: list[str], machine: str) -> None:
    assert execute(*options, "--", "uname", "-m").stdout == f"{machine}\n"


def test_modules_of_the_vendor_and_the_peer_that_programs_import(models: Models) -> None:
    program = """
import sys
import numpy as np
import ztu_somemodelruntime_ez_rknn_async as peer
from rknn.utils import onnx_edit
from rknnlite.api import RKNNLite
from rknnlite.api.rknn_runtime import RKNNRuntime
lite = RKNNLite()
assert lite.load_rknn(sys.argv[1]) == 0 and lite.init_runtime() == 0
assert isinstance(lite.rknn_base.rknn_runtime, RKNNRuntime) and callable(onnx_edit)
image = np.zeros((1, 32, 32, 3), np.uint8)
session = peer.InferenceSession(sys.argv[1], provider_options=peer.make_provider_options(layout="nhwc"))
same = np.array_equal(session.run(None, [image])[0], lite.inference(inputs=[image])[0])
print(same, peer.InferenceSession.__module__.split(".")[0])
"""
    assert run([sys.executable, "-c", program, models.small], python_environment()).stdout == "True anynpu\n"


def test_programs_that_call_the_library_of_the_runtime(models: Models) -> None:
    """After the pattern of photo servers: inputs by the runtime, outputs by ctypes in the type that the NPU computed."""
    program = """
import ctypes
import sys
import numpy as np
from rknnlite.api import RKNNLite, rknn_runtime
lite = RKNNLite()
assert lite.load_rknn(sys.argv[1]) == 0 and lite.init_runtime(core_mask=RKNNLite.NPU_CORE_1) == 0
image = np.random.default_rng(0).integers(0, 256, (1, 32, 32, 3), np.uint8)
expected = lite.inference(inputs=[image])
runtime = lite.rknn_runtime
runtime.set_inputs([image], None, "nhwc")
runtime.run(False)
count = runtime.get_in_out_num()[1]
buffers = (rknn_runtime.RKNNOutput * count)()
for index, buffer in enumerate(buffers):
    buffer.index, buffer.want_float = index, 1
assert runtime.lib.rknn_outputs_get(runtime.context, count, buffers, None) == 0
for buffer, wanted in zip(buffers, expected):
    data = ctypes.cast(buffer.buf, ctypes.POINTER(ctypes.c_char * buffer.size)).contents
    assert np.array_equal(np.frombuffer(data, np.float32).reshape(wanted.shape), wanted)
assert runtime.lib.rknn_outputs_release(runtime.context, count, buffers) == 0
text = ctypes.create_string_buffer(1024)
assert runtime.lib.rknn_query(runtime.context, 7, ctypes.byref(text), 1024) == 0
print(np.array_equal(lite.inference(inputs=[image])[0], expected[0]), repr(text.value))
lite.release()
"""
    done = run([sys.executable, "-c", program, models.small], python_environment())
    assert done.stdout == "True b''\n", done.stderr


def test_outside_of_exec_the_vendors_packages_are_the_vendors(vendor: Path) -> None:
    program = "import anynpu.rknn.lite; anynpu.rknn.lite.RKNNLite\n" + LOOK
    environment = clean_environment(PYTHONPATH=str(vendor), LD_LIBRARY_PATH=None)
    found = json.loads(run([sys.executable, "-c", program], environment).stdout)
    assert found["rknnlite"] == "rknnlite.api.rknn_lite"
    assert found["rknn"] == "rknn.api.rknn"
    assert found["rknn-toolkit-lite2"] == "2.5.0"
    assert found["rknn-toolkit2"] == "2.5.0"


@pytest.mark.full
def test_under_exec_ours_come_first_unless_asked_otherwise(vendor: Path) -> None:
    program = "from rknnlite.api import RKNNLite; print(RKNNLite.__module__)"
    ours = run([sys.executable, "-c", program], python_environment(PYTHONPATH=str(vendor)))
    assert ours.stdout.startswith("anynpu.rknn.lite")
    theirs = execute("--no-stand-ins", "--", sys.executable, "-c", program, PYTHONPATH=str(vendor))
    assert theirs.stdout == "rknnlite.api.rknn_lite\n"


def test_both_ways_to_import_it_and_a_python_without_anynpu(models: Models) -> None:
    """``-S`` leaves site-packages out: the stand-in finds anynpu by what exec has left in the environment."""
    program = """
import sys
assert not any("site-packages" in folder for folder in sys.path)
from rknnlite.api import RKNNLite
from rknnlite.api.rknn_lite import RKNNLite as Same
import numpy as np
assert RKNNLite is Same
lite = RKNNLite()
assert lite.load_rknn(sys.argv[1]) == 0 and lite.init_runtime(core_mask=RKNNLite.NPU_CORE_1) == 0
print(lite.inference(inputs=[np.zeros((1, 32, 32, 3), np.uint8)])[0].shape)
"""
    done = run([sys.executable, "-S", "-c", program, models.small], python_environment())
    assert done.stdout == "(1, 20, 32, 32)\n"
    assert done.stderr == "W rknn-toolkit-lite2 version: 2.3.2\n"


@pytest.mark.full
def test_calls_are_written_down_where_the_class_drives_the_library(models: Models, tmp_path: Path) -> None:
    """With a log the class calls librknnrt.so, as on a board, and gives the same bytes."""
    program = """
import sys
import numpy as np
from rknnlite.api import RKNNLite
lite = RKNNLite()
assert lite.load_rknn(sys.argv[1]) == 0 and lite.init_runtime(core_mask=RKNNLite.NPU_CORE_0_1) == 0
image = np.random.default_rng(0).integers(0, 256, (1, 32, 32, 3), np.uint8)
print(lite.rknn_runtime.npu.library.description, lite.inference([image])[0].tobytes().hex())
assert lite.inference([image[0]]) is None
lite.release()
"""
    log = tmp_path / "calls.txt"
    command = [sys.executable, "-c", program, models.small]
    board = run(command, python_environment(log=log)).stdout.split()
    direct = run(command, python_environment()).stdout.split()
    assert board[0].startswith("librknnrt")
    assert direct[0] == "software"
    assert board[-1] == direct[-1]
    calls = [line.split("(")[0].split()[-1] for line in log.read_text().splitlines()]
    for name in ("rknn_init", "rknn_set_core_mask", "rknn_inputs_set", "rknn_run", "rknn_outputs_get", "rknn_destroy"):
        assert name in calls


def test_a_program_that_breaks_off_keeps_its_status(models: Models) -> None:
    program = "import sys; from rknnlite.api import RKNNLite; sys.exit(RKNNLite().load_rknn('missing.rknn'))"
    assert run([sys.executable, "-c", program], python_environment(), code=None).returncode == 255


def test_a_stand_in_of_ones_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The table is all that there is to a package."""
    own = StandIn("acme-vision", "1.0", {"acme": "", "acme.vision": "anynpu.errors"}, {"acme/NOTE": "hello\n"})
    monkeypatch.setattr(standins, "STAND_INS", {"acme": own})
    monkeypatch.setattr(standins, "runtime_folder", lambda: tmp_path)
    environment = with_stand_ins(clean_environment(PYTHONPATH="/somewhere"), ["acme"])
    assert environment["PYTHONPATH"] == f"{stand_in_folder(['acme'])}:/somewhere"
    program = (
        "import importlib.metadata as m, acme, acme.vision as v;"
        "print(m.version('acme-vision'), v.ShapeError.__module__, open(acme.__path__[0] + '/NOTE').read())"
    )
    assert run([sys.executable, "-c", program], environment).stdout == "1.0 anynpu.errors hello\n\n"


def test_both_classes_in_one_process() -> None:
    program = """
import rknn, sys
from rknn.api import RKNN
from rknn.api.custom_op import get_node_attr
from rknnlite.api import RKNNLite
print(open(rknn.__path__[0] + "/VERSION").read().strip(), RKNN.__module__, RKNNLite.__module__)
"""
    done = run([sys.executable, "-c", program], python_environment())
    assert done.stdout == f"{STAND_INS['rknn'].version} anynpu.rknn.toolkit.toolkit anynpu.rknn.lite.lite\n"


def test_a_python_of_another_version_is_told_so() -> None:
    environment = {**python_environment(), "ANYNPU_PYTHON_VERSION": "2.7"}
    done = run([sys.executable, "-S", "-c", "import rknnlite.api"], environment, code=1)
    assert "anynpu is installed for Python 2.7, this program runs in" in done.stderr
