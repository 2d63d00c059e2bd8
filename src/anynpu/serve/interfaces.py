"""What the protocols, the metrics and the service need of a model and of the models together, wherever they run.

:class:`~anynpu.serve.model.ServedModel` and :class:`~anynpu.serve.repository.Repository` are these on the machine of the server; a
cluster has its own, whose models run on its boards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ..errors import UnknownModelError
from ..session.protocol.messages import ModelDetails
from .admission import Announcement
from .model import InferAnswer, InferRequest, ModelCounts, ModelFigures, TensorDescription

ModelT = TypeVar("ModelT")


@dataclass(frozen=True)
class IndexEntry:
    """A line of the repository's index."""

    name: str
    version: str
    state: str
    reason: str


class Model(Protocol):
    """One version of a model."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def platform(self) -> str:
        """What the protocol calls the platform: the chip."""

    @property
    def file_name(self) -> str:
        """Of its file, without the folder."""

    @property
    def batch(self) -> int:
        """Samples of one run; 0 for a model without batches."""

    @property
    def inputs(self) -> tuple[TensorDescription, ...]: ...
    @property
    def outputs(self) -> tuple[TensorDescription, ...]: ...
    @property
    def details(self) -> ModelDetails:
        """What a session on another machine must know."""

    @property
    def counts(self) -> ModelCounts:
        """What it has done."""

    def figures(self) -> ModelFigures:
        """How it is at this moment."""

    def hold(self) -> None:
        """The model is in use: it will not be closed before :meth:`let_go`."""

    def let_go(self) -> None:
        """The end of :meth:`hold`."""

    def announce(self) -> Announcement:
        """Take note of a request before its body is read; raise if there is no space for it. To be withdrawn before :meth:`infer`."""

    async def infer(self, request: InferRequest) -> InferAnswer:
        """Run *request*. Cancelling the task takes it back."""


class Models(Protocol):
    """All models of a server."""

    async def load_all(self) -> None:
        """Make everything ready."""

    async def refresh(self) -> None:
        """Bring counts and numbers up to date, where they are kept elsewhere."""

    async def close(self) -> None:
        """End everything."""

    def models(self) -> list[Model]:
        """All that are ready."""

    def get(self, name: str, version: str = "") -> Model:
        """One that is ready; the highest version if none is named."""

    def versions(self, name: str) -> list[str]:
        """Versions of a model that are ready, in order."""

    def index(self, only_ready: bool = False) -> list[IndexEntry]:
        """All that are known, ready or not."""

    def problems(self) -> bool:
        """Whether something that was asked for is not there."""

    async def load(self, name: str, path: str | None = None) -> None:
        """Load or reload a model."""

    async def unload(self, name: str) -> None:
        """Take a model away."""


def pick_version(models: Mapping[str, Mapping[str, ModelT]], name: str, version: str) -> ModelT | None:
    """A version of a model, the highest if none is named; None if there is none."""
    versions = models.get(name)
    return (versions.get(version) if version else versions[max(versions, key=int)]) if versions else None


def unknown_model(models: Mapping[str, object], label: str) -> UnknownModelError:
    """What a request for an unknown model gets."""
    return UnknownModelError(f"there is no model '{label}'", hint=f"there are: {', '.join(sorted(models)) or 'none'}")
