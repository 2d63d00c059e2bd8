"""Placeholder until the calls of custom operators land."""

from __future__ import annotations


class CustomOperatorCalls:
    """The calls of custom operators."""
