"""How many calls in Python one ``rknn_run`` from C makes: what does not change was resolved before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rknn.support import picture_model

from anynpu import modelfile

MAX_CALLS = 55

PROGRAM = """
import json, sys
from pathlib import Path
from anynpu._rknn import ffi
from anynpu.dropin import table

model, way, option = Path(sys.argv[1]).read_bytes(), sys.argv[2], sys.argv[3]
names = ["rknn_init", "rknn_run", "rknn_query", "rknn_inputs_set", "rknn_create_mem", "rknn_set_io_mem"]
texts = [ffi.new("char[]", name.encode()) for name in names]
start = ffi.new("anynpu_start *")
pointers, entries = ffi.new("char *[]", texts), ffi.new("anynpu_entry[]", len(names))
start.names, start.entries, start.count = ffi.cast(ffi.typeof(start.names), pointers), entries, len(names)
close = ffi.callback("void(void)", lambda: None)
start.close = close
table.fill("librknnrt", int(ffi.cast("uintptr_t", start)))
call = {name: ffi.cast(f"{name}_fn", entry) for name, entry in zip(names, entries)}

handle = ffi.new("rknn_context *")
assert call["rknn_init"](handle, ffi.from_buffer(model), len(model), 0, ffi.NULL) == 0
context = handle[0]
number = ffi.new("rknn_input_output_num *")
assert call["rknn_query"](context, 0, number, ffi.sizeof(number[0])) == 0
kept = []
def bind(command, count):
    for index in range(count):
        attr = ffi.new("rknn_tensor_attr *", {"index": index})
        assert call["rknn_query"](context, command, attr, ffi.sizeof(attr[0])) == 0
        memory = call["rknn_create_mem"](context, attr.size_with_stride)
        kept.append(memory)
        assert call["rknn_set_io_mem"](context, memory, attr) == 0
if way == "set":
    picture = ffi.new("char[]", 3 * 6 * 20)
    inputs = ffi.new("rknn_input[1]", [{"buf": picture, "size": 360, "type": 3, "fmt": 1}])
    assert call["rknn_inputs_set"](context, 1, inputs) == 0
else:
    bind(8 if way == "native" else 1, number.n_input)
    bind(9 if way == "native" else 2, number.n_output)
extend = ffi.NULL if option == "plain" else ffi.new("rknn_run_extend *", {"timeout_ms": 60000})
run = call["rknn_run"]
for _ in range(3):
    assert run(context, extend) == 0
seen = []
def notice(frame, event, argument):
    if event == "call":
        seen.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")
sys.setprofile(notice)
code = run(context, extend)
sys.setprofile(None)
assert code == 0
print(json.dumps(seen))
"""


@pytest.mark.parametrize("way", ["set", "bound", "native"])
@pytest.mark.parametrize("option", ["plain", "timeout"])
def test_a_run_from_c_makes_few_calls_in_python(way: str, option: str, tmp_path: Path) -> None:
    model = tmp_path / "model.rknn"
    modelfile.write(picture_model(), model)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ANYNPU_", "RKNN_", "COV"))}
    command = [sys.executable, "-c", PROGRAM, str(model), way, option]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout)
    assert any(name.endswith(":rknn_run") for name in seen)
    assert len(seen) <= MAX_CALLS, "\n".join(seen)
