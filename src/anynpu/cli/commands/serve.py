"""``anynpu serve``: models for clients of the Open Inference Protocol."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ...errors import OptionError
from ..helpers.options import IsolateMemoryOption, IsolateOption
from ..helpers.serving import (
    CONTROL_VARIABLE,
    AccessLogOption,
    ApiKeysOption,
    CertificateOption,
    ControlKeysOption,
    ControlOption,
    DeviceOption,
    DrainOption,
    GrpcPortOption,
    HostOption,
    InsecureOption,
    JsonLogOption,
    LayoutOption,
    MaxBatchOption,
    MaxQueueOption,
    MaxRequestOption,
    MaxWaitOption,
    PortOption,
    PrivateKeyOption,
    TimeoutOption,
    WatchdogOption,
    WindowOption,
    given_keys,
    start_log,
)

__all__ = ["command"]


def _print_description(wanted: bool) -> None:
    if wanted:
        from ...serve.http import description

        typer.echo(json.dumps(description(), indent=2))
        raise typer.Exit


def command(
    models: Annotated[
        list[str], typer.Argument(metavar="MODELS...", help="Model files, NAME=FILE, NAME:VERSION=FILE, or folders with models.")
    ],
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    grpc_port: GrpcPortOption = 8001,
    device: DeviceOption = None,
    layout: LayoutOption = "nchw",
    max_queue: MaxQueueOption = 64,
    max_wait: MaxWaitOption = None,
    window: WindowOption = 2.0,
    max_batch: MaxBatchOption = 64,
    max_request: MaxRequestOption = 64.0,
    timeout: TimeoutOption = 60.0,
    watchdog: WatchdogOption = None,
    drain: DrainOption = 30.0,
    isolate: IsolateOption = False,
    isolate_memory: IsolateMemoryOption = 2048,
    certificate: CertificateOption = None,
    private_key: PrivateKeyOption = None,
    api_keys: ApiKeysOption = None,
    control_keys: ControlKeysOption = None,
    insecure: InsecureOption = False,
    control: ControlOption = True,
    load_root: Annotated[
        Path | None, typer.Option("--load-root", metavar="FOLDER", help="Let clients load model files below this folder.")
    ] = None,
    shared_memory: Annotated[
        str | None,
        typer.Option("--shared-memory", metavar="PREFIX", help="Let clients share memory objects whose names begin so."),
    ] = None,
    access_log: AccessLogOption = False,
    json_log: JsonLogOption = False,
    trace: Annotated[
        bool | None,
        typer.Option("--trace/--no-trace", help="Send OpenTelemetry traces; default: if the OTEL_ variables name a collector."),
    ] = None,
    openapi: Annotated[
        bool,
        typer.Option("--openapi", is_eager=True, callback=_print_description, help="Print the OpenAPI description and exit."),
    ] = False,
) -> None:
    """Serve models over HTTP and gRPC to clients of the Open Inference Protocol (KServe, Triton).

    \b
    Example:
      anynpu serve yolo.rknn
      anynpu serve models/ det:2=new/det.rknn --device sim:rk3588 --port 8000 --grpc-port 8001
    """
    from ...serve import ServeOptions, Server
    from ...serve.traces import wanted_by_environment

    options = ServeOptions(
        host=host,
        port=port,
        grpc_port=None if grpc_port < 0 else grpc_port,
        device=device,
        layout=layout,
        max_queue=max_queue,
        max_wait_ms=max_wait,
        batch_window_ms=window,
        max_batch=max_batch,
        max_request_bytes=round(max_request * 2**20),
        timeout=timeout,
        drain_timeout=drain,
        watchdog_ms=watchdog,
        isolate=isolate,
        isolate_memory_mb=isolate_memory,
        certificate=certificate,
        private_key=private_key,
        api_keys=given_keys(api_keys),
        control_keys=given_keys(control_keys, CONTROL_VARIABLE),
        insecure=insecure,
        control=control,
        load_root=load_root,
        shared_memory=shared_memory,
        access_log=access_log,
        trace=wanted_by_environment() if trace is None else trace,
    )
    for model in models:
        path = model.partition("=")[2] or model
        if not Path(model).exists() and not Path(path).exists():
            raise OptionError(f"there is no model file {path}", hint="name files, NAME=FILE, or folders")
    start_log(json_log)
    Server(models, options, exits=True).run()
