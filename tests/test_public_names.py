"""What `import anynpu` offers."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

from documentation import section

import anynpu

PACKAGE = Path(__file__).parents[1] / "src" / "anynpu"


def test_every_public_name_resolves_whatever_was_imported_before() -> None:
    """A submodule that is imported becomes an attribute of the package and must not hide a public name."""
    code = """
import importlib, pkgutil, types, anynpu
for module in pkgutil.walk_packages(anynpu.__path__, "anynpu."):
    if not module.name.endswith(("__main__", "_native")) and ".native" not in module.name:
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name != "ray":  # which only `make test-all` installs
                raise
hidden = [name for name in anynpu.__all__ if isinstance(getattr(anynpu, name), types.ModuleType)]
assert not hidden, hidden
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_the_list_is_sorted_and_an_unknown_name_is_an_attribute_error() -> None:
    assert sorted(anynpu.__all__) == anynpu.__all__
    assert set(anynpu.__all__) <= set(dir(anynpu))
    assert not hasattr(anynpu, "no_such_name")


WORDS = ("Job", "Library", "Profile", "Refusal", "Step", "Task", "Workers")
"""Words that meant several things."""


def test_one_class_for_one_word() -> None:
    classes = re.findall(
        r"^class (\w+)", "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")), re.MULTILINE
    )
    assert {word: classes.count(word) for word in WORDS if classes.count(word) > 1} == {}


def test_the_glossary_has_the_classes_that_it_names() -> None:
    """Each row of docs/messages.md that names a class names one that exists, in the module that it states."""
    rows = re.findall(r"`(anynpu(?:\.\w+)+)\.(\w+)`", section("messages", "Glossary"))
    assert len(rows) > 10
    for module, name in rows:
        assert hasattr(importlib.import_module(module), name), (module, name)
