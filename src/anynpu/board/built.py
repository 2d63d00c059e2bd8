"""What a build wrote."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Built"]


@dataclass(frozen=True)
class Built:
    """What a build wrote.

    :ivar job: the folder that the toolkit worked in, or that another machine needs
    :ivar rknn: the vendor's file; None where there was no toolkit
    :ivar twin: what the software NPU runs in its place
    :ivar by_hash: the same under the hash of the vendor's file, which programs that pass bytes find
    :ivar notes: what was tried and chosen
    """

    job: Path
    rknn: Path | None
    twin: Path
    by_hash: Path | None
    notes: tuple[str, ...] = field(default=())
