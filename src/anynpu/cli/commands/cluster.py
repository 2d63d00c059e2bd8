"""``anynpu cluster``: many boards that serve as one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ...errors import OptionError
from ...serve.options import ServeOptions
from ..helpers.flags import with_flags
from ..helpers.options import FaultsOption, use_faults
from ..helpers.serving import JsonLogOption, need_model, start_log

OF_ONE_MACHINE = ("isolate", "isolate_memory_mb", "load_root", "shared_memory", "trace")
"""Options of a server that a cluster does not have."""


@with_flags(ServeOptions, without=OF_ONE_MACHINE)
def command(
    given: dict[str, Any],
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODELS...", help="Model files, NAME=FILE, NAME:VERSION=FILE, or folders, as every board finds them."
        ),
    ] = None,
    pool: Annotated[
        list[str] | None,
        typer.Option("--pool", metavar="NAME=MODELS", help="Models, with commas, for boards with the resource NAME; repeat."),
    ] = None,
    boards: Annotated[
        int | None, typer.Option("--boards", min=1, help="Boards of each pool; default: all, and those that join.")
    ] = None,
    virtual: Annotated[
        int | None, typer.Option("--virtual", min=1, max=32, help="Start this many virtual boards per pool on this machine.")
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", metavar="auto|HOST:PORT", help="Ray cluster that this machine is the head of.")
    ] = None,
    attach: Annotated[bool, typer.Option("--attach", help="Run a gateway for what 'serve deploy' has deployed.")] = False,
    json_log: JsonLogOption = False,
    faults: FaultsOption = None,
) -> None:
    """Serve models on many boards as one, with Ray; Ctrl-C ends what was started.

    \b
    Example:
      anynpu cluster yolo.rknn --virtual 3
      anynpu cluster /srv/models --address auto
      anynpu cluster --pool rk3588=/srv/large --pool rk3576=/srv/small --address auto
    """
    from ...serve.cluster.messages import PoolPlan, parse_pools

    if (virtual is None) == (address is None):
        raise OptionError(
            "a cluster is either virtual or has an address",
            hint="pass --virtual 3 to try it on this machine, or --address auto on the head of a Ray cluster",
        )
    if attach:
        plans = [PoolPlan((), name) for name in ([each.partition("=")[0] for each in pool or ()] or ["boards"])]
    else:
        plans = parse_pools(models or (), pool or (), boards)
    if virtual is not None:  # a board on this machine finds files as this process does
        plans = [PoolPlan(tuple(map(_absolute, plan.models)), plan.name, plan.boards) for plan in plans]
    options = ServeOptions(**given)
    from ...serve.cluster import ClusterServer, VirtualBoards

    use_faults(faults, os.environ)  # virtual boards inherit it
    start_log(json_log)
    with contextlib.ExitStack() as stack:
        if virtual is not None:
            kinds = tuple("" if plan.resource == "NPU" else plan.resource for plan in plans for _ in range(virtual))
            address = stack.enter_context(VirtualBoards(len(kinds), resources=kinds)).address
        assert address is not None
        ClusterServer(plans, options, address=address, attach=attach, exits=True).run()


def _absolute(model: str) -> str:
    label, equals, path = model.partition("=")
    if not equals or Path(model).exists():
        label, equals, path = "", "", model
    need_model(path)
    return f"{label}{equals}{Path(path).resolve()}"
