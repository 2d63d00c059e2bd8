"""What the front of a cluster and its boards say to each other."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import AnynpuError
from ...session.protocol.messages import ModelDetails
from ..interfaces import IndexEntry
from ..model import ModelCounts, ModelFigures, TensorDescription

__all__ = ["BoardReport", "ModelReport", "Order", "Orders", "BoardRefusal"]


@dataclass(frozen=True)
class BoardRefusal:
    """A board's no to a request: errors of ours travel as values, so that nothing logs them on the way as failures of the board.

    :ivar board: who says so
    """

    board: str
    error: AnynpuError


@dataclass(frozen=True)
class ModelReport:
    """A version of a model that is ready on a board."""

    name: str
    version: str
    platform: str
    file_name: str
    batch: int
    inputs: tuple[TensorDescription, ...]
    outputs: tuple[TensorDescription, ...]
    details: ModelDetails
    counts: ModelCounts
    figures: ModelFigures


@dataclass(frozen=True)
class BoardReport:
    """A board at one moment.

    :ivar board: its identity, new with every start
    :ivar name: what people call it
    :ivar process: the process on it
    :ivar problems: whether a model that was asked for could not be loaded
    """

    board: str
    name: str
    process: int
    models: tuple[ModelReport, ...]
    index: tuple[IndexEntry, ...]
    problems: bool


@dataclass(frozen=True)
class Order:
    """The last thing that a client said about a model.

    :ivar number: later orders have greater ones, whichever front they come from
    :ivar load: reload it; False: unload it
    :ivar path: of a file that the client named
    """

    number: int
    load: bool
    path: str | None = None


Orders = dict[str, Order]
"""By the names of models: only the last one counts, and a board that comes later catches up with them."""
