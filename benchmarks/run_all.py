"""Runs every benchmark of this folder (``python -m benchmarks.run_all [soak] [NAME ...]``).

Each one runs in a process of its own: one that fails does not take the others with it, and none inherits the memory and the threads of
the one before. The end names those that failed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
_CHILD = """
import importlib, sys
folder, module, function = sys.argv[1:]
sys.path.insert(0, folder)
getattr(importlib.import_module(module), function)()
"""


def main(arguments: list[str], folder: Path = HERE) -> int:
    """Run ``main()``, or after the word *soak* ``soak()``, of all benchmarks or of those whose names are given.

    :param folder: where the benchmarks are; a Python package
    :return: 0 if all of them ended well, 1 if some failed, 2 if there is no benchmark of a given name
    """
    function = "soak" if arguments[:1] == ["soak"] else "main"
    wanted = set(arguments[1:] if function == "soak" else arguments)
    names = {path.stem.removeprefix("bench_"): path for path in sorted(folder.glob("bench_*.py"))}
    unknown = sorted(wanted - names.keys())
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}", file=sys.stderr)
        return 2
    failed = []
    for name, path in names.items():
        has_function = re.search(rf"^def {function}\(", path.read_text(encoding="utf-8"), re.MULTILINE)
        if not has_function or (wanted and name not in wanted):
            continue
        sys.stdout.flush()
        module = f"{folder.name}.{path.stem}"
        if subprocess.run([sys.executable, "-c", _CHILD, str(folder.parent), module, function], check=False).returncode:
            print(f"the benchmark {name} failed; the others go on", file=sys.stderr)
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
