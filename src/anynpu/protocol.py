"""The public name of :mod:`anynpu.session.protocol`."""

from typing import TYPE_CHECKING

from ._util.aliases import alias

if TYPE_CHECKING:
    from .session.protocol import *  # noqa: F403

alias(__name__, "anynpu.session.protocol")
