"""Runs every benchmark of this folder (``python -m benchmarks.run_all [soak] [NAME ...]``).

Each one runs in a process of its own: one that fails or never ends does not take the others with it, and none inherits the memory and the
threads of the one before. The end states how long each took, and names those that failed.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIMITS = {"main": 1800.0, "soak": 14400.0}
"""Seconds after which a benchmark is taken for one that hangs: many times what the slowest takes on a machine with nothing else to do."""
_CHILD = """
import importlib, sys
folder, module, function = sys.argv[1:]
sys.path.insert(0, folder)
getattr(importlib.import_module(module), function)()
"""


def main(arguments: list[str], folder: Path = HERE, limit: float | None = None) -> int:
    """Run ``main()``, or after the word *soak* ``soak()``, of all benchmarks or of those whose names are given.

    :param folder: where the benchmarks are; a Python package
    :param limit: seconds for each one, instead of :data:`LIMITS`
    :return: 0 if all of them ended well, 1 if some failed, 2 if there is no benchmark of a given name
    """
    function = "soak" if arguments[:1] == ["soak"] else "main"
    wanted = set(arguments[1:] if function == "soak" else arguments)
    names = {path.stem.removeprefix("bench_"): path for path in sorted(folder.glob("bench_*.py"))}
    unknown = sorted(wanted - names.keys())
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}", file=sys.stderr)
        return 2
    failed, times = [], {}
    for name, path in names.items():
        has_function = re.search(rf"^def {function}\(", path.read_text(encoding="utf-8"), re.MULTILINE)
        if not has_function or (wanted and name not in wanted):
            continue
        sys.stdout.flush()
        began, used = time.monotonic(), _processor_time()
        command = [sys.executable, "-c", _CHILD, str(folder.parent), f"{folder.name}.{path.stem}", function]
        why = _run(command, LIMITS[function] if limit is None else limit)
        times[name] = time.monotonic() - began, _processor_time() - used
        if why:
            print(f"the benchmark {name} {why}; the others go on", file=sys.stderr)
            failed.append(name)
    print("\nseconds, and of CPU time:")
    for name, (passed, used) in times.items():
        print(f"{passed:8.1f} {used:8.1f}  {name}")
    print(f"{sum(one for one, _ in times.values()):8.1f} {sum(one for _, one in times.values()):8.1f}  all", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run(command: list[str], limit: float) -> str:
    """What went wrong with a command, nothing if it ended well. What it started ends with it."""
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            return "failed" if process.wait(limit) else ""
        except subprocess.TimeoutExpired:
            return f"did not end in {limit:.0f} s"
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def _processor_time() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _end_with(number: int, _: object) -> None:
    """A signal ends this process as an exception does: what it has started ends first."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    for each in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) is not signal.SIG_IGN:  # as under nohup
            signal.signal(each, _end_with)
    raise SystemExit(main(sys.argv[1:]))
