"""The old place of :mod:`anynpu.timing`, whose names are still found here."""

from __future__ import annotations

import warnings
from typing import Any

from .. import timing


def __getattr__(name: str) -> Any:
    if name not in timing.__all__:
        raise AttributeError(f"module 'anynpu.npu.timing' has no attribute {name!r}")
    warnings.warn("anynpu.npu.timing is now anynpu.timing", DeprecationWarning, stacklevel=2)
    return getattr(timing, name)
