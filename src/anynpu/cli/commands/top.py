"""``anynpu top``: what the NPUs of this machine are doing."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ...npu.board import DeviceStatus, now_ns, read_statuses
from ..helpers.console import plain_table, print_json, results
from ..helpers.options import JsonOption

_LOAD = Path("/sys/kernel/debug/rknpu/load")
_BAR = 20


def command(
    interval: Annotated[float, typer.Option("--interval", "-i", min=0.05, max=60.0, help="Seconds between refreshes.")] = 1.0,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="Number of refreshes; 0: until Ctrl-C.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Show the cores of this machine's virtual and real boards, live: load, jobs and queues.

    \b
    Example:
      anynpu top
      anynpu top --count 1 --json
    """
    before, moment = read_statuses(), now_ns()
    time.sleep(interval)
    if as_json:
        for _ in range(max(count, 1)):
            after, now = read_statuses(), now_ns()
            print_json({"devices": [_json(entry, before, now - moment, now) for entry in after], "board": board_load()})
            before, moment = after, now
        return
    looks = 0
    with Live(console=results(), auto_refresh=False, transient=False) as live:
        try:
            while True:
                after, now = read_statuses(), now_ns()
                live.update(_screen(after, before, now - moment, now), refresh=True)
                before, moment = after, now
                looks += 1
                if looks == count:
                    return
                time.sleep(interval)
        except KeyboardInterrupt:
            return


def board_load(path: Path = _LOAD) -> list[float]:
    """The load of each core of a real board in per cent, as its driver reports it; empty where there is none.

    >>> board_load(Path("/nowhere"))
    []
    """
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return []
    return [float(share) for share in re.findall(r"(\d+(?:\.\d+)?)%", text)]


def _loads(entry: DeviceStatus, before: list[DeviceStatus], elapsed: int, now: int) -> list[float]:
    """Per cent of the time since the last look that each core was busy."""
    earlier = next(
        (other for other in before if (other.pid, other.chip, len(other.cores)) == (entry.pid, entry.chip, len(entry.cores))),
        None,
    )
    then = [0] * len(entry.cores) if earlier is None else earlier.busy_ns(now - elapsed)
    busy = entry.busy_ns(now)
    return [min(100.0, max(0.0, 100.0 * (later - sooner) / elapsed)) for later, sooner in zip(busy, then, strict=True)]


def _same(first: DeviceStatus, second: DeviceStatus) -> bool:
    return (first.pid, first.chip, len(first.cores)) == (second.pid, second.chip, len(second.cores))


def _screen(devices: list[DeviceStatus], before: list[DeviceStatus], elapsed: int, now: int) -> Group:
    parts: list[Any] = []
    real = board_load()
    if real:
        table = plain_table("board", "core", "load", right=("core",))
        for core, share in enumerate(real):
            table.add_row("this one" if core == 0 else "", str(core), _bar(share))
        parts.append(table)
    if devices:
        parts.append(_device_table(devices, before, elapsed, now))
    if not parts:
        parts.append(Text("no NPU is in use: neither a board's nor a virtual one of this user"))
    return Group(*parts)


def _device_table(devices: list[DeviceStatus], before: list[DeviceStatus], elapsed: int, now: int) -> Table:
    table = plain_table(
        "process", "chip", "core", "load", "jobs", "waiting", "program", right=("process", "core", "jobs", "waiting")
    )
    for entry in devices:
        for core, share in enumerate(_loads(entry, before, elapsed, now)):
            first = core == 0
            name = entry.chip + (f" on {entry.board}" if entry.board else "") + (" in real time" if entry.realtime else "")
            table.add_row(
                str(entry.pid) if first else "",
                name if first else "",
                str(core),
                _bar(share),
                str(entry.cores[core].jobs),
                str(entry.waiting) if first else "",
                entry.program[:60] if first else "",
            )
    return table


def _bar(share: float) -> str:
    full = round(share / 100 * _BAR)
    return f"{'█' * full}{'░' * (_BAR - full)} {share:5.1f} %"


def _json(entry: DeviceStatus, before: list[DeviceStatus], elapsed: int, now: int) -> dict[str, Any]:
    data = asdict(entry)
    for core, load in zip(data["cores"], _loads(entry, before, elapsed, now), strict=True):
        core["load"] = round(load, 2)
    return data
