"""Many boards that serve as one: a Ray Serve application with a replica on each board, and a front that speaks the whole protocol.

>>> from anynpu.serve import ServeOptions                                                    # doctest: +SKIP
>>> from anynpu.serve.cluster import ClusterServer, PoolPlan, VirtualBoards
>>> with VirtualBoards(3) as boards, ClusterServer([PoolPlan(("yolo.rknn",))], ServeOptions(), address=boards.address):
...     input("Enter ends the cluster")

On the command line: ``anynpu cluster yolo.rknn --virtual 3``. Needs the extra ``cluster``; the plain server never imports this package.
"""

from __future__ import annotations

from ... import _optional

_optional.ray()  # says which extra is missing, before anything else does

from .plan import PoolPlan  # noqa: E402
from .server import ClusterServer  # noqa: E402
from .virtual import VirtualBoards  # noqa: E402

__all__ = ["ClusterServer", "PoolPlan", "VirtualBoards"]
