"""The board's own test: networks that a real NPU ran, run again on any device, byte by byte.

``board_cases.json`` beside this file holds small networks that an RV1103 ran with the vendor's software, their inputs, and the bytes that
it gave: numbers from the logs of github.com/dnhkng/open-rknpu (MIT license). The software NPU compiles them itself; a board needs files
that the vendor's toolkit made of the same ONNX models (:func:`export`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..._util.types import Array
from ...errors import ParameterError

_FILE = Path(__file__).with_name("board_cases.json")


@dataclass(frozen=True)
class SelfTestCase:
    """One network, its inputs by name of the pattern, and what the board gave for each."""

    name: str
    record: Mapping[str, Any]
    inputs: Mapping[str, Array]

    @cached_property
    def onnx(self) -> bytes:
        """The float network."""
        return base64.b64decode(self.record["onnx"])

    @property
    def ranges(self) -> dict[str, tuple[float, int]]:
        """Scale and zero point of tensors, as the vendor's toolkit chose them."""
        return {name: (scale, zero) for name, (scale, zero) in self.record["ranges"].items()}

    @property
    def outputs(self) -> dict[str, Array]:
        """Codes by pattern, channels last."""
        return {name: np.frombuffer(bytes.fromhex(text), np.int8) for name, text in self.record["outputs"].items()}


@dataclass(frozen=True)
class SelfTestResult:
    """What became of one case.

    :ivar compared: bytes
    :ivar first: the first difference in words; empty where there is none
    """

    name: str
    compared: int
    equal: int
    first: str = ""


def all_cases() -> list[SelfTestCase]:
    """Every network that the board ran, by name.

    >>> len(all_cases())
    20
    """
    data = json.loads(_FILE.read_text(encoding="utf-8"))
    inputs = {name: np.frombuffer(bytes.fromhex(text), np.uint8).reshape(1, 8, 8, 3) for name, text in data["inputs"].items()}
    return [SelfTestCase(name, record, inputs) for name, record in data["cases"].items()]


def export(folder: Path) -> list[Path]:
    """Write the ONNX models, and the inputs as .npy files with a list of them, for the vendor's toolkit."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    cases = all_cases()
    for name, image in cases[0].inputs.items():
        np.save(folder / f"{name}.npy", image)
    (folder / "dataset.txt").write_text("".join(f"{name}.npy\n" for name in cases[0].inputs), encoding="utf-8")
    for case in cases:
        path = folder / f"{case.name}.onnx"
        path.write_bytes(case.onnx)
        made.append(path)
    return made


def selftest(device: str | None = None, models: Path | None = None) -> Iterator[SelfTestResult]:
    """Run every case on a device and compare its bytes with the board's.

    :param device: as for sessions; the software NPU if not given
    :param models: a folder with ``NAME.rknn`` of the vendor's toolkit, where the device is a board; cases without a file are left out
    """
    from ...session import InferenceSession

    if models is None and device is not None and not device.startswith("sim"):
        raise ParameterError(
            f"{device} runs files of the vendor's toolkit, which this package does not carry",
            hint="write the networks with --export FOLDER, make NAME.rknn of each with rknn-toolkit2, then pass --models FOLDER",
        )
    for case in all_cases():
        model: Any = None
        if models is not None:
            # the toolkit's file; its ONNX source may lie beside it
            model = next((file for file in sorted(models.glob(f"{case.name}.*")) if file.suffix != ".onnx"), None)
            if model is None:
                continue
        options = {"layout": "nhwc", "output_type": "model"}
        with InferenceSession(model or _compiled(case), device=device, provider_options=options) as session:
            yield _compared(case, session)


def _compiled(case: SelfTestCase) -> bytes:
    from ... import modelfile
    from ...compiler import compile

    samples = [np.moveaxis(image, -1, 1).astype(np.float32) for image in case.inputs.values()]
    options: dict[str, Any] = {"mean": (0, 0, 0), "std": (1, 1, 1), "quantizer": "vendor", "arithmetic": "chip"}
    return modelfile.to_bytes(compile(case.onnx, "rv1106", dataset=samples, ranges=case.ranges, **options))


def _compared(case: SelfTestCase, session: Any) -> SelfTestResult:
    compared = equal = 0
    first = ""
    name = session.get_inputs()[0].name
    for pattern, wanted in case.outputs.items():
        (codes,) = session.run(None, {name: case.inputs[pattern]})
        given = np.ascontiguousarray(np.moveaxis(codes, 1, -1) if codes.ndim == 4 else codes).reshape(-1)
        if given.dtype != np.int8 or given.size != wanted.size:
            raise ParameterError(
                f"the model of '{case.name}' gives {given.size} {given.dtype} values, the board gave {wanted.size} bytes",
                hint="make it of the ONNX model that --export writes, in int8",
            )
        wrong = np.flatnonzero(given != wanted)
        compared, equal = compared + wanted.size, equal + wanted.size - wrong.size
        if wrong.size and not first:
            place = int(wrong[0])
            first = f"input '{pattern}', byte {place}: {given[place]} instead of {wanted[place]}"
    return SelfTestResult(case.name, compared, equal, first)
