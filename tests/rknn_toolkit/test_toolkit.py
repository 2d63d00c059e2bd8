"""RKNN: conversion, simulation and analysis as programs call them."""

from __future__ import annotations

import re
import subprocess
import sys
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from compiler.onnx_builders import Net
from dropin.running import board_environment
from tools import need
from vendor_files import rknn_file

import anynpu
from anynpu import modelfile
from anynpu.dropin.environment import include_folder, library_folder
from anynpu.rknn.toolkit import RKNN
from anynpu.rknn.toolkit.config import DEFAULTS
from anynpu.rknn.toolkit.customop import get_node_attr
from anynpu.rknn.toolkit.hybrid import parse_config
from anynpu.tensor import DType

SIDE = 16


@pytest.fixture
def rknn() -> Iterator[RKNN]:
    made = RKNN()
    yield made
    made.release()


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a network and a dataset, as the current one."""
    monkeypatch.chdir(tmp_path)
    onnx.save(network().proto(), tmp_path / "net.onnx")
    random = np.random.default_rng(0)
    for index in range(3):
        cv2.imwrite(str(tmp_path / f"{index}.png"), random.integers(0, 256, (SIDE, SIDE, 3), np.uint8))
    (tmp_path / "dataset.txt").write_text("0.png\n1.png\n2.png\n")
    return tmp_path


def network(seed: int = 3, side: int | str = SIDE) -> Net:
    net = Net(seed=seed)
    first = net.op("Relu", net.conv(net.input("image", (1, 3, side, side)), 8, pads=[1, 1, 1, 1]))
    second = net.op("Relu", net.conv(first, 8, cin=8, pads=[1, 1, 1, 1]))
    net.output(net.conv(second, 4, kernel=1, cin=8))
    return net


IMAGE = np.random.default_rng(5).integers(0, 256, (1, SIDE, SIDE, 3), np.uint8)
SCALED: dict[str, Any] = {"mean_values": [[0, 0, 0]], "std_values": [[255, 255, 255]], "target_platform": "rk3588"}


def built(rknn: RKNN, quantised: bool = True, **config: Any) -> RKNN:
    assert rknn.config(**{**SCALED, **config}) in (0, None)
    assert rknn.load_onnx(model="net.onnx") == 0
    assert rknn.build(do_quantization=quantised, dataset="dataset.txt" if quantised else None) == 0
    return rknn


def expected(image: Any = IMAGE) -> Any:
    session = onnxruntime.InferenceSession("net.onnx", providers=["CPUExecutionProvider"])
    return session.run(None, {"image": (image.transpose(0, 3, 1, 2) / 255).astype(np.float32)})[0]


def cosine(a: Any, b: Any) -> float:
    a, b = np.ravel(a).astype(np.float64), np.ravel(b).astype(np.float64)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.parametrize("quantised", [True, False])
def test_from_onnx_to_a_file_and_back(rknn: RKNN, work: Path, quantised: bool) -> None:
    built(rknn, quantised)
    assert rknn.export_rknn("net.rknn") == 0
    assert rknn.init_runtime() == 0
    (output,) = rknn.inference(inputs=[IMAGE])
    assert cosine(output, expected()) > (0.99 if quantised else 0.9999)
    other = RKNN()
    assert other.load_rknn("net.rknn") == 0
    assert other.init_runtime(target="rk3588") == 0
    np.testing.assert_array_equal(other.inference(inputs=[IMAGE], data_format=["nhwc"])[0], output)
    other.release()
    options = anynpu.make_provider_options(layout="nhwc")
    with anynpu.InferenceSession(work / "net.rknn", provider_options=options, device="sim") as session:
        np.testing.assert_array_equal(session.run(None, [IMAGE])[0], output)


def test_the_second_position_is_the_format(rknn: RKNN, work: Path) -> None:
    built(rknn, False).init_runtime()
    turned = np.ascontiguousarray(IMAGE.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(rknn.inference([turned], "nchw")[0], rknn.inference([IMAGE])[0])


@pytest.mark.parametrize("form", ["nhwc", "nchw"])
def test_an_image_without_batch_axis_gets_one_with_a_warning(
    rknn: RKNN, work: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    built(rknn, False).init_runtime()
    image = IMAGE if form == "nhwc" else np.ascontiguousarray(IMAGE.transpose(0, 3, 1, 2))
    wanted = rknn.inference(inputs=[image], data_format=[form])[0]
    capsys.readouterr()
    for _ in range(2):
        np.testing.assert_array_equal(rknn.inference(inputs=[image[0]], data_format=[form])[0], wanted)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("W ")
    assert "image[None]" in line
    assert str([1, *image[0].shape]) in line
    assert rknn.inference(inputs=[image[0, 0]]) is None


def test_the_name_of_the_class_tells_the_model_zoo(rknn: RKNN) -> None:
    assert "rknn" in str(type(rknn))
    assert (RKNN.NPU_CORE_AUTO, RKNN.NPU_CORE_0_1_2, RKNN.NPU_CORE_ALL) == (0, 7, 0xFFFF)


@pytest.mark.parametrize(
    "config",
    [
        {"mean_values": [0, 0, 0], "std_values": [255, 255, 255]},
        {"mean_values": [[0]], "std_values": [[255]]},
        {"target_platform": "RK3588"},
        {"target_platform": ["rk3588"]},
        {"quantized_dtype": "asymmetric_quantized-8"},
        {"quantized_algorithm": "mmse", "quantized_method": "layer"},
        {"quantized_algorithm": "kl_divergence"},
    ],
    ids=str,
)
def test_values_in_the_forms_that_programs_give(rknn: RKNN, work: Path, config: dict[str, Any]) -> None:
    built(rknn, **config).init_runtime()
    assert cosine(rknn.inference([IMAGE])[0], expected()) > 0.98


def test_every_keyword_is_taken_and_what_has_no_effect_says_so_once(rknn: RKNN, capsys: pytest.CaptureFixture[str]) -> None:
    odd: dict[str, Any] = dict.fromkeys(DEFAULTS, 1)
    odd.update(SCALED, quantized_dtype="w8a8", quantized_algorithm="normal", quantized_method="channel", custom_string="text")
    odd.update(dynamic_input=None, remove_weight=False, quant_img_RGB2BGR=False)
    for _ in range(2):
        assert rknn.config(**odd, disable_rules=[]) == 0
    lines = capsys.readouterr().err.splitlines()
    silent = len(set(DEFAULTS) - {*SCALED, "quantized_dtype", "quantized_algorithm", "quantized_method", "custom_string"}) - 3
    assert len(lines) == len(set(lines)) == silent + 1
    assert "W config: op_target has no effect here" in lines
    assert "W config: disable_rules is not known and has no effect" in lines


@pytest.mark.parametrize(
    "config",
    [{"target_platform": None}, {"target_platform": "rk9999"}, {"quantized_dtype": "w4a16"}, {"quantized_algorithm": "magic"}],
)
def test_what_cannot_be_done_is_refused(rknn: RKNN, work: Path, config: dict[str, Any]) -> None:
    assert rknn.config(**{**SCALED, **config}) == -1
    assert rknn.load_onnx("net.onnx") == 0
    assert rknn.build(do_quantization=False) == -1


def test_codes_of_what_fails(rknn: RKNN, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rknn.load_onnx("missing.onnx") == -1
    assert rknn.build(do_quantization=False) == -1
    assert rknn.export_rknn("x.rknn") == -1
    assert rknn.init_runtime() == -1
    assert rknn.inference([IMAGE]) is None
    assert rknn.eval_perf() is None
    assert rknn.eval_memory() is None
    assert rknn.get_sdk_version() is None
    assert rknn.load_rknn("missing.rknn") == -1
    rknn.config(**SCALED)
    rknn.load_onnx("net.onnx")
    assert rknn.build(do_quantization=True) == -1
    assert rknn.build(do_quantization=True, dataset="missing.txt") == -1
    (work / "empty.txt").write_text("")
    assert rknn.build(do_quantization=True, dataset="empty.txt") == -1
    for refused in (rknn.load_tensorflow("a.pb"), rknn.load_caffe("a.prototxt"), rknn.load_darknet("a.cfg", "a.weights")):
        assert refused == -1
    assert rknn.export_encrypted_rknn_model("a.rknn") == -1
    assert "E load_caffe: Caffe models are not read here; convert the model to ONNX and use load_onnx" in capsys.readouterr().err
    assert rknn.list_devices() == ([], [])
    assert rknn.clear_op_cache() == 0


@pytest.mark.parametrize("call", ["load_pytorch", "load_tflite"])
def test_a_framework_that_is_missing_is_named(
    rknn: RKNN, work: Path, call: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for module in ("torch", "tf2onnx", "tf2onnx.convert"):
        monkeypatch.setitem(sys.modules, module, None)
    with zipfile.ZipFile(work / "model.bin", "w") as file:
        file.writestr("net/code/__torch__.py", "")
    assert (rknn.load_pytorch("model.bin", [[1, 3, 8, 8]]) if call == "load_pytorch" else rknn.load_tflite("model.bin")) == -1
    assert "needs the package 't" in capsys.readouterr().err


def test_tflite_through_its_converter(rknn: RKNN, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The converter is asked for images as N, C, H, W, unless the model has them so."""
    asked: list[Any] = []

    def from_tflite(path: str, opset: int, inputs_as_nchw: Any = None) -> tuple[onnx.ModelProto, None]:
        asked.append(inputs_as_nchw)
        return network().proto(), None

    monkeypatch.setitem(sys.modules, "tf2onnx", types.ModuleType("tf2onnx"))
    converter = types.ModuleType("tf2onnx.convert")
    converter.from_tflite = from_tflite  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tf2onnx.convert", converter)
    (work / "net.tflite").write_bytes(b"")
    rknn.config(**SCALED)
    assert rknn.load_tflite("net.tflite") == 0
    assert asked == [None, ["image"]]
    assert rknn.build(do_quantization=False) == 0
    assert rknn.load_tflite("net.tflite", input_is_nchw=True) == 0
    assert asked == [None, ["image"], None]
    assert rknn.load_tflite("missing.tflite") == -1


def test_pytorch_through_its_exporter(rknn: RKNN, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def converted(path: Path, shapes: None, examples: Any) -> Any:
        assert (path, [example.shape for example in examples]) == (Path("net.pt"), [(1, 3, SIDE, SIDE)])
        return network().proto()

    def export(module: Any, examples: Any, file: Any, **options: Any) -> None:
        assert (module, examples) == (loaded, ((1, 3, SIDE, SIDE),))
        file.write(network().proto().SerializeToString())

    monkeypatch.setattr("anynpu.rknn.toolkit.config.torch_file_to_onnx", converted)
    (work / "net.pt").write_bytes(b"")
    rknn.config(**SCALED)
    assert rknn.load_pytorch("net.pt", input_size_list=[[1, 3, SIDE, SIDE]]) == 0
    assert rknn.build(do_quantization=False) == 0
    assert rknn.load_pytorch("missing.pt", input_size_list=[[1, 3, SIDE, SIDE]]) == -1
    loaded: Any = types.SimpleNamespace(eval=lambda: None)
    torch = types.ModuleType("torch")
    torch.onnx = types.SimpleNamespace(export=export)  # type: ignore[attr-defined]
    torch.zeros = lambda *shape: shape  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert rknn.load_pytorch(loaded, input_size_list=[[1, 3, SIDE, SIDE]]) == 0


def test_a_part_of_a_model(rknn: RKNN, work: Path) -> None:
    names = [node.output[0] for node in network().proto().graph.node]
    rknn.config(**SCALED)
    assert rknn.load_onnx("net.onnx", outputs=[names[1]]) == 0
    assert rknn.build(do_quantization=False) == 0
    rknn.init_runtime()
    assert rknn.inference([IMAGE])[0].shape == (1, 8, SIDE, SIDE)
    assert rknn.load_onnx("net.onnx", outputs=["nothing"]) == -1


@pytest.mark.parametrize("size", [[1, 3, 8, 12], [3, 8, 12]])
def test_sizes_with_and_without_the_batch(rknn: RKNN, work: Path, size: list[int]) -> None:
    onnx.save(network(side="side").proto(), "free.onnx")
    rknn.config(**SCALED)
    assert rknn.load_onnx("free.onnx", inputs=["image"], input_size_list=[size]) == 0
    assert rknn.build(do_quantization=False) == 0
    rknn.init_runtime()
    assert rknn.inference([np.zeros((1, 8, 12, 3), np.uint8)])[0].shape == (1, 4, 8, 12)


def test_an_input_that_becomes_a_constant(rknn: RKNN, work: Path) -> None:
    net = Net()
    net.output(net.op("Add", net.input("a", (1, 4)), net.input("b", (1, 4))))
    onnx.save(net.proto(), "sum.onnx")
    rknn.config(target_platform="rk3588")
    assert rknn.load_onnx("sum.onnx", input_initial_val=[None, np.array([[1, 2, 3, 4]])]) == 0
    assert rknn.build(do_quantization=False) == 0
    rknn.init_runtime()
    np.testing.assert_array_equal(rknn.inference([np.ones((1, 4), np.float32)])[0], [[2, 3, 4, 5]])


def test_dynamic_shapes(rknn: RKNN, work: Path) -> None:
    onnx.save(network(side="side").proto(), "net.onnx")
    built(rknn, False, dynamic_input=[[[1, 3, 8, 8]], [[1, 3, 12, 12]]]).init_runtime()
    for side in (8, 12, 8):
        assert rknn.inference([np.zeros((1, side, side, 3), np.uint8)])[0].shape == (1, 4, side, side)
    assert rknn.inference([np.zeros((1, 9, 9, 3), np.uint8)]) is None


WRONG_SHAPES = [[1, 3, SIDE, SIDE + 1], [1, 4, SIDE, SIDE], [1, 3, SIDE], [SIDE, SIDE, 3]]


@pytest.mark.parametrize("shape", WRONG_SHAPES, ids=str)
def test_shapes_unlike_a_fixed_one_are_rejected_when_they_are_given(
    rknn: RKNN, work: Path, shape: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    rknn.config(**SCALED)
    assert rknn.load_onnx("net.onnx", inputs=["image"], input_size_list=[shape]) == -1
    assert "input_size_list: input 'image' takes [1, 3, 16, 16]" in capsys.readouterr().err
    sets = [[[1, 3, SIDE, SIDE]], [shape]]
    assert rknn.config(**SCALED, dynamic_input=sets) == 0
    assert rknn.load_onnx("net.onnx") == -1
    assert "dynamic_input: input 'image' takes [1, 3, 16, 16]" in capsys.readouterr().err
    rknn.config(**SCALED)
    assert rknn.load_onnx("net.onnx") == 0
    assert rknn.config(**SCALED, dynamic_input=sets) == -1
    assert rknn.config(**SCALED, dynamic_input=[[[1, 3, SIDE, SIDE], [1, 1]]]) == -1
    assert rknn.load_onnx("net.onnx", inputs=["image"], input_size_list=[[2, 3, SIDE, SIDE]]) == 0


def test_a_batch(rknn: RKNN, work: Path) -> None:
    rknn.config(**SCALED)
    rknn.load_onnx("net.onnx")
    assert rknn.build(do_quantization=True, dataset="dataset.txt", rknn_batch_size=2) == 0
    rknn.init_runtime()
    pair = np.concatenate([IMAGE, IMAGE[:, ::-1]])
    output = rknn.inference([pair])[0]
    assert output.shape == (2, 4, SIDE, SIDE)
    assert cosine(output[:1], expected()) > 0.98


def test_calibration_in_bgr(rknn: RKNN, work: Path) -> None:
    """Images of the dataset are turned, inputs of inference are not."""
    red = np.zeros((SIDE, SIDE, 3), np.uint8)
    red[:, :, 2] = 255  # OpenCV writes BGR
    cv2.imwrite("red.png", red)
    (work / "dataset.txt").write_text("red.png\n")
    net = Net()
    net.output(
        net.op(
            "Mul", net.input("image", (1, 3, SIDE, SIDE)), net.constant(np.float32([[[[0]], [[0]], [[1]]]]).reshape(1, 3, 1, 1))
        )
    )
    onnx.save(net.proto(), "net.onnx")
    built(rknn, quant_img_RGB2BGR=True).init_runtime()
    blue = np.zeros((1, SIDE, SIDE, 3), np.uint8)
    blue[..., 2] = 255
    assert abs(rknn.inference([blue])[0].max() - 1.0) < 0.02  # the range of the third channel was seen
    assert rknn.inference([blue])[0].shape == (1, 3, SIDE, SIDE)


def test_times_are_read_by_the_expressions_of_programs(rknn: RKNN, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built(rknn).init_runtime(perf_debug=True)
    text = rknn.eval_perf(is_print=True)
    assert capsys.readouterr().out == text
    total = re.search(r"^Total Operator Elapsed Per Frame Time\(us\):\s*([\d.]+)", text, re.MULTILINE)
    assert total is not None
    assert float(total[1]) > 0
    rows = [line.split() for line in text.splitlines() if re.match(r"\d+ ", line)]
    assert {parts[3] for parts in rows} == {"CPU", "NPU"}
    assert [parts[1] for parts in rows if parts[3] == "CPU"] == ["InputOperator", "OutputOperator"]
    rknn.init_runtime()
    plain = rknn.eval_perf(is_print=False)
    assert float(re.search(r"^Total Time\(us\): ([\d.]+)$", plain, re.MULTILINE)[1]) > 0  # type: ignore[index]
    assert capsys.readouterr().out == ""


def test_memory(rknn: RKNN, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built(rknn).init_runtime(eval_mem=True)
    figures = rknn.eval_memory()
    assert set(figures) == {"weight_memory", "internal_memory", "other_memory", "total_memory"}
    assert figures["total_memory"] == sum(value for key, value in figures.items() if key != "total_memory") > 0
    assert "Total Memory:" in capsys.readouterr().out


ROW = re.compile(
    r"^\[(\w+)\] (\S+)\s+([\d.]+) \| ([\d.]+)\s+([\d.]+) \| ([\d.]+)(?:\s+([\d.]+) \| ([\d.]+)\s+([\d.]+) \| ([\d.]+))?$"
)


@pytest.mark.parametrize("target", [None, "rk3588"])
def test_accuracy_analysis_writes_its_files(rknn: RKNN, work: Path, target: str | None) -> None:
    built(rknn)
    assert rknn.accuracy_analysis(inputs=["0.png"], output_dir="snapshot", target=target) == 0
    text = (work / "snapshot" / "error_analysis.txt").read_text()
    rows = [match for line in text.splitlines() if (match := ROW.match(line))]
    assert len(rows) >= 4
    assert rows[0][1] == "Input"
    for row in rows:
        assert 0.9 < float(row[3]) <= 1.0
        assert 0.9 < float(row[5]) <= 1.0
        assert (row[7] is not None) == (target is not None)
    assert ("runtime_error" in text) == (target is not None)
    header, *lines = ((work / "snapshot" / "map_name_to_file.txt").read_text()).splitlines()
    assert header.split() == ["layer_name", "file_name"]
    names = dict(line.split() for line in lines)
    assert [row[2] for row in rows] == list(names)
    for part in ("golden", "simulator", *(("runtime",) if target else ())):
        for name, file in names.items():
            array = np.load(work / "snapshot" / part / "npy" / Path(file).with_suffix(".npy"))
            assert array.size > 0, name
            np.testing.assert_array_equal(np.genfromtxt(work / "snapshot" / part / file, dtype=np.float32), array.ravel())
    last = np.load(work / "snapshot" / "golden" / "npy" / Path(list(names.values())[-1]).with_suffix(".npy"))
    picture = cv2.cvtColor(cv2.imread("0.png"), cv2.COLOR_BGR2RGB)[np.newaxis]
    np.testing.assert_allclose(last, expected(picture), rtol=1e-3, atol=1e-4)


def test_accuracy_analysis_without_a_folder(rknn: RKNN, work: Path) -> None:
    assert built(rknn).accuracy_analysis(inputs=["0.png"], output_dir=None) == 0
    assert (work / "snapshot" / "error_analysis.txt").is_file()
    assert {file.stem for file in (work / "snapshot" / "golden").glob("*.txt")} >= {"image"}


def test_hybrid_quantisation_in_two_steps(rknn: RKNN, work: Path) -> None:
    rknn.config(**SCALED)
    rknn.load_onnx("net.onnx")
    assert rknn.hybrid_quantization_step1(dataset="dataset.txt") == 0
    settings = work / "net.quantization.cfg"
    assert parse_config(settings).floats == ()
    assert parse_config(settings).ranges == {}
    text = settings.read_text()
    tensors = re.findall(r"^    (\S+):$", text, re.MULTILINE)
    layer = network().proto().graph.node[3].output[0]
    assert {"image", layer} <= set(tensors)
    changed = text.replace("custom_quantize_layers: {}", f"custom_quantize_layers:\n    {layer}: float16")
    entry = changed.index(f"    {layer}:\n        qtype")
    changed = changed[:entry] + changed[entry:].replace("max: [", "max: [1", 1)
    other_name = network().proto().graph.node[1].output[0]
    start = changed.index(f"    {other_name}:\n        qtype")
    low = changed.index("max: [", start)
    changed = changed[:low] + "max: [1000.0]" + changed[changed.index("\n", low) :]
    settings.write_text(changed)
    wanted = parse_config(settings)
    assert wanted.floats == (layer,)
    assert wanted.ranges[other_name][0] == pytest.approx(1000 / 255, rel=0.01)
    second = RKNN()
    assert second.hybrid_quantization_step2("net.model", "net.data", "net.quantization.cfg") == 0
    assert second.export_rknn("hybrid.rknn") == 0
    tensors = modelfile.read(work / "hybrid.rknn").programs[0].tensors
    assert tensors[layer].dtype.is_float
    assert float(np.ravel(tensors[other_name].quantization.scale)[0]) == pytest.approx(1000 / 255, rel=0.01)  # type: ignore[union-attr]
    settings.write_text("nonsense\n")
    assert second.hybrid_quantization_step2("net.model", "net.data", "net.quantization.cfg") == -1
    second.release()


def pose_network() -> tuple[Net, list[list[str]]]:
    """Key point heads at two scales whose flattened results are joined, and the pairs that model zoos give for them."""
    net = Net(seed=8)
    body = net.conv(net.input("image", (1, 3, SIDE, SIDE)), 8, pads=[1, 1, 1, 1])
    body = net.op("Mul", body, net.op("Sigmoid", body))
    heads, starts = [], []
    for side in (SIDE, SIDE // 2):
        if side < SIDE:
            body = net.op("MaxPool", body, kernel_shape=[2, 2], strides=[2, 2])
        inner = net.conv(body, 8, cin=8, pads=[1, 1, 1, 1])
        inner = net.op("Mul", inner, net.op("Sigmoid", inner))
        starts.append(inner)
        head = net.conv(net.op("Relu", net.conv(inner, 8, cin=8, pads=[1, 1, 1, 1])), 6, kernel=1, cin=8)
        heads.append(net.op("Reshape", head, net.constant([1, 6, side * side])))
    joined = net.op("Concat", *heads, axis=2)
    points = net.op("Reshape", joined, net.constant([1, 2, 3, 5 * SIDE * SIDE // 4]))
    net.output(net.op("Sigmoid", net.op("Slice", points, net.constant([0]), net.constant([2]), net.constant([2]))))
    return net, [[start, joined] for start in starts]


def test_layers_between_given_tensors_stay_in_float16(rknn: RKNN, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net, pairs = pose_network()
    onnx.save(net.proto(), work / "net.onnx")
    rknn.config(**SCALED)
    rknn.load_onnx("net.onnx")
    assert rknn.hybrid_quantization_step1(dataset="dataset.txt", proposal=False, custom_hybrid=pairs) == 0
    made = {name for node in net.nodes for name in node.output}
    settings = work / "net.quantization.cfg"
    floats = parse_config(settings).floats
    assert pairs[0][1] in floats
    assert not {"image", pairs[0][0], pairs[1][0]} & set(floats)
    assert set(re.findall(r"^    (\S+):$", settings.read_text(), re.MULTILINE)) <= {*made, "image"}
    assert rknn.hybrid_quantization_step2("net.model", "net.data", "net.quantization.cfg") == 0
    assert rknn.export_rknn("hybrid.rknn") == 0
    tensors = modelfile.read(work / "hybrid.rknn").programs[0].tensors
    assert all(tensors[name].dtype.is_float for name in floats)
    assert all(tensors[start].dtype is DType.INT8 for start, _ in pairs)
    rknn.init_runtime()
    hybrid = cosine(rknn.inference(inputs=[IMAGE[0]])[0], expected())
    built(rknn).init_runtime()
    assert hybrid > 0.999
    assert hybrid >= cosine(rknn.inference(inputs=[IMAGE])[0], expected())


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([["image", "no_such_tensor"]], "no tensor 'no_such_tensor'"),
        ([["no_such_tensor", "image"]], "no tensor 'no_such_tensor'"),
        ([["{end}", "image"]], "no layer leads from"),
        (["image"], "pairs"),
        ([["image"]], "pairs"),
    ],
)
def test_wrong_names_of_layers_to_keep_are_rejected(
    rknn: RKNN, work: Path, pairs: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    end = network().proto().graph.output[0].name
    rknn.config(**SCALED)
    rknn.load_onnx("net.onnx")
    given = [[name.format(end=end) for name in pair] if isinstance(pair, list) else pair for pair in pairs]
    assert rknn.hybrid_quantization_step1(dataset="dataset.txt", custom_hybrid=given) == -1
    assert words in capsys.readouterr().err
    assert not (work / "net.quantization.cfg").exists()


def test_every_tensor_that_the_first_step_writes_can_be_edited(rknn: RKNN, work: Path) -> None:
    """The compiler's copies in another layout are no tensors of the ONNX model, and the second step does not know them."""
    net, _ = pose_network()
    onnx.save(net.proto(), work / "net.onnx")
    rknn.config(**SCALED)
    rknn.load_onnx("net.onnx")
    assert rknn.hybrid_quantization_step1(dataset="dataset.txt") == 0
    settings = work / "net.quantization.cfg"
    text = re.sub(r"max: \[.*\]", "max: [10.0]", settings.read_text())
    names = re.findall(r"^    (\S+):$", text, re.MULTILINE)
    assert len(names) > 5
    settings.write_text(text)
    assert rknn.hybrid_quantization_step2("net.model", "net.data", "net.quantization.cfg") == 0
    kept = "".join(f"    {name}: float16\n" for name in names)
    settings.write_text(text.replace("custom_quantize_layers: {}\n", f"custom_quantize_layers:\n{kept}"))
    assert rknn.hybrid_quantization_step2("net.model", "net.data", "net.quantization.cfg") == 0


def test_a_file_that_other_tools_have_written(tmp_path: Path) -> None:
    """YAML with lists of one entry per line, comments, quotes and flow style."""
    path = tmp_path / "a.quantization.cfg"
    path.write_text(
        "# a comment\ncustom_quantize_layers: {'/a/b': float16}\nquantize_parameters:\n"
        '  "x:0":\n    dtype: int8\n    min:\n    - -1.0\n    max:\n    - 3.0\n    scale: [0.01]  # old\n    zero_point: 0\n'
    )
    wanted = parse_config(path)
    assert wanted.floats == ("/a/b",)
    assert wanted.ranges == {"x:0": (pytest.approx(4 / 255), -64)}


@pytest.mark.parametrize(
    "layers",
    [
        "custom_quantize_layers:\n  'x': float16",
        'custom_quantize_layers:\n  "x": float16\n  y/z:0: float16',
        "custom_quantize_layers: {x: float16, y/z:0: float16}",
        "custom_quantize_layers: {\n    x: float16,\n    y/z:0: float16,\n}",
        "custom_quantize_layers: {x: float16,\n  y/z:0: float16}",
    ],
)
def test_layers_in_the_forms_that_programs_write(tmp_path: Path, layers: str) -> None:
    path = tmp_path / "a.quantization.cfg"
    parameters = "quantize_parameters:\n  x:\n    dtype: int8\n    min: [\n      -1.0\n    ]\n    max: [1.0]\n    scale: [0.01]\n"
    for text in (f"{layers}\n{parameters}", f"{parameters}{layers}\n"):
        path.write_text(text)
        wanted = parse_config(path)
        assert wanted.floats == (("x", "y/z:0") if "y/z" in layers else ("x",))
        assert wanted.tensors == {"x"}


def test_names_of_the_vendors_copies_and_of_fused_layers(rknn: RKNN, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = network().proto()
    relu, end = proto.graph.node[1].output[0], proto.graph.output[0].name
    fused = proto.graph.node[0].output[0]
    rknn.config(**SCALED)
    rknn.load_onnx("net.onnx")
    assert rknn.hybrid_quantization_step1(dataset="dataset.txt") == 0
    settings = work / "net.quantization.cfg"
    kept = f"custom_quantize_layers:\n  {end}-rs: float16\n  {end}_int8: float16\n  {fused}_sw: float16\n"
    settings.write_text(settings.read_text().replace("custom_quantize_layers: {}\n", kept))
    capsys.readouterr()
    assert rknn.hybrid_quantization_step2("net.model", "net.data", "net.quantization.cfg") == 0
    assert f"'{end}-rs' is not a tensor of the compiled model; instead '{end}' stays" in capsys.readouterr().err
    assert rknn.export_rknn("hybrid.rknn") == 0
    tensors = modelfile.read(work / "hybrid.rknn").programs[0].tensors
    assert tensors[end].dtype.is_float
    assert tensors[relu].dtype.is_float
    settings.write_text(settings.read_text().replace(f"{end}-rs", "nonsense"))
    assert rknn.hybrid_quantization_step2("net.model", "net.data", "net.quantization.cfg") == -1
    assert "there is no tensor 'nonsense'" in capsys.readouterr().err


def test_names_with_a_colon_are_plain_keys(rknn: RKNN, work: Path) -> None:
    net = Net(seed=3)
    net.output(net.op("Relu", net.conv(net.input("image:0", (1, 3, SIDE, SIDE)), 8, pads=[1, 1, 1, 1])))
    onnx.save(net.proto(), work / "net.onnx")
    rknn.config(**SCALED)
    rknn.load_onnx("net.onnx")
    assert rknn.hybrid_quantization_step1(dataset="dataset.txt") == 0
    assert "\n    image:0:\n" in (work / "net.quantization.cfg").read_text()
    assert "image:0" in parse_config(work / "net.quantization.cfg").tensors


class Doubled:
    op_type = "Doubled"

    def shape_infer(self, node: Any, in_shapes: Any, in_dtypes: Any) -> Any:
        assert get_node_attr(node, "factor") == 2.5
        return [in_shapes[0]], in_dtypes

    def compute(self, node: Any, inputs: Any) -> Any:
        return [inputs[0] * get_node_attr(node, "factor")]


def test_a_custom_operator(rknn: RKNN, work: Path) -> None:
    net = Net()
    net.opsets["acme"] = 1
    x = net.op("Relu", net.conv(net.input("image", (1, 3, SIDE, SIDE)), 4, pads=[1, 1, 1, 1]))
    net.output(net.op("Doubled", x, domain="acme", factor=2.5))
    onnx.save(net.proto(), "custom.onnx")
    rknn.config(**SCALED)
    assert rknn.reg_custom_op(object()) == -1
    assert rknn.reg_custom_op(Doubled()) == 0
    assert rknn.load_onnx("custom.onnx") == 0
    assert rknn.build(do_quantization=True, dataset="dataset.txt") == 0
    assert rknn.init_runtime() == 0
    output = rknn.inference([IMAGE])[0]
    assert output.shape == (1, 4, SIDE, SIDE)
    assert output.max() > 0


def test_the_generated_program_runs(rknn: RKNN, work: Path) -> None:
    built(rknn)
    assert rknn.codegen("program", inputs=["0.png"]) == 0
    assert rknn.codegen("program") == -1
    assert rknn.codegen("program", inputs=["0.png"], overwrite=True) == 0
    folder = work / "program"
    command = [need("cc"), "-Wall", "-Wextra", "-Werror", "main.c", "-o", "run", f"-I{include_folder()}", f"-L{library_folder()}"]
    subprocess.run([*command, "-lrknnrt"], check=True, timeout=600, cwd=folder)
    done = subprocess.run(
        [str(folder / "run")],
        cwd=folder,
        env=board_environment("rk3588"),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.startswith("outputs/output_0.bin ")
    rknn.init_runtime()
    picture = cv2.cvtColor(cv2.imread("0.png"), cv2.COLOR_BGR2RGB)[np.newaxis]
    assert (folder / "outputs" / "output_0.bin").read_bytes() == rknn.inference([picture])[0].tobytes()


def test_a_vendors_file_beside_its_onnx_file(rknn: RKNN, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (work / "net_rk3588.rknn").write_bytes(rknn_file())
    assert rknn.load_rknn("net_rk3588.rknn") == 0
    assert rknn.init_runtime() == 0
    assert "compiled an anynpu model from net.onnx for rk3588 as w8a8" in capsys.readouterr().err
    assert rknn.inference([IMAGE])[0].shape == (1, 4, SIDE, SIDE)


def test_inputs_and_outputs_by_name(rknn: RKNN, work: Path) -> None:
    assert rknn.rknn_base.inputs_meta["attrs"] == {}
    rknn.config(**SCALED)
    rknn.load_onnx("net.onnx")
    assert rknn.rknn_base.inputs_meta["attrs"]["image"]["shape"] == [1, 3, SIDE, SIDE]
    built(rknn).export_rknn("net.rknn")
    other = RKNN()
    assert other.load_rknn("net.rknn") == 0
    for one in (rknn, other):
        found = [
            (one["is_output"], one["idx"], one["shape"], one["layout"]) for one in one.rknn_base.inputs_meta["attrs"].values()
        ]
        assert found == [(False, 0, [1, 3, SIDE, SIDE], "nchw"), (True, 0, list(expected().shape), "nchw")]
    other.release()


def test_versions(rknn: RKNN, work: Path) -> None:
    built(rknn, False).init_runtime()
    assert rknn.get_sdk_version().splitlines()[1] == "RKNN VERSION:"
