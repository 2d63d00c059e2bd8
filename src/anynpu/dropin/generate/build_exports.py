"""Writes the C source of a drop-in library: ``python build_exports.py OUTPUT HEADER LIBRARY VERSION SPECIAL [NAME ...]``.

Every call of the interface becomes a function ``call_NAME`` that goes through the gate and jumps into the table. Those named (all by
default) are exported under their own names, but for those that the file SPECIAL defines itself.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from declarations import Function, read_declarations

OWN = re.compile(r"^/\* own: ([\w ]+) \*/$", re.MULTILINE)
"""The line of a special file that names what it defines."""

UNAVAILABLE = {"int": "-3", "accel_result": "-19", "vip_status_e": "VIP_ERROR_IO", "vip_uint32_t": "0"}
"""What a call returns without Python, by the type of its result: no device. A pointer is null."""


def caller(function: Function) -> str:
    """The function that makes the jump, from whatever stack."""
    pointer = f"({function.result} (*)({function.signature}))anynpu_entries[INDEX_{function.name}]"
    void = function.result == "void"
    fields = "".join(f"    {entry.type} {entry.name};\n" for entry in function.parameters)
    failure = "" if void else UNAVAILABLE.get(function.result, "NULL")
    keep = "" if void else "frame->result = "
    passed = ", ".join(f"frame->{entry.name}" for entry in function.parameters)
    initial = ", ".join(f".{entry.name} = {entry.name}" for entry in function.parameters)
    return f"""
struct frame_{function.name} {{
{"" if void else f"    {function.result} result;" + chr(10)}{fields}}};

static void run_{function.name}(void *argument)
{{
    struct frame_{function.name} *frame = argument;
    {keep}({pointer})({passed});
}}

static __attribute__((unused)) {function.result} call_{function.name}({function.signature})
{{
{"" if void else f"    {function.result} result = {failure};" + chr(10)}    switch (anynpu_enter()) {{
    case ANYNPU_REFUSED:
        return{"" if void else " result"};
    case ANYNPU_DIRECT:
        {"" if void else "result = "}({pointer})({function.arguments});
        break;
    case ANYNPU_ELSEWHERE: {{
        struct frame_{function.name} frame = {{{initial}}};
        anynpu_call_elsewhere(run_{function.name}, &frame);
{"" if void else "        result = frame.result;" + chr(10)}        break;
    }}
    }}
    anynpu_leave();
{"" if void else "    return result;" + chr(10)}}}
"""


def export(function: Function) -> str:
    """The function under its own name."""
    back = "" if function.result == "void" else "return "
    return f"""
ANYNPU_EXPORT {function.result} {function.name}({function.signature})
{{
    {back}call_{function.name}({function.arguments});
}}
"""


def main(output: str, header: str, library: str, version: str, special: str, *names: str) -> None:
    """Generate *output*."""
    functions = read_declarations(Path(header)).functions
    known = {function.name for function in functions}
    if not set(names) <= known:
        raise SystemExit(f"not in {header}: {', '.join(sorted(set(names) - known))}")
    wanted = set(names) or known
    own = set(" ".join(OWN.findall(Path(special).read_text(encoding="utf-8"))).split())
    text = [f'#include "{Path(header).name}"\n#include "exports.h"\n\n']
    text.append("enum {\n" + "".join(f"    INDEX_{function.name},\n" for function in functions) + "    COUNT\n};\n\n")
    text.append(
        "static const char *const names[COUNT] = {\n" + "".join(f'    "{function.name}",\n' for function in functions) + "};\n\n"
    )
    text.append("static anynpu_entry anynpu_entries[COUNT];\n\n")
    text.append(f'anynpu_start anynpu_library = {{"{library}", names, anynpu_entries, COUNT, 0, anynpu_close, NULL}};\n\n')
    text.append("/* for those who look for it in the file */\n")
    text.append(f'__attribute__((used)) static const char version_text[] = "{library} version: {version}";\n')
    text.extend(caller(function) for function in functions)
    text.extend(export(function) for function in functions if function.name in wanted - own)
    text.append(f'\n#include "{Path(special).name}"\n')
    Path(output).write_text("".join(text), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
