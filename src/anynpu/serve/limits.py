"""What the whole server has taken on: bytes of requests and connections; and who may use it.

Belongs to the event loop of the server: no lock.
"""

from __future__ import annotations

import hashlib
import hmac

from ..errors import AccessDeniedError, OverloadedError, RequestTooLargeError
from .options import ServeOptions

__all__ = ["Keys", "Limits"]


class Limits:
    """Counts against the limits of the options."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self.bytes = 0
        self.connections = 0

    def take(self, nbytes: int) -> None:
        """Take on so many bytes more, or raise. Whoever takes gives back."""
        self.check_size(nbytes)
        if self.bytes + nbytes > self._options.max_inflight_bytes:
            raise OverloadedError(
                f"requests of {self.bytes} bytes are in the house already", hint="come again in 1 s, or send less at a time"
            )
        self.bytes += nbytes

    def give(self, nbytes: int) -> None:
        """The end of :meth:`take`."""
        self.bytes -= nbytes

    def check_size(self, nbytes: int) -> None:
        """Raise for a request that is too large whatever the server does."""
        most = self._options.max_request_bytes
        if nbytes > most:
            raise RequestTooLargeError(
                f"the request has {nbytes} bytes, and the server takes {most}", hint="send less at a time, or raise --max-request"
            )

    def check_json(self, nbytes: int) -> None:
        """Raise for JSON that would take too much memory to read."""
        most = self._options.max_json_bytes
        if nbytes > most:
            raise RequestTooLargeError(
                f"the request has {nbytes} bytes of JSON, and the server takes {most}",
                hint="send the tensors as bytes behind the JSON (binary_data_size), as tritonclient does",
            )


class Keys:
    """The API keys of a server, of which only digests are kept. Comparing takes the same time for every key that is shown."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def check(self, authorization: str | None, own: str | None) -> None:
        """Raise unless one of the two headers (``Authorization: Bearer KEY`` and ``X-API-Key: KEY``) shows a key."""
        if not self._digests:
            return
        shown = own or ""
        if authorization is not None and authorization[:7].lower() == "bearer ":
            shown = authorization[7:].strip()
        digest = hashlib.sha256(shown.encode(errors="replace")).digest()
        known = False
        for each in self._digests:
            known |= hmac.compare_digest(each, digest)
        if not known:
            raise AccessDeniedError(
                "the API key is missing or wrong", hint="send it as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'", known=False
            )
