"""Writes the C source of the extension module: ``python build_cffi.py OUTPUT HEADER...``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from cffi import FFI


def main(output: str, *headers: str) -> None:
    """Generate *output* from the declarations in *headers*; the last one includes the others."""
    ffi = FFI()
    for header in headers:
        ffi.cdef(re.sub(r"^[ \t]*#.*$", "", Path(header).read_text(encoding="utf-8"), flags=re.MULTILINE))
    ffi.set_source("anynpu._native", f'#include "{Path(headers[-1]).name}"', py_limited_api=True)
    ffi.emit_c_code(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
