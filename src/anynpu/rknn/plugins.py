"""Plugins with custom operators: shared libraries that export ``get_rknn_custom_op``."""

from __future__ import annotations

import ctypes
import os
import warnings
from pathlib import Path
from typing import Any

from .._rknn import ffi
from ..errors import SessionError
from ..session import SessionOptions
from .context import Context
from .library import check

__all__ = ["Plugins"]

_PREFIX = "librkcst_"


class Plugins:
    """Libraries with custom operators, loaded once for a backend and never unloaded: contexts call into them until they end."""

    def __init__(self, options: SessionOptions) -> None:
        warnings.warn(
            "custom operators: each context is made by rknn_init, because operators registered on duplicated contexts are not stable",
            UserWarning,
            stacklevel=5,
        )
        self._libraries: list[ctypes.CDLL] = []
        operators: dict[tuple[str, int], Any] = {}
        for path in options.custom_op_paths:
            self._load(path, operators)
        for path in _plugin_files(options.custom_op_folder):
            try:
                self._load(path, operators)
            except SessionError as error:
                warnings.warn(f"{path} is left out: {error.message}", UserWarning, stacklevel=5)
        self._operators = ffi.new("rknn_custom_op[]", list(operators.values())) if operators else None
        self._count = len(operators)

    def _load(self, path: str, operators: dict[tuple[str, int], Any]) -> None:
        if not os.path.exists(path):
            raise SessionError(f"there is no plugin {path}", hint="look at custom_op_paths")
        try:
            library = ctypes.CDLL(path, mode=os.RTLD_NOW)
        except OSError as error:
            raise SessionError(f"plugin {path} cannot be loaded: {error}", hint="it must be built for this machine") from error
        try:
            entry = library.get_rknn_custom_op
        except AttributeError:
            raise SessionError(
                f"plugin {path} does not export get_rknn_custom_op", hint="build it with the plugin template of the SDK"
            ) from None
        entry.restype = ctypes.c_void_p
        address = entry()
        if not address:
            raise SessionError(f"get_rknn_custom_op of {path} gave nothing", hint="it must return its operator")
        operator = ffi.cast("rknn_custom_op *", address)[0]
        name = ffi.string(operator.op_type).decode("utf-8", "replace")
        key = (name, int(operator.target))
        if key in operators:
            raise SessionError(f"operator '{name}' comes twice, the second time from {path}", hint="name each plugin once")
        operators[key] = operator
        self._libraries.append(library)

    def register(self, context: Context) -> None:
        """Make a context know the operators."""
        if self._operators is not None:
            library = context.library
            code = library.rknn_register_custom_ops(context.handle, self._operators, self._count)
            check(library, "rknn_register_custom_ops", code)


def _plugin_files(folder: str) -> list[str]:
    if not folder:
        return []
    if not os.path.isdir(folder):
        warnings.warn(f"there is no folder {folder} with plugins", UserWarning, stacklevel=6)
        return []
    return sorted(str(path) for path in Path(folder).glob(f"{_PREFIX}*.so"))
