"""Which preprocessing a network reacts to, and the order of channels in the file."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
from compiler.onnx_builders import Net
from onnx import TensorProto, helper, numpy_helper

import anynpu
from anynpu._util.types import Array
from anynpu.compiler import images
from anynpu.compiler.quantize.detect_preprocessing import RECIPES, PictureRecipe, find_recipe, pictures_of
from anynpu.errors import PreprocessingWarning

Invoke = Callable[..., Any]
SIDE = 64
LIT = 230
"""The brightness of what the networks look for."""


def detector(recipe: PictureRecipe, *, outputs_known: bool = True) -> onnx.ModelProto:
    """A head by grid that finds cells whose red is about 230, in images that come with *recipe* and in no others."""
    nodes, outputs, constants = [], [], []
    red = 0 if recipe.order == "rgb" else 2

    def add(name: str, value: Array) -> str:
        constants.append(numpy_helper.from_array(value.astype(np.float32), name))
        return name

    for stride in (8, 16, 32):
        extent = SIDE // stride
        shape = {"kernel_shape": [stride, stride], "strides": [stride, stride]}
        # the image's own bytes again, from what the config made of them
        weights = np.zeros((1, 3, stride, stride))
        weights[0, red] = recipe.std[red] / (stride * stride) / 255
        boxes = [add(f"box_weights{stride}", np.zeros((4, 3, stride, stride))), add(f"box_bias{stride}", np.ones(4))]
        bias = add(f"bias{stride}", np.array([recipe.mean[red] / 255 - LIT / 255]))
        steep = add(f"steep{stride}", np.full((1, 1, 1, 1), -80.0))
        lift = add(f"lift{stride}", np.full((1, 1, 1, 1), 4.0 if stride == 8 else -2.0))
        nodes += [
            helper.make_node("Conv", ["images", *boxes], [f"boxes{stride}"], **shape),
            helper.make_node("Conv", ["images", add(f"weights{stride}", weights), bias], [f"away{stride}"], **shape),
            helper.make_node("Abs", [f"away{stride}"], [f"distance{stride}"]),
            helper.make_node("Mul", [f"distance{stride}", steep], [f"fall{stride}"]),
            helper.make_node("Add", [f"fall{stride}", lift], [f"logit{stride}"]),
            helper.make_node("Sigmoid", [f"logit{stride}"], [f"scores{stride}"]),
        ]
        outputs.append(helper.make_tensor_value_info(f"boxes{stride}", TensorProto.FLOAT, [1, 4, extent, extent]))
        outputs.append(helper.make_tensor_value_info(f"scores{stride}", TensorProto.FLOAT, [1, 1, extent, extent]))
    graph = helper.make_graph(
        nodes,
        "squares",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, SIDE, SIDE])],
        outputs if outputs_known else outputs[:1],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def squares(colour: tuple[int, int, int]) -> list[Array]:
    made = []
    for index in range(3):
        picture = np.zeros((SIDE, SIDE, 3), np.uint8)
        for row, column in ((1, 1 + index), (4, 6 - index), (6, 3)):
            picture[row * 8 : row * 8 + 8, column * 8 : column * 8 + 8] = colour
        made.append(picture)
    return made


FIVE = [RECIPES[index] for index in (1, 2, 4, 7, 9)]
"""Each scale once, in either order."""


@pytest.mark.parametrize("recipe", FIVE, ids=lambda recipe: f"{recipe.name} {recipe.order}")
def test_the_recipe_of_a_network_is_found(recipe: PictureRecipe) -> None:
    found = find_recipe(detector(recipe), squares((LIT, 0, 0)))
    assert found.best == recipe
    assert found.order_known
    assert found.words == f"the network reacts to {recipe.name} in {recipe.order.upper()}: {recipe.flags}"
    assert found.complaint(recipe) == ""
    for other in FIVE:
        if other != recipe:
            judged = find_recipe(detector(recipe), squares((LIT, 0, 0)), asked=other)
            assert "With the preprocessing that was asked for" in judged.complaint(other)
            break


def test_in_grey_pictures_the_order_cannot_be_told() -> None:
    recipe = RECIPES[3]
    found = find_recipe(detector(recipe), squares((LIT, LIT, LIT)))
    assert found.best is not None
    assert found.best.name == recipe.name
    assert not found.order_known
    assert "cannot be determined" in found.words
    assert found.complaint(recipe) == ""


def test_silent_where_it_cannot_tell() -> None:
    recipe = RECIPES[2]
    nothing = [np.full((SIDE, SIDE, 3), value, np.uint8) for value in (10, 60, 90)]
    assert find_recipe(detector(recipe), nothing).words == ""  # nothing to be seen
    assert find_recipe(detector(recipe), squares((LIT, 0, 0))[:1]).words == ""  # one image
    assert find_recipe(detector(recipe, outputs_known=False), squares((LIT, 0, 0))).words == ""  # outputs that nobody knows


def test_the_flags_are_for_pictures_in_rgb() -> None:
    assert RECIPES[0].flags == "no --mean, no --std"
    assert RECIPES[1].flags == "--channel-order bgr"
    assert RECIPES[2].flags == "--std 255,255,255"
    assert PictureRecipe("x", (1.0, 2.0, 3.0), (4.0, 5.0, 6.0), "bgr").flags == "--mean 3,2,1 --std 6,5,4 --channel-order bgr"


@pytest.fixture
def street(tmp_path: Path) -> Path:
    folder = tmp_path / "street"
    folder.mkdir()
    for index, picture in enumerate(squares((LIT, 0, 0))):
        cv2.imwrite(str(folder / f"{index}.png"), picture[..., ::-1])
    (folder / "notes.txt").write_text("no picture", encoding="utf-8")
    assert len(pictures_of(folder)) == 3
    return folder


@pytest.fixture
def onnx_file(tmp_path: Path) -> Path:
    path = tmp_path / "squares.onnx"
    onnx.save(detector(RECIPES[3]), path)  # 0 to 1 in BGR
    return path


def test_inspect_tries_them(invoke: Invoke, onnx_file: Path, street: Path) -> None:
    outcome = invoke("inspect", onnx_file, "--dataset", street)
    assert outcome.code == 0, outcome.err
    assert "preprocessing  the network reacts to 0 to 1 in BGR: --std 255,255,255 --channel-order bgr" in outcome.out
    data = json.loads(invoke("inspect", onnx_file, "--dataset", street, "--json").out)
    assert data["preprocessing"]["reacts_to"] == "--std 255,255,255 --channel-order bgr"
    assert "preprocessing" not in invoke("inspect", onnx_file).out


def test_compile_warns_of_a_mismatch_and_the_file_keeps_the_order(
    invoke: Invoke, onnx_file: Path, street: Path, tmp_path: Path
) -> None:
    wrong = invoke("compile", onnx_file, "-o", tmp_path / "wrong.rknn", "-t", "rk3588", "--dataset", street)
    assert wrong.code == 0, wrong.err
    warning = "warning: the network reacts to 0 to 1 in BGR: --std 255,255,255 --channel-order bgr. With the preprocessing"
    assert " ".join(wrong.err.split()).count(warning) == 1
    as_json = invoke("compile", onnx_file, "-o", tmp_path / "wrong.rknn", "-t", "rk3588", "--dataset", street, "--json")
    assert json.loads(as_json.out)["preprocessing"].startswith("the network reacts to 0 to 1 in BGR")
    right_file = tmp_path / "right.rknn"
    options = ("--std", "255,255,255", "--channel-order", "bgr")
    right = invoke("compile", onnx_file, "-o", right_file, "-t", "rk3588", "--dataset", street, *options)
    assert right.code == 0, right.err
    assert "reacts to" not in right.out + right.err
    assert json.loads(anynpu.load(right_file).provenance["channel_order"]) == {"images": "bgr"}
    assert "channels     images: trained on BGR, takes RGB" in invoke("inspect", right_file).out
    assert json.loads(invoke("inspect", right_file, "--json").out)["channel_order"] == {"images": "bgr"}
    found = json.loads(invoke("run", right_file, street / "0.png", "--json").out)["pictures"][0]["results"]
    assert len(found) == 3


def test_compare_takes_the_order_from_the_file(invoke: Invoke, onnx_file: Path, street: Path, tmp_path: Path) -> None:
    path = tmp_path / "half.rknn"
    anynpu.compile(onnx_file, "rk3588", dtype="fp16", std=(255, 255, 255), channel_order="bgr").save(path)
    for options, code in (((), 0), (("--channel-order", "rgb"), 3)):
        outcome = invoke("compare", onnx_file, path, "--dataset", street, "--fail-below", "outputs.cosine=0.99", *options)
        assert outcome.code == code, (outcome.out, outcome.err)


@pytest.mark.parametrize("dtype", ["int8", "fp16"])
def test_python_gets_the_warning_before_calibration(onnx_file: Path, street: Path, dtype: str) -> None:
    text = r"the network reacts to 0 to 1 in BGR: std=\(255, 255, 255\), channel_order='bgr'\. With the preprocessing that was asked for"
    stages: list[tuple[str, int]] = []

    def progress(stage: str, done: int, total: int | None) -> None:
        stages.append((stage, len(found)))

    with pytest.warns(PreprocessingWarning, match=text) as found:
        anynpu.compile(onnx_file, "rk3588", dataset=street, dtype=dtype, progress=progress)
    later = [count for stage, count in stages if stage not in ("importing", "reading")]
    assert later
    assert min(later) > 0
    assert [entry.filename for entry in found if entry.category is PreprocessingWarning] == [__file__]


@pytest.mark.parametrize(
    "options", [{}, {"accuracy": "best"}, {"dtype": "fp16"}, {"dtype": "fp16", "std": 255, "channel_order": "bgr"}]
)
def test_one_compilation_reads_the_model_and_the_images_once(
    onnx_file: Path, street: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check and the calibration share what was read, also if the network does not fit what was asked for."""
    read: Counter[str] = Counter()
    decode, parse = images.decode_image, onnx.load_model_from_string

    def counted_decode(encoded: Array, name: str, channels: int = 3) -> Array:
        read[Path(name).name] += 1
        return decode(encoded, name, channels)

    def counted_parse(*arguments: Any, **keywords: Any) -> onnx.ModelProto:
        read["model"] += 1
        return parse(*arguments, **keywords)

    monkeypatch.setattr(images, "decode_image", counted_decode)
    monkeypatch.setattr(onnx, "load_model_from_string", counted_parse)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PreprocessingWarning)
        anynpu.compile(onnx_file, "rk3588", dataset=street, **options)
    images_read = {name: count for name, count in read.items() if name != "model"}
    assert images_read == {"0.png": 1, "1.png": 1, "2.png": 1}
    assert read["model"] <= 1


def test_samples_of_a_generator_are_not_read_for_the_check(onnx_file: Path, street: Path) -> None:
    given = []

    def generate() -> Iterator[Path]:
        for file in sorted(street.glob("*.png")):
            given.append(file.name)
            yield file

    with pytest.warns(PreprocessingWarning, match="reacts to"):
        anynpu.compile(onnx_file, "rk3588", dataset=generate())
    assert given == ["0.png", "1.png", "2.png"]
    given.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error", PreprocessingWarning)
        anynpu.compile(onnx_file, "rk3588", dataset=generate, accuracy="fast")
    assert given == ["0.png", "1.png", "2.png"], "a function is called once for each pass"


def test_images_of_other_proportions_are_reported(tmp_path: Path) -> None:
    net = Net()
    net.output(net.conv(net.input("x", (1, 3, 8, 64)), 4, 3))
    for width, warned in ((64, False), (28, False), (8, True)):
        folder = tmp_path / str(width)
        folder.mkdir()
        for index in range(2):
            cv2.imwrite(str(folder / f"{index}.png"), np.full((8, width, 3), 40 * index, np.uint8))
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            anynpu.compile(net.proto(), "rk3588", dataset=folder, accuracy="fast")
        texts = [str(entry.message) for entry in found if entry.category is PreprocessingWarning]
        assert bool(texts) == warned
        if warned:
            assert texts[0].startswith(
                "the calibration images are 1 times as wide as high, and input 'x' is 8 times as wide as high"
            )
