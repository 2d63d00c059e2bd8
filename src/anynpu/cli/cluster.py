"""``anynpu cluster``: many boards that serve as one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated

import typer

from ..errors import OptionError
from .serve import KEY_VARIABLE, start_log

__all__ = ["command"]


def command(
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
        int | None, typer.Option("--virtual", min=1, max=32, help="Make so many boards for each pool on this machine.")
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", metavar="auto|HOST:PORT", help="Ray cluster that this machine is the head of.")
    ] = None,
    attach: Annotated[bool, typer.Option("--attach", help="Be a front for what 'serve deploy' has deployed.")] = False,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port of HTTP; 0: a free one.")] = 8000,
    grpc_port: Annotated[
        int, typer.Option("--grpc-port", min=-1, max=65535, help="Port of gRPC; 0: a free one, -1: no gRPC.")
    ] = 8001,
    device: Annotated[str | None, typer.Option("--device", help="Where models run on a board: sim:rk3588, rknn, vip ...")] = None,
    layout: Annotated[str, typer.Option("--layout", help="Order of the axes of images: nchw, nhwc or any.")] = "nchw",
    max_queue: Annotated[int, typer.Option("--max-queue", min=1, help="Runs of a model that may wait on a board.")] = 64,
    max_wait: Annotated[
        float | None,
        typer.Option("--max-wait", min=0, metavar="MS", help="Longest predicted wait on a board; default: by load."),
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=0.001, help="Most seconds for one request.")] = 60.0,
    watchdog: Annotated[
        int | None,
        typer.Option("--watchdog", min=1, metavar="MS", help="Give a core up whose run takes longer; default: as --timeout."),
    ] = None,
    drain: Annotated[float, typer.Option("--drain", min=0, help="Seconds to finish accepted requests at the end.")] = 30.0,
    certificate: Annotated[Path | None, typer.Option("--certificate", metavar="PEM", help="TLS certificate.")] = None,
    private_key: Annotated[Path | None, typer.Option("--private-key", metavar="PEM", help="Its private key.")] = None,
    api_keys: Annotated[
        Path | None, typer.Option("--api-keys", metavar="FILE", help=f"Keys of clients, one a line; or in {KEY_VARIABLE}.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow other machines without TLS and keys.")] = False,
    control: Annotated[bool, typer.Option("--control/--no-control", help="Let clients load and unload models.")] = True,
    access_log: Annotated[bool, typer.Option("--access-log", help="Log every request.")] = False,
    json_log: Annotated[bool, typer.Option("--json-log", help="Log JSON, one object a line.")] = False,
) -> None:
    """Serve models on many boards as one, with Ray; Ctrl-C ends what was started.

    \b
    Example:
      anynpu cluster yolo.rknn --virtual 3
      anynpu cluster /srv/models --address auto
      anynpu cluster --pool rk3588=/srv/large --pool rk3576=/srv/small --address auto
    """
    from ..serve import ServeOptions
    from ..serve.cluster.plan import PoolPlan, parse_pools
    from ..serve.options import read_keys

    if (virtual is None) == (address is None):
        raise OptionError(
            "a cluster is either virtual or has an address",
            hint="say --virtual 3 to try it on this machine, or --address auto on the head of a Ray cluster",
        )
    if attach:
        plans = [PoolPlan((), name) for name in ([each.partition("=")[0] for each in pool or ()] or ["boards"])]
    else:
        plans = parse_pools(models or (), pool or (), boards)
    if virtual is not None:  # a board on this machine finds files as this process does
        plans = [PoolPlan(tuple(map(_absolute, plan.models)), plan.name, plan.boards) for plan in plans]
    options = ServeOptions(
        host=host,
        port=port,
        grpc_port=None if grpc_port < 0 else grpc_port,
        device=device,
        layout=layout,
        max_queue=max_queue,
        max_wait_ms=max_wait,
        timeout=timeout,
        drain_timeout=drain,
        watchdog_ms=watchdog,
        certificate=certificate,
        private_key=private_key,
        api_keys=read_keys(api_keys)
        if api_keys is not None
        else tuple(filter(None, os.environ.get(KEY_VARIABLE, "").split(","))),
        insecure=insecure,
        control=control,
        access_log=access_log,
    )
    from ..serve.cluster import ClusterServer, VirtualBoards

    start_log(json_log)
    with contextlib.ExitStack() as stack:
        if virtual is not None:
            kinds = tuple("" if plan.resource == "NPU" else plan.resource for plan in plans for _ in range(virtual))
            address = stack.enter_context(VirtualBoards(len(kinds), resources=kinds)).address
        assert address is not None
        ClusterServer(plans, options, address=address, attach=attach).run()


def _absolute(model: str) -> str:
    label, equals, path = model.partition("=")
    if not equals or Path(model).exists():
        label, equals, path = "", "", model
    if not Path(path).exists():
        raise OptionError(f"there is no model file {path}", hint="name files, NAME=FILE, or folders")
    return f"{label}{equals}{Path(path).resolve()}"
