"""Well-known networks: where they are published, and the flags of ``compile`` that fit them.

Files stay where their owners publish them. The preprocessing is that of the publisher; whether a network was tried here is said of each.

>>> from anynpu.networks import get
>>> get("yolox-nano").flags["channel-order"]
'bgr'
"""

from .network import Network, recipe_text
from .table import NETWORKS, find, get

__all__ = ["NETWORKS", "Network", "find", "get", "recipe_text"]
