"""``anynpu serve``: models for clients of the Open Inference Protocol."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import OptionError

__all__ = ["KEY_VARIABLE", "command", "start_log"]

KEY_VARIABLE = "ANYNPU_API_KEYS"


def _print_description(wanted: bool) -> None:
    if wanted:
        from ..serve.http import description

        typer.echo(json.dumps(description(), indent=2))
        raise typer.Exit


def command(
    models: Annotated[
        list[str], typer.Argument(metavar="MODELS...", help="Model files, NAME=FILE, NAME:VERSION=FILE, or folders with models.")
    ],
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port of HTTP; 0: a free one.")] = 8000,
    grpc_port: Annotated[
        int, typer.Option("--grpc-port", min=-1, max=65535, help="Port of gRPC; 0: a free one, -1: no gRPC.")
    ] = 8001,
    device: Annotated[str | None, typer.Option("--device", help="Where models run: sim:rk3588, rknn, vip ...")] = None,
    layout: Annotated[str, typer.Option("--layout", help="Order of the axes of images: nchw, nhwc or any.")] = "nchw",
    max_queue: Annotated[int, typer.Option("--max-queue", min=1, help="Runs of a model that may wait.")] = 64,
    max_wait: Annotated[
        float | None,
        typer.Option("--max-wait", min=0, metavar="MS", help="Longest predicted wait; default: by load."),
    ] = None,
    window: Annotated[
        float, typer.Option("--batch-window", min=0, metavar="MS", help="How long a part of a batch waits for others.")
    ] = 2.0,
    max_batch: Annotated[int, typer.Option("--max-batch", min=1, help="Samples of one request.")] = 64,
    max_request: Annotated[float, typer.Option("--max-request", min=0.001, metavar="MB", help="Size of one request.")] = 64.0,
    timeout: Annotated[float, typer.Option("--timeout", min=0.001, help="Most seconds for one request.")] = 60.0,
    watchdog: Annotated[
        int | None,
        typer.Option("--watchdog", min=1, metavar="MS", help="Give a core up whose run takes longer; default: as --timeout."),
    ] = None,
    drain: Annotated[float, typer.Option("--drain", min=0, help="Seconds to finish accepted requests at the end.")] = 30.0,
    certificate: Annotated[Path | None, typer.Option("--certificate", metavar="PEM", help="TLS certificate.")] = None,
    private_key: Annotated[Path | None, typer.Option("--private-key", metavar="PEM", help="Its private key.")] = None,
    api_keys: Annotated[
        Path | None, typer.Option("--api-keys", metavar="FILE", help=f"Keys of clients, one a line; or in {KEY_VARIABLE}.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow other machines without TLS and keys.")] = False,
    control: Annotated[bool, typer.Option("--control/--no-control", help="Let clients load and unload models.")] = True,
    load_root: Annotated[
        Path | None, typer.Option("--load-root", metavar="FOLDER", help="Let clients load model files below this folder.")
    ] = None,
    shared_memory: Annotated[
        str | None,
        typer.Option("--shared-memory", metavar="PREFIX", help="Let clients share memory objects whose names begin so."),
    ] = None,
    access_log: Annotated[bool, typer.Option("--access-log", help="Log every request.")] = False,
    json_log: Annotated[bool, typer.Option("--json-log", help="Log JSON, one object a line.")] = False,
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
    from ..serve import ServeOptions, Server
    from ..serve.options import read_keys
    from ..serve.traces import wanted_by_environment

    if api_keys is not None:
        keys = read_keys(api_keys)
    else:
        keys = tuple(filter(None, os.environ.get(KEY_VARIABLE, "").split(",")))
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
        certificate=certificate,
        private_key=private_key,
        api_keys=keys,
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
    Server(models, options).run()


def start_log(as_json: bool) -> None:
    """Log to stderr, as text or as JSON."""
    from ..serve.logs import JsonFormatter

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("anynpu")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
