"""The old name of :mod:`anynpu.vendors.devices`."""

import warnings
from typing import Any

from .vendors import devices


def __getattr__(name: str) -> Any:
    value = getattr(devices, name)
    warnings.warn("anynpu.devices is now anynpu.vendors.devices", DeprecationWarning, stacklevel=2)
    return value
