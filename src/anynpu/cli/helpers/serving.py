"""What ``serve`` and ``cluster`` have in common besides their table of options."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ...errors import OptionError
from . import verbosity

JsonLogOption = Annotated[bool, typer.Option("--json-log", "--json", help="Log JSON, one object per line.")]


def need_model(path: str | Path) -> None:
    """Reject a model file or folder that is not there."""
    if not Path(path).exists():
        raise OptionError(f"there is no model file {path}", hint="name files, NAME=FILE, or folders")


def start_log(as_json: bool) -> None:
    """Log to stderr, as text or as JSON. What gRPC's own library states repeats what clients send, and is left out."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it is read when gRPC is imported
    from ...serve.traces import JsonFormatter, LineFormatter

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else LineFormatter("%(asctime)s %(levelname)s %(message)s"))
    verbosity.reset_log()
    verbosity.attach(handler)
