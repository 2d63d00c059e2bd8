"""``anynpu toolkit``: Rockchip's toolkit, in an environment of its own."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from ...compiler.board.environment import LICENCE, REQUIREMENTS, default_folder, find_toolkit, install, suitable_python
from ..helpers.child_processes import orderly_end
from ..helpers.console import print_json, progress_bar, results
from ..helpers.options import JsonOption

__all__ = ["command"]


class Action(str, enum.Enum):
    """What to do."""

    INSTALL = "install"
    SHOW = "show"


def command(
    action: Annotated[Action, typer.Argument(help="Install the toolkit, or show which one build would use.")],
    folder: Annotated[
        Path | None,
        typer.Option("--folder", metavar="FOLDER", help="The environment; by default one in the user's data.", file_okay=False),
    ] = None,
    python: Annotated[
        str | None, typer.Option("--python", metavar="PATH", help="The Python to install with, from 3.8 to 3.12.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Install Rockchip's own toolkit, which 'anynpu build' uses, or show which one there is.

    It goes into an environment of its own. What will be installed and whose licence applies is shown first.

    \b
    Example:
      anynpu toolkit install --python python3.11
    """
    console = results()
    if action is Action.INSTALL:
        place = folder or default_folder()
        chosen = python or suitable_python()
        if not as_json or not yes:
            console.print(f"will make {place} with {chosen}, and install there with pip:")
            for requirement in REQUIREMENTS:
                console.print(f"  {requirement}")
            console.print(LICENCE)
        if not yes and not typer.confirm("Install?"):
            raise typer.Exit(1)
        with orderly_end(), progress_bar("toolkit") as progress:
            found = install(place, chosen, tell=lambda line: progress(line, 0, None))
    else:
        known = find_toolkit(folder)
        if known is None:
            typer.echo("no toolkit; install one: anynpu toolkit install", err=True)
            raise typer.Exit(1)
        found = known
    if as_json:
        print_json({"version": found.version, "python": str(found.python)})
        return
    console.print(f"rknn-toolkit2 {found.version}, {found.python}")
