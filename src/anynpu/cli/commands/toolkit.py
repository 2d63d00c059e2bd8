"""``anynpu toolkit``: Rockchip's toolkit, in an environment of its own."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ...compiler.board.environment import LICENCE, REQUIREMENTS, SIZE, default_folder, find_toolkit, install, suitable_python
from ..helpers import verbosity
from ..helpers.child_processes import orderly_end
from ..helpers.console import print_json, progress_bar, results
from ..helpers.options import JsonOption


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

    It goes into an environment of its own. What will be installed and whose license applies is shown first.

    \b
    Example:
      anynpu toolkit install --python python3.11
    """
    console = results()
    if action is Action.INSTALL:
        place = folder or default_folder()
        chosen = python or suitable_python()
        if not as_json or not yes:
            console.print(f"creates {place} with {chosen} and installs there with pip ({SIZE} on disk):")
            for requirement in REQUIREMENTS:
                console.print(f"  {requirement}")
            if place.exists():
                console.print(f"{place} exists: everything in it is deleted and replaced")
            console.print(LICENCE)
        if not yes and not typer.confirm("Install?"):
            raise typer.Exit(1)
        with orderly_end("interrupted: the installation is not complete; run the command again"), _lines() as tell:
            found = install(place, chosen, tell=tell)
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


@contextmanager
def _lines() -> Iterator[Callable[[str], None]]:
    """Prints the steps of an installation: as a bar on a terminal, else as lines."""
    if sys.stderr.isatty():
        with progress_bar("toolkit") as progress:
            yield lambda line: progress(line, 0, None)
    elif verbosity.is_quiet():
        yield lambda line: None
    else:
        yield lambda line: typer.echo(line, err=True)
