"""What `import anynpu` offers."""

from __future__ import annotations

import subprocess
import sys

import anynpu


def test_every_public_name_resolves_whatever_was_imported_before() -> None:
    """A submodule that is imported becomes an attribute of the package and must not hide a public name."""
    code = """
import importlib, pkgutil, types, anynpu
for module in pkgutil.walk_packages(anynpu.__path__, "anynpu."):
    if not module.name.endswith(("__main__", "_native")) and ".native" not in module.name:
        importlib.import_module(module.name)
hidden = [name for name in anynpu.__all__ if isinstance(getattr(anynpu, name), types.ModuleType)]
assert not hidden, hidden
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_the_list_is_sorted_and_an_unknown_name_is_an_attribute_error() -> None:
    assert sorted(anynpu.__all__) == anynpu.__all__
    assert set(anynpu.__all__) <= set(dir(anynpu))
    assert not hasattr(anynpu, "no_such_name")
