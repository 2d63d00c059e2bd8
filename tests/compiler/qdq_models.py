"""Models as onnxruntime quantizes them, in four ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

Array = npt.NDArray[Any]
Feeds = list[dict[str, Array]]

_SYMMETRIC = {"ActivationSymmetric": True, "WeightSymmetric": True}
SCHEMES: dict[str, tuple[Any, Any, bool, dict[str, Any]]] = {
    "asymmetric per tensor": (QuantType.QUInt8, QuantType.QUInt8, False, {}),
    "asymmetric per channel": (QuantType.QUInt8, QuantType.QInt8, True, {}),
    "symmetric per tensor": (QuantType.QInt8, QuantType.QInt8, False, _SYMMETRIC),
    "symmetric per channel": (QuantType.QInt8, QuantType.QInt8, True, _SYMMETRIC),
}
"""Types of activations and weights, whether each channel has a scale, and further options, by name."""


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: Feeds) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> dict[str, Array] | None:
        return next(self._feeds, None)


def quantised(
    network: onnx.ModelProto, folder: Path, scheme: str, feeds: Feeds, operators: list[str] | None = None
) -> onnx.ModelProto:
    """The network quantized by one of the SCHEMES, with calibration on *feeds*: all operators, or those named."""
    activations, weights, per_channel, extra = SCHEMES[scheme]
    onnx.save(network, folder / "net.onnx")
    quantize_static(
        folder / "net.onnx",
        folder / "qdq.onnx",
        _Reader(feeds),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=operators,
        activation_type=activations,
        weight_type=weights,
        per_channel=per_channel,
        extra_options=extra,
    )
    return onnx.load(folder / "qdq.onnx")
