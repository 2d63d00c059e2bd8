"""The command line ``anynpu``; :data:`anynpu.cli.app.COMMANDS` lists its commands.

One file per command in :mod:`anynpu.cli.commands`; options that recur are declared in :mod:`anynpu.cli.helpers.options`.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    try:
        from .app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.stderr.write(f"error: the command line needs the package '{error.name}'\n  hint: pip install typer rich\n")
        sys.exit(1)
    run()
