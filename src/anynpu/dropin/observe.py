"""Calls as they are made."""
from __future__ import annotations
from typing import Any

def observed(library: Any, name: str) -> Any:
    return getattr(library, name)
