"""``anynpu replay``: the calls of a recording again."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ...devtools.recording import read_trace, replay
from ...errors import ParameterError
from ...vendors import registry
from ...vendors.libraries import instrumented
from ..helpers.console import print_json
from ..helpers.options import JsonOption, optional_chip

DIFFERENT = 3
"""The exit status where a call answers differently, as that of ``compare`` where a threshold is missed."""


def command(
    trace: Annotated[
        Path, typer.Argument(metavar="TRACE", help="A file of anynpu exec --record.", exists=True, dir_okay=False, readable=True)
    ],
    target: Annotated[
        str | None,
        typer.Option(
            "--target", "-t", metavar="CHIP", help="The chip; without it, that of the recording.", callback=optional_chip
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="DEVICE", help="Another device, such as a board: rknn, vip, rknn:PATH.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="MODEL", help="A model in the place of the recorded one.", exists=True, dir_okay=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make the calls of a recording again, and name the first that answers differently.

    The exit status is 0 where every call answered as recorded, and 3 where one did not.

    \b
    Example:
      anynpu exec --chip rk3588 --record trace.jsonl -- ./detector yolo.rknn street.jpg
      anynpu replay trace.jsonl
      anynpu replay trace.jsonl --model new/yolo.rknn
      anynpu replay trace.jsonl --device rknn          (on a board)
    """
    recorded = read_trace(trace)
    vendor = registry.find(lambda each: each.name == recorded.head.get("vendor"))
    served = None if vendor is None else vendor.dropin
    if served is None or served.tracing is None or served.open_device is None:
        raise ParameterError(f"there is no call table for '{recorded.head.get('vendor')}'", hint="record again")
    if target is not None and device is not None:
        raise typer.BadParameter("give a chip or a device", param_hint="'--target'")
    chip = target or recorded.head.get("chip")
    open_software, open_device = served.open, served.open_device

    def open_library() -> Any:
        return instrumented(open_software(chip)) if device is None else open_device(device)

    given = None if model is None else model.read_bytes()
    found = replay(recorded, served.tracing(), open_library, model=given, close=device is None)
    if as_json:
        difference = None if found.difference is None else asdict(found.difference)
        print_json({"calls": found.calls, "difference": difference, "gap": recorded.gap or None})
    elif found.difference is None:
        typer.echo(f"{found.calls} calls, all as recorded")
    else:
        typer.echo(str(found.difference))
    if recorded.gap and not as_json:
        typer.echo(recorded.gap, err=True)
    if found.difference is not None:
        raise typer.Exit(DIFFERENT)
