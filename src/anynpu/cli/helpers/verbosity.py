"""How much a command says: ``-q`` and ``-v``, which every command has.

``-q`` leaves out progress and notes, ``-v`` adds the log of the package and, after an error, where it came from. One command runs in a
process at a time, so the choice is kept in this module; :func:`reset` undoes it.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer

from .usage import check_outputs

__all__ = ["attach", "explain", "is_quiet", "is_verbose", "level", "reset", "reset_log", "with_verbosity"]

QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes: results and errors only.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Print the log too, and where an error came from.")]

_chosen = {"quiet": False, "verbose": False}
_attached: list[logging.Handler] = []


def is_quiet() -> bool:
    """Whether ``-q`` was given."""
    return _chosen["quiet"]


def is_verbose() -> bool:
    """Whether ``-v`` was given."""
    return _chosen["verbose"]


def level() -> int:
    """The level of the log that fits."""
    return logging.WARNING if _chosen["quiet"] else logging.DEBUG if _chosen["verbose"] else logging.INFO


def reset() -> None:
    """As before any command."""
    _chosen.update(quiet=False, verbose=False)
    reset_log()


def reset_log() -> None:
    """Take away what was attached."""
    logger = logging.getLogger("anynpu")
    while _attached:
        logger.removeHandler(_attached.pop())
        logger.setLevel(logging.NOTSET)


def attach(handler: logging.Handler) -> None:
    """Let the log of the package go to *handler* until the end of the command, as much of it as was asked for."""
    logger = logging.getLogger("anynpu")
    logger.addHandler(handler)
    logger.setLevel(level())
    _attached.append(handler)


def explain(error: Exception) -> None:
    """Where an error came from, if ``-v`` was given."""
    if _chosen["verbose"]:
        sys.stderr.write("".join(traceback.format_exception(error)))


def with_verbosity(function: Callable[..., None]) -> Callable[..., None]:
    """A command with ``-q`` and ``-v``, unless it has options of these names itself."""
    signature = inspect.signature(function, eval_str=True)
    if {"quiet", "verbose"} & set(signature.parameters):
        return function
    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in signature.parameters.values()]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=False)
        for name, kind in (("quiet", QuietOption), ("verbose", VerboseOption))
    ]

    @functools.wraps(function)
    def command(**everything: Any) -> None:
        _chosen.update(quiet=everything.pop("quiet"), verbose=everything.pop("verbose"))
        if _chosen["verbose"]:
            handler = logging.StreamHandler(sys.stderr)
            handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
            attach(handler)
        check_outputs(own, everything)
        function(**everything)

    command.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *more)}
    return command
