"""What is known about a network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["NOT_MEASURED", "Network", "recipe_text"]

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
    :ivar flags: of ``anynpu compile``, without their dashes; empty where pictures go in as they are
    :ivar run_flags: of ``anynpu run``, where it does not find out by itself
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
    """A recipe for ``anynpu compile -c``: TOML with what is known as comments, or JSON, which has none."""
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
        "use": "anynpu compile MODEL.onnx -o MODEL.rknn --target CHIP --dataset PICTURES/ -c THIS.toml",
        "run": f"anynpu run MODEL.rknn PICTURE {network.run_flags}".rstrip() + " --draw out.jpg",
    }
    lines = [f"# {key}: {value}" for key, value in comments.items() if value]
    return "\n".join([*lines, *(f"{key} = {json.dumps(value)}" for key, value in network.flags.items())]) + "\n"
