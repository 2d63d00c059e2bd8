"""What gRPC itself says in the log about clients that send what is no call.

A path that is not UTF-8 gives five tracebacks, of which a client without a key can cause as many as it likes. They become one line a
second. Everything else that gRPC says is left as it is, and a server gives the logger back as it found it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from .limits import Complaints

__all__ = ["quiet_rpc", "warn_of_version"]

log = logging.getLogger("anynpu.serve")

FRAGILE = (1, 84)
"""From this version on gRPC's loop ends at the first call whose path is not UTF-8, before any part of ours sees the call: the port is dead
for everybody, after one packet of a client without a key. There is no setting against it."""

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


def warn_of_version(version: str) -> None:
    """Say that the installed gRPC cannot be left to clients that are not trusted, if that is so."""
    found = re.match(r"(\d{1,9})\.(\d{1,9})", version)
    if found and (int(found[1]), int(found[2])) >= FRAGILE:
        log.warning(
            "grpcio %s stops listening at a call whose name is not text, which any client can send: pip install 'grpcio<%d.%d', "
            "or serve without gRPC (--grpc-port -1)",
            version,
            *FRAGILE,
        )


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
