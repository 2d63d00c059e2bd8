"""What the tests of the RKNN calls share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from anynpu.rknn import SoftwareLibrary

Open = Callable[..., SoftwareLibrary]


@pytest.fixture
def open_software() -> Iterator[Open]:
    """Makes software libraries that end with the test."""
    libraries: list[SoftwareLibrary] = []

    def make(chip: str | None = None, **fields: object) -> SoftwareLibrary:
        libraries.append(SoftwareLibrary(chip, **fields))
        return libraries[-1]

    yield make
    for library in libraries:
        library.close()


@pytest.fixture
def library(open_software: Open) -> SoftwareLibrary:
    """An rk3588 without a board."""
    return open_software("rk3588")
