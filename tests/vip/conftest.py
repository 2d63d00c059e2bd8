"""Libraries for each test of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from anynpu.npu.engines.base import Engine
from anynpu.vip import SoftwareLibrary

from .support import Calls


@pytest.fixture
def open_calls() -> Iterator[Callable[..., Calls]]:
    """Makes libraries, and closes them in the end."""
    made: list[SoftwareLibrary] = []

    def make(
        chip: str | None = "t527",
        *,
        realtime: float | None = None,
        engine: Engine | None = None,
        init: bool = True,
        memory: int = 0,
    ) -> Calls:
        made.append(SoftwareLibrary(chip, realtime=realtime, engine=engine))
        return Calls(made[-1], init=init, memory=memory)

    yield make
    for library in made:
        library.close()


@pytest.fixture
def calls(open_calls: Callable[..., Calls]) -> Calls:
    """A library that stands for t527, initialized."""
    return open_calls()
