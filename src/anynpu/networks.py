"""The public name of :mod:`anynpu.cli.networks`."""

from typing import TYPE_CHECKING

from ._util.aliases import alias

if TYPE_CHECKING:
    from .cli.networks import *  # noqa: F403

alias(__name__, "anynpu.cli.networks")
