"""Logs for people and for programs: one line, or one JSON object, per message."""

from __future__ import annotations

import json
import logging

from .._util.printable import printable

__all__ = ["JsonFormatter", "LineFormatter"]

_FIELDS = ("model", "version", "protocol", "outcome", "ms")


class LineFormatter(logging.Formatter):
    """Messages that stay on their line, whatever is in a name that a client or a file chose; tracebacks follow on lines of their own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name of the standard library
        """The line without the traceback."""
        record.message = printable(record.message)
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """Time, level, logger and message, and what the server adds: model, version, protocol, outcome, ms.

    >>> record = logging.LogRecord("anynpu.serve", logging.INFO, "", 0, "model %s is ready", ("det",), None)
    >>> json.loads(JsonFormatter().format(record))["message"]
    'model det is ready'
    """

    default_msec_format = "%s.%03d"

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON."""
        document = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        document.update({key: getattr(record, key) for key in _FIELDS if hasattr(record, key)})
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document)
