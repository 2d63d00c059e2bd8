"""What the whole server has taken on: bytes of requests and connections; and who may use it.

A request counts for the bytes that have arrived, not for those that it announces. When there is no space for more, a request that has sent
nothing for a while makes space: those who do not send lose first. If all send, the client with the most bytes makes space for
one with fewer. If that does not help either, the newcomer is rejected.

Belongs to the event loop of the server: no lock.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache

from ..errors import AccessDeniedError, OverloadedError, RequestTooLargeError
from .interfaces import Model
from .model import TensorDescription
from .options import ServeOptions

log = logging.getLogger("anynpu.serve")

GRACE = 0.5
"""Seconds that a client may send nothing even if others need the space."""

PROGRESS = 2**16
"""Bytes that count as sending: a client that sends single bytes does not send."""

FREE_BYTES = 2**20
"""Of a request that need no reason: the model states what is wrong with it."""

MAX_ELEMENT_BYTES = 10
"""Of one element of a tensor in a message: int64 as a varint."""


class Holding:
    """The bytes in flight of one request. Its opener closes it.

    :ivar nbytes: how many there are
    """

    __slots__ = ("_drop", "_limits", "_step", "client", "nbytes", "since")

    def __init__(self, limits: Limits, client: str, drop: Callable[[], None] | None) -> None:
        self._limits = limits
        self._drop = drop
        self._step = 0
        self.client = client
        self.nbytes = 0
        self.since = limits.clock()

    def take(self, nbytes: int) -> None:
        """Count so many bytes more, or raise."""
        limits = self._limits
        if limits.bytes + nbytes > limits.max_bytes:
            limits.make_room(self, nbytes)
        self.add(nbytes)

    def add(self, nbytes: int) -> None:
        """Count so many bytes more (or fewer), which are there already whatever the limit states."""
        self._limits.bytes += nbytes
        self._limits.clients[self.client] += nbytes
        self.nbytes += nbytes

    def arrived(self, nbytes: int) -> None:
        """Count bytes that the client has sent, or raise."""
        self.take(nbytes)
        self._step += nbytes
        if self._step >= PROGRESS:
            self._step = 0
            self.since = self._limits.clock()
            if self in self._limits.receiving:
                self._limits.receiving[self] = self._limits.receiving.pop(self)  # to the end

    def receive(self) -> None:
        """The client is to send now: until :meth:`received`, this request may have to make space for others."""
        self.since = self._limits.clock()
        self._limits.receiving[self] = None

    def received(self) -> None:
        """The client has sent everything."""
        self._limits.receiving.pop(self, None)

    def drop(self) -> None:
        """Give the bytes back, and report the request."""
        drop = self._drop
        self.close()
        if drop is not None:
            drop()

    def close(self) -> None:
        """The end of the request. May be called twice."""
        self.received()
        self._drop = None
        clients = self._limits.clients
        self.add(-self.nbytes)
        if not clients[self.client]:
            del clients[self.client]


class Limits:
    """Counts against the limits of the options.

    :ivar bytes: in flight: of requests that are being received or worked on, and of their answers
    :ivar connections: of HTTP
    :ivar receiving: requests that are being received; the one that has sent nothing for longest comes first
    :param clock: reports the time

    >>> limits = Limits(ServeOptions(max_inflight_bytes=100))
    >>> slow, other = limits.open("a"), limits.open("b")
    >>> slow.take(80)
    >>> other.take(30)
    Traceback (most recent call last):
    ...
    anynpu.errors.OverloadedError: requests of 80 bytes are in flight already
      hint: come again in 1 s, or send less at a time
    """

    def __init__(self, options: ServeOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self.clock = clock
        self.max_bytes = options.max_inflight_bytes
        self.bytes = 0
        self.connections = 0
        self.clients: Counter[str] = Counter()
        self.receiving: dict[Holding, None] = {}
        self.dropped = 0

    def open(self, client: str, drop: Callable[[], None] | None = None) -> Holding:
        """A request that holds nothing yet.

        :param client: who sends it; clients share the space
        :param drop: called if it has to make space while it is received
        """
        return Holding(self, client, drop)

    def make_room(self, asking: Holding | None, nbytes: int) -> None:
        """Drop requests until there is space for so many bytes more, or raise."""
        while self.bytes + nbytes > self.max_bytes:
            victim = self._victim(asking, nbytes)
            if victim is None:
                raise OverloadedError(
                    f"requests of {self.bytes} bytes are in flight already", hint="come again in 1 s, or send less at a time"
                )
            self.dropped += 1
            victim.drop()

    def _victim(self, asking: Holding | None, nbytes: int) -> Holding | None:
        late = self.clock() - GRACE
        for one in self.receiving:  # the longest without progress first
            if one.since > late:
                break
            if one is not asking and one.nbytes:
                return one
        if asking is None or not self.clients:
            return None
        heaviest, most = self.clients.most_common(1)[0]
        if heaviest == asking.client or self.clients[asking.client] + nbytes >= most:
            return None
        return next((one for one in reversed(self.receiving) if one.client == heaviest and one.nbytes), None)

    def max_body(self, model: Model, json_bytes: int) -> int:
        """The size of the largest request that *model* can take.

        :param json_bytes: how much of it is JSON
        """
        most = self._options.max_request_bytes
        if not model.batch and model.details.shape_sets:
            return most
        return min(most, json_bytes + FREE_BYTES + _max_tensor_bytes(model.inputs, model.batch, self._options.max_batch))

    def check_size(self, nbytes: int, most: int | None = None) -> None:
        """Raise for a request that is too large whatever the server does.

        :param most: what its model takes, if that is known
        """
        limit = self._options.max_request_bytes
        if nbytes > limit:
            raise RequestTooLargeError(
                f"the request has {nbytes} bytes, and the server takes {limit}",
                hint="send less at a time, or raise --max-request",
            )
        if most is not None and nbytes > most:
            raise RequestTooLargeError(
                f"the request has {nbytes} bytes, and the model takes {most}", hint="look at the shapes of the model's inputs"
            )

    def check_json(self, nbytes: int) -> None:
        """Raise for JSON that would take too much memory to read."""
        most = self._options.max_json_bytes
        if nbytes > most:
            raise RequestTooLargeError(
                f"the request has {nbytes} bytes of JSON, and the server takes {most}",
                hint="send the tensors as bytes after the JSON (binary_data_size), as tritonclient does",
            )


@lru_cache(maxsize=256)
def _max_tensor_bytes(inputs: tuple[TensorDescription, ...], batch: int, max_batch: int) -> int:
    """Of all inputs of one request."""
    samples = max(1, math.ceil(max_batch / batch)) if batch else 1
    return samples * MAX_ELEMENT_BYTES * sum(math.prod(tensor.shape) for tensor in inputs)


class Complaints:
    """States what happens too often at most once a second, with how often it happened.

    :param text: of the line in the log, with a place for the number
    :param clock: reports the time
    """

    def __init__(self, text: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._text = text
        self._clock = clock
        self._said = -math.inf
        self._count = 0

    def add(self) -> None:
        """It happened once more."""
        self._count += 1
        now = self._clock()
        if now - self._said >= 1.0:
            log.warning(self._text, self._count)
            self._said, self._count = now, 0


class Keys:
    """The API keys of a server, of which only digests are kept. Comparing takes the same time for every key that is shown."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def accept(self, authorization: str | None, own: str | None) -> bool:
        """Whether one of the two headers (``Authorization: Bearer KEY`` and ``X-API-Key: KEY``) shows a key."""
        shown = own or ""
        if authorization is not None and authorization[:7].lower() == "bearer ":
            shown = authorization[7:].strip()
        digest = hashlib.sha256(shown.encode(errors="replace")).digest()
        known = False
        for each in self._digests:
            known |= hmac.compare_digest(each, digest)
        return known

    def check(self, authorization: str | None, own: str | None) -> None:
        """Raise unless there are no keys, or one is shown."""
        if self._digests and not self.accept(authorization, own):
            raise AccessDeniedError(
                "the API key is missing or wrong", hint="send it as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'", known=False
            )
