"""HTTP connections that do not wait for ever: for a head, for a body, for a client that takes its answer.

uvicorn itself ends only connections that are idle between two requests. Each connection here has one timer, which is armed while the client
owes something, and another while it does not read. A client that lets one run out is cut off.
"""

from __future__ import annotations

import asyncio
from typing import Any

from .. import _optional
from .limits import Limits
from .options import ServeOptions

__all__ = ["protocol_class"]


def protocol_class(options: ServeOptions, limits: Limits) -> type[Any]:
    """A protocol for uvicorn that keeps to the options."""
    h11_protocol: Any = _optional.uvicorn("protocols.http.h11_impl").H11Protocol

    class PatientProtocol(h11_protocol):  # type: ignore[misc]
        """Patient, but not for ever."""

        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self._owed = ""
            self._owed_timer: asyncio.TimerHandle | None = None
            self._unread_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            limits.connections += 1
            if limits.connections > options.max_connections:
                transport.abort()
                return
            self._expect("IDLE")

        def connection_lost(self, exc: Exception | None) -> None:
            limits.connections -= 1
            self._expect("")
            self.resume_writing()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            state = str(self.conn.their_state)
            self._expect(state if state in ("IDLE", "SEND_BODY") and not self.transport.is_closing() else "")

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._unread_timer is None:
                self._unread_timer = self.loop.call_later(options.write_timeout, self.transport.abort)

        def resume_writing(self) -> None:
            if self._unread_timer is not None:
                self._unread_timer.cancel()
                self._unread_timer = None
            super().resume_writing()

        def _expect(self, what: str) -> None:
            if what == self._owed:
                return
            self._owed = what
            if self._owed_timer is not None:
                self._owed_timer.cancel()
                self._owed_timer = None
            if what:
                seconds = options.header_timeout if what == "IDLE" else options.body_timeout
                self._owed_timer = self.loop.call_later(seconds, self.transport.abort)

    return PatientProtocol
