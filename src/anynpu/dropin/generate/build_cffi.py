"""Writes the C source of a bindings module: ``python build_cffi.py OUTPUT MODULE HEADER START``.

The module has the types of the header, a pointer type ``NAME_fn`` for each of its functions (to call a library that was loaded at run
time), and ``anynpu_NAME``: a C function that calls into Python (what the drop-in libraries jump to). START declares how such a library
and Python meet; ``anynpu_shutdown`` is what the library calls before the process ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cffi import FFI
from declarations import read_declarations


def main(output: str, module: str, header: str, start: str) -> None:
    """Generate *output* for *module* from the declarations in *header*."""
    declarations = read_declarations(Path(header))
    pointers = "".join(
        f"typedef {function.result} (*{function.name}_fn)({function.signature});\n" for function in declarations.functions
    )
    entries = "".join(
        f'extern "Python" {function.result} anynpu_{function.name}({function.signature});\n'
        for function in declarations.functions
    )
    ffi = FFI()
    ffi.cdef(declarations.types + pointers + entries)
    ffi.cdef(read_declarations(Path(start)).types + 'extern "Python" void anynpu_shutdown(void);')
    ffi.set_source(module, f'#include "{Path(header).name}"\n#include "{Path(start).name}"\n{pointers}', py_limited_api=True)
    ffi.emit_c_code(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
