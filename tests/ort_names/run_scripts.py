"""Runs scripts one after the other in one process, as they are, and saves what each has as ``RESULTS``.

``run_scripts.py MODELS OUT SCRIPT...``
"""

from __future__ import annotations

import pickle
import runpy
import sys
import traceback
from pathlib import Path

models, out, *scripts = sys.argv[1:]
found: dict[str, object] = {}
for script in scripts:
    sys.argv = [script, models]
    try:
        found[Path(script).stem] = runpy.run_path(script, run_name="__main__")["RESULTS"]
    except Exception:
        found[Path(script).stem] = traceback.format_exc()
Path(out).write_bytes(pickle.dumps(found))
