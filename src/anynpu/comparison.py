"""The public name of :mod:`anynpu.analysis.compare`."""

from typing import TYPE_CHECKING

from ._util.aliases import alias

if TYPE_CHECKING:
    from .analysis.compare import *  # noqa: F403

alias(__name__, "anynpu.analysis.compare")
