"""Runs every benchmark of this folder (``python -m benchmarks.run_all [soak] [NAME ...]``)."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    """Run ``main()``, or after the word *soak* ``soak()``, of all benchmarks or of those whose names are given."""
    function = "soak" if arguments[:1] == ["soak"] else "main"
    wanted = arguments[1:] if function == "soak" else arguments
    names = sorted(path.stem for path in Path(__file__).parent.glob("bench_*.py"))
    unknown = sorted(set(wanted) - {name.removeprefix("bench_") for name in names})
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}", file=sys.stderr)
        return 2
    for name in names:
        module = importlib.import_module(f"benchmarks.{name}")
        if hasattr(module, function) and (not wanted or name.removeprefix("bench_") in wanted):
            getattr(module, function)()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
