"""The public name of :mod:`anynpu.program.arithmetic`."""

from typing import TYPE_CHECKING

from ._util.aliases import alias

if TYPE_CHECKING:
    from .program.arithmetic import *  # noqa: F403

alias(__name__, "anynpu.program.arithmetic")
