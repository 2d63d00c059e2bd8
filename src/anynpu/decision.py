"""The public name of :mod:`anynpu.analysis.report`."""

from typing import TYPE_CHECKING

from ._util.aliases import alias

if TYPE_CHECKING:
    from .analysis.report import *  # noqa: F403

alias(__name__, "anynpu.analysis.report")
