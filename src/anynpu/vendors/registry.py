"""Which vendors there are: those of this package, and those that other distributions bring.

A distribution adds a vendor by an entry point of the group ``anynpu.vendors``, whose object is a :class:`~anynpu.vendors.Vendor`::

    [project.entry-points."anynpu.vendors"]
    acme = "anynpu_acme:VENDOR"

Tables are loaded at first use, and the entry points only if no vendor of this package answers. A vendor whose folder is not there does not
exist; one whose distribution is broken is left out with a warning. There is no state but the caches of what was found, which
:func:`refresh` empties.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Iterator

from ..chips import catalog
from ..chips.catalog import GROUP
from ..chips.chip import Chip
from ..errors import DeviceUnavailable
from .table import FileFormat, Vendor

__all__ = ["GROUP", "all_vendors", "built_in", "default", "find", "get", "installed", "of_chip", "of_file", "refresh"]

MODULES = {"rknn": "anynpu.rknn.table", "vip": "anynpu.vip.table"}
"""The tables of this package: each module has a ``VENDOR``."""


@functools.cache
def built_in() -> tuple[Vendor, ...]:
    """The vendors of this package, in the order of the catalogue."""
    found: list[Vendor] = []
    for module in MODULES.values():
        try:
            found.append(importlib.import_module(module).VENDOR)
        except ModuleNotFoundError as error:
            if error.name is None or not module.startswith(error.name):
                raise
    return tuple(found)


@functools.cache
def installed() -> tuple[Vendor, ...]:
    """The vendors that other distributions bring."""
    found: dict[str, Vendor] = {vendor.name: vendor for vendor in built_in()}
    for label, vendor in catalog.plugins():
        if not isinstance(vendor, Vendor) or found.setdefault(vendor.name, vendor) is not vendor:
            reason = "there is another of its name" if isinstance(vendor, Vendor) else "it is no anynpu.vendors.Vendor"
            warnings.warn(f"the vendor {label} is left out: {reason}", RuntimeWarning, stacklevel=2)
    return tuple(found.values())[len(built_in()) :]


def all_vendors() -> tuple[Vendor, ...]:
    """All vendors, those of this package first."""
    return (*built_in(), *installed())


def _lazily() -> Iterator[Vendor]:
    yield from built_in()
    yield from installed()


def find(test: Callable[[Vendor], bool]) -> Vendor | None:
    """The first vendor that passes a test."""
    return next(filter(test, _lazily()), None)


def get(name: str) -> Vendor:
    """The vendor called *name*.

    >>> get("rknn").title
    'Rockchip'
    """
    vendor = find(lambda vendor: vendor.name == name)
    if vendor is None:
        raise DeviceUnavailable(
            f"there is no vendor '{name}'", hint=f"there are: {', '.join(vendor.name for vendor in all_vendors())}"
        )
    return vendor


def default() -> Vendor:
    """The vendor that is assumed where nothing says which."""
    return next(_lazily())


def of_chip(chip: Chip) -> Vendor:
    """The vendor of a chip."""
    return get(chip.family)


def of_file(head: bytes) -> tuple[Vendor, FileFormat | None] | None:
    """The vendor of a model file that begins with *head*, 16 bytes or more, and the format if its own tools wrote it."""
    for vendor in _lazily():
        for form in vendor.files:
            if form.recognises(head):
                return vendor, form
        if head.startswith(vendor.mark):
            return vendor, None
    return None


def refresh() -> None:
    """Forget what was found, so that distributions which were installed meanwhile are seen."""
    catalog.refresh()
    built_in.cache_clear()
    installed.cache_clear()
