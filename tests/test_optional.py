"""The vendor-compiled onnxruntime is found whatever a program has put under its name; the program keeps what it has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import anynpu

PREAMBLE = """
import sys, types
import numpy as np
import onnx
from onnx import helper, TensorProto

def model():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])
    graph = helper.make_graph([helper.make_node("Erf", ["x"], ["y"])], "erf", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_operatorsetid("", 13)], ir_version=9)

def use():
    import anynpu
    compiled = anynpu.compile(model(), target="rk3588", dtype="fp16")
    with anynpu.Device("rk3588") as device, device.load(compiled).context() as context:
        (y,) = context.run({"x": np.zeros((1, 4), np.float32)})
    assert not y.any(), y
"""

CASES = {
    "a module without anything": """
        fake = sys.modules["onnxruntime"] = types.ModuleType("onnxruntime")
        use()
        assert sys.modules["onnxruntime"] is fake
        assert not [name for name in sys.modules if name.startswith("onnxruntime.")]
    """,
    "the session of ours": """
        import anynpu.session
        sys.modules["onnxruntime"] = anynpu.session
        use()
        import onnxruntime
        assert onnxruntime is anynpu.session
    """,
    "replaced after it was used": """
        import onnxruntime as genuine
        fake = sys.modules["onnxruntime"] = types.ModuleType("onnxruntime")
        use()
        assert sys.modules["onnxruntime"] is fake
        assert sys.modules["onnxruntime.capi"] is genuine.capi
    """,
    "modules inside it": """
        sys.modules["onnxruntime"] = types.ModuleType("onnxruntime")
        inner = sys.modules["onnxruntime.capi"] = types.ModuleType("onnxruntime.capi")
        use()
        assert sys.modules["onnxruntime.capi"] is inner
    """,
    "another folder on the path": """
        sys.path.insert(0, SHADOW)
        use()
        assert "onnxruntime" not in sys.modules
        import onnxruntime
        assert onnxruntime.SHADOW
        use()
        assert sys.modules["onnxruntime"] is onnxruntime
    """,
    "nothing": """
        use()
        import onnxruntime
        assert onnxruntime.get_available_providers()
        import anynpu._util.optional
        assert anynpu._util.optional.onnxruntime() is onnxruntime
    """,
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_program_has_under_the_name(case: str, tmp_path: Path) -> None:
    shadow = tmp_path / "onnxruntime"
    shadow.mkdir()
    (shadow / "__init__.py").write_text("SHADOW = True\n")
    program = f"{PREAMBLE}\nSHADOW = {str(tmp_path)!r}\n{textwrap.dedent(CASES[case])}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


def test_a_name_that_is_forbidden_stays_so() -> None:
    program = """
    import sys
    sys.modules["onnxruntime"] = None
    import anynpu._util.optional, anynpu.errors
    try:
        anynpu._util.optional.onnxruntime()
    except anynpu.errors.MissingDependencyError as error:
        assert "onnxruntime" in str(error)
    else:
        raise AssertionError
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr


def test_anynpu_imports_onnxruntime_without_its_telemetry(tmp_path: Path) -> None:
    """In the process and in its children; a variable that the user set stays."""
    code = textwrap.dedent(
        """
        use()
        import os, subprocess
        print(os.environ["ORT_DISABLE_TELEMETRY"], flush=True)
        child = "import os; from anynpu._util.optional import onnxruntime; onnxruntime(); print(os.environ['ORT_DISABLE_TELEMETRY'])"
        subprocess.run([sys.executable, "-c", child], check=True)
        """
    )
    kept = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    homes = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-c", PREAMBLE + code]
    done = subprocess.run(command, env=kept | homes, capture_output=True, text=True, check=False, timeout=300)
    assert (done.stdout, done.returncode) == ("1\n1\n", 0), done.stderr
    assert not list(tmp_path.rglob("Microsoft"))
    child = "import os; from anynpu._util.optional import onnxruntime; onnxruntime(); print(os.environ['ORT_DISABLE_TELEMETRY'])"
    chosen = kept | homes | {"ORT_DISABLE_TELEMETRY": "true"}
    done = subprocess.run([sys.executable, "-c", child], env=chosen, capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout == "true\n"


def test_one_module_imports_onnxruntime() -> None:
    """Every other one would start its telemetry."""
    package = Path(anynpu.__file__).parent
    pattern = re.compile(r"^\s*(import onnxruntime\b|from onnxruntime\b)|import_module\(.onnxruntime\b", re.MULTILINE)
    found = [path.name for path in package.rglob("*.py") if pattern.search(path.read_text(encoding="utf-8"))]
    assert found == []
