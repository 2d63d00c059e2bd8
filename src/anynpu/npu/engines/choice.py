"""Which engine a device uses."""

from __future__ import annotations

import os

from ...errors import DeviceError
from .base import Engine, ReferenceEngine
from .native import NativeEngine

__all__ = ["VARIABLE", "choose_engine"]

VARIABLE = "ANYNPU_ENGINE"


def choose_engine(engine: Engine | str | None = None, *, threads: int | None = None, idle: bool = False) -> Engine:
    """An engine by name (``native``, ``reference`` or ``rocket``), or *engine* itself.

    ``rocket`` is the kernel's driver on RK3588; a device may follow, as in ``rocket:emulated``.

    :param threads: host threads for every run of an engine by name; if not given, one, or as many as the job occupies cores
    :param idle: without *threads*, the native engine also uses idle processors

    Without a name the environment variable ``ANYNPU_ENGINE`` decides, and without that it is the native engine.

    >>> choose_engine("reference").name
    'reference'
    """
    if engine is None:
        engine = os.environ.get(VARIABLE) or "native"
    if not isinstance(engine, str):
        return engine
    if engine == "native":
        return NativeEngine(threads=threads, idle=idle)
    if engine == "reference":
        return ReferenceEngine(threads=threads or 1)
    kind, _, device = engine.partition(":")
    if kind == "rocket":
        from ..rocket.engine import RocketEngine  # here: it prepares programs for the native engine

        return RocketEngine(device, threads=threads)
    raise DeviceError(
        f"there is no engine '{engine}'", hint=f"use 'native', 'reference' or 'rocket', as an argument or in {VARIABLE}"
    )
