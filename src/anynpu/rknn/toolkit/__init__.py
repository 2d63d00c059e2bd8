"""The vendor's Python class for conversion and simulation, ``RKNN``, on anynpu's compiler and the software NPU.

>>> from anynpu.rknn_toolkit import RKNN
>>> rknn = RKNN()                                                                                       # doctest: +SKIP
>>> rknn.config(mean_values=[[0, 0, 0]], std_values=[[255, 255, 255]], target_platform="rk3588")        # doctest: +SKIP
>>> rknn.load_onnx("yolo.onnx"), rknn.build(dataset="dataset.txt"), rknn.export_rknn("yolo.rknn")       # doctest: +SKIP
(0, 0, 0)

Under ``anynpu exec`` programs find it as ``rknn.api``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._util.lazy_names import lazy_names

if TYPE_CHECKING:
    from .toolkit import RKNN

__all__ = ["RKNN"]

__getattr__ = lazy_names(__name__, {"toolkit": __all__})
