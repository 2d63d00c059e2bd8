"""Many boards that serve as one: a Ray Serve application with a replica on each board, and a gateway that speaks the whole protocol.

>>> from anynpu.serve.cluster import ClusterServer, PoolPlan, VirtualBoards                  # doctest: +SKIP
>>> with VirtualBoards(3) as boards, ClusterServer([PoolPlan(("yolo.rknn",))], address=boards.address):   # doctest: +SKIP
...     input("Enter ends the cluster")

On the command line: ``anynpu cluster yolo.rknn --virtual 3``. Needs the extra ``cluster``; the plain server never imports this package.
Ray itself is loaded with the names that need it.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..._util import optional as _optional
from .messages import TRANSPORT, PoolPlan

if TYPE_CHECKING:
    from .server import ClusterServer
    from .virtual import VirtualBoards

__all__ = ["ClusterServer", "PoolPlan", "VirtualBoards"]

_WITH_RAY = {"ClusterServer": ".server", "VirtualBoards": ".virtual"}


def __getattr__(name: str) -> Any:
    if name not in _WITH_RAY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for variable, value in {"RAY_USAGE_STATS_ENABLED": "0", **TRANSPORT}.items():
        os.environ.setdefault(variable, value)
    _optional.ray()  # states which extra is missing, before anything else does
    return getattr(import_module(_WITH_RAY[name], __name__), name)
