"""Writes the headers that C and C++ programs for Allwinner's boards include: ``python build_vip_headers.py FOLDER ABI AWNN``.

``vip_lite_common.h`` has scalar types, statuses and empty macros, ``vip_lite.h`` everything else, ``awnn_lib.h`` libawnn. ``awnn.h`` is
libawnn as programs for T527 include it, whose inputs are bytes, and ``awnn_internal.h`` what a context holds.
Programs of V85x pass a size to ``vip_init`` and ``awnn_init``, others pass nothing: both compile, up to C17 and in C++. What else
differs on V85x is declared so if ``ANYNPU_VIP_V85X`` is defined.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from build_headers import COMMENT, write

STATEMENT = re.compile(r"^typedef [^{};]*(?:\{[^}]*\}[^;]*)?;|^[A-Za-z][\w *]*\([^;]*\);", re.MULTILINE)
SCALAR = re.compile(r"^typedef (?:struct _vip_\w+ \*|void \*|[\w ]+ )vip_\w+;$")
MACROS = ["#define VIP_API", "#define IN", "#define OUT", "#define VIP_NULL 0", "#define VIP_INVALID_VALUE (~0UL)"]

OLD_FORM = """#if defined(__cplusplus)
{result} {name}({parameter} = 0);
#elif defined(ANYNPU_VIP_V85X)
{result} {name}({parameter});
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ > 201710L
{result} {name}(void);
#else
{result} {name}();
#endif"""

AWNN_NAME = "typedef struct Awnn_Context Awnn_Context_t;"

AWNN_TENSOR = """typedef struct Awnn_params {
  vip_buffer_create_params_t vip_param;
  char name[256];
  vip_uint32_t elements;
} Awnn_params_t;"""

AWNN_CONTEXT = """struct Awnn_Context {
  pthread_mutex_t mutex;
  vip_network network;
  vip_uint32_t input_count;
  vip_uint32_t output_count;
  vip_buffer *input_buffers;
  vip_buffer *output_buffers;
  Awnn_params_t *input_params;
  Awnn_params_t *output_params;
  float **quantize_maps;
  void **user_input_buffers;
  float **user_output_buffers;
};"""

ONE_OR_OTHER = "#ifdef ANYNPU_VIP_V85X\n{old}\n#else\n{new}\n#endif"


def main(folder: str, abi: str, awnn: str) -> None:
    """Write the five files into *folder*."""
    common, rest = list(MACROS), []
    for statement in statements_of(abi):
        shared = SCALAR.match(statement) or re.match(r"typedef enum _vip_(status|bool)_e", statement)
        (common if shared else rest).append(adapted(statement))
    write(Path(folder) / "vip_lite_common.h", ["<stdint.h>"], common, "VIPLite")
    write(Path(folder) / "vip_lite.h", ['"vip_lite_common.h"'], rest, "VIPLite")
    calls = [adapted(statement) for statement in statements_of(awnn)]
    write(Path(folder) / "awnn_lib.h", [], ["#ifndef ANYNPU_AWNN_H", *calls, "#endif"], "libawnn")
    calls = [adapted(statement.replace("void **input", "unsigned char **input")) for statement in statements_of(awnn)]
    write(Path(folder) / "awnn.h", [], ["#ifndef ANYNPU_AWNN_LIB_H", *calls, "#endif"], "libawnn")
    includes = ["<pthread.h>", '"vip_lite.h"']
    write(Path(folder) / "awnn_internal.h", includes, [AWNN_TENSOR, AWNN_CONTEXT, AWNN_NAME], "libawnn")


def statements_of(header: str) -> list[str]:
    """All declarations of a header, without comments."""
    return [match[0] for match in STATEMENT.finditer(COMMENT.sub("", Path(header).read_text(encoding="utf-8")))]


def adapted(statement: str) -> str:
    """A declaration in all the forms that programs expect."""
    start = re.match(r"(\w+) (vip_init|awnn_init)\(([^)]*)\);$", statement)
    if start is not None:
        return OLD_FORM.format(result=start[1], name=start[2], parameter=start[3])
    if "vip_power_management(" in statement:
        forms = {"old": "vip_network network", "new": "vip_uint32_t device_id"}
        return ONE_OR_OTHER.format(**{key: statement.replace("vip_ptr device_or_network", text) for key, text in forms.items()})
    if "awnn_set_input_buffers(" in statement and "unsigned char" not in statement:
        return ONE_OR_OTHER.format(old=statement.replace("void **", "unsigned char **"), new=statement)
    return statement


if __name__ == "__main__":
    main(*sys.argv[1:])
