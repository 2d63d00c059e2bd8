"""The trace that a program is in, as headers for the server it calls (W3C Trace Context).

A program that traces itself has imported OpenTelemetry; for all others nothing is imported and nothing is done.
"""

from __future__ import annotations

import sys

from ..._util import optional as _optional


def trace_headers() -> tuple[tuple[str, str], ...]:
    """Headers that report a server which span its work belongs to; none outside of a span.

    >>> trace_headers()
    ()
    """
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or not trace.get_current_span().get_span_context().is_valid:
        return ()
    headers: dict[str, str] = {}
    _optional.opentelemetry("propagate").inject(headers)
    return tuple(headers.items())
