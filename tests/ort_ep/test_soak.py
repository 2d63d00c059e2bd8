"""Many sessions, and the provider under AddressSanitizer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from dropin.running import clean_environment
from onnx import TensorProto, helper
from tools import need

from anynpu.session.onnxruntime.context_model import PROVIDER

from .building import PROGRAMS, SOURCES, build_nothing, build_provider, compiled, linkable, run_python
from .test_parts import convolutions, saved

SESSIONS = int(os.environ.get("ANYNPU_EP_SESSIONS", "1000"))
"""`make soak` asks for more."""

SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"]


def context_model(path: Path) -> Path:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16]) for name in ("x", "y")]
    node = helper.make_node(
        "EPContext", ["x"], ["y"], domain="com.microsoft", source=PROVIDER, embed_mode=1, ep_cache_context=b"c"
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "nothing", ports[:1], ports[1:])
    return saved(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


@pytest.mark.full
def test_sessions_leave_nothing_behind(tmp_path: Path) -> None:
    """Memory and descriptors after as many sessions again: with a library that does nothing, all that grows is the provider's."""
    from anynpu.dropin.environment import execution_provider

    nothing, model = build_nothing(tmp_path), context_model(tmp_path / "m.onnx")
    output = run_python(PROGRAMS / "many_sessions.py", execution_provider(), model, nothing, str(SESSIONS))
    sizes = [int(line.split()[0]) for line in output.splitlines()]
    descriptors = [int(line.split()[1]) for line in output.splitlines()]
    assert len(set(descriptors[1:])) == 1, output
    assert min(sizes[-3:]) - sizes[len(sizes) // 2] < max(256 * 1024, 64 * SESSIONS), output


@pytest.mark.full
def test_the_provider_under_the_address_sanitizer(tmp_path: Path) -> None:
    """EPContext models, wrong ones, a plain model that is compiled, and errors of the vendor's calls."""
    compiler = need("address sanitizer")
    libraries = linkable(tmp_path / "onnxruntime")
    provider = build_provider(tmp_path, compiler, *SANITIZE)
    nothing = build_nothing(tmp_path)
    host = tmp_path / "host"
    flags = [*SANITIZE, "-g", "-O1", f"-I{SOURCES / 'dropin' / 'ort_ep'}", "-Wl,--no-as-needed", "-lstdc++", "-Wl,--as-needed"]
    link = [f"-L{libraries}", "-lonnxruntime", f"-Wl,-rpath,{libraries}", "-Wl,--allow-shlib-undefined"]
    compiled([compiler, PROGRAMS / "host.c", *flags, "-o", host, *link])
    (tmp_path / "vector").write_bytes(bytes(64))
    (tmp_path / "image").write_bytes(bytes(4 * 3 * 16 * 16))
    plain = saved(convolutions("BiasGelu"), tmp_path / "plain.onnx")
    model = context_model(tmp_path / "m.onnx")

    def run(code: int, shown: str, *arguments: str | Path, fails: str = "", ways: str = "", then: str = "") -> None:
        changes = {"NOTHING_FAILS": fails, "HOST_WAYS": ways, "HOST_THEN": then}
        environment = clean_environment(LD_LIBRARY_PATH=None, ORT_DISABLE_TELEMETRY="1", ASAN_OPTIONS="detect_leaks=0", **changes)
        command = [str(part) for part in (host, provider, *arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=environment)
        assert "Sanitizer" not in done.stderr, done.stderr
        assert "runtime error" not in done.stderr, done.stderr
        assert done.returncode == code, done.stderr
        assert shown in done.stdout + done.stderr, done.stderr

    tensors = ["x", "y", tmp_path / "vector", tmp_path / "out", "1,16"]
    library = f"library={nothing}"
    run(0, "us per run", model, *tensors, "1000", library)
    run(0, "us per run", model, *tensors, "10", library, "contexts=64", "core_mask=0_1_2", "priority=low")
    for then in ("inputs_set:-8", "set_io_mem:-5"):
        run(0, "us per run", model, *tensors, "10", library, "core_mask=0_1", ways="shared", then=then)
    run(1, "rknn_run returned", model, *tensors, "1", library, ways="shared", then="run:-2")
    run(1, "there is no option", model, *tensors, "1", "wrong=1")
    run(1, "is longer than", model, *tensors, "1", f"library={'x' * 5000}")
    run(1, "is not beside the provider", model, *tensors, "1", "device=sim")
    for call in ("init", "query", "dup_context", "inputs_set", "run", "outputs_get", "outputs_release"):
        run(1, f"rknn_{call} returned", model, *tensors, "1", library, "contexts=3", fails=f"{call}:-1")
    cache = f"cache_dir={tmp_path / 'cache'}"
    # compiled, then opened by a library with other tensors; the second time from the cache
    image = ["x", "r3", tmp_path / "image", tmp_path / "out", "1,3,16,16", "1"]
    command = Path(need_command())
    run(1, "is declared as 1x3x16x16", plain, *image, library, cache, f"compiler={command}")
    run(1, "is declared as 1x3x16x16", plain, *image, library, cache, "compiler=/absent")
    run(1, "cannot be started", plain, *image, library, f"{cache}2", "compiler=/absent")
    (plan,) = (tmp_path / "cache").glob("*/plan")
    text = plan.read_text(encoding="utf-8")
    damages = (
        text[: len(text) // 2],
        text.replace("members 0", "members 99"),
        text.replace("part part0", "part ../part0"),
        "",
        "end\n",
    )
    for damage in damages:
        plan.write_text(damage, encoding="utf-8")
        run(1, "is damaged", plain, *image, library, cache)


def need_command() -> str:
    """The command anynpu of this environment."""
    import sys

    return str(Path(sys.executable).with_name("anynpu"))
