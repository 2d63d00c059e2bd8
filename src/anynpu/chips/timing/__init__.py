"""The timing model: how long a program takes on a chip, layer by layer.

It reads programs and the catalogue and runs nothing, so that the compiler, the tools and a device in real time can ask it alike.

>>> from anynpu import chips
>>> from anynpu.timing import predict_matmul
>>> predict_matmul(chips.get("rk3588"), 1, 2048, 2048).bound.value
'memory'
"""

from __future__ import annotations

from .matmul import MatmulPrediction, predict_matmul
from .model import Bound, Confidence, LayerPrediction, Prediction, fps, predict, predict_work

__all__ = [
    "Bound",
    "Confidence",
    "LayerPrediction",
    "MatmulPrediction",
    "Prediction",
    "fps",
    "predict",
    "predict_matmul",
    "predict_work",
]
