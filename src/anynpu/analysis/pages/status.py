"""The status page of a server: three files without dependencies, which ask it for its figures every second."""

from __future__ import annotations

from functools import cache
from importlib import resources

__all__ = ["page"]


@cache
def page(name: str) -> bytes:
    """The page, its script or its style.

    >>> page("status.html")[:15]
    b'<!doctype html>'
    """
    return resources.files(__package__).joinpath(name).read_bytes()
