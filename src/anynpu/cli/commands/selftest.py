"""``anynpu selftest``: networks that a real board ran, byte by byte."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..demo.selftest import SelfTestResult, export, selftest
from ..helpers.console import plain_table, print_json, results
from ..helpers.options import JsonOption

__all__ = ["command"]


def command(
    device: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="Where to run: sim, rknn. The software NPU by default.")
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="NAME.rknn files of the vendor's toolkit, for a board.", exists=True, file_okay=False
        ),
    ] = None,
    export_to: Annotated[
        Path | None,
        typer.Option("--export", metavar="FOLDER", help="Only write the networks as ONNX, for the toolkit.", file_okay=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run networks whose bytes are known from a real RV1103, and compare byte by byte.

    \b
    Example:
      anynpu selftest
      anynpu selftest --export networks/
      anynpu selftest --device rknn --models networks/ --json
    """
    if export_to is not None:
        made = export(export_to)
        results().print(f"wrote {len(made)} networks to {export_to}")
        return
    found = list(selftest(device or "sim", models))
    compared, equal = sum(entry.compared for entry in found), sum(entry.equal for entry in found)
    if as_json:
        cases = [asdict(entry) for entry in found]
        print_json({"device": device or "sim", "board": "RV1103", "compared": compared, "equal": equal, "cases": cases})
    else:
        _print(found, compared, equal)
    if equal < compared or not found:
        raise typer.Exit(1)


def _print(found: list[SelfTestResult], compared: int, equal: int) -> None:
    table = plain_table("network", "bytes", "equal", "first difference", right=("bytes", "equal"))
    for entry in found:
        table.add_row(entry.name, str(entry.compared), str(entry.equal), entry.first)
    console = results()
    console.print(table)
    console.print()
    console.print(f"{equal} of {compared} bytes equal those of an RV1103.")
