"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest
from tools import need_module

import anynpu


def has_examples(module: str) -> bool:
    """Whether there is an example in the source of a module; most have none, and a test of each would take as long as all others."""
    place = Path(anynpu.__file__).parent.joinpath(*module.split(".")[1:])
    source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return ">>>" in source.read_text(encoding="utf-8")


MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(anynpu.__path__, "anynpu.")
    if not module.name.endswith(("__main__", "_native", "_rknn", "_vip", "_accel"))
    and ".native." not in module.name
    and has_examples(module.name)
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == "ray":
            need_module("ray")
        raise
    results = doctest.testmod(module)
    assert results.failed == 0


def test_there_are_examples() -> None:
    assert len(MODULES) > 100
