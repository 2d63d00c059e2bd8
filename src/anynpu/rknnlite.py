"""The public name of :mod:`anynpu.rknn.lite`."""

from typing import TYPE_CHECKING

from ._util.aliases import alias

if TYPE_CHECKING:
    from .rknn.lite import *  # noqa: F403

alias(__name__, "anynpu.rknn.lite")
