"""The status page: one file without dependencies, which asks the server for its figures every second."""

from __future__ import annotations

from importlib import resources

__all__ = ["page"]


def page() -> bytes:
    """The page.

    >>> page()[:15]
    b'<!doctype html>'
    """
    return resources.files(__package__).joinpath("status.html").read_bytes()
