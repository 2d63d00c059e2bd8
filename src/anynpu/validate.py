"""The old name of :mod:`anynpu.modelfile.validate`."""

import warnings
from typing import Any

from .modelfile import validate


def __getattr__(name: str) -> Any:
    value = getattr(validate, name)
    warnings.warn("anynpu.validate is now anynpu.modelfile.validate", DeprecationWarning, stacklevel=2)
    return value
