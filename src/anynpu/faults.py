"""The public name of :mod:`anynpu.devtools.faults`."""

from typing import TYPE_CHECKING

from ._util.aliases import alias

if TYPE_CHECKING:
    from .devtools.faults import *  # noqa: F403

alias(__name__, "anynpu.devtools.faults")
