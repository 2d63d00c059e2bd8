"""``anynpu selftest``: networks that a real board ran, byte by byte."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..._util.output_files import write_output
from ...vendors.devices import ROCKET
from ..demo.selftest import SelfTestResult, export, selftest
from ..helpers.console import plain_table, print_json, results
from ..helpers.options import JsonOption

_REPORT = "anynpu-selftest.json"


def command(
    device: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="Where to run: sim, rknn, rocket. The software NPU by default.")
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
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help=f"Where to write the report of rocket; {_REPORT} by default.", dir_okay=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run networks whose bytes are known from a real RV1103, and compare byte by byte.

    With rocket (the driver of mainline kernels on RK3588; rocket:emulated needs no board): run convolutions from a copy to a network,
    compare each with the native engine byte by byte, and write a report to send.

    \b
    Example:
      anynpu selftest
      anynpu selftest --device rocket --report board.json
      anynpu selftest --export networks/
      anynpu selftest --device rknn --models networks/ --json
    """
    if export_to is not None:
        made = export(export_to)
        results().print(f"wrote {len(made)} networks to {export_to}")
        return
    kind, _, node = (device or "sim").partition(":")
    if kind == ROCKET:
        _run_ladder(node, report or Path(_REPORT), as_json=as_json)
        return
    if report is not None:
        raise typer.BadParameter("only --device rocket writes a report; use --json", param_hint="'--report'")
    found = list(selftest(device or "sim", models))
    compared, equal = sum(entry.compared for entry in found), sum(entry.equal for entry in found)
    if as_json:
        cases = [asdict(entry) for entry in found]
        print_json({"device": device or "sim", "board": "RV1103", "compared": compared, "equal": equal, "cases": cases})
    else:
        _print(found, compared, equal)
    if equal < compared or not found:
        raise typer.Exit(1)


def _run_ladder(node: str, path: Path, *, as_json: bool) -> None:
    """Run the steps on a device, print each when it is done, and write the report."""
    from ...npu.rocket.ladder import make_report, run_ladder  # here: the engine

    console, found = results(), []
    for step in run_ladder(node):
        found.append(step)
        if not as_json:
            outcome = step.error or (f"{step.different} differ, by up to {step.largest}" if step.different else "equal")
            console.print(f"{step.name:<24}{step.compared:>8} bytes  {outcome}", markup=False, highlight=False)
    made = make_report(node, found)
    write_output(path, json.dumps(made, indent=1) + "\n")
    passed = sum(step.passed for step in found)
    if as_json:
        print_json(made)
    else:
        console.print()
        console.print(f"{passed} of {len(found)} steps passed; wrote {path}", markup=False, highlight=False)
    if passed < len(found):
        raise typer.Exit(1)


def _print(found: list[SelfTestResult], compared: int, equal: int) -> None:
    table = plain_table("network", "bytes", "equal", "first difference", right=("bytes", "equal"))
    for entry in found:
        table.add_row(entry.name, str(entry.compared), str(entry.equal), entry.first)
    console = results()
    console.print(table)
    console.print()
    console.print(f"{equal} of {compared} bytes equal those of an RV1103.")
