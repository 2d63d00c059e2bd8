"""Public names of packages that lie deeper: ``anynpu.rknnlite`` is ``anynpu.rknn.lite``, its modules included."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _AliasFinder(MetaPathFinder, Loader):
    """Finds modules below a public name: each is the module below the package itself, not a second copy of it."""

    def __init__(self) -> None:
        self.targets: dict[str, str] = {}
        self._specs: dict[str, ModuleSpec | None] = {}

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        name = next((name for name in self.targets if fullname.startswith(f"{name}.")), None)
        return None if name is None else ModuleSpec(fullname, self, origin=self.targets[name] + fullname.removeprefix(name))

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        assert spec.origin is not None
        module = importlib.import_module(spec.origin)
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """The module ran when it was created; the import system has replaced its specification by that of the alias."""
        spec = module.__spec__
        module.__spec__ = self._specs.pop(spec.name) if spec is not None else None


_FINDER = _AliasFinder()


def alias(name: str, target: str) -> None:
    """Make the module *name*, which is being imported, the package *target*.

    >>> import anynpu.rknnlite, anynpu.rknn.lite
    >>> anynpu.rknnlite is anynpu.rknn.lite
    True
    """
    _FINDER.targets[name] = target
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    sys.modules[name] = importlib.import_module(target)
