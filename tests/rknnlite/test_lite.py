"""RKNNLite: what programs rely on, call by call."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiler.onnx_builders import Net
from rknn.support import HEIGHT, WIDTH, dynamic_model, features_model, picture_model
from vendor_files import rknn_description, rknn_file

import anynpu
from anynpu import modelfile
from anynpu.errors import AnynpuError, DeviceClosed
from anynpu.npu.board import read_statuses
from anynpu.program import Model
from anynpu.rknn.lite import RKNNLite
from anynpu.rknn.lite.lite import choose, find_onnx, open_model
from anynpu.rknn.lite.runtime import RKNNRuntime


@pytest.fixture
def made() -> Iterator[list[RKNNLite]]:
    objects: list[RKNNLite] = []
    yield objects
    for one in objects:
        one.release()


def saved(model: Model, path: Path) -> Path:
    return modelfile.write(model, path)


def opened(made: list[RKNNLite], path: Path, **options: Any) -> RKNNLite:
    lite = RKNNLite()
    made.append(lite)
    assert lite.load_rknn(str(path)) == 0
    assert lite.init_runtime(**options) == 0
    return lite


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    return saved(picture_model(), tmp_path / "picture.rknn")


IMAGE = np.random.default_rng(3).integers(0, 256, (1, HEIGHT, WIDTH, 3), np.uint8)


def test_the_constants_are_the_vendors() -> None:
    names = ("AUTO", "0", "1", "2", "0_1", "0_1_2", "ALL")
    assert [getattr(RKNNLite, f"NPU_CORE_{name}") for name in names] == [0, 1, 2, 4, 3, 7, 0xFFFF]


def test_an_inference_gives_what_a_session_gives(picture: Path, made: list[RKNNLite]) -> None:
    lite = opened(made, picture)
    outputs = lite.inference(inputs=[IMAGE])
    with anynpu.InferenceSession(picture, provider_options=anynpu.make_provider_options(layout="nhwc"), device="sim") as session:
        expected = session.run(None, [IMAGE])
    assert isinstance(outputs, list)
    for given, wanted in zip(outputs, expected, strict=True):
        assert given.dtype == np.float32
        assert given.flags.writeable
        np.testing.assert_array_equal(given, wanted)
    outputs[0] *= 2.0  # programs scale in place, which must not reach the next result
    np.testing.assert_array_equal(lite.inference([IMAGE])[0], expected[0])


@pytest.mark.parametrize("form", [None, "nhwc", "NHWC", ["nhwc"], ("NHWC",), [None]])
def test_pictures_are_nhwc_in_every_form_of_saying_so(picture: Path, made: list[RKNNLite], form: Any) -> None:
    lite = opened(made, picture)
    np.testing.assert_array_equal(lite.inference([IMAGE], data_format=form)[1], lite.inference([IMAGE])[1])


@pytest.mark.parametrize("form", ["nchw", "NCHW", ["nchw"]])
def test_pictures_may_be_nchw(picture: Path, made: list[RKNNLite], form: Any) -> None:
    lite = opened(made, picture)
    turned = IMAGE.transpose(0, 3, 1, 2)  # not contiguous, as programs pass it
    np.testing.assert_array_equal(lite.inference([turned], data_format=form)[1], lite.inference([IMAGE])[1])


@pytest.mark.parametrize("kind", [None, "uint8", "float32", ["float16"], np.float32, ["uint8"]])
def test_types_in_every_form(picture: Path, made: list[RKNNLite], kind: Any) -> None:
    lite = opened(made, picture)
    expected = lite.inference([IMAGE])[1]
    for given in (IMAGE, IMAGE.astype(np.float32), IMAGE.astype(np.int64), IMAGE.astype(np.float64)):
        np.testing.assert_array_equal(lite.inference([given], data_type=kind)[1], expected)


def test_the_second_position_is_the_type(picture: Path, made: list[RKNNLite]) -> None:
    lite = opened(made, picture)
    np.testing.assert_array_equal(lite.inference([IMAGE], "float32", "nhwc")[1], lite.inference([IMAGE])[1])


def test_inputs_that_are_no_pictures(tmp_path: Path, made: list[RKNNLite]) -> None:
    lite = opened(made, saved(features_model(), tmp_path / "features.rknn"))
    random = np.random.default_rng(1)
    maps, vector = random.standard_normal((1, 4, 6, 20), np.float32), random.standard_normal((1, 24), np.float32)
    expected = lite.inference([maps, vector])
    given = lite.inference([maps.transpose(0, 3, 1, 2), vector], data_format=["nchw", "nhwc"], data_type=["float32", None])
    for one, other in zip(given, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    passed = lite.inference([maps, vector], inputs_pass_through=[0, 0])
    np.testing.assert_array_equal(passed[0], expected[0])


def test_a_missing_batch_axis_is_not_added(picture: Path, made: list[RKNNLite], capsys: pytest.CaptureFixture[str]) -> None:
    lite = opened(made, picture)
    assert lite.inference([IMAGE[0]]) is None
    lines = capsys.readouterr().err.splitlines()
    assert "E Catch exception when setting inputs." in lines
    (line,) = (line for line in lines if line.startswith("E The input[0] need 4dims input, but 3dims input buffer feed."))
    assert "inputs=[image[None]]" in line


@pytest.mark.parametrize(
    "inputs",
    [None, [], [IMAGE, IMAGE], [[1, 2]], "image", [IMAGE[:, :, :5]], [IMAGE.transpose(0, 3, 1, 2)], [np.array(["text"])]],
    ids=["none", "empty", "two", "lists", "text", "size", "turned", "strings"],
)
def test_a_failure_is_none(picture: Path, made: list[RKNNLite], inputs: Any) -> None:
    lite = opened(made, picture)
    assert lite.inference(inputs) is None
    assert lite.inference([IMAGE]) is not None


@pytest.mark.parametrize("wrong", [{"data_format": "nhcw"}, {"data_format": ["nhwc"] * 2}, {"data_type": "float8"}])
def test_a_wrong_name_is_none(picture: Path, made: list[RKNNLite], wrong: dict[str, Any]) -> None:
    assert opened(made, picture).inference([IMAGE], **wrong) is None


def test_codes_of_what_fails(tmp_path: Path, picture: Path, made: list[RKNNLite], capsys: pytest.CaptureFixture[str]) -> None:
    lite = RKNNLite()
    made.append(lite)
    assert lite.load_rknn(str(tmp_path / "missing.rknn")) == -1
    assert lite.init_runtime() == -1
    assert lite.inference([IMAGE]) is None
    assert lite.get_sdk_version() is None
    (tmp_path / "text.rknn").write_text("hello")
    assert lite.load_rknn(str(tmp_path / "text.rknn")) == -1
    (tmp_path / "cut.rknn").write_bytes(picture.read_bytes()[:2000])
    assert lite.load_rknn(str(tmp_path / "cut.rknn")) == 0
    assert lite.init_runtime() == -1
    assert "E Catch exception when init runtime!" in capsys.readouterr().err.splitlines()
    lite.release()
    lite.release()


def test_a_second_start_releases_the_first(picture: Path, made: list[RKNNLite]) -> None:
    lite = opened(made, picture)
    first = lite.rknn_runtime
    assert lite.init_runtime(core_mask=RKNNLite.NPU_CORE_0_1_2) == 0
    assert first is not None
    assert first.npu.closed
    with pytest.raises(DeviceClosed):
        assert first.lib
    assert lite.inference([IMAGE]) is not None


@pytest.mark.parametrize("mask", [0, 1, 2, 4, 3, 7, 0xFFFF, 2**3 - 1])
def test_masks(picture: Path, made: list[RKNNLite], mask: int) -> None:
    assert opened(made, picture, core_mask=mask).inference([IMAGE]) is not None


def test_a_mask_on_a_chip_with_one_core_fails(tmp_path: Path, made: list[RKNNLite]) -> None:
    lite = RKNNLite()
    made.append(lite)
    assert lite.load_rknn(str(saved(picture_model("rk3566"), tmp_path / "one.rknn"))) == 0
    assert lite.init_runtime(core_mask=RKNNLite.NPU_CORE_0) == -1
    assert lite.rknn_runtime is None
    assert lite.init_runtime() == 0


def test_dynamic_shapes_follow_the_inputs(tmp_path: Path, made: list[RKNNLite]) -> None:
    model = dynamic_model()
    lite = opened(made, saved(model, tmp_path / "dynamic.rknn"))
    random = np.random.default_rng(2)
    for program in (*model.programs, model.programs[0]):
        shapes = [spec.shape for spec in program.input_specs]
        arrays = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
        outputs = lite.inference(arrays, data_format=["nchw"] * len(arrays))
        assert [output.shape for output in outputs] == [spec.shape for spec in program.output_specs]
    assert lite.inference([np.zeros((1, 3, 7, 9), np.float32)] * len(shapes)) is None


def test_frames_are_counted_and_arrays_used_again(picture: Path, made: list[RKNNLite]) -> None:
    lite = opened(made, picture, async_mode=True)
    first, one = lite.inference([IMAGE], get_frame_id=True, reuse_outputs=True)
    second, two = lite.inference([IMAGE], get_frame_id=True, reuse_outputs=True)
    assert (one, two) == (1, 2)
    assert all(a is b for a, b in zip(first, second, strict=True))
    assert lite.inference([IMAGE])[0] is not first[0]


def test_the_version_is_taken_apart_as_programs_do(picture: Path, made: list[RKNNLite]) -> None:
    text = opened(made, picture).get_sdk_version()
    assert text is not None
    lines = text.splitlines()
    assert lines[1] == "RKNN VERSION:"
    assert lines[2].split(": ")[0].strip() == "API"
    assert lines[2].split(": ")[1].startswith("2.3.2 (")
    assert lines[3].split(": ") == ["  DRV", "0.9.8"]
    assert set(lines[0]) == set(lines[-1]) == {"="}


def test_what_programs_reach_into(picture: Path, made: list[RKNNLite]) -> None:
    lite = opened(made, picture)
    runtime = lite.rknn_runtime
    assert runtime is not None
    assert runtime.get_in_out_num() == (1, 2)
    attr = runtime.get_tensor_attr(0)
    assert (attr.name, attr.n_dims, attr.dims[: attr.n_dims]) == (b"image", 4, (1, HEIGHT, WIDTH, 3))
    assert attr.dims[attr.n_dims :] == (0,) * 12
    assert isinstance(attr.type, int)
    assert runtime.get_tensor_attr(1, is_output=True).name.decode()
    assert runtime.get_output_shape(1) == (1, 10)
    assert runtime.set_core_mask(2) == 0
    lite.inference([IMAGE])
    assert runtime.get_run_perf().run_duration > 0


def test_an_inference_in_the_steps_of_the_runtime(picture: Path, made: list[RKNNLite]) -> None:
    lite = opened(made, picture)
    runtime = lite.rknn_runtime
    assert runtime is not None
    assert [zeros.shape for zeros in runtime.get_outputs()] == [runtime.get_output_shape(index) for index in range(2)]
    assert runtime.get_inputs()[0].dims[1:3] == (HEIGHT, WIDTH)
    assert not runtime.is_dynamic_shape
    expected = lite.inference([IMAGE])
    assert runtime.set_inputs([IMAGE], None, ["nhwc"], inputs_pass_through=None) is None
    assert runtime.run(False) == 0
    for one, other in zip(runtime.get_outputs(False), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    runtime.set_inputs([IMAGE.transpose(0, 3, 1, 2)], None, "nchw")
    assert runtime.run(True) == (0, 3)
    np.testing.assert_array_equal(runtime.get_outputs()[0], expected[0])
    with pytest.raises(AnynpuError):
        runtime.set_inputs([IMAGE[0]])


def test_the_path_of_the_library_can_be_replaced(picture: Path, made: list[RKNNLite], monkeypatch: pytest.MonkeyPatch) -> None:
    assert opened(made, picture).rknn_runtime._get_rknn_api_lib_path().endswith(".so")  # type: ignore[union-attr]
    monkeypatch.setattr(RKNNRuntime, "_get_rknn_api_lib_path", lambda self: "/opt/librknnrt.so")
    assert opened(made, picture).inference([IMAGE]) is not None


def test_the_level_of_the_log_is_the_programs(picture: Path, made: list[RKNNLite], capsys: pytest.CaptureFixture[str]) -> None:
    lite = RKNNLite()
    made.append(lite)
    assert capsys.readouterr().err == "W rknn-toolkit-lite2 version: 2.3.2\n"
    lite.rknn_log.logger.setLevel("ERROR")
    lite.rknn_log.logger.warning("a level that was enabled before")
    lite.rknn_log.logger.setLevel("CRITICAL")
    assert lite.load_rknn("missing.rknn") == -1
    assert capsys.readouterr().err == ""


def test_the_log_goes_to_a_file_too(tmp_path: Path, made: list[RKNNLite]) -> None:
    lite = RKNNLite(verbose=True, verbose_file=str(tmp_path / "log.txt"))
    made.append(lite)
    lite.load_rknn("missing.rknn")
    lite.release()
    assert (tmp_path / "log.txt").read_text().splitlines()[1] == "E Invalid RKNN model path: missing.rknn"


def test_targets_of_a_file(picture: Path, tmp_path: Path, made: list[RKNNLite]) -> None:
    lite = RKNNLite()
    made.append(lite)
    assert lite.list_support_target_platform(str(picture)) == {
        "support_target_platform": ["rk3588"],
        "filled_target_platform": ["rk3588"],
    }
    vendor = tmp_path / "vendor.rknn"
    vendor.write_bytes(rknn_file(rknn_description(target_platform=["rk3566", "rk3568"])))
    answer = lite.list_support_target_platform(str(vendor))
    assert answer is not None
    assert answer["support_target_platform"] == ["rk3566", "rk3568"]
    assert lite.list_support_target_platform(str(tmp_path / "missing.rknn")) is None
    assert lite.list_devices() == ([], [])


def test_a_pool_over_three_cores(picture: Path, made: list[RKNNLite]) -> None:
    """Six objects, two for each core, from six threads: results are those of one object, in the order of each thread."""
    masks = [RKNNLite.NPU_CORE_0, RKNNLite.NPU_CORE_1, RKNNLite.NPU_CORE_2] * 2
    pool = [opened(made, picture, core_mask=mask) for mask in masks]
    random = np.random.default_rng(8)
    images = [random.integers(0, 256, IMAGE.shape, np.uint8) for _ in range(60)]
    expected = [pool[0].inference([image])[1].tobytes() for image in images]
    found: list[bytes | None] = [None] * len(images)
    before = jobs_of_cores()
    start = threading.Barrier(len(pool))

    def work(number: int) -> None:
        start.wait(300)
        for index in range(number, len(images), len(pool)):
            found[index] = pool[number].inference([images[index]])[1].tobytes()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(pool))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == expected
    busy = [after - earlier for after, earlier in zip(jobs_of_cores(), before, strict=True)]
    assert sum(busy) == len(images)
    assert all(jobs > 0 for jobs in busy)


def jobs_of_cores() -> list[int]:
    """Jobs that each core of this process's boards with three has run."""
    mine = [one for one in read_statuses() if one.pid == os.getpid() and one.chip == "rk3588"]
    return [sum(one.cores[core].jobs for one in mine) for core in range(3)]


# anynpu models


def small_onnx(path: Path) -> Path:
    net = Net(seed=4)
    net.output(net.op("Relu", net.conv(net.input("images", (1, 3, 8, 8)), 4)))
    path.write_bytes(net.proto().SerializeToString())
    return path


def test_a_vendors_file_beside_its_onnx_file(tmp_path: Path, made: list[RKNNLite], capsys: pytest.CaptureFixture[str]) -> None:
    vendor = tmp_path / "yolo-rk3566.rknn"
    vendor.write_bytes(rknn_file(rknn_description(target_platform=["rk3566"])))
    small_onnx(tmp_path / "yolo.onnx")
    (tmp_path / "yolo.compile.json").write_text('{"std": [255, 255, 255]}')
    lite = opened(made, vendor)
    image = np.full((1, 8, 8, 3), 255, np.uint8)
    first = lite.inference([image])[0]
    assert [line for line in capsys.readouterr().err.splitlines() if "anynpu model" in line] == [
        "W yolo-rk3566.rknn is the vendor's: compiled an anynpu model from yolo.onnx for rk3566 as fp16; kept as yolo-rk3566.anynpu"
    ]
    assert modelfile.read(tmp_path / "yolo-rk3566.anynpu").chip == "rk3566"
    again = opened(made, vendor)
    np.testing.assert_array_equal(again.inference([image])[0], first)
    assert "twin" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        '{"mean": "x"}',
        '{"shapes": 3}',
        '{"dtype": []}',
        '{"target": "a733"}',
        '{"ranges": [1]}',
        '{"batch": 1e308}',
        '{"model": 1}',
    ],
)
def test_untrusted_options_beside_a_vendors_file(tmp_path: Path, options: str) -> None:
    vendor = tmp_path / "yolo.rknn"
    vendor.write_bytes(rknn_file())
    small_onnx(tmp_path / "yolo.onnx")
    (tmp_path / "yolo.compile.json").write_text(options)
    with pytest.raises(AnynpuError):
        open_model(vendor, None, print)


def test_a_vendors_file_alone_fails_with_a_hint(tmp_path: Path, made: list[RKNNLite], capsys: pytest.CaptureFixture[str]) -> None:
    vendor = tmp_path / "alone.rknn"
    vendor.write_bytes(rknn_file())
    lite = RKNNLite()
    made.append(lite)
    assert lite.load_rknn(str(vendor)) == 0
    assert lite.init_runtime() == -1
    assert "only the vendor's runtime can execute it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "source"),
    [
        ("a.rknn", "a.onnx"),
        ("a_rk3588.rknn", "a.onnx"),
        ("a-rk3588_i8.rknn", "a.onnx"),
        ("a_fp_rk3566.rknn", "a.onnx"),
        ("rknpu/rk3588/model.rknn", "model.onnx"),
        ("porting/a_rk3588.rknn", "a.onnx"),
    ],
)
def test_where_the_onnx_file_is_looked_for(tmp_path: Path, model: str, source: str) -> None:
    path = tmp_path / model
    assert find_onnx(path) is None
    (tmp_path / source).write_bytes(b"")
    assert find_onnx(path) == tmp_path / source


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"ANYNPU_BOARD_ROOT": "/tmp/x", "ANYNPU_CHIP": "rk3566"}, "sim:rk3566"),
        ({"ANYNPU_BOARD_ROOT": "/tmp/x"}, "sim"),
        ({"ANYNPU_BOARD_ROOT": "/tmp/x", "ANYNPU_CALL_LOG": "-"}, None),
        ({"ANYNPU_DEVICE": "rknn"}, None),
        ({"ANYNPU_RKNN_LIBRARY": "/usr/lib/librknnrt.so"}, None),
    ],
)
def test_which_device(environment: dict[str, str], expected: str | None) -> None:
    assert choose(None, environment) == expected
