"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import anynpu

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(anynpu.__path__, "anynpu.")
    if not module.name.endswith(("__main__", "_native", "_rknn", "_vip")) and ".native." not in module.name
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name))
    assert results.failed == 0
