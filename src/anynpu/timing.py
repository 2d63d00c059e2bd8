"""The public name of :mod:`anynpu.chips.timing`."""

from typing import TYPE_CHECKING

from ._util.aliases import alias

if TYPE_CHECKING:
    from .chips.timing import *  # noqa: F403

alias(__name__, "anynpu.chips.timing")
