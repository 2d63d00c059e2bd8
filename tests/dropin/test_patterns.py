"""Programs after the patterns of the vendors' demonstrations, run as they are."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiler import detectors
from compiler.onnx_builders import Net

import anynpu
from anynpu.rknn import RknnModel

from .conftest import Models
from .running import board_environment, build, clean_environment, fill_bytes, run


@pytest.fixture(scope="module")
def patterns(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One program, linked with each of the two libraries."""
    folder = tmp_path_factory.mktemp("patterns")
    return {library: build("patterns.c", folder / library, library=library) for library in ("rknnrt", "rknnmrt")}


def compiled(proto: onnx.ModelProto, path: Path, chip: str) -> Path:
    (source,) = proto.graph.input
    shape = [axis.dim_value for axis in source.type.tensor_type.shape.dim]
    rng = np.random.default_rng(2)
    dataset = [{source.name: rng.integers(0, 256, shape).astype(np.float32)} for _ in range(3)]
    options = {"accuracy": "fast", "algorithm": "minmax"}
    return Path(anynpu.compile(proto, chip, dataset=dataset, std=(255, 255, 255), **options).save(path))


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier for rv1106 whose output has two axes."""
    net = Net()
    x = net.conv(net.input("images", (1, 3, 8, 8)), 4, 8)
    net.output(net.op("Reshape", x, net.constant([1, 4])))
    return compiled(net.proto(), tmp_path_factory.mktemp("classes") / "classes.rknn", "rv1106")


def test_a_program_that_asks_for_the_times_of_layers_without_collecting_them(patterns: dict[str, Path], models: Models) -> None:
    done = run([patterns["rknnrt"], "perf", models.small], board_environment())
    assert "RKNN_FLAG_COLLECT_PERF_MASK" in done.stdout
    assert done.stdout.endswith("done\n")


def test_a_picture_on_the_small_runtime_is_bytes(patterns: dict[str, Path], models: Models, tmp_path: Path) -> None:
    done = run([patterns["rknnmrt"], "mini", models.mini, tmp_path / "codes"], board_environment("rv1106"))
    assert done.stdout.startswith("3 1 4\n"), "UINT8 and NHWC"
    picture = fill_bytes(32 * 32 * 3, 7)
    with RknnModel.load(models.mini) as model:
        model.run(picture)
        info = model.output_attrs()[0]
        c1, h, w, c2 = info.shape[1:]
        raw = np.asarray(model.output_raw(0)).reshape(c1, h, w, c2)
    expected = np.concatenate(list(raw), axis=-1)[..., :20]
    codes = np.fromfile(tmp_path / "codes", np.int8).reshape(32, 32, 20)
    np.testing.assert_array_equal(codes, expected)
    assert len(np.unique(codes)) > 20, "it sees its image"


def test_an_image_in_the_heap_of_the_small_chips(patterns: dict[str, Path], models: Models, tmp_path: Path) -> None:
    environment = clean_environment(ANYNPU_PYTHON=None, LD_LIBRARY_PATH=None)
    execute = [sys.executable, "-m", "anynpu.cli", "exec", "--chip", "rv1106", "--", patterns["rknnmrt"]]
    for name in ("mini", "mini-heap"):
        assert run([*execute, name, models.mini, tmp_path / name], environment).stderr == ""
    assert (tmp_path / "mini").read_bytes() == (tmp_path / "mini-heap").read_bytes()


def test_a_device_that_is_not_served_is_reported_once(patterns: dict[str, Path]) -> None:
    command = [patterns["rknnrt"], "missing"]
    line = "anynpu: the program opened {}, which this board does not have\n"
    for path in ("/dev/rk_dma_heap/rk-dma-heap-cma", "/dev/rga", "/dev/dma_heap/absent"):
        assert run([*command, path], board_environment("rk3588")).stderr == line.format(path)
    assert run([*command, "/dev/other-absent"], board_environment("rk3588")).stderr == ""


@pytest.mark.full
def test_float32_outputs_of_the_small_runtime(patterns: dict[str, Path], models: Models, classes: Path, tmp_path: Path) -> None:
    for model in (models.mini, classes):
        run([patterns["rknnmrt"], "mini", model, tmp_path / "codes"], board_environment("rv1106"))
        run([patterns["rknnmrt"], "mini-floats", model, tmp_path / "floats"], board_environment("rv1106"))
        codes, floats = np.fromfile(tmp_path / "codes", np.int8), np.fromfile(tmp_path / "floats", np.float32)
        quantization = anynpu.modelfile.read(model).outputs[0].quantization
        assert quantization is not None
        np.testing.assert_allclose(floats, (codes.astype(np.float32) - quantization.zero_point) * np.float32(quantization.scale))


@pytest.mark.parametrize("program", ["detector", "older-detector"])
def test_detectors(patterns: dict[str, Path], tmp_path: Path, program: str) -> None:
    """One reads all outputs by the type of the first; the older one leaves the index of every output at 0."""
    model = compiled(detectors.yolov8(), tmp_path / "yolov8.rknn", "rk3588")
    run([patterns["rknnrt"], program, model, tmp_path / "values"], board_environment())
    values = np.fromfile(tmp_path / "values", np.float32)
    picture = fill_bytes(detectors.SIDE**2 * 3, 3).reshape(1, detectors.SIDE, detectors.SIDE, 3)
    with anynpu.InferenceSession(str(model)) as session:
        expected = session.run(None, {"images": np.ascontiguousarray(picture.transpose(0, 3, 1, 2))})
    np.testing.assert_allclose(values, np.concatenate([np.asarray(entry).reshape(-1) for entry in expected]), rtol=1e-6)


def test_what_is_written_behind_given_memory_does_not_reach_python(patterns: dict[str, Path], tmp_path: Path) -> None:
    net = Net()
    net.output(net.conv(net.input("images", (1, 3, 8, 8)), 4, 8))
    model = compiled(net.proto(), tmp_path / "tiny.rknn", "rk3588")
    done = run([patterns["rknnrt"], "beyond", model], board_environment())
    assert done.stdout == "done\n"
    assert "Python" not in done.stderr


def test_a_failure_to_load_a_model_is_explained(patterns: dict[str, Path], models: Models, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.rknn"
    damaged.write_bytes(models.small.read_bytes()[:200])
    command = [patterns["rknnrt"], "perf", damaged]
    done = run(command, board_environment(), code=3)
    assert "ret=-6" in done.stdout
    assert re.search(r"^E RKNN: .*rknn_init: .*RKNN_ERR_MODEL_INVALID", done.stderr, re.MULTILINE)
    assert run(command, {**board_environment(), "RKNN_LOG_LEVEL": "-1"}, code=3).stderr == ""


def test_a_failing_call_is_explained_once_per_place(patterns: dict[str, Path], models: Models) -> None:
    command = [patterns["rknnrt"], "half-buffers", models.small]
    lines = run(command, board_environment()).stderr.splitlines()
    assert all(re.match(r"E RKNN: \[[\d:.]+\] ", line) for line in lines)
    texts = [line.partition("] ")[2] for line in lines]
    size = 3 * 32 * 32
    expected = f"rknn_inputs_set: input 'images' takes {size} bytes, got {size // 2} ("
    assert len(texts) == 3
    assert all(text.startswith(expected) and text.endswith("(RKNN_ERR_PARAM_INVALID, -5)") for text in texts[:2])
    assert texts[2].startswith("rknn_run: ")
    assert texts[2].endswith("(RKNN_ERR_CTX_INVALID, -7)")
    assert run(command, {**board_environment(), "RKNN_LOG_LEVEL": "-1"}).stderr == ""
    assert len(run(command, {**board_environment(), "RKNN_LOG_LEVEL": "0"}).stderr.splitlines()) == 5, "every failure"


@pytest.mark.parametrize("way", ["no-number", "no-number-bound"])
def test_nan_is_reported_in_the_run_that_it_comes_with(patterns: dict[str, Path], tmp_path: Path, way: str) -> None:
    net = Net()
    net.output(net.conv(net.input("images", (1, 3, 8, 8)), 4, 8))
    model = tmp_path / "half.rknn"
    anynpu.compile(net.proto(), "rk3588", dtype="fp16").save(model)
    command = [patterns["rknnrt"], way, model]
    lines = run(command, board_environment()).stderr.splitlines()
    texts = [re.sub(r"^W RKNN: \[[\d:.]+\] ", "W: ", line) for line in lines]
    given = "W: input 'images': 1 of 192 values are not a number (NaN); the result means nothing"
    assert [text for text in texts if not text.startswith("W: output")] == ["run 0", "run 1", given, "run 2", "run 3", "run 4"]
    (made,) = [text for text in texts if text.startswith("W: output")]
    assert "4 of 4 values are infinite or not a number (NaN)" in made
    assert texts.index(made) == texts.index("run 2") - 1
    assert "NaN" not in run(command, {**board_environment(), "RKNN_LOG_LEVEL": "-1"}).stderr
