"""numpy's matrix products on one thread, as long as many small ones are computed.

OpenBLAS splits every product among all processors, and its threads wait for each other by spinning: for the small products of the re-fit
that takes several times the processor time, most of all on a busy machine. The split also decides how sums are rounded, so that codes would
depend on the number of processors.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

from ..._util.lifetime import ModuleLock

__all__ = ["one_blas_thread"]

_NAMES = [f"{before}openblas_%s_num_threads{after}" for before in ("scipy_", "") for after in ("64_", "_64", "")]
_lock = ModuleLock()
_state = {"depth": 0, "before": 0}


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let numpy use one thread for each product. Blocks may overlap, in one thread and in several: the last to end restores the number.

    Does nothing where numpy has another library than OpenBLAS.
    """
    found = _openblas()
    if found is None:
        yield
        return
    get, put = found
    with _lock:
        if not _state["depth"]:
            _state["before"] = get()
            put(1)
        _state["depth"] += 1
    try:
        yield
    finally:
        with _lock:
            _state["depth"] -= 1
            if not _state["depth"]:
                put(_state["before"])


@cache
def _openblas() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """How to ask numpy's OpenBLAS for its number of threads, and how to set it; None where there is no such library."""
    package = Path(np.__file__).parent
    for folder in (package.parent / "numpy.libs", package / ".libs", package / ".dylibs"):
        for path in sorted(folder.glob("*openblas*")):
            try:
                library = ctypes.CDLL(str(path))
            except OSError:
                continue
            for name in _NAMES:
                get, put = (getattr(library, name % verb, None) for verb in ("get", "set"))
                if get is not None and put is not None:
                    get.restype, get.argtypes = ctypes.c_int, []
                    put.restype, put.argtypes = None, [ctypes.c_int]
                    return get, put
    return None
