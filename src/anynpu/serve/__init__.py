"""The inference server: models on this machine's NPU for clients of the Open Inference Protocol, over HTTP and gRPC.

>>> from anynpu.serve import Server, ServeOptions
>>> with Server(["yolo.rknn"], ServeOptions(port=8000, grpc_port=8001)):                     # doctest: +SKIP
...     input("Enter ends the server")

On the command line: ``anynpu serve yolo.rknn``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._util.lazy_names import lazy_names
from .options import ServeOptions

if TYPE_CHECKING:
    from .server import Server

__all__ = ["ServeOptions", "Server"]

__getattr__ = lazy_names(__name__, {"server": ("Server",)})
