"""Options of a server: addresses, access and limits."""

from __future__ import annotations

import ipaddress
import logging
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .._util.options import OptionTable, documented, option, same_as
from ..errors import OptionError
from ..session import SessionOptions

if TYPE_CHECKING:
    from ..session import DeviceFactory


log = logging.getLogger("anynpu.serve")

MIB = 2**20

KEY_VARIABLE = "ANYNPU_API_KEYS"
CONTROL_VARIABLE = "ANYNPU_CONTROL_KEYS"


def given_keys(file: Path | None, variable: str = KEY_VARIABLE) -> tuple[str, ...]:
    """Keys from a file, or from a variable of the environment."""
    if file is not None:
        return read_keys(file)
    return tuple(filter(None, os.environ.get(variable, "").split(",")))


def _traced(wanted: bool | None) -> bool:
    from .traces import wanted_by_environment

    return wanted_by_environment() if wanted is None else wanted


@documented
@dataclass(frozen=True)
class ServeOptions(OptionTable):
    """Options of a server."""

    host: str = option("127.0.0.1", "address to listen on", flag="--host", metavar="ADDRESS")
    port: int = option(8000, "port of HTTP; 0: a free one", minimum=0, flag="--port", kind=int, facts={"max": 65535})
    grpc_port: int | None = option(
        8001,
        "port of gRPC; 0: a free one",
        python="None: no gRPC",
        command="-1: no gRPC",
        flag="--grpc-port",
        kind=int,
        read=lambda port: None if port < 0 else port,
        facts={"min": -1, "max": 65535},
    )
    device: str | DeviceFactory | None = option(
        None,
        "where models run, as for a session, such as sim:rk3588, rknn or vip",
        flag="--device",
        kind=str | None,
        metavar="DEVICE",
    )
    layout: str = option("nchw", "order of the axes of images: nchw, nhwc or any", flag="--layout", metavar="ORDER")
    max_queue: int = option(64, "samples of one model that may wait, on each board", minimum=1, flag="--max-queue", kind=int)
    max_wait_ms: float | None = option(
        None,
        "longest predicted wait that a request is accepted with; not given: 3.5 inferences for a burst, 0.6 under a lasting overload, at "
        "least 20 ms",
        minimum=0,
        flag="--max-wait",
        kind=float | None,
        metavar="MS",
    )
    batch_window_ms: float = option(
        2.0,
        "how long a request for a part of the model's batch waits for others to fill it",
        minimum=0,
        flag="--batch-window",
        kind=float,
        metavar="MS",
    )
    max_batch: int = option(64, "samples of one request", minimum=1, flag="--max-batch", kind=int)
    max_request_bytes: int = option(
        64 * MIB,
        "size of one request",
        minimum=1,
        flag="--max-request",
        kind=float,
        metavar="MB",
        flag_default=64.0,
        read=lambda size: round(size * MIB),
    )
    max_json_bytes: int = option(8 * MIB, "size of its JSON, which takes many times as much memory when it is read", minimum=1)
    max_inflight_bytes: int = option(512 * MIB, "size of all requests that are being read or worked on", minimum=1)
    timeout: float = option(
        60.0,
        "seconds for a request that names no deadline of its own; also the most that it may name",
        minimum=0.001,
        flag="--timeout",
        kind=float,
        metavar="SECONDS",
    )
    header_timeout: float = option(10.0, "seconds until the head of an HTTP request must be there")
    body_timeout: float = option(30.0, "seconds until its body must be there")
    write_timeout: float = option(30.0, "seconds until the client must have taken the answer")
    max_connections: int = option(512, "HTTP connections at a time", minimum=1)
    drain_timeout: float = option(
        30.0,
        "seconds that accepted requests may take after the server was asked to end",
        minimum=0,
        flag="--drain",
        kind=float,
        metavar="SECONDS",
    )
    watchdog_ms: int | None = option(
        None,
        "how long one run may take before its core is reset; not given: as long as a request",
        minimum=1,
        flag="--watchdog",
        kind=int | None,
        metavar="MS",
    )
    isolate: bool = same_as(SessionOptions, "isolate")
    isolate_memory_mb: int = same_as(SessionOptions, "isolate_memory_mb")
    certificate: Path | None = option(
        None, "file with the TLS certificate chain", flag="--certificate", kind=Path | None, metavar="PEM"
    )
    private_key: Path | None = option(None, "file with its private key", flag="--private-key", kind=Path | None, metavar="PEM")
    api_keys: tuple[str, ...] = option(
        (),
        "keys of which a client must show one; none: the server is open",
        command=f"one per line, or in {KEY_VARIABLE}",
        flag="--api-keys",
        kind=Path | None,
        metavar="FILE",
        read=given_keys,
        repr=False,
    )
    control_keys: tuple[str, ...] = option(
        (),
        "keys of which a client must show one to load or unload models, good for everything else as well; if there are API keys and none "
        "of these, loading is off",
        command=f"one per line, or in {CONTROL_VARIABLE}",
        flag="--control-keys",
        kind=Path | None,
        metavar="FILE",
        read=lambda file: given_keys(file, CONTROL_VARIABLE),
        repr=False,
    )
    insecure: bool = option(False, "allow other addresses than loopback without TLS or keys", flag="--insecure", kind=bool)
    control: bool = option(True, "whether clients may load and unload models", flag="--control/--no-control", kind=bool)
    load_root: Path | None = option(
        None,
        "folder below which a client may name a model file to load; not given: clients cannot name files",
        flag="--load-root",
        kind=Path | None,
        metavar="FOLDER",
    )
    shared_memory: str | None = option(
        None,
        "how the names of shared memory objects begin that clients of this machine may let the server use; not given: none",
        flag="--shared-memory",
        kind=str | None,
        metavar="PREFIX",
    )
    access_log: bool = option(False, "log every request", flag="--access-log", kind=bool)
    trace: bool = option(
        False,
        "send OpenTelemetry traces to the collector that the OTEL_ variables name",
        python="a program that has set OpenTelemetry up itself gets them without it",
        command="by default if they name one",
        see="[Traces](serving.md#traces)",
        flag="--trace/--no-trace",
        kind=bool | None,
        flag_default=None,
        read=_traced,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
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
        if self.port and self.port == self.grpc_port:
            raise OptionError(
                f"HTTP and gRPC are both given port {self.port}",
                hint="choose another --grpc-port, or -1 for a server without gRPC",
            )
        if not is_loopback(self.host) and not self.insecure:
            missing = [name for name, given in (("TLS", self.certificate), ("API keys", self.api_keys)) if not given]
            if missing:
                raise OptionError(
                    f"{self.host} can be reached from other machines, and the server has no {' and no '.join(missing)}",
                    hint="give --certificate, --private-key and --api-keys, listen on 127.0.0.1 behind a proxy, or pass --insecure",
                )
        if self.shared_memory is not None and (not self.shared_memory or "/" in self.shared_memory):
            raise OptionError(
                f"{self.shared_memory!r} is no beginning of names of shared memory objects",
                hint="give some letters that the objects of the clients begin with, without a slash",
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


def check_secret(path: Path) -> None:
    """Raise for a file of keys that other users may write; a warning if they may read it, as in containers and volumes of secrets."""
    mode = path.stat().st_mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OptionError(
            f"other users may write {path} (mode {stat.S_IMODE(mode):04o})", hint=f"allow only its owner: chmod 600 {path}"
        )
    if mode & stat.S_IROTH:
        log.warning("all users of this machine may read %s (mode %04o); chmod 600 keeps it secret", path, stat.S_IMODE(mode))


def read_keys(path: Path) -> tuple[str, ...]:
    """API keys from a file: one per line; empty lines and lines that begin with # do not count.

    A file that other users may write is rejected.
    """
    try:
        check_secret(path)
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise OptionError(f"the API keys cannot be read: {path}: {error.strerror}", hint="look at the path") from None
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise OptionError(f"there is no API key in {path}", hint="write one key per line")
    return keys
