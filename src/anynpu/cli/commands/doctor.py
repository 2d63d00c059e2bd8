"""``anynpu doctor``: what this machine has, what would be used, and what to do."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ..helpers.console import print_json, results
from ..helpers.diagnosis import Finding, diagnose, docker_flags
from ..helpers.options import JsonOption

__all__ = ["command"]

_STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}


def command(
    model: Annotated[
        Path | None,
        typer.Argument(metavar="[MODEL]", help="A model that should run here.", exists=True, dir_okay=False, readable=True),
    ] = None,
    docker: Annotated[bool, typer.Option("--docker", help="Print the flags that give a container the NPU.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Look at device, driver, library, Python and environment, and say what to do.

    Ends with 1 if something has to be done before a model runs.

    \b
    Example:
      anynpu doctor
      anynpu doctor yolo.rknn
      docker run $(anynpu doctor --docker) image
    """
    console = results()
    if docker:
        console.print(" ".join(docker_flags()))
        return
    findings = diagnose(model=model)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            console.print(_line(finding))
    if any(finding.state == "problem" for finding in findings):
        raise typer.Exit(1)


def _line(finding: Finding) -> Text:
    line = Text.assemble((f"{finding.topic:<12}", _STYLES[finding.state]), finding.text)
    if finding.advice:
        line.append(f"\n{'':<12}-> {finding.advice}", style="cyan" if finding.state != "problem" else "yellow")
    return line
