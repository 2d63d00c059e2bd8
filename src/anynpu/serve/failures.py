"""What an error becomes on its way to a client: an HTTP status, a gRPC status, a word for the metrics."""

from __future__ import annotations

import re
from typing import NamedTuple

from ..errors import (
    AccessDeniedError,
    AnynpuError,
    DeviceClosed,
    DeviceHungError,
    DeviceMemoryError,
    DeviceTimeout,
    DeviceUnavailable,
    InputError,
    JobCancelled,
    MissingDependencyError,
    ModelError,
    ModelUnavailableError,
    OptionError,
    OverloadedError,
    RequestError,
    RequestTooLargeError,
    SubmitTimeout,
    UnknownModelError,
)

_RETRY_SECONDS = 1.0
"""After which to come again where the device has failed and may have recovered by then."""


class ClientGone(Exception):
    """The client does not wait for its answer."""


class Failure(NamedTuple):
    """How an error is reported."""

    status: int
    code: str
    outcome: str


_FAILURES: tuple[tuple[type[BaseException], Failure], ...] = (
    (RequestTooLargeError, Failure(413, "RESOURCE_EXHAUSTED", "invalid")),
    (RequestError, Failure(400, "INVALID_ARGUMENT", "invalid")),
    (UnknownModelError, Failure(404, "NOT_FOUND", "invalid")),
    (OverloadedError, Failure(429, "RESOURCE_EXHAUSTED", "shed")),
    (SubmitTimeout, Failure(429, "RESOURCE_EXHAUSTED", "shed")),
    (ModelUnavailableError, Failure(503, "UNAVAILABLE", "unavailable")),
    (InputError, Failure(400, "INVALID_ARGUMENT", "invalid")),
    (OptionError, Failure(400, "INVALID_ARGUMENT", "invalid")),
    (DeviceHungError, Failure(503, "UNAVAILABLE", "failed")),
    (DeviceTimeout, Failure(504, "DEADLINE_EXCEEDED", "late")),
    (ClientGone, Failure(499, "CANCELLED", "cancelled")),
    (JobCancelled, Failure(499, "CANCELLED", "cancelled")),
    (DeviceClosed, Failure(503, "UNAVAILABLE", "unavailable")),
    (DeviceUnavailable, Failure(503, "UNAVAILABLE", "unavailable")),
    (DeviceMemoryError, Failure(503, "RESOURCE_EXHAUSTED", "failed")),
    (MissingDependencyError, Failure(500, "INTERNAL", "failed")),
    (ModelError, Failure(400, "INVALID_ARGUMENT", "failed")),
)

_PYTHON_OPTION = re.compile(r"pass make_provider_options\((\w+)=\"(\w+)\"\)")
"""An option in the hint of a session, which a client of the server cannot pass."""

_PYTHON_BATCH = re.compile(r"pass array\[None\](, and layout='nhwc'| without layout='nhwc')?")
"""Another that is an expression of Python."""


def failure_of(error: BaseException) -> Failure:
    """How *error* is reported.

    >>> failure_of(OverloadedError("full")).status, failure_of(ZeroDivisionError()).status
    (429, 500)
    """
    if isinstance(error, AccessDeniedError):
        return Failure(403, "PERMISSION_DENIED", "denied") if error.known else Failure(401, "UNAUTHENTICATED", "denied")
    for kind, failure in _FAILURES:
        if isinstance(error, kind):
            return failure
    return Failure(500, "INTERNAL", "failed")


def retry_after_of(error: BaseException) -> float | None:
    """After how many seconds a client should come again; None where that would not help, or is unknown.

    >>> retry_after_of(DeviceMemoryError("full")), retry_after_of(OverloadedError("full", retry_after=0.2)), retry_after_of(KeyError())
    (1.0, 0.2, None)
    """
    if isinstance(error, OverloadedError):
        return error.retry_after
    return _RETRY_SECONDS if isinstance(error, (DeviceMemoryError, DeviceUnavailable, DeviceHungError)) else None


def message_of(error: BaseException) -> str:
    """What a client receives: all of an error of ours, and of others no more than that there was one."""
    text = str(error) if isinstance(error, AnynpuError) else "the server failed; its log has the reason"
    text = _PYTHON_OPTION.sub(r"start the server with --\1 \2", text)
    return _PYTHON_BATCH.sub("send the shape with a leading 1", text)
