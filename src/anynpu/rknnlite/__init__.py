"""The vendor's Python class for boards, ``RKNNLite``, on Rockchip's own library or on the software NPU.

>>> from anynpu.rknnlite import RKNNLite
>>> lite = RKNNLite()                                   # doctest: +SKIP
>>> lite.load_rknn("yolo.rknn"), lite.init_runtime()    # doctest: +SKIP
(0, 0)
>>> boxes, = lite.inference(inputs=[image])             # doctest: +SKIP

Under ``anynpu exec`` programs find it as ``rknnlite.api``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .lite import RKNNLite

__all__ = ["RKNNLite"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'anynpu.rknnlite' has no attribute {name!r}")
    value = getattr(importlib.import_module(".lite", __name__), name)
    globals()[name] = value
    return value
