"""Messages between the gateway of a cluster and its boards."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import AnynpuError, OptionError
from ...session.protocol.messages import ModelDetails
from ..interfaces import IndexEntry
from ..model import ModelCounts, ModelFigures, TensorDescription

# Which boards serve which models.


BOARD_RESOURCE = "NPU"
"""The resource of which every board has one."""

EVERY_BOARD = "boards"
"""The name of the one pool of a cluster whose boards are all alike."""

TRANSPORT = {"RAY_SERVE_USE_GRPC_BY_DEFAULT": "1", "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(2**31 - 1)}
"""What Ray reads when it is imported, at both ends: tensors go to boards over gRPC, however large they are, and not by way of the shared
memory of two machines, which takes 2 ms longer."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True)
class PoolPlan:
    """A pool of boards.

    :ivar models: ``PATH``, ``NAME=PATH``, ``NAME:VERSION=PATH``, or folders, as each board finds them
    :ivar name: of the pool; also that of the resource which its boards have besides ``NPU``, unless it is ``boards``: that pool takes all
    :ivar boards: how many; None: as many as there are, and those that join later
    """

    models: tuple[str, ...]
    name: str = EVERY_BOARD
    boards: int | None = None

    @property
    def resource(self) -> str:
        """The resource that reports its boards from others."""
        return BOARD_RESOURCE if self.name == EVERY_BOARD else self.name

    @property
    def resources(self) -> dict[str, float]:
        """What its part on a board takes from the board."""
        return {BOARD_RESOURCE: 1} if self.name == EVERY_BOARD else {BOARD_RESOURCE: 1, self.name: 1}

    @property
    def application(self) -> str:
        """The name of its Ray Serve application."""
        return f"anynpu-{self.name}"


def parse_pools(models: Sequence[str], pools: Sequence[str], boards: int | None) -> list[PoolPlan]:
    """Plans from the words of the command line: either models for all boards, or pools ``NAME=MODEL,MODEL...``.

    >>> [(plan.name, plan.models) for plan in parse_pools([], ["rk3588=det.rknn,cls.rknn", "rk3576=small=s.rknn"], None)]
    [('rk3588', ('det.rknn', 'cls.rknn')), ('rk3576', ('small=s.rknn',))]
    """
    if bool(models) == bool(pools):
        raise OptionError(
            "a cluster takes either models, for all of its boards, or pools",
            hint="name model files, or give --pool NAME=MODEL,MODEL... once for each kind of board",
        )
    if models:
        return [PoolPlan(tuple(models), boards=boards)]
    plans: dict[str, PoolPlan] = {}
    for text in pools:
        name, _, rest = text.partition("=")
        files = tuple(filter(None, rest.split(",")))
        if not _NAME.fullmatch(name) or name in (BOARD_RESOURCE, EVERY_BOARD) or name in plans or not files:
            raise OptionError(
                f"{text!r} is no pool",
                hint="write NAME=MODEL,MODEL..., where NAME is a resource of its boards and of no other pool, such as rk3588=det.rknn",
            )
        plans[name] = PoolPlan(files, name, boards)
    return list(plans.values())


@dataclass(frozen=True)
class BoardRefusal:
    """A board's no to a request: errors of ours travel as values, so that nothing logs them on the way as failures of the board.

    :ivar board: who reports it
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

    :ivar number: later orders have greater ones, whichever gateway they come from
    :ivar load: reload it; False: unload it
    :ivar path: of a file that the client named
    """

    number: int
    load: bool
    path: str | None = None


Orders = dict[str, Order]
"""By the names of models: only the last one counts, and a board that comes later catches up with them."""
