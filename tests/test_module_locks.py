"""Locks of modules in forked children: who held one at the fork is not there to release it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import anynpu

LOCKS = {
    "anynpu._util.optional": ("_ort_lock", "module.onnxruntime()"),
    "anynpu.compiler.quantize.threads": ("_lock", "module.one_blas_thread().__enter__()"),
    "anynpu.devtools.faults": ("_lock", "module._hook()"),
    "anynpu.npu.board": ("_files_lock", "module._lock_file(Path(folder) / 'core0')"),
    "anynpu.npu.memory": ("_physical_lock", "module._physical_address(1)"),
    "anynpu.rknn.lite.lite": ("_twins", "module._twins.__enter__(); module._twins.__exit__(None, None, None)"),
    "anynpu.devtools.sanitizer.watch": ("_lock", "module._renew_in_children()"),
    "anynpu.session.session": ("_lock", "module.keep(Path, type('Runner', (), {'abandon_after_fork': repr})())"),
    "anynpu.vip.awnn": ("_lock", "module._forget_in_children()"),
}
"""For each module its lock, and what uses it once, as every program does that forks while it is held."""

PROGRAM = r"""
import importlib, os, sys, threading
from pathlib import Path

module, name, use, folder = importlib.import_module(sys.argv[1]), *sys.argv[2:5]
exec(use)
lock = getattr(module, name)
held, never = threading.Event(), threading.Event()


def hold():
    with lock:
        held.set()
        never.wait()


threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if child == 0:
    lock = getattr(module, name)
    os._exit(lock.locked() if hasattr(lock, "locked") else not lock.acquire(blocking=False))
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_all_are_known() -> None:
    found = set()
    root = Path(anynpu.__file__).parent
    for path in root.rglob("*.py"):
        if re.search(r"^\w+ *(:.*)?= *[\w.]*(Lock|Condition)\(", path.read_text(encoding="utf-8"), re.MULTILINE):
            found.add(".".join(("anynpu", *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__"))
    assert found == set(LOCKS)


@pytest.mark.parametrize("module", LOCKS)
def test_a_child_finds_it_free(module: str, tmp_path: Path) -> None:
    name, use = LOCKS[module]
    done = subprocess.run([sys.executable, "-c", PROGRAM, module, name, use, str(tmp_path)], check=False, timeout=300)
    assert done.returncode == 0
