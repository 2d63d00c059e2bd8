"""Placeholder until the matrix products land."""

from __future__ import annotations

from ...npu import Device


class MatmulState:
    """A matrix product."""

    device: Device


class MatmulCalls:
    """The calls of matrix products."""
