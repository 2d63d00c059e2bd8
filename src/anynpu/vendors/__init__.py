"""The vendors of NPUs: one table each, and what their folders have in common.

* :class:`Vendor`: the table that a vendor fills in; :mod:`anynpu.vendors.registry` finds them.
* :mod:`anynpu.vendors.devices`: which device to use: what the caller states, what the environment states, what is there.
* :mod:`anynpu.vendors.libraries`: loading and searching libraries, why a call failed.
* :mod:`anynpu.vendors.libraries`: backends whose weights other backends use.

>>> [vendor.title for vendor in built_in()]
['Rockchip', 'Allwinner']
"""

from __future__ import annotations

from .registry import (
    Alias,
    DropIn,
    FileFormat,
    Finding,
    Format,
    Vendor,
    all_vendors,
    at_first_use,
    built_in,
    default,
    find,
    get,
    of_chip,
    of_file,
    refresh,
    resolve,
)

__all__ = [
    "Alias",
    "DropIn",
    "FileFormat",
    "Finding",
    "Format",
    "Vendor",
    "all_vendors",
    "at_first_use",
    "built_in",
    "default",
    "find",
    "get",
    "of_chip",
    "of_file",
    "refresh",
    "resolve",
]
