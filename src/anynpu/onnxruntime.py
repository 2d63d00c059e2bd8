"""The public name of :mod:`anynpu.session.onnxruntime`."""

from typing import TYPE_CHECKING

from ._util.aliases import alias

if TYPE_CHECKING:
    from .session.onnxruntime import *  # noqa: F403

alias(__name__, "anynpu.session.onnxruntime")
