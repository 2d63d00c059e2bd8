"""The public name of :mod:`anynpu.program.convert`."""

from typing import TYPE_CHECKING

from ._util.aliases import alias

if TYPE_CHECKING:
    from .program.convert import *  # noqa: F403

alias(__name__, "anynpu.program.convert")
