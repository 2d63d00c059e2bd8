"""The public name of :mod:`anynpu.rknn.toolkit`."""

from typing import TYPE_CHECKING

from ._util.aliases import alias

if TYPE_CHECKING:
    from .rknn.toolkit import *  # noqa: F403

alias(__name__, "anynpu.rknn.toolkit")
