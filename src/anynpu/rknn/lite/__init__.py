"""The vendor's Python class for boards, ``RKNNLite``, on Rockchip's own library or on the software NPU.

>>> from anynpu.rknnlite import RKNNLite
>>> lite = RKNNLite()                                   # doctest: +SKIP
>>> lite.load_rknn("yolo.rknn"), lite.init_runtime()    # doctest: +SKIP
(0, 0)
>>> boxes, = lite.inference(inputs=[image])             # doctest: +SKIP

Under ``anynpu exec`` programs find it as ``rknnlite.api``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._util.lazy_names import lazy_names

if TYPE_CHECKING:
    from .lite import RKNNLite

__all__ = ["RKNNLite"]

__getattr__ = lazy_names(__name__, {"lite": __all__})
