"""Structured logs: one JSON object a line."""

from __future__ import annotations

import json
import logging

__all__ = ["JsonFormatter"]

_FIELDS = ("model", "version", "protocol", "outcome", "ms")


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
