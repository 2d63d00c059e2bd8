"""Programs without Python, releases of onnxruntime, and a vendor library that fails."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from dropin.running import clean_environment
from onnx import TensorProto, helper, numpy_helper
from tools import need

import anynpu
from anynpu.dropin.environment import execution_provider
from anynpu.session.onnxruntime.context_model import PROVIDER, wrap_model

from .building import PROGRAMS, build_host, build_library, build_nothing, build_provider, build_rust_host, run_python
from .conftest import SIDE, Models, Provider
from .test_parts import convolutions
from .test_slots import declared

RELEASES = Path(sys.prefix) / "onnxruntime"
"""``make test-all`` installs other releases of onnxruntime there."""


def release_of_onnxruntime(name: str) -> Path | None:
    """The folder of a release; None for the installed one."""
    if name == "installed":
        return None
    if not (RELEASES / name).is_dir():
        pytest.skip("needs other releases of onnxruntime: run `make test-all`, which installs them")
    return RELEASES / name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ort-programs")


@pytest.fixture(scope="module")
def nothing(folder: Path) -> Path:
    return build_nothing(folder)


@pytest.fixture(scope="module")
def nothing_model(folder: Path) -> Path:
    """An EPContext model for the library that does nothing: it accepts any content."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16]) for name in ("x", "y")]
    node = helper.make_node(
        "EPContext", ["x"], ["y"], domain="com.microsoft", source=PROVIDER, embed_mode=1, ep_cache_context=b"content"
    )
    graph = helper.make_graph([node], "nothing", ports[:1], ports[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    path = folder / "nothing.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
    return path


def run_host(command: list[str | Path], **environment: str) -> subprocess.CompletedProcess[str]:
    changed = clean_environment(LD_LIBRARY_PATH=None, ORT_DISABLE_TELEMETRY="1", **environment)
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, timeout=600, env=changed)


def vector(folder: Path) -> Path:
    path = folder / "vector.bin"
    path.write_bytes(bytes(64))
    return path


@pytest.mark.parametrize(
    ("call", "code", "name"),
    [
        ("init", -6, "RKNN_ERR_MODEL_INVALID"),
        ("init", -13, "RKNN_ERR_TARGET_PLATFORM_UNMATCH"),
        ("query", -7, "RKNN_ERR_CTX_INVALID"),
        ("dup_context", -4, "RKNN_ERR_MALLOC_FAIL"),
        ("set_core_mask", -5, "RKNN_ERR_PARAM_INVALID"),
        ("inputs_set", -8, "RKNN_ERR_INPUT_INVALID"),
        ("run", -2, "RKNN_ERR_TIMEOUT"),
        ("run", -77, "unknown error"),
        ("outputs_get", -9, "RKNN_ERR_OUTPUT_INVALID"),
        ("outputs_release", -1, "RKNN_ERR_FAIL"),
    ],
)
def test_each_call_that_fails_is_named(
    provider: Provider, nothing: Path, nothing_model: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int, name: str
) -> None:
    monkeypatch.setenv("NOTHING_FAILS", f"{call}:{code}")
    with pytest.raises(Exception, match=rf"rknn_{call} returned {name} \({code}\), library .*nothing\.so") as raised:
        provider.session(nothing_model, library=str(nothing), contexts="2", core_mask="1").run(
            None, {"x": np.zeros((1, 16), np.float32)}
        )
    assert "hint: " in str(raised.value)
    assert not isinstance(raised.value, ValueError | RuntimeError), "Python's module would continue on the CPU provider"


def test_a_context_that_cannot_be_duplicated_leaves_one(
    provider: Provider, nothing: Path, nothing_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the option ``contexts`` the provider uses as many as the library gives."""
    monkeypatch.setenv("NOTHING_FAILS", "dup_context:-4")
    session = provider.session(nothing_model, library=str(nothing))
    assert session.run(None, {"x": np.ones((1, 16), np.float32)})[0].shape == (1, 16)


def test_a_program_in_c_plus_plus(folder: Path, nothing: Path, nothing_model: Path, models: Models, image: np.ndarray) -> None:
    """The same bytes as in Python; with a library of the vendor there is no Python in the process."""
    host = build_host(folder)
    done = run_host(
        [host, execution_provider(), nothing_model, "x", "y", vector(folder), folder / "out", "1,16", "10", f"library={nothing}"]
    )
    assert done.returncode == 0, done.stderr
    assert "Python absent" in done.stdout
    wrapped = wrap_model(models.int8, folder / "ctx.onnx", embed=True)
    (folder / "image").write_bytes(image.tobytes())
    shape = f"1,3,{SIDE},{SIDE}"
    done = run_host([host, execution_provider(), wrapped, "images", "features", folder / "image", folder / "out", shape, "2"])
    assert done.returncode == 0, done.stderr
    with anynpu.InferenceSession(str(models.int8)) as own:
        assert (folder / "out").read_bytes() == own.run(None, {"images": image})[0].tobytes()
    failed = run_host(
        [host, execution_provider(), wrapped, "images", "features", folder / "image", folder / "out", shape, "2", "x=1"]
    )
    assert failed.returncode == 1
    assert "there is no option 'x'" in failed.stderr


def test_tensors_in_memory_of_the_device_are_used_in_place(
    folder: Path, nothing: Path, nothing_model: Path, models: Models
) -> None:
    """Runs on them call neither rknn_inputs_set nor rknn_outputs_get, unless the library rejects the memory."""
    host = build_host(folder)

    def shared(model: Path, *tensors: str | Path, then: str = "", ways: str = "shared") -> subprocess.CompletedProcess[str]:
        return run_host([host, execution_provider(), model, *tensors], HOST_WAYS=ways, HOST_THEN=then)

    plain = ["x", "y", vector(folder), folder / "out", "1,16", "3", f"library={nothing}", "contexts=2", "core_mask=0"]
    for then in ("inputs_set:-8", "outputs_get:-9", "set_io_mem:-5"):
        done = shared(nothing_model, *plain, then=then)
        assert done.returncode == 0, f"{then}: {done.stderr}"
    failed = shared(nothing_model, *plain, then="run:-2")
    assert "rknn_run returned RKNN_ERR_TIMEOUT" in failed.stderr
    pixels = np.random.default_rng(2).integers(0, 255, (1, SIDE, SIDE, 3), np.uint8)
    (folder / "pixels").write_bytes(pixels.tobytes())
    (folder / "values").write_bytes(pixels.transpose(0, 3, 1, 2).astype(np.float32).tobytes())
    for name in ("int8", "float16"):
        model = getattr(models, name)
        with anynpu.InferenceSession(str(model)) as own:
            expected = own.run(None, {"images": pixels.transpose(0, 3, 1, 2).astype(np.float32)})[0].tobytes()
        for form, file, shape in (("uint8", "pixels", f"1,{SIDE},{SIDE},3"), ("float", "values", f"1,3,{SIDE},{SIDE}")):
            wrapped = wrap_model(model, folder / f"shared_{name}_{form}.onnx", embed=True, inputs=form)
            (folder / "out").unlink(missing_ok=True)
            done = shared(wrapped, "images", "features", folder / file, folder / "out", shape, "2")
            assert done.returncode == 0, done.stderr
            assert (folder / "out").read_bytes() == expected, (name, form)


def test_the_first_session_chooses_the_speed_of_the_software_npu(folder: Path, models: Models) -> None:
    """The option ``realtime``, in a program whose Python has read its environment before."""
    wrapped = wrap_model(models.float16, folder / "realtime.onnx", embed=True)
    seconds, message = run_python(PROGRAMS / "realtime.py", execution_provider(), wrapped).splitlines()
    assert float(seconds) > 0.2  # at full speed a few milliseconds
    assert "realtime is '1', the first session of this process has '0.0001'" in message


@pytest.mark.full  # a Rust compiler
def test_a_program_in_rust(folder: Path, models: Models, image: np.ndarray) -> None:
    host = build_rust_host(folder)
    wrapped = wrap_model(models.float16, folder / "ctx16.onnx", embed=True)
    (folder / "image").write_bytes(image.tobytes())
    shape = f"1,3,{SIDE},{SIDE}"
    done = run_host([host, execution_provider(), wrapped, "images", "features", folder / "image", folder / "out-rust", shape])
    assert done.returncode == 0, done.stderr
    with anynpu.InferenceSession(str(models.float16)) as own:
        assert (folder / "out-rust").read_bytes() == own.run(None, {"images": image})[0].tobytes()


def under_exec(command: list[str | Path], code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a program under ``anynpu exec --onnxruntime``."""
    done = run_host([sys.executable, "-m", "anynpu", "exec", "--chip", "rk3588", "--onnxruntime", "--", *command])
    assert done.returncode == code, done.stderr
    return done


@pytest.mark.parametrize("ways", ["", "array", "prepacked", "array prepacked"])
@pytest.mark.parametrize("release", ["installed", *(pytest.param(each, marks=pytest.mark.full) for each in ("1.23", "1.24"))])
def test_an_unchanged_program_runs_on_the_provider(
    folder: Path, models: Models, image: np.ndarray, release: str, ways: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that knows nothing of the provider, in C++: without exec it cannot open the model."""
    monkeypatch.setenv("HOST_WAYS", ways)
    host = build_host(folder / release, release=release_of_onnxruntime(release))
    wrapped = wrap_model(models.int8, folder / "unchanged.onnx", embed=True)
    (folder / "image").write_bytes(image.tobytes())
    command = [host, "cpu", wrapped, "images", "features", folder / "image", folder / "out", f"1,3,{SIDE},{SIDE}", "1"]
    assert run_host(command).returncode == 1
    under_exec(command)
    with anynpu.InferenceSession(str(models.int8)) as own:
        assert (folder / "out").read_bytes() == own.run(None, {"images": image})[0].tobytes()


@pytest.mark.full  # Node.js and its onnxruntime
def test_an_unchanged_program_of_node_runs_on_the_provider(folder: Path, models: Models, image: np.ndarray) -> None:
    node = need("node")
    modules = RELEASES / "node" / "node_modules"
    if not modules.is_dir():
        pytest.skip("needs onnxruntime-node: run `make test-all`, which installs it")
    wrapped = wrap_model(models.int8, folder / "node.onnx", embed=True)
    (folder / "image").write_bytes(image.tobytes())
    app = modules.parent / "app.js"
    app.write_text((PROGRAMS / "app.js").read_text(encoding="utf-8"), encoding="utf-8")
    under_exec([node, app, wrapped, "images", "features", folder / "image", folder / "out", f"1,3,{SIDE},{SIDE}"])
    with anynpu.InferenceSession(str(models.int8)) as own:
        assert (folder / "out").read_bytes() == own.run(None, {"images": image})[0].tobytes()


def tour(path: str, folder: Path, models: Models, image: np.ndarray) -> list[str]:
    """The lines of the tour on the onnxruntime in *path*."""
    for name in ("int8", "float16", "deep"):
        target = folder / f"{name}.rknn"
        target.write_bytes(getattr(models, name).read_bytes())
        wrap_model(target, folder / f"{name}.onnx")
        wrap_model(target, folder / f"{name}_embedded.onnx", embed=True)
        np.save(folder / f"{name}.npy", image)
        with anynpu.InferenceSession(str(target)) as own:
            np.save(folder / f"{name}_out.npy", own.run(None, {"images": image})[0])
    return run_python(PROGRAMS / "tour.py", execution_provider(), folder, path=path).splitlines()


@pytest.mark.full
@pytest.mark.parametrize("release", ["1.23", "1.24", "installed"])
def test_one_binary_serves_releases_of_onnxruntime(release: str, tmp_path: Path, models: Models, image: np.ndarray) -> None:
    place = release_of_onnxruntime(release)
    lines = tour(str(place or ""), tmp_path, models, image)
    version = lines[0].removeprefix("release ")
    assert release == "installed" or version.startswith(f"{release}.")
    minor = int(version.split(".")[1])
    assert lines[1] == ("devices 2 CPU NPU" if minor >= 24 else "devices 2 CPU CPU")
    assert [line for line in lines if line.startswith(("equal", "different"))] == [
        f"equal {name}{end}.onnx" for name in ("deep", "float16", "int8") for end in ("", "_embedded")
    ]
    ways = ["device", *(["name"] if minor >= 25 else []), *(["policy"] if minor >= 24 else [])]
    assert [line for line in lines if line.startswith("by")] == [f"by {way} equal" for way in ways]
    assert lines[-3:] == ["fork 0", "threads 0 wrong", "unregistered equal"]


@pytest.mark.full
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the watched tables are written for x86-64")
@pytest.mark.parametrize("release", ["1.23", "1.24", "installed"])
def test_every_slot_that_is_used_is_called(release: str, tmp_path: Path, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """On each release, through tables that note the calls and pass them on."""
    place = release_of_onnxruntime(release)
    watched = build_library(tmp_path / "libwatched_ep.so", PROGRAMS / "watched.c")
    monkeypatch.setenv("WATCHED_PROVIDER", str(execution_provider()))
    monkeypatch.setenv("WATCHED_CALLS", str(tmp_path / "calls"))
    wrap_model(models.dynamic, tmp_path / "dynamic.onnx", embed=True)
    onnx.save(with_tensor_attribute(convolutions("BiasGelu")), tmp_path / "plain.onnx")
    version = run_python(PROGRAMS / "every_call.py", watched, tmp_path, path=str(place or ""))
    assert release == "installed" or version.startswith(f"{release}.")
    used = {name for macro, slots in declared().items() if macro != "ORT_PRELOAD_SLOTS" for name in slots}
    if release == "1.23":
        used -= set(declared()["ORT_EP_API_24_SLOTS"])
    assert set((tmp_path / "calls").read_text(encoding="utf-8").split()) == used


def with_tensor_attribute(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a node that has a tensor as an attribute, added to its result."""
    (output,) = proto.graph.output
    result, shape = output.name, [dim.dim_value for dim in output.type.tensor_type.shape.dim]
    output.name = "sum"
    tensor = numpy_helper.from_array(np.ones(1, np.float32))
    proto.graph.initializer.append(numpy_helper.from_array(np.array(shape), "shape"))
    proto.graph.node.append(helper.make_node("ConstantOfShape", ["shape"], ["ones"], value=tensor))
    proto.graph.node.append(helper.make_node("Add", [result, "ones"], ["sum"]))
    return proto


@pytest.mark.full  # a cross compiler, an emulator and onnxruntime for aarch64
def test_the_library_for_boards_runs_under_the_emulator(tmp_path: Path, nothing_model: Path) -> None:
    """aarch64: the provider needs the C library alone, and opens an EPContext model."""
    compiler = need("aarch64 compiler and emulator")
    library = build_provider(tmp_path, compiler)
    dynamic = subprocess.run([need("readelf"), "-dW", library], capture_output=True, text=True, check=True).stdout
    needed = {line.rpartition("[")[2].rstrip("]") for line in dynamic.splitlines() if "NEEDED" in line}
    assert all(name.startswith(("libc.", "libdl.", "libpthread.", "libm.", "ld-linux")) for name in needed), needed
    release = RELEASES / "aarch64"
    if not release.is_dir():
        pytest.skip("needs onnxruntime for aarch64: run `make test-all`, which downloads it")
    nothing = build_nothing(tmp_path, compiler)
    host = build_host(tmp_path, compiler, release)
    emulator = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
    model = [nothing_model, "x", "y", vector(tmp_path), tmp_path / "out", "1,16", "3"]
    done = run_host([*emulator, host, library, *model, f"library={nothing}", "contexts=3"])
    assert done.returncode == 0, done.stderr
    assert "Python absent" in done.stdout
    assert (tmp_path / "out").read_bytes() == bytes(64)
    failed = run_host([*emulator, host, library, *model])
    assert "is not beside the provider" in failed.stderr, failed.stderr
