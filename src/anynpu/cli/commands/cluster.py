"""``anynpu cluster``: many boards that serve as one."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from ...errors import OptionError
from ..helpers.serving import (
    CONTROL_VARIABLE,
    AccessLogOption,
    ApiKeysOption,
    CertificateOption,
    ControlKeysOption,
    ControlOption,
    DeviceOption,
    DrainOption,
    GrpcPortOption,
    HostOption,
    InsecureOption,
    JsonLogOption,
    LayoutOption,
    MaxBatchOption,
    MaxQueueOption,
    MaxRequestOption,
    MaxWaitOption,
    PortOption,
    PrivateKeyOption,
    TimeoutOption,
    WatchdogOption,
    WindowOption,
    given_keys,
    start_log,
)

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
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    grpc_port: GrpcPortOption = 8001,
    device: DeviceOption = None,
    layout: LayoutOption = "nchw",
    max_queue: MaxQueueOption = 64,
    max_wait: MaxWaitOption = None,
    window: WindowOption = 2.0,
    max_batch: MaxBatchOption = 64,
    max_request: MaxRequestOption = 64.0,
    timeout: TimeoutOption = 60.0,
    watchdog: WatchdogOption = None,
    drain: DrainOption = 30.0,
    certificate: CertificateOption = None,
    private_key: PrivateKeyOption = None,
    api_keys: ApiKeysOption = None,
    control_keys: ControlKeysOption = None,
    insecure: InsecureOption = False,
    control: ControlOption = True,
    access_log: AccessLogOption = False,
    json_log: JsonLogOption = False,
) -> None:
    """Serve models on many boards as one, with Ray; Ctrl-C ends what was started.

    \b
    Example:
      anynpu cluster yolo.rknn --virtual 3
      anynpu cluster /srv/models --address auto
      anynpu cluster --pool rk3588=/srv/large --pool rk3576=/srv/small --address auto
    """
    from ...serve import ServeOptions
    from ...serve.cluster.plan import PoolPlan, parse_pools

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
        batch_window_ms=window,
        max_batch=max_batch,
        max_request_bytes=round(max_request * 2**20),
        timeout=timeout,
        drain_timeout=drain,
        watchdog_ms=watchdog,
        certificate=certificate,
        private_key=private_key,
        api_keys=given_keys(api_keys),
        control_keys=given_keys(control_keys, CONTROL_VARIABLE),
        insecure=insecure,
        control=control,
        access_log=access_log,
    )
    from ...serve.cluster import ClusterServer, VirtualBoards

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
