"""``anynpu serve``: models for clients of the Open Inference Protocol."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ...serve.options import ServeOptions
from ..helpers.flags import with_flags
from ..helpers.options import FaultsOption, use_faults
from ..helpers.serving import JsonLogOption, need_model, start_log


def _print_description(wanted: bool) -> None:
    if wanted:
        from ...serve.rest_service import description

        typer.echo(json.dumps(description(), indent=2))
        raise typer.Exit


@with_flags(ServeOptions)
def command(
    given: dict[str, Any],
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODELS...", help="Model files, NAME=FILE, NAME:VERSION=FILE, or folders with models."),
    ] = None,
    playground: Annotated[
        bool,
        typer.Option("--playground", help="A page to try models and images on, at /playground; for this machine alone."),
    ] = False,
    json_log: JsonLogOption = False,
    faults: FaultsOption = None,
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
      anynpu serve --playground
    """
    from ...serve import Server

    options = ServeOptions(**given)
    if not models and not playground:
        raise typer.BadParameter("name at least one model, or try models on a page with --playground", param_hint="'MODELS...'")
    mounts = []
    if playground:
        from ...serve.playground import Playground
        from ..demo.samples import write_detector

        mounts.append(Playground(options, sample=write_detector))
    for model in models or ():
        if not Path(model).exists():
            need_model(model.partition("=")[2] or model)
    use_faults(faults, os.environ)
    start_log(json_log)
    Server(models or (), options, exits=True, mounts=mounts).run()
