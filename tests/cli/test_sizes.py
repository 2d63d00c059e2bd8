"""Sizes of memory on the command line."""

from __future__ import annotations

import pytest
import typer

from anynpu.cli.helpers.console import size_text
from anynpu.cli.helpers.flags import megabytes


@pytest.mark.parametrize("count", [12, 2048, 1_572_864, 64 * 2**20, 3 * 2**30])
def test_a_size_is_read_as_it_is_printed(count: int) -> None:
    assert megabytes(size_text(count)) * 2**20 == count


@pytest.mark.parametrize("text", ["", "MB", "-1 MB", "64 XB", "nan", "1e3 MB", "6 4", "0", "9" * 400])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="size"):
        megabytes(text)
