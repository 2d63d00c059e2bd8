"""Progress callbacks for long-running operations."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, "int | None"], None]
"""Called with the stage, how much of it is done, and how much there is; None if that is unknown."""


def tell(progress: Progress | None, stage: str, done: int, total: int | None) -> None:
    """Report how far *stage* is, if there is a callback."""
    if progress is not None:
        progress(stage, done, total)
