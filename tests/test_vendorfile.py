from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from vendor_files import (
    nb_file,
    nb_file_of_version_2,
    nb_tensor,
    nb_tensor_of_version_2,
    rknn_description,
    rknn_file,
    rknn_payload,
)

from anynpu import modelfile
from anynpu.errors import ModelError, ModelFormatError, VendorModelError
from anynpu.modelfile import vendorfile
from anynpu.modelfile.recognize import FileKind, identify


class TestIdentify:
    @pytest.mark.parametrize(
        ("data", "kind"),
        [
            (rknn_file(), FileKind.RKNN),
            (rknn_file(version=1), FileKind.RKNN),
            (b"CYPTRKNN" + bytes(64), FileKind.RKNN),
            (nb_file(), FileKind.NB),
            (b"VPMN" + (0x20005).to_bytes(4, "little") + bytes(8), FileKind.NB),
            (b"RKNN" + bytes(60), FileKind.UNKNOWN),  # version 0
            (b"RKNN\x01\x02\x03\x04" + bytes(60), FileKind.UNKNOWN),
            (b"VPMN\xff\xff\xff\xff" + bytes(60), FileKind.UNKNOWN),
            (b"RKNN", FileKind.UNKNOWN),
            (b"", FileKind.UNKNOWN),
            (b"\x89PNG\r\n\x1a\n" + bytes(60), FileKind.UNKNOWN),
        ],
    )
    def test_first_bytes(self, data: bytes, kind: FileKind) -> None:
        assert identify(data) is kind

    def test_onnx(self) -> None:
        from onnx import TensorProto, helper

        graph = helper.make_graph([], "g", [], [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])])
        data = helper.make_model(graph, producer_name="a tool of some name").SerializeToString()
        assert identify(data) is FileKind.ONNX
        assert identify(data[: data.index(b"a tool")]) is FileKind.UNKNOWN
        assert identify(b"\x08\x08" + bytes(64)) is FileKind.UNKNOWN
        assert identify(b"\x08" + b"\xff" * 64) is FileKind.UNKNOWN

    def test_a_path_that_is_not_there(self, tmp_path) -> None:
        with pytest.raises(ModelError, match="No such file") as caught:
            identify(tmp_path / "absent.rknn")
        assert caught.value.hint
        os.mkfifo(tmp_path / "pipe")
        for path in (tmp_path, tmp_path / "pipe"):
            with pytest.raises(ModelError, match="not a regular file"):
                identify(path)
        with pytest.raises(ModelError, match="embedded null"):
            identify("a\0b")


LAYERS = [
    ("InputOperator:images", "InputOperator"),
    ("Conv:Conv_0", "ConvExSwish"),
    ("Concat:größe", "Concat"),
    ("OutputOperator:boxes", "OutputOperator"),
]
TYPES = {
    "boxes": {"dtype": "int8", "layout": "NCHW"},
    "scores": {"dtype": "float16", "layout": "NCHW"},
    "images": {"dtype": "int8", "layout": "NHWC"},
}
ATTRIBUTES = {
    "attrs": {
        "images": {"idx": 0, "mean": [0, 1.5, 2], "std": [255, 255, 255]},
        "gray": {"mean": [0], "std": [255, 255, 255]},
        "boxes": {"is_output": True},
    },
    "quant_tab": {"images": {"scale": [], "zero_point": []}, "boxes": {"scale": [0.25], "zero_point": [-3]}},
    "dynamic_shapes": {},
}


class TestTextOfRknn:
    """What stands in plain text before the instructions, in the form of files that rknn-toolkit2 2.5.0 wrote."""

    def test_layers_types_mean_and_scales(self) -> None:
        description = rknn_description()
        description["norm_tensor"][2]["dtype"] = {"qnt_method": "", "qnt_type": "", "vx_type": ""}
        info = vendorfile.read_rknn(rknn_file(description, payload=rknn_payload(LAYERS, TYPES, ATTRIBUTES)))
        assert info.layers == ("Conv_0 (ConvExSwish)", "größe (Concat)")
        assert [tensor.layout for tensor in (*info.inputs, *info.outputs)] == ["nhwc", "nchw", "nchw"]
        boxes, scores = info.outputs
        assert (boxes.scale, boxes.zero_point) == (0.25, -3)
        assert (scores.dtype, scores.quantization) == ("float16", "none")
        assert info.inputs[0].scale is None
        assert info.preprocess == {
            "images": ((0.0, 1.5, 2.0), (255.0, 255.0, 255.0)),
            "gray": ((0.0, 0.0, 0.0), (255.0, 255.0, 255.0)),
        }
        assert not any("layers" in note for note in info.notes)

    def test_the_command_shows_them(self, tmp_path) -> None:
        from typer.testing import CliRunner

        from anynpu.cli.app import app

        path = tmp_path / "a.rknn"
        path.write_bytes(rknn_file(payload=rknn_payload(LAYERS, TYPES, ATTRIBUTES)))
        shown = CliRunner().invoke(app, ["inspect", str(path), "--layers"]).output
        assert "layers       2" in shown
        assert "images: mean 0 1.5 2, std 255 255 255" in shown
        assert "gray: mean 0 0 0, std 255 255 255" in shown
        assert "0  Conv_0 (ConvExSwish)" in shown

    @pytest.mark.parametrize(
        "attributes",
        [
            {"attrs": {"images": {"mean": ["1"], "std": [True]}}, "quant_tab": {"boxes": {"scale": [-1.0], "zero_point": [0]}}},
            {"attrs": 7, "quant_tab": [{}]},
            {
                "attrs": {"images": {"mean": [1.0, 2.0], "std": [1.0, 2.0, 3.0]}, 3: {}},
                "quant_tab": {"boxes": {"scale": [1.0], "zero_point": [0.5]}},
            },
        ],
    )  # fmt: skip
    def test_what_is_of_another_form_is_left_out(self, attributes) -> None:
        info = vendorfile.read_rknn(rknn_file(payload=rknn_payload([], {"boxes": {"dtype": 8, "layout": []}}, attributes)))
        assert not info.preprocess
        assert info.outputs[0].scale is None
        assert not info.layers

    def test_texts_whose_length_is_wrong_are_no_layers(self) -> None:
        payload = rknn_payload(LAYERS, TYPES, ATTRIBUTES)
        broken = payload.replace(b"\x0b\0\0\0Conv:Conv_0", b"\x0c\0\0\0Conv:Conv_0").replace(
            b"\x06\0\0\0Concat\0", b"\x07\0\0\0Concat\0"
        )
        assert broken != payload
        assert not vendorfile.read_rknn(rknn_file(payload=broken)).layers
        cut = payload.replace(b"'attrs': {", b"'attrs': [(")
        assert not vendorfile.read_rknn(rknn_file(payload=cut)).preprocess


class TestRknn:
    def test_everything_the_description_holds(self) -> None:
        info = vendorfile.read_rknn(rknn_file())
        assert (info.kind, info.version, info.target, info.chip) == (FileKind.RKNN, 6, "rk3588", "rk3588")
        assert info.toolkit == "rknn-toolkit2 2.3.2"
        assert info.name == "rknn model"
        assert [(tensor.name, tensor.shape, tensor.dtype) for tensor in info.inputs] == [("images", (1, 3, 640, 640), "int8")]
        assert [tensor.name for tensor in info.outputs] == ["boxes", "scores"]
        assert info.layers == ()  # one operator stands for the whole network
        assert info.notes == (
            "scales and zero points are not in the readable part of the file",
            "the layers are not in the readable part of the file",
        )

    def test_a_model_that_was_not_quantised_is_float16(self) -> None:
        """As rknn-toolkit2 2.5.0 writes it: types are there and empty."""
        description = rknn_description()
        for tensor in description["norm_tensor"]:
            tensor["dtype"] = {"qnt_method": "", "qnt_type": "", "vx_type": ""}
        info = vendorfile.read_rknn(rknn_file(description))
        assert {(tensor.dtype, tensor.quantization) for tensor in (*info.inputs, *info.outputs)} == {("float16", "none")}
        assert info.notes == ("the layers are not in the readable part of the file",)

    def test_the_oldest_header_is_shorter(self) -> None:
        description = rknn_description(version="1.3.2", ovxlib_version="1.1.12", target_platform=["RK1808"])
        info = vendorfile.read_rknn(rknn_file(description, version=1))
        assert (info.toolkit, info.target, info.chip) == ("rknn-toolkit 1.3.2", "rk1808", "")
        assert info.inputs[0].name == "images"

    def test_a_second_block_adds_layouts_and_scales(self) -> None:
        extra = {"inputs": [{"name": "images", "shape": [1, 3, 640, 640], "layout": "NHWC", "scale": 0.25, "zero_point": -128}]}
        payload = b'\xff{\x01{"broken": ' + bytes(99) + json.dumps(extra).encode() + b"}}\xfe" + bytes(77)
        (tensor,) = vendorfile.read_rknn(rknn_file(payload=payload)).inputs
        assert (tensor.dtype, tensor.layout, tensor.scale, tensor.zero_point) == ("int8", "nhwc", 0.25, -128)

    def test_a_wrong_length_does_not_hide_the_description(self) -> None:
        data = bytearray(rknn_file())
        data[16:24] = (1 << 40).to_bytes(8, "little")
        info = vendorfile.read_rknn(bytes(data))
        assert info.target == "rk3588"
        assert len(info.outputs) == 2
        assert "not where the header points" in info.notes[0]

    def test_lists_by_name_where_there_is_no_graph(self) -> None:
        description = {"outputs": {"a": {"name": "y", "dims": [1, 2], "type": "FP16"}}, "target": "RK3576"}
        info = vendorfile.read_rknn(rknn_file(description))
        assert (info.target, info.inputs) == ("rk3576", ())
        assert (info.outputs[0].name, info.outputs[0].shape, info.outputs[0].dtype) == ("y", (1, 2), "float16")

    def test_what_is_not_understood_is_said(self) -> None:
        assert "no description was found" in vendorfile.read_rknn(rknn_file()[:500]).notes[-1]
        assert "not named in a way that is known" in vendorfile.read_rknn(rknn_file({"surprise": 1})).notes[0]
        assert "encrypted" in vendorfile.read_rknn(b"CYPTRKNN" + bytes(99)).notes[0]

    @pytest.mark.parametrize("data", [b"", b"RKNN", nb_file()])
    def test_other_files_are_refused(self, data: bytes) -> None:
        with pytest.raises(ModelFormatError):
            vendorfile.read_rknn(data)

    @pytest.mark.parametrize(
        "filling", [b'{"a":' * 200_000, b"[{" * 400_000, b'{"' * 400_000, b'{"a":1,' * 100_000, b'[{"a":"' * 100_000 + b'"']
    )
    def test_hostile_fillings_end(self, filling: bytes) -> None:
        data = b"RKNN" + bytes(4) + (6).to_bytes(8, "little") + (1 << 50).to_bytes(8, "little") + filling
        assert vendorfile.read_rknn(data).inputs == ()


class TestNb:
    def test_everything_the_tables_hold(self) -> None:
        info = vendorfile.read_nb(nb_file())
        assert (info.kind, info.version, info.name, info.memory_bytes) == (FileKind.NB, 0x10014, "lenet", 1092608)
        assert info.chip == "t527"
        assert "0x10000016" in info.target
        (tensor,) = info.inputs
        assert (tensor.name, tensor.shape, tensor.dtype, tensor.layout) == ("input[0]", (1, 3, 224, 224), "uint8", "nchw")
        assert (tensor.quantization, tensor.zero_point) == ("affine", 128)
        assert tensor.scale == pytest.approx(0.007843)
        assert info.outputs[0].shape == (1, 2)
        assert info.layers == ("conv_0", "softmax_1")

    def test_quantisation_kinds(self) -> None:
        entries = [
            nb_tensor("fixed", (7,), data_format=5, quantization=1, fraction_bits=-3),
            nb_tensor("plain", (7,), data_format=1, quantization=0),
            nb_tensor("odd", (7,), data_format=15, quantization=9),
        ]
        info = vendorfile.read_nb(nb_file(outputs=entries))
        fixed, plain, odd = info.outputs
        assert (fixed.dtype, fixed.quantization, fixed.fraction_bits, fixed.scale) == ("int16", "fixed point", -3, None)
        assert (plain.dtype, plain.quantization, plain.zero_point) == ("float16", "none", None)
        assert (odd.dtype, odd.quantization) == ("", "")
        assert any("type 15 of tensor 'odd'" in note for note in info.notes)

    def test_an_older_version_has_four_dimensions(self) -> None:
        entries = [nb_tensor("in", (28, 28, 1, 1), slots=4)]
        info = vendorfile.read_nb(nb_file(inputs=entries, outputs=entries, version=0x10009))
        assert info.inputs[0].shape == (1, 1, 28, 28)

    def test_a_version_of_which_only_the_target_is_read(self) -> None:
        info = vendorfile.read_nb(nb_file(version=0x10002, customer=0x1000003B))
        assert info.chip == "a733"
        assert info.inputs == ()
        assert "only version and target" in info.notes[0]

    @pytest.mark.parametrize("version", [0x20000, 0x20005])
    def test_the_second_version(self, version: int) -> None:
        tensors = [
            nb_tensor_of_version_2("input[0]", (3, 640, 480, 1), quantization=2, scale=1 / 255),
            nb_tensor_of_version_2("input[1]", (640, 480, 3, 1), quantization=2, scale=1 / 255),
            nb_tensor_of_version_2("uid_20000_out_0", (10, 1), data_format=5, quantization=1, position=14),
            nb_tensor_of_version_2("output_1", (7, 6, 5, 1), data_format=1, quantization=0),
        ]
        info = vendorfile.read_nb(nb_file_of_version_2(tensors, version=version))
        assert (info.chip, info.name) == ("a733", "yolact")
        assert [(entry.name, entry.shape, entry.layout) for entry in info.inputs] == [
            ("input[0]", (1, 480, 640, 3), "nhwc"),
            ("input[1]", (1, 3, 480, 640), "nchw"),
        ]
        scores, other = info.outputs
        assert (scores.name, scores.shape, scores.dtype, scores.fraction_bits) == ("uid_20000_out_0", (1, 10), "int16", 14)
        assert (other.dtype, other.quantization, other.scale) == ("float16", "none", None)
        assert info.inputs[0].scale == pytest.approx(1 / 255)

    def test_a_second_version_without_a_table(self) -> None:
        info = vendorfile.read_nb(nb_file_of_version_2([]))
        assert info.inputs == info.outputs == ()
        assert "no table of tensors" in info.notes[0]

    @pytest.mark.parametrize("position", [76, 84, 88, 376, 380, 384, 388, 392, 396])
    def test_counts_and_offsets_beyond_the_file(self, position: int) -> None:
        data = bytearray(nb_file())
        data[position : position + 4] = b"\xff\xff\xff\x7f" if position not in (380, 388, 396) else bytes(4)
        with pytest.raises(ModelFormatError):
            vendorfile.read_nb(bytes(data))

    def test_cut_off(self) -> None:
        with pytest.raises(ModelFormatError, match="cut off"):
            vendorfile.read_nb(nb_file()[:300])


class TestReadingThemAsAModel:
    def test_rknn(self, tmp_path) -> None:
        path = tmp_path / "yolo.rknn"
        path.write_bytes(rknn_file())
        with pytest.raises(VendorModelError) as caught:
            modelfile.read(path)
        text = "yolo.rknn was compiled by rknn-toolkit2 2.3.2 for rk3588; only the vendor's runtime can execute it"
        assert caught.value.message == text
        assert "anynpu compile yolo.onnx -o yolo.anynpu --target rk3588" in caught.value.hint

    def test_nb(self, tmp_path) -> None:
        path = tmp_path / "lenet.nb"
        path.write_bytes(nb_file())
        with pytest.raises(VendorModelError, match=r"compiled by ACUITY for t527, mr527, ai985 \(target 0x10000016\)") as caught:
            modelfile.read(path)
        assert "--target t527" in caught.value.hint

    def test_without_a_description_it_is_still_recognised(self) -> None:
        with pytest.raises(VendorModelError, match="compiled by rknn-toolkit2; only"):
            modelfile.read(rknn_file()[:200])


HOSTILE_TEXTS = {
    "names": (b"a" * 63 + b":") * (1 << 18),
    "short names": b"aa:" * (1 << 22),
    "types": b'{"' * (1 << 15),
    "attributes": b"{'attrs': " * 6553,
    "signs": b"{'attrs': " + b"-" * 32000 + b"1}",
    "sums": b"{'attrs': " + b"1+" * 16000 + b"1}",
}


@pytest.mark.parametrize("which", HOSTILE_TEXTS)
def test_texts_that_fit_almost_everywhere_take_no_minutes(which: str, tmp_path: Path) -> None:
    """Ten seconds of the processor are fifty times what it takes, and a tenth of what some took."""
    path = tmp_path / "net.rknn"
    path.write_bytes(rknn_file(payload=bytes(8) + HOSTILE_TEXTS[which]))
    program = (
        "import resource, sys; from anynpu.modelfile import vendorfile; resource.setrlimit(resource.RLIMIT_CPU, (13, 13)); "
        "info = vendorfile.read(sys.argv[1]); assert not info.preprocess"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True, timeout=900)
