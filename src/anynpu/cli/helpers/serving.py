"""Options that ``serve`` and ``cluster`` have in common, declared once, and how both begin."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "CONTROL_VARIABLE",
    "KEY_VARIABLE",
    "AccessLogOption",
    "ApiKeysOption",
    "CertificateOption",
    "ControlKeysOption",
    "ControlOption",
    "DeviceOption",
    "DrainOption",
    "GrpcPortOption",
    "HostOption",
    "InsecureOption",
    "JsonLogOption",
    "LayoutOption",
    "MaxBatchOption",
    "MaxQueueOption",
    "MaxRequestOption",
    "MaxWaitOption",
    "PortOption",
    "PrivateKeyOption",
    "TimeoutOption",
    "WatchdogOption",
    "WindowOption",
    "given_keys",
    "start_log",
]

KEY_VARIABLE = "ANYNPU_API_KEYS"
CONTROL_VARIABLE = "ANYNPU_CONTROL_KEYS"

HostOption = Annotated[str, typer.Option("--host", help="Address to listen on.")]
PortOption = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port of HTTP; 0: a free one.")]
GrpcPortOption = Annotated[int, typer.Option("--grpc-port", min=-1, max=65535, help="Port of gRPC; 0: a free one, -1: no gRPC.")]
DeviceOption = Annotated[str | None, typer.Option("--device", help="Where models run: sim:rk3588, rknn, vip ...")]
LayoutOption = Annotated[str, typer.Option("--layout", help="Order of the axes of images: nchw, nhwc or any.")]
MaxQueueOption = Annotated[int, typer.Option("--max-queue", min=1, help="Runs of a model that may wait on a board.")]
MaxWaitOption = Annotated[
    float | None, typer.Option("--max-wait", min=0, metavar="MS", help="Longest predicted wait; default: by load.")
]
WindowOption = Annotated[
    float, typer.Option("--batch-window", min=0, metavar="MS", help="How long a part of a batch waits for others.")
]
MaxBatchOption = Annotated[int, typer.Option("--max-batch", min=1, help="Samples of one request.")]
MaxRequestOption = Annotated[float, typer.Option("--max-request", min=0.001, metavar="MB", help="Size of one request.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=0.001, help="Most seconds for one request.")]
WatchdogOption = Annotated[
    int | None,
    typer.Option("--watchdog", min=1, metavar="MS", help="Give a core up whose run takes longer; default: as --timeout."),
]
DrainOption = Annotated[float, typer.Option("--drain", min=0, help="Seconds to finish accepted requests at the end.")]
CertificateOption = Annotated[Path | None, typer.Option("--certificate", metavar="PEM", help="TLS certificate.")]
PrivateKeyOption = Annotated[Path | None, typer.Option("--private-key", metavar="PEM", help="Its private key.")]
ApiKeysOption = Annotated[
    Path | None, typer.Option("--api-keys", metavar="FILE", help=f"Keys of clients, one a line; or in {KEY_VARIABLE}.")
]
ControlKeysOption = Annotated[
    Path | None,
    typer.Option("--control-keys", metavar="FILE", help=f"Keys that may load and unload models; or in {CONTROL_VARIABLE}."),
]
InsecureOption = Annotated[bool, typer.Option("--insecure", help="Allow other machines without TLS and keys.")]
ControlOption = Annotated[bool, typer.Option("--control/--no-control", help="Let clients load and unload models.")]
AccessLogOption = Annotated[bool, typer.Option("--access-log", help="Log every request.")]
JsonLogOption = Annotated[bool, typer.Option("--json-log", help="Log JSON, one object a line.")]


def given_keys(file: Path | None, variable: str = KEY_VARIABLE) -> tuple[str, ...]:
    """Keys: from a file, or from a variable of the environment."""
    from ...serve.options import read_keys

    if file is not None:
        return read_keys(file)
    return tuple(filter(None, os.environ.get(variable, "").split(",")))


def start_log(as_json: bool) -> None:
    """Log to stderr, as text or as JSON."""
    from ...serve.logs import JsonFormatter, LineFormatter

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else LineFormatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("anynpu")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
