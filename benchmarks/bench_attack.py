"""What hostile clients cost the server: memory at its highest, and what becomes of good clients meanwhile.

``ANYNPU_OTHER_TREE`` names another tree of anynpu with a virtual environment in it: its server gets the same attacks, for comparison.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import print_table
from .engine_timing import verdict
from .serve_attack import ATTACKS, KEY
from .serve_load import Load, offer
from .serve_sleeper import CORES

INFLIGHT_MB = 512
MEMORY_GOAL = 2 * INFLIGHT_MB + 100
SECONDS = 5.0
ROUNDS = 3
RATE = 0.7
"""Of what the cores can do: at the limit of what is accepted at all, chance alone decides about a p99."""
P99_GOAL = 2.0
DESCRIPTORS = 1024
NICE = 5
"""Of the attackers, which share this machine's cores with the server."""
BODY = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}'
REQUEST = b"POST /v2/models/net/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: %s\r\nContent-Length: %d\r\n\r\n%s" % (
    KEY.encode(),
    len(BODY),
    BODY,
)
HEALTH = b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
SERVER = f"""
import logging, sys
logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
from anynpu.serve import ServeOptions, Server
from benchmarks.serve_sleeper import Sleeper
Server(["net=" + sys.argv[1]], ServeOptions(port=0, grpc_port=0, device=Sleeper(), api_keys=({KEY!r},)), exits=True).run()
"""

Trees = dict[str, tuple[Path, str]]
"""Where a server is started, and with which Python."""


def main() -> None:
    """Print the tables."""
    trees = {"now": (Path(__file__).parents[1], sys.executable)}
    other = os.environ.get("ANYNPU_OTHER_TREE")
    if other:
        trees = {"before": (Path(other), f"{other}/.venv/bin/python"), **trees}
    _memory_under_attack(trees)
    _latency_under_attack(trees)


def _memory_under_attack(trees: Trees) -> None:
    rows = []
    for name, attack in ATTACKS.items():
        row = [name]
        for tree in trees.values():
            with _server(*tree) as (process, http, rpc, _):
                before = _peak(process)
                attack(http, rpc)
                row.append(f"{_peak(process):.0f} (idle {before:.0f})")
                assert offer(http, REQUEST, 1.0).statuses[200], "no service after the attack"
        rows.append((*row, verdict(float(row[-1].split()[0]), MEMORY_GOAL)))
    print_table(f"Memory at its highest, MB; {INFLIGHT_MB} MB may be in flight", ("attack", *trees, "goal"), rows)


def _latency_under_attack(trees: Trees) -> None:
    rows = []
    for name, tree in trees.items():
        with _server(*tree) as (process, http, _, lines):
            rate = RATE * CORES * 1000 / _alone(http)
            loads = {"quiet": (Load(), Load()), "attacked": (Load(), Load())}
            used = {"quiet": 0.0, "attacked": 0.0}
            spent, tried = 0.0, 0
            for what in ("quiet", "attacked") * ROUNDS:  # in turns, since other programs of this machine have an influence too
                attacking = _crowd(http) if what == "attacked" else None
                began = _cpu_seconds(process)
                for sum_of, load in zip(loads[what], _load(http, rate), strict=True):
                    sum_of.offered += load.offered
                    sum_of.statuses += load.statuses
                    sum_of.accepted_ms += load.accepted_ms
                used[what] += _cpu_seconds(process) - began
                if attacking is not None:
                    spent += _cpu_seconds(attacking)
                    tried += int(attacking.communicate(timeout=120)[0])
            for what, (load, asked) in loads.items():
                figures = (f"{load.percentile(0.5):.1f}", f"{load.percentile(0.99):.1f}", f"{asked.percentile(0.99):.1f}")
                lost = load.offered - load.statuses[200]
                rows.append((f"{name}, {what}", str(load.offered), str(lost), *figures, f"{used[what]:.1f}"))
            rows.append((f"{name}: {len(lines)} lines in the log", *[""] * 6))
            rows.append((f"{name}: the attackers themselves", f"{tried}", *[""] * 4, f"{spent:.1f}"))
            ratio = loads["attacked"][0].percentile(0.99) / loads["quiet"][0].percentile(0.99)
    header = ("good clients", "requests", "not answered", "p50 ms", "p99 ms", "health p99 ms", "CPU s")
    print_table("8 idle, 500 slow and 2,500 bursting connections", header, rows)
    print(f"  p99 under attack: {ratio:.2f} of that without (goal {verdict(ratio, P99_GOAL)})")


def _alone(http: str) -> float:
    offer(http, REQUEST, 1.0)
    return offer(http, REQUEST, 2.0).percentile(0.5)


def _load(http: str, rate: float) -> tuple[Load, Load]:
    """Good clients that stay connected, and one that asks how the server is."""
    found: list[Load] = []
    asking = threading.Thread(target=lambda: found.append(offer(http, HEALTH, SECONDS)))
    asking.start()
    load = offer(http, REQUEST, SECONDS, rate)
    asking.join()
    return load, found[0]


def _crowd(http: str) -> subprocess.Popen[str]:
    """The attack, which has begun when this returns. Real attackers have machines of their own: these take what the server leaves them."""
    command = [sys.executable, "-m", "benchmarks.serve_attack", "crowd", http, str(SECONDS + 2)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: os.nice(NICE) and None)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def _cpu_seconds(process: subprocess.Popen[str]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _server(tree: Path, python: str) -> Iterator[tuple[subprocess.Popen[str], str, str, list[str]]]:
    """A server of a tree, with its addresses and the lines of its log."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))

    with tempfile.NamedTemporaryFile(suffix=".rknn") as model:
        model.write(b"sleeps")
        model.flush()
        command = [python, "-c", SERVER, model.name]
        process = subprocess.Popen(
            command, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=limit
        )
        assert process.stdout is not None
        lines: list[str] = []
        try:
            for line in process.stdout:
                found = re.search(r"serving on http://(\S+) and grpc://(\S+)", line)
                if found:
                    threading.Thread(target=lines.extend, args=(process.stdout,), daemon=True).start()
                    yield process, found[1], found[2], lines
                    return
            raise RuntimeError("the server did not start")
        finally:
            process.kill()
            process.wait(30)


def _peak(process: subprocess.Popen[str]) -> float:
    """Megabytes of memory at their highest so far."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


if __name__ == "__main__":
    main()
