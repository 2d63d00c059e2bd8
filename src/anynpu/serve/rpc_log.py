"""What gRPC itself says in the log about clients that send what is no call.

A path that is not UTF-8 gives five tracebacks, of which a client without a key can cause as many as it likes. They become one line a
second. Everything else that gRPC says is left as it is, and a server gives the logger back as it found it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from .limits import Complaints

__all__ = ["quiet_rpc"]

_LOGGER = "grpc._cython.cygrpc"
_NAMES = ("UnicodeDecodeError", "ExecuteBatchError")
_MESSAGES = ("Invalid encoding on", "Failed sending error status")


class ClientFaults(logging.Filter):
    """Takes out what a client has caused, and counts it."""

    def __init__(self, complaints: Complaints) -> None:
        super().__init__()
        self._complaints = complaints

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record stays in the log."""
        kind = record.exc_info[0] if record.exc_info else None
        if (kind is None or kind.__name__ not in _NAMES) and not record.getMessage().startswith(_MESSAGES):
            return True
        self._complaints.add()
        return False


@contextmanager
def quiet_rpc() -> Iterator[None]:
    """While it lasts, faults of gRPC's clients are one line a second in the log."""
    found = ClientFaults(Complaints("gRPC: %d messages about calls whose names are not text or whose clients are gone"))
    logger = logging.getLogger(_LOGGER)
    logger.addFilter(found)
    try:
        yield
    finally:
        logger.removeFilter(found)
