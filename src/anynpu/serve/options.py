"""What a server is told: where it listens, who may use it, and how much it takes on."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import OptionError

if TYPE_CHECKING:
    from ..session import DeviceFactory

__all__ = ["ServeOptions", "is_loopback", "read_keys"]

MIB = 2**20


@dataclass(frozen=True)
class ServeOptions:
    """Options of a server.

    :ivar host: the address to listen on
    :ivar port: of HTTP; 0 for a free one
    :ivar grpc_port: of gRPC; 0 for a free one, None for no gRPC
    :ivar device: where models run, as for a session
    :ivar layout: order of the axes of images: ``nchw``, ``nhwc`` or ``any``
    :ivar max_queue: samples of one model that may wait
    :ivar max_wait_ms: the longest predicted wait that a request is accepted with; None: 3.5 inferences for a burst,
        0.6 under a lasting overload, at least 20 ms
    :ivar batch_window_ms: how long a request for a part of the model's batch waits for others to fill it
    :ivar max_batch: samples of one request
    :ivar max_request_bytes: size of one request
    :ivar max_json_bytes: size of its JSON, which takes many times as much memory when it is read
    :ivar max_inflight_bytes: size of all requests that are being read or worked on
    :ivar timeout: seconds for a request that names no deadline of its own; also the most that it may name
    :ivar header_timeout: seconds until the head of an HTTP request must be there
    :ivar body_timeout: seconds until its body must be there
    :ivar write_timeout: seconds until the client must have taken the answer
    :ivar max_connections: HTTP connections at a time
    :ivar drain_timeout: seconds that accepted requests may take after the server was told to end
    :ivar watchdog_ms: how long one run may take before its core is fenced; None: as long as a request (``timeout``)
    :ivar isolate: run models in processes of their own, with limits of memory and processor time, because they are not trusted
    :ivar isolate_memory_mb: memory for the model in each of them, in MiB
    :ivar certificate: file with the TLS certificate chain
    :ivar private_key: file with its private key
    :ivar api_keys: keys of which a client must show one; none: anybody may use the server
    :ivar control_keys: keys of which a client must show one to load or unload models; if there are API keys and none of these, nobody
        can. They are good for everything else as well
    :ivar insecure: allow other addresses than loopback without TLS or keys
    :ivar control: whether clients may load and unload models
    :ivar load_root: folder below which a client may name a model file to load; None: clients cannot name files
    :ivar shared_memory: how the names of shared memory objects begin that clients of this machine may let the server use; None: none
    :ivar access_log: log every request
    :ivar trace: send OpenTelemetry traces to the collector that the ``OTEL_`` variables name; a program that has set OpenTelemetry up
        itself gets them without it
    """

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = 8001
    device: str | DeviceFactory | None = None
    layout: str = "nchw"
    max_queue: int = 64
    max_wait_ms: float | None = None
    batch_window_ms: float = 2.0
    max_batch: int = 64
    max_request_bytes: int = 64 * MIB
    max_json_bytes: int = 8 * MIB
    max_inflight_bytes: int = 512 * MIB
    timeout: float = 60.0
    header_timeout: float = 10.0
    body_timeout: float = 30.0
    write_timeout: float = 30.0
    max_connections: int = 512
    drain_timeout: float = 30.0
    watchdog_ms: int | None = None
    isolate: bool = False
    isolate_memory_mb: int = 2048
    certificate: Path | None = None
    private_key: Path | None = None
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    control_keys: tuple[str, ...] = field(default=(), repr=False)
    insecure: bool = False
    control: bool = True
    load_root: Path | None = None
    shared_memory: str | None = None
    access_log: bool = False
    trace: bool = False

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.private_key is None):
            raise OptionError(
                "TLS needs a certificate and its private key, and only one of them is given",
                hint="give both, for example --certificate cert.pem --private-key key.pem",
            )
        if any(len(key) < 16 for key in (*self.api_keys, *self.control_keys)):
            raise OptionError(
                "an API key is shorter than 16 characters",
                hint="make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
            )
        if not is_loopback(self.host) and not self.insecure:
            missing = [name for name, given in (("TLS", self.certificate), ("API keys", self.api_keys)) if not given]
            if missing:
                raise OptionError(
                    f"{self.host} can be reached from other machines, and the server has no {' and no '.join(missing)}",
                    hint="give --certificate, --private-key and --api-keys, listen on 127.0.0.1 behind a proxy, or say --insecure",
                )
        if self.shared_memory is not None and (not self.shared_memory or "/" in self.shared_memory):
            raise OptionError(
                f"{self.shared_memory!r} is no beginning of names of shared memory objects",
                hint="give some letters that the objects of the clients begin with, without a slash",
            )
        for name in (
            "max_queue",
            "max_batch",
            "max_request_bytes",
            "max_json_bytes",
            "max_inflight_bytes",
            "timeout",
            "max_connections",
        ):
            if getattr(self, name) <= 0:
                raise OptionError(
                    f"{name} must be greater than 0, got {getattr(self, name)}", hint="leave it out for the default"
                )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_keys(path: Path) -> tuple[str, ...]:
    """API keys from a file: one a line; empty lines and lines that begin with # do not count."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise OptionError(f"the API keys cannot be read: {path}: {error.strerror}", hint="look at the path") from None
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise OptionError(f"there is no API key in {path}", hint="write one key a line")
    return keys
