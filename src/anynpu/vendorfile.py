"""The old name of :mod:`anynpu.modelfile.vendorfile`."""

import warnings
from typing import Any

from .modelfile import vendorfile


def __getattr__(name: str) -> Any:
    value = getattr(vendorfile, name)
    warnings.warn("anynpu.vendorfile is now anynpu.modelfile.vendorfile", DeprecationWarning, stacklevel=2)
    return value
