"""Writes the C source of the extension module: ``python build_cffi.py HEADER OUTPUT``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from cffi import FFI


def main(header: str, output: str) -> None:
    """Generate *output* from the declarations in *header*."""
    declarations = re.sub(r"^[ \t]*#.*$", "", Path(header).read_text(encoding="utf-8"), flags=re.MULTILINE)
    ffi = FFI()
    ffi.cdef(declarations)
    ffi.set_source("anynpu._native", f'#include "{Path(header).name}"', py_limited_api=True)
    ffi.emit_c_code(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
