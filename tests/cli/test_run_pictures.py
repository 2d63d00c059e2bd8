"""``anynpu run`` on images: a generated network that finds bright squares."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import anynpu
from anynpu.cli.helpers.image_models import split_stream
from anynpu.errors import ImageError

Invoke = Callable[..., Any]
SIDE = 64


def detector(names: str = "", classes: int = 1) -> onnx.ModelProto:
    """A head by grid (distances and scores): a cell that is brighter than gray has a score, and each box is two cells wide."""
    nodes, outputs, constants = [], [], []
    for stride in (8, 16, 32):
        extent = SIDE // stride
        weights = np.zeros((classes, 3, stride, stride), np.float32)
        weights[-1] = 2 / (3 * stride * stride) if stride == 8 else 0.0
        constants += [
            numpy_helper.from_array(np.zeros((4, 3, stride, stride), np.float32), f"box_weights{stride}"),
            numpy_helper.from_array(np.ones(4, np.float32), f"box_bias{stride}"),
            numpy_helper.from_array(weights, f"score_weights{stride}"),
            numpy_helper.from_array(np.full(classes, -1.0, np.float32), f"score_bias{stride}"),
        ]
        shape = {"kernel_shape": [stride, stride], "strides": [stride, stride]}
        inputs = ["images", f"box_weights{stride}", f"box_bias{stride}"]
        nodes.append(helper.make_node("Conv", inputs, [f"boxes{stride}"], f"box{stride}", **shape))
        inputs = ["images", f"score_weights{stride}", f"score_bias{stride}"]
        nodes.append(helper.make_node("Conv", inputs, [f"bright{stride}"], f"score{stride}", **shape))
        nodes.append(helper.make_node("Relu", [f"bright{stride}"], [f"scores{stride}"], f"relu{stride}"))
        outputs.append(helper.make_tensor_value_info(f"boxes{stride}", TensorProto.FLOAT, [1, 4, extent, extent]))
        outputs.append(helper.make_tensor_value_info(f"scores{stride}", TensorProto.FLOAT, [1, classes, extent, extent]))
    inputs_info = [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, SIDE, SIDE])]
    graph = helper.make_graph(nodes, "squares", inputs_info, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    if names:
        helper.set_model_props(model, {"names": names})
    return model


@pytest.fixture(scope="module")
def squares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("squares") / "squares.rknn"
    return anynpu.compile(detector("{0: 'square'}"), "rk3588", dtype="fp16", std=(255, 255, 255), name="squares").save(path)


def picture(column: int, row: int, *, shape: tuple[int, int] = (128, 256)) -> np.ndarray[Any, Any]:
    """Black, with a white square that fills one cell of the input when the image is letterboxed."""
    image = np.zeros((*shape, 3), np.uint8)
    image[row * 32 : row * 32 + 32, column * 32 : column * 32 + 32] = 255
    return image


@pytest.fixture
def street(tmp_path: Path) -> Path:
    path = tmp_path / "street.png"
    cv2.imwrite(str(path), picture(4, 1))
    return path


def test_eighty_classes_without_names_are_those_of_coco(invoke: Invoke, street: Path, tmp_path: Path) -> None:
    model = anynpu.compile(detector(classes=80), "rk3588", dtype="fp16", std=(255, 255, 255)).save(tmp_path / "eighty.rknn")
    outcome = invoke("run", model, street)
    assert "names of COCO, as the model has none (--labels)" in " ".join(outcome.out.split())
    assert "street.png: 1 toothbrush" in outcome.out
    own = tmp_path / "own.txt"
    own.write_text("\n".join(f"thing {number}" for number in range(80)), encoding="utf-8")
    outcome = invoke("run", model, street, "--labels", own)
    assert "COCO" not in outcome.out
    assert "street.png: 1 thing 79" in outcome.out


def test_boxes_are_in_the_pixels_of_the_picture(invoke: Invoke, squares: Path, street: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out.png"
    outcome = invoke("run", squares, street, "--draw", out)
    assert outcome.code == 0, outcome.err
    assert "detect: yolov6, 1 class, by grid (6 outputs)" in outcome.out
    assert "in the middle of the input" in outcome.out
    assert "street.png: 1 square" in outcome.out
    # cell (4, 1) of the image: 32 pixels per cell of 8; a box is two cells wide and high
    assert "112 16 176 80" in outcome.out
    assert f"wrote {out}" in outcome.out
    drawn = cv2.imread(str(out))
    assert drawn.shape == (128, 256, 3)
    assert (drawn[16, 120:170] != 0).any(axis=1).all()


def test_json(invoke: Invoke, squares: Path, street: Path) -> None:
    outcome = invoke("run", squares, street, "--json")
    data = json.loads(outcome.out)
    assert (data["task"], data["head"], data["chip"]) == ("detect", "yolov6", "rk3588")
    (shown,) = data["pictures"]
    (found,) = shown["results"]
    assert found["label"] == "square"
    assert found["score"] == pytest.approx(1.0, abs=0.01)
    assert found["box"] == pytest.approx([112, 16, 176, 80], abs=0.5)
    assert data["fps_here"] > 0
    assert data["fps_predicted"] > 0


def test_labels_and_score_can_be_given(invoke: Invoke, squares: Path, street: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("window\n", encoding="utf-8")
    assert "1 window" in invoke("run", squares, street, "--labels", labels).out
    dim = tmp_path / "dim.png"
    cv2.imwrite(str(dim), picture(4, 1) // 5 * 4)
    assert "1 square" in invoke("run", squares, dim).out
    assert "nothing found" in invoke("run", squares, dim, "--score", 0.9).out


def test_names_that_are_too_few_or_too_many_are_said(invoke: Invoke, squares: Path, street: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("window\ndoor\n", encoding="utf-8")
    outcome = invoke("run", squares, street, "--labels", labels)
    assert "2 names for 1 class" in " ".join(outcome.out.split())
    labels.write_text("window\n", encoding="utf-8")
    assert "names for" not in invoke("run", squares, street, "--labels", labels).out


def test_a_camera_that_is_not_there(invoke: Invoke, squares: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Absent:
        def __init__(self, which: int) -> None:
            pass

        def isOpened(self) -> bool:  # noqa: N802
            return False

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cv2, "VideoCapture", Absent)
    outcome = invoke("run", squares, "7")
    assert outcome.code == 1
    assert "cannot read camera 7\n" in outcome.err


def test_a_folder(invoke: Invoke, squares: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for column in range(3):
        cv2.imwrite(str(folder / f"{column}.png"), picture(column, 2))
    (folder / "notes.txt").write_text("not an image", encoding="utf-8")
    outcome = invoke("run", squares, folder, "--draw", tmp_path / "drawn", "--limit", 2)
    assert outcome.code == 0, outcome.err
    assert "0.png: 1 square" in outcome.out
    assert "1.png: 1 square" in outcome.out
    assert "images per second here" in outcome.out
    assert "rk3588: " in outcome.out
    assert sorted(path.name for path in (tmp_path / "drawn").iterdir()) == ["0.png", "1.png"]


def test_a_video(invoke: Invoke, squares: Path, tmp_path: Path) -> None:
    path = tmp_path / "in.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10.0, (256, 128))
    for column in range(4):
        writer.write(picture(column * 2, 1))
    writer.release()
    out = tmp_path / "out.avi"
    outcome = invoke("run", squares, path, "--draw", out)
    assert outcome.code == 0, outcome.err
    assert "in.avi frame 4: 1 square" in outcome.out
    assert "predicted on all cores" in outcome.out
    capture = cv2.VideoCapture(str(out))
    assert capture.get(cv2.CAP_PROP_FRAME_COUNT) == 4
    assert capture.get(cv2.CAP_PROP_FPS) == pytest.approx(10.0)
    capture.release()


def encoded(suffix: str, image: np.ndarray[Any, Any]) -> bytes:
    return bytes(cv2.imencode(suffix, image)[1].tobytes())


def test_a_stream(invoke: Invoke, squares: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = encoded(".jpg", picture(1, 1)) + encoded(".png", picture(2, 1)) + encoded(".jpg", picture(3, 1))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stream)))
    outcome = invoke("run", squares, "-", "--json")
    assert outcome.code == 0, outcome.err
    boxes = [entry["results"][0]["box"][0] for entry in json.loads(outcome.out)["pictures"]]
    assert boxes == pytest.approx([16, 48, 80], abs=1.0)


def test_pictures_of_a_stream_come_one_by_one() -> None:
    progressive = bytes(cv2.imencode(".jpg", picture(1, 1), [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].tobytes())
    noise = np.random.default_rng(1).integers(0, 256, (90, 70, 3), np.uint8)
    pictures = [progressive, encoded(".png", noise), encoded(".jpg", noise)]

    class Trickle(io.BytesIO):
        def read1(self, size: int | None = -1, /) -> bytes:
            return self.read(min(7, size or 7))

    assert list(split_stream(Trickle(b"".join(pictures)))) == pictures
    assert list(split_stream(io.BytesIO(b""))) == []
    with pytest.raises(ImageError, match="cut short"):
        list(split_stream(io.BytesIO(pictures[2][:-5])))
    with pytest.raises(ImageError, match="neither JPEG nor PNG"):
        list(split_stream(io.BytesIO(b"RIFF and more")))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("absent.jpg",), "no image, folder or video 'absent.jpg'"),
        (("{folder}", "--draw", "out.jpg"), "a folder has many images"),
        (("{street}", "--draw", "out.mp4"), "not drawn into a video"),
        (("{street}", "--draw", "out.xyz"), "not written as .xyz"),
        (("{street}", "--draw", "{street}/out.jpg"), "street.png cannot be made"),
        (("{street}", "--labels", "absent"), "no file of labels"),
        (("{street}", "--task", "classify"), "for the task 'classify'"),
        (("{street}", "--recognize", "{model}"), "finds no text"),
        (("{empty}",), "no images in the folder"),
    ],
)
def test_what_cannot_be_done_is_said(
    invoke: Invoke,
    squares: Path,
    street: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    names = {"folder": street.parent, "street": street, "model": squares, "empty": empty}
    outcome = invoke("run", squares, *(argument.format(**names) for argument in arguments))
    assert outcome.code == 1
    assert words in outcome.err


def test_raw_values_of_a_picture(invoke: Invoke, squares: Path, street: Path) -> None:
    outcome = invoke("run", squares, street, "--task", "raw")
    assert outcome.code == 0, outcome.err
    assert "scores8" in outcome.out
    data = json.loads(invoke("run", squares, street, "--task", "raw", "--json").out)
    assert [entry["name"] for entry in data["outputs"]][:2] == ["boxes8", "scores8"]


@pytest.mark.parametrize("options", [("--input", "x.npy"), ("--output", "folder")])
def test_a_picture_and_arrays_are_wrong_usage(invoke: Invoke, squares: Path, street: Path, options: tuple[str, ...]) -> None:
    assert invoke("run", squares, street, *options).code == 2


def test_drawing_needs_a_picture(invoke: Invoke, squares: Path) -> None:
    outcome = invoke("run", squares, "--draw", "out.jpg")
    assert outcome.code == 2
    assert "--draw" in outcome.err


def test_a_class_is_named(invoke: Invoke, compiled_path: Path, street: Path) -> None:
    outcome = invoke("run", compiled_path, street)
    assert outcome.code == 0, outcome.err
    assert "classify: classes, 10 (one output 10)" in outcome.out
    assert "the middle of images fills the input" in outcome.out


@pytest.mark.full
def test_isolated(invoke: Invoke, squares: Path, street: Path) -> None:
    outcome = invoke("run", squares, street, "--isolate", "--isolate-memory", "512")
    assert outcome.code == 0, outcome.err
    assert "112 16 176 80" in outcome.out


def reader_of_stripes() -> onnx.ModelProto:
    """A recognizer of 48 x 80: ten steps along the width, and per step whether it is bright (a letter) or dark (a blank)."""
    weights = np.full((1, 3, 48, 8), 1 / (3 * 48 * 8), np.float32)
    scale = np.array([-8.0, 8.0, 0.0], np.float32).reshape(1, 3, 1, 1)
    shift = np.array([0.0, -2.0, -7.0], np.float32).reshape(1, 3, 1, 1)
    constants = {"weights": weights, "scale": scale, "shift": shift, "shape": np.array([1, 3, 10], np.int64)}
    nodes = [
        helper.make_node("Conv", ["x", "weights"], ["bright"], "conv", kernel_shape=[48, 8], strides=[48, 8]),
        helper.make_node("Mul", ["bright", "scale"], ["scaled"], "mul"),
        helper.make_node("Add", ["scaled", "shift"], ["shifted"], "add"),
        helper.make_node("Reshape", ["shifted", "shape"], ["rows"], "reshape"),
        helper.make_node("Transpose", ["rows"], ["steps"], "transpose", perm=[0, 2, 1]),
    ]
    graph = helper.make_graph(
        nodes,
        "stripes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 48, 80])],
        [helper.make_tensor_value_info("steps", TensorProto.FLOAT, [1, 10, 3])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    helper.set_model_props(model, {"character": "I\n_"})
    return model


def brightness() -> onnx.ModelProto:
    """A text detector whose map is the brightness of its image."""
    nodes = [helper.make_node("Conv", ["x", "weights"], ["map"], "conv")]
    graph = helper.make_graph(
        nodes,
        "regions",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 96, 96])],
        [helper.make_tensor_value_info("map", TensorProto.FLOAT, [1, 1, 96, 96])],
        [numpy_helper.from_array(np.full((1, 3, 1, 1), 1 / 3, np.float32), "weights")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def test_text_is_found_and_read(invoke: Invoke, tmp_path: Path) -> None:
    paths = []
    for name, model in (("regions", brightness()), ("stripes", reader_of_stripes())):
        paths.append(anynpu.compile(model, "rk3588", dtype="fp16", std=255.0, name=name).save(tmp_path / f"{name}.rknn"))
    page = np.zeros((96, 192, 3), np.uint8)
    page[40:56, 20:160] = 255
    cv2.imwrite(str(tmp_path / "page.png"), page)
    alone = invoke("run", paths[0], tmp_path / "page.png")
    assert alone.code == 0, alone.err
    assert "page.png: 1 regions of text" in alone.out
    outcome = invoke("run", paths[0], tmp_path / "page.png", "--recognize", paths[1], "--draw", tmp_path / "out.png", "--json")
    assert outcome.code == 0, outcome.err
    (found,) = json.loads(outcome.out)["pictures"][0]["results"]
    assert set(found["text"]) == {"I"}  # one letter for each piece of the line, which is longer than the recognizer's input
    (line,) = json.loads(invoke("run", paths[1], tmp_path / "page.png", "--json").out)["pictures"][0]["results"]
    assert set(line["text"]) <= {"I", " "}
    assert (tmp_path / "out.png").is_file()


def test_an_image_given_as_input_is_drawn_on(invoke: Invoke, squares: Path, street: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.png", tmp_path / "second.png"
    assert invoke("run", squares, street, "--draw", first).code == 0
    outcome = invoke("run", squares, "--input", street, "--draw", second)
    assert outcome.code == 0, outcome.err
    assert f"wrote {second}" in outcome.out
    assert second.read_bytes() == first.read_bytes()
    assert invoke("run", squares, "--input", street, "--draw", street).code != 0


def test_an_onnx_model_runs_in_float(invoke: Invoke, street: Path, tmp_path: Path) -> None:
    model, drawn = tmp_path / "squares.onnx", tmp_path / "float.png"
    onnx.save(detector("{0: 'square'}"), model)
    outcome = invoke("run", model, street, "--draw", drawn, "--score", 0.5)
    assert outcome.code == 0, outcome.err
    assert "squares.onnx in float32 on this machine" in outcome.out
    assert "street.png: 1 square" in outcome.out
    assert cv2.imread(str(drawn)).shape == (128, 256, 3)
    found = json.loads(invoke("run", model, street, "--score", 0.5, "--json").out)
    assert [row["label"] for row in found["pictures"][0]["results"]] == ["square"]
    assert found["preprocessing"]
    assert invoke("run", model, street, "--float", model).code == 2


def test_float_and_compiled_results_side_by_side(invoke: Invoke, squares: Path, street: Path, tmp_path: Path) -> None:
    source, drawn = tmp_path / "squares.onnx", tmp_path / "both.png"
    onnx.save(detector("{0: 'square'}"), source)
    outcome = invoke("run", squares, street, "--float", source, "--draw", drawn, "--score", 0.5)
    assert outcome.code == 0, outcome.err
    assert "street.png: 1 square" in outcome.out
    assert "float32: 1 square" in outcome.out
    both = cv2.imread(str(drawn))
    assert both.shape[1] > 2 * 256
    left, right = both[-128:, :256], both[-128:, -256:]
    assert np.abs(left.astype(int) - right).mean() < 5
    (found,) = json.loads(invoke("run", squares, street, "--float", source, "--json", "--score", 0.5).out)["pictures"]
    assert found["float"][0]["box"] == pytest.approx(found["results"][0]["box"], abs=1)
    assert "needs an image" in invoke("run", squares, "--float", source).err


def test_the_float_model_gets_the_channel_order_of_the_compiled_one(invoke: Invoke, tmp_path: Path) -> None:
    """A network trained on BGR that finds blue squares: red ones when it is fed wrongly."""
    proto = detector("{0: 'square'}")
    weights = next(entry for entry in proto.graph.initializer if entry.name == "score_weights8")
    only_blue = numpy_helper.to_array(weights) * np.array([3, 0, 0], np.float32)[None, :, None, None]
    weights.CopyFrom(numpy_helper.from_array(only_blue.astype(np.float32), weights.name))
    source, model, image = tmp_path / "blue.onnx", tmp_path / "blue.rknn", tmp_path / "blue.png"
    onnx.save(proto, source)
    anynpu.compile(source, "rk3588", dtype="fp16", std=(255, 255, 255), channel_order="bgr").save(model)
    cv2.imwrite(str(image), picture(4, 1) * np.array([1, 0, 0], np.uint8))
    outcome = invoke("run", model, image, "--float", source, "--score", 0.5)
    assert "blue.png: 1 square" in outcome.out
    assert "float32: 1 square" in outcome.out


def test_the_sample_detector_is_drawn(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert invoke("samples", tmp_path / "samples").code == 0
    monkeypatch.chdir(tmp_path / "samples")
    outcome = invoke("run", "detector.rknn", "street/001.jpg", "--float", "detector.onnx", "--draw", "both.png")
    assert outcome.code == 0, outcome.err
    assert " box" in outcome.out
    assert Path("both.png").is_file()
