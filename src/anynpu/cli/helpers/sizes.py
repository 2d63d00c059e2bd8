"""Sizes of memory as a user writes them, which includes the way we print them."""

from __future__ import annotations

import math
import re

import typer

__all__ = ["megabytes"]

_UNITS = {"b": 2.0**-20, "k": 2.0**-10, "m": 1.0, "g": 2.0**10}


def megabytes(text: str) -> float:
    """A size in megabytes, which have 1024 * 1024 bytes: a plain number is one already, others name their unit.

    >>> megabytes("64"), megabytes("64.0 MB"), megabytes("512kB"), megabytes("2 GiB"), megabytes("1048576 B")
    (64.0, 64.0, 0.5, 2048.0, 1.0)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(?:(b)|([kmg])(?:i?b)?)?\s*", str(text), re.IGNORECASE)
    if not found:
        raise typer.BadParameter(f"{text!r} is not a size; write it like 64, '64 MB' or 2GB")
    number, plain, prefix = found.groups()
    size = float(number) * _UNITS[(plain or prefix or "m").lower()]
    if not 0 < size < math.inf:
        raise typer.BadParameter(f"a size must be more than 0, got {text}")
    return size
