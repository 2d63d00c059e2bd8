"""Well-known networks: where they are published, and the flags of ``compile`` that fit them.

Files stay where their owners publish them. The preprocessing is that of the publisher; whether a network was tried here is said of each.

>>> from anynpu.networks import get
>>> get("yolox-nano").flags["channel-order"]
'bgr'
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import ParameterError

__all__ = ["NETWORKS", "Network", "find", "get", "recipe_text"]


# What is known about a network.


NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Network:
    """One network.

    :ivar name: what ``anynpu models`` calls it
    :ivar task: of ``anynpu run``
    :ivar source: the project that publishes it, and under which name
    :ivar to_onnx: how its ONNX file is got from there
    :ivar inputs: name and shape of its input
    :ivar outputs: shapes of its outputs, as that file has them
    :ivar flags: of ``anynpu compile``, without their dashes; empty where images go in as they are
    :ivar run_flags: of ``anynpu run``, where it does not find out on its own
    :ivar cut: what to cut off before int8; empty for nothing
    :ivar note: what else to know
    :ivar measured: what was measured here, and on what; empty for nothing
    """

    name: str
    task: str
    source: str
    to_onnx: str
    inputs: str
    outputs: str
    flags: Mapping[str, str] = field(default_factory=dict)
    run_flags: str = ""
    cut: str = ""
    note: str = ""
    measured: str = ""

    @property
    def preprocessing(self) -> str:
        """Mean, std and order in words."""
        order = "BGR" if self.flags.get("channel-order") == "bgr" else "RGB"
        mean, std = self.flags.get("mean", ""), self.flags.get("std", "")
        if not mean and not std:
            return f"{order}, bytes as they are"
        parts = [f"mean {mean}"] if mean else []
        return f"{order}, {', '.join([*parts, f'std {std}'] if std else parts)}"

    def to_json(self) -> dict[str, Any]:
        """All of it, JSON-ready."""
        return {
            "name": self.name,
            "task": self.task,
            "source": self.source,
            "to_onnx": self.to_onnx,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "recipe": dict(self.flags),
            "run": self.run_flags,
            "cut": self.cut,
            "note": self.note,
            "measured": self.measured or NOT_MEASURED,
        }


def _images(network: Network) -> str:
    """Which images to calibrate with: of the content and the shape that the network gets in use."""
    if network.name.startswith("ppocr-") and not network.name.endswith("-det"):
        return f"cropped lines of text, of a shape like the input's ({network.inputs}); not whole pages"
    what = {"ocr": "pages with text", "face": "images with faces", "classify": "images of the classes"}
    return f"{what.get(network.task, 'images')} like those of your application"


def recipe_text(network: Network, *, as_json: bool = False) -> str:
    """A config for ``anynpu compile -c``: TOML with what is known as comments, or JSON, which has none."""
    if as_json:
        return json.dumps(dict(network.flags), indent=1) + "\n"
    comments = {
        network.name: network.source,
        "ONNX": network.to_onnx,
        "input": network.inputs,
        "outputs": network.outputs,
        "cut": network.cut,
        "note": network.note,
        "measured": network.measured or NOT_MEASURED,
        "calibrate with": _images(network),
        "use": "anynpu compile MODEL.onnx -o MODEL.rknn --target CHIP --dataset IMAGES/ -c THIS.toml",
        "run": f"anynpu run MODEL.rknn Image {network.run_flags}".rstrip() + " --draw out.jpg",
    }
    lines = [f"# {key}: {value}" for key, value in comments.items() if value]
    return "\n".join([*lines, *(f"{key} = {json.dumps(value)}" for key, value in network.flags.items())]) + "\n"


# The table of well-known networks.
#
# Mean and std are for images in RGB, as ``compile`` takes them, also where the network was trained in BGR: there they are those of its
# publisher the other way round.


_UNIT = {"std": "255,255,255"}
_IMAGENET = {"mean": "123.675,116.28,103.53", "std": "58.395,57.12,57.375"}
_IMAGENET_BGR = {"mean": "103.53,116.28,123.675", "std": "57.375,57.12,58.395", "channel-order": "bgr"}
"""ImageNet's numbers on channels in BGR, as PaddlePaddle's projects have them."""
_SIGNED_BGR = {"mean": "127.5,127.5,127.5", "std": "127.5,127.5,127.5", "channel-order": "bgr"}

_HEADS = (
    "the last convolutions of each grid, as the vendors' model zoos do: boxes reach to 640 and scores to 1, and one int8 tensor for both "
    "drowns the scores; --keep-float-outputs is the other way"
)


def _ultralytics(name: str, task: str, outputs: str, *, run_flags: str = "", size: str = "images 1x3x640x640") -> Network:
    weights = name.replace("yolov11", "yolo11")
    return Network(
        name=name,
        task=task,
        source=f"Ultralytics, package ultralytics, weights {weights}.pt (AGPL-3.0)",
        to_onnx=f"yolo export model={weights}.pt format=onnx opset=12",
        inputs=size,
        outputs=outputs,
        flags=_UNIT,
        run_flags=run_flags,
        cut="" if task == "classify" else _HEADS,
    )


def _torchvision(name: str, function: str, *, task: str = "classify", size: int = 224, outputs: str = "1x1000") -> Network:
    return Network(
        name=name,
        task=task,
        source=f"PyTorch, package torchvision, {function}",
        to_onnx="torch.onnx.export of the model with its default weights, in eval mode",
        inputs=f"1x3x{size}x{size}",
        outputs=outputs,
        flags=_IMAGENET,
    )


def _yolox(name: str, size: int, boxes: int, measured: str = "") -> Network:
    return Network(
        name=name,
        task="detect",
        source=f"Megvii, project YOLOX, {name.replace('-', '_')} of release 0.1.1rc0 (Apache-2.0)",
        to_onnx="the release has the ONNX file; or tools/export_onnx.py of the project",
        inputs=f"images 1x3x{size}x{size}",
        outputs=f"1x{boxes}x85, cells not decoded",
        flags={"channel-order": "bgr"},
        run_flags="--labels coco",
        note="bytes from 0 to 255 in BGR, the image at the top left of the input; releases before 0.1.1 had ImageNet's mean and std",
        measured=measured,
    )


def _paddle(name: str, kind: str, inputs: str, outputs: str, flags: dict[str, str], *, note: str, measured: str = "") -> Network:
    return Network(
        name=name,
        task="ocr" if kind != "cls" else "classify",
        source=f"PaddlePaddle, project PaddleOCR, {name} (Apache-2.0); as ONNX in the package rapidocr-onnxruntime",
        to_onnx="in the folder models/ of that package; or paddle2onnx",
        inputs=inputs,
        outputs=outputs,
        flags=flags,
        note=note,
        measured=measured,
    )


NETWORKS: tuple[Network, ...] = (
    _yolox(
        "yolox-nano",
        416,
        3549,
        "int8 for rk3588, calibrated with 20 photographs of COCO: cosine 0.984 to float, 0.973 at worst (6 photographs held out, and "
        "perturbed copies of them), where plain min/max has 0.872 and 0.755; 2 of 151 layers on the CPU; predicted 11 ms on one core",
    ),
    _yolox("yolox-tiny", 416, 3549),
    _yolox("yolox-s", 640, 8400),
    _yolox("yolox-m", 640, 8400),
    *(
        Network(
            name=name,
            task="detect",
            source=f"Ultralytics, project yolov5, {name}.pt (AGPL-3.0)",
            to_onnx=f"python export.py --weights {name}.pt --include onnx --opset 12",
            inputs="images 1x3x640x640",
            outputs="1x25200x85",
            flags=_UNIT,
            cut=_HEADS,
        )
        for name in ("yolov5n", "yolov5s", "yolov5m")
    ),
    Network(
        name="yolov5s-seg",
        task="segment",
        source="Ultralytics, project yolov5, yolov5s-seg.pt (AGPL-3.0)",
        to_onnx="python export.py --weights yolov5s-seg.pt --include onnx --opset 12",
        inputs="images 1x3x640x640",
        outputs="1x25200x117 and 1x32x160x160",
        flags=_UNIT,
        cut=_HEADS,
    ),
    *(
        Network(
            name=name,
            task="detect",
            source=f"Meituan, project YOLOv6, {name}.pt of release 0.4.0 (GPL-3.0)",
            to_onnx=f"python deploy/ONNX/export_onnx.py --weights {name}.pt --img 640 --batch 1",
            inputs="images 1x3x640x640",
            outputs="1x8400x85, or by grid as the vendors' model zoos cut it",
            flags=_UNIT,
            cut=_HEADS,
        )
        for name in ("yolov6n", "yolov6s")
    ),
    *(
        Network(
            name=name,
            task="detect",
            source=f"WongKinYiu, project yolov7, {name}.pt (GPL-3.0)",
            to_onnx=f"python export.py --weights {name}.pt --img-size 640 640 --grid",
            inputs="images 1x3x640x640",
            outputs="1x25200x85",
            flags=_UNIT,
            run_flags="--labels coco",
            cut=_HEADS,
            note="cut by grid its outputs look like those of YOLOv5: then pass --head yolov7",
        )
        for name in ("yolov7-tiny", "yolov7")
    ),
    _ultralytics("yolov8n", "detect", "1x84x8400"),
    _ultralytics("yolov8s", "detect", "1x84x8400"),
    _ultralytics("yolov8m", "detect", "1x84x8400"),
    _ultralytics("yolov8n-pose", "pose", "1x56x8400"),
    _ultralytics("yolov8n-seg", "segment", "1x116x8400 and 1x32x160x160"),
    _ultralytics("yolov8n-obb", "obb", "1x20x21504", run_flags="--task obb", size="images 1x3x1024x1024"),
    _ultralytics("yolov8n-cls", "classify", "1x1000", size="images 1x3x224x224"),
    _ultralytics("yolov9t", "detect", "1x84x8400"),
    _ultralytics("yolov9s", "detect", "1x84x8400"),
    _ultralytics("yolov10n", "detect", "1x300x6, final boxes"),
    _ultralytics("yolov10s", "detect", "1x300x6, final boxes"),
    _ultralytics("yolov11n", "detect", "1x84x8400"),
    _ultralytics("yolov11s", "detect", "1x84x8400"),
    _ultralytics("yolov11n-pose", "pose", "1x56x8400"),
    _ultralytics("yolov11n-seg", "segment", "1x116x8400 and 1x32x160x160"),
    _ultralytics("yolov11n-obb", "obb", "1x20x21504", run_flags="--task obb", size="images 1x3x1024x1024"),
    _paddle(
        "ppocr-v4-det",
        "det",
        "x, open; for example --shape x=1,3,640,640",
        "1x1x640x640, a map of text",
        {**_IMAGENET_BGR, "shape": "x=1,3,640,640"},
        note="choose the shape that your pages have: both sides are multiples of 32",
        measured="int8 for rk3588, calibrated with 4 generated pages (--accuracy fast): all 9 lines of another page found; 102 "
        "layers, none on the CPU",
    ),
    _paddle(
        "ppocr-v4-rec",
        "rec",
        "x, open; for example --shape x=1,3,48,320",
        "1x40x6625 of characters, which the model names itself",
        {**_SIGNED_BGR, "shape": "x=1,3,48,320"},
        note="give it to anynpu run --recognize beside a detector; a longer line is read in pieces",
        measured="float16 for rk3588: 9 lines of a generated page read without an error; 139 layers, none on the CPU",
    ),
    _paddle(
        "ppocr-v2-cls",
        "cls",
        "x, open; for example --shape x=1,3,48,192",
        "1x2: upright, upside down",
        {**_SIGNED_BGR, "shape": "x=1,3,48,192"},
        note="detects whether a line of text is upside down",
        measured="int8 for rk3588 (--accuracy fast): compiled and run, an upright line is called upright; 77 layers, none on the CPU",
    ),
    Network(
        name="retinaface-mobilenet",
        task="face",
        source="biubug6, project Pytorch_Retinaface, mobilenet0.25_Final.pth (MIT)",
        to_onnx="python convert_to_onnx.py of the project",
        inputs="input0 1x3x640x640",
        outputs="1x16800x4, 1x16800x2 and 1x16800x10",
        flags={"mean": "123,117,104", "channel-order": "bgr"},
        note="the publisher's mean is 104,117,123 for BGR",
    ),
    _torchvision("mobilenet-v2", "mobilenet_v2"),
    _torchvision("mobilenet-v3-small", "mobilenet_v3_small"),
    _torchvision("mobilenet-v3-large", "mobilenet_v3_large"),
    _torchvision("resnet18", "resnet18"),
    _torchvision("resnet50", "resnet50"),
    _torchvision("efficientnet-b0", "efficientnet_b0"),
    _torchvision("shufflenet-v2", "shufflenet_v2_x1_0"),
    _torchvision("squeezenet1-1", "squeezenet1_1"),
    _torchvision("deeplabv3-mobilenet", "deeplabv3_mobilenet_v3_large", task="segment", size=520, outputs="1x21x520x520"),
    _torchvision("deeplabv3-resnet50", "deeplabv3_resnet50", task="segment", size=520, outputs="1x21x520x520"),
)
"""In the order in which they are listed."""


def get(name: str) -> Network:
    """The network of that name, without regard to case and dashes.

    :raises ParameterError: there is none
    """
    wanted = _plain(name)
    for network in NETWORKS:
        if _plain(network.name) == wanted:
            return network
    names = [network.name for network in NETWORKS]
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    guess = f"did you mean {' or '.join(near)}? " if near else ""
    raise ParameterError(f"there is no config for '{name}'", hint=f"{guess}anynpu models lists all {len(names)}")


def find(text: str) -> list[Network]:
    """The networks whose name or task has *text* in it; all for an empty one.

    >>> [network.name for network in find("pose")]
    ['yolov8n-pose', 'yolov11n-pose']
    """
    wanted = _plain(text)
    return [network for network in NETWORKS if wanted in _plain(network.name) or wanted == network.task]


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
