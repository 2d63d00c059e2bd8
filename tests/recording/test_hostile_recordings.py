"""Recordings of strangers: what does not fit together is rejected before a library sees a pointer and a size that it would believe."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rknn.support import opened, picture_model
from typer.testing import CliRunner

from anynpu._rknn import ffi
from anynpu.cli.app import app
from anynpu.devtools.recording import MAX_DATA, MAX_PROCESSES, CallTable, Data, Scope, Trace, hash_of, outcome, read_trace, replay
from anynpu.errors import ParameterError
from anynpu.rknn import SoftwareLibrary
from anynpu.rknn.tracing import table
from anynpu.vip import SoftwareLibrary as VipSoftware
from anynpu.vip.constants import vip_create_network_type_e, vip_network_property_e
from anynpu.vip.tracing import table as vip_table

HEAD = {"trace": 1, "vendor": "rknn", "chip": "rk3588", "payload": True}
_FROM_MEMORY = int(vip_create_network_type_e.VIP_CREATE_NETWORK_FROM_MEMORY)
SHORT, LONG = b"0123", bytes(2 * ffi.sizeof("rknn_tensor_attr") - 1)
INFO = bytes(ffi.buffer(ffi.new("rknn_matmul_info *", {"type": 2})))


def trace_of(*calls: dict[str, Any], data: tuple[bytes, ...] = (SHORT, LONG, INFO)) -> Trace:
    trace = Trace(dict(HEAD))
    for each in data:
        trace.sizes[hash_of(each)] = len(each)
        trace._data[hash_of(each)] = base64.b64encode(zlib.compress(each)).decode()
    trace.calls = [{"thread": 1, "process": 1, "result": 0, **call} for call in calls]
    return trace


def call(name: str, *arguments: Any, **more: Any) -> dict[str, Any]:
    return {"call": name, "arguments": list(arguments), **more}


HOSTILE = {
    "an input that is shorter than it states": call("rknn_inputs_set", "NULL", 1, [[0, 1 << 30, 0, 0, 0, hash_of(SHORT)]]),
    "more inputs than there are": call("rknn_inputs_set", "NULL", 9, [[0, 4, 0, 0, 0, hash_of(SHORT)]]),
    "an input without all of its fields": call("rknn_inputs_set", "NULL", 1, [[0, 4]]),
    "more outputs than there are": call("rknn_outputs_get", "NULL", 9, [[0, 1, 0, 8]], None),
    "an output of a negative size": call("rknn_outputs_get", "NULL", 1, [[0, 1, 0, -1]], None),
    "an answer that is larger than its place": call("rknn_query", "NULL", 1, [8, 0], 1 << 20),
    "an answer that takes all memory": call("rknn_query", "NULL", 1, [1 << 60, 0], 1 << 60),
    "a struct and a half": call("rknn_set_input_shape", "NULL", hash_of(LONG)),
    "half a struct": call("rknn_set_input_shape", "NULL", hash_of(SHORT)),
    "fewer structs than the call states": call("rknn_set_input_shapes", "NULL", 7, hash_of(LONG)),
    "a path with a size": call("rknn_init", "new", {"path": "/dev/null"}, 1 << 20, 0, "NULL"),
    "a path with a null byte, and no text": call("rknn_init", "new", {"path": 5}, 0, 0, "NULL"),
    "memory of a negative size": call("rknn_create_mem_from_fd", "NULL", 0, None, -5, 0),
    "memory that is larger than can be": call("rknn_create_mem_from_phys", "NULL", 0, None, 1 << 62),
    "a number that is a list": call("rknn_create_mem", "NULL", [1]),
    "a number of 100 bits": call("rknn_create_mem", "NULL", 1 << 100),
    "a name that is a list": call("rknn_run", ["context1"], "NULL"),
    "a matrix that is smaller than it states": call(
        "rknn_B_normal_layout_to_native_layout", hash_of(SHORT), 4, 64, 32, hash_of(INFO)
    ),
    "a matrix of half an information": call("rknn_B_normal_layout_to_native_layout", hash_of(SHORT), 4, 64, 32, hash_of(SHORT)),
    "fewer parameters than the call states": call(
        "rknn_matmul_set_quant_params", "NULL", ["B", [1 << 20, 0], hash_of(SHORT), "NULL"]
    ),
    "parameters without a name": call("rknn_matmul_set_quant_params", "NULL", [5, [1, 0], hash_of(SHORT), "NULL"]),
    "fewer shapes than the call states": call(
        "rknn_matmul_create_dynamic_shape", "new", hash_of(INFO), 9, hash_of(SHORT), hash_of(SHORT)
    ),
    "too few arguments": call("rknn_run", "NULL"),
    "too many arguments": call("rknn_run", "NULL", "NULL", "NULL"),
    "arguments that are none": {"call": "rknn_run", "arguments": 7},
    "data that are not there": call("rknn_set_input_shape", "NULL", "0" * 32),
    "memory that is none": call("rknn_run", "NULL", "NULL", memory=[1]),
}


@pytest.mark.parametrize("which", HOSTILE)
def test_arguments_that_do_not_fit_together(which: str) -> None:
    with pytest.raises(ParameterError, match="call 1, rknn_"):
        replay(trace_of(HOSTILE[which]), table(), lambda: SoftwareLibrary("rk3588"))


@pytest.mark.parametrize(
    "hostile",
    [
        call("vip_create_network", {"path": "/dev/null"}, 1 << 20, _FROM_MEMORY, "new"),
        call("vip_set_network", "NULL", int(vip_network_property_e.VIP_NETWORK_PROP_NETWORK_NAME), hash_of(SHORT)),
        call("vip_create_buffer", hash_of(SHORT), 4, "new"),
        call("vip_dup_network", {"path": "/dev/null"}, 1 << 20, 0x200, "NULL", "new"),
        call("vip_power_management", 0, 1, 1 << 20),
        call("vip_set_group", "NULL", 1, hash_of(LONG)),
        call("vip_create_buffer_from_handle", hash_of(SHORT), None, 1 << 62, "new"),
    ],
)
def test_calls_of_viplite(hostile: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match="call 1, vip_"):
        replay(trace_of(hostile), vip_table(), lambda: VipSoftware("t527"))


def test_only_memory_that_lives_is_looked_at() -> None:
    seen: list[Any] = []
    made = table()
    watched = CallTable(made.vendor, made.ffi, made.calls, made.memory, lambda library, value: seen.append(value), made.place)
    library = SoftwareLibrary("rk3588")
    handle = opened(library, picture_model())
    scope = Scope(watched, library, lambda key: SHORT)
    context = scope.name_new("context", handle)

    def memory() -> tuple[Any, str]:
        result = library.rknn_create_mem(handle, 64)
        return result, outcome(scope, "rknn_create_mem", made.calls["rknn_create_mem"], (handle, 64), result)["result"]

    (first, first_name), (second, second_name) = memory(), memory()
    scope.restore({context: "", "memory99": ""})
    assert not seen
    scope.restore({first_name: ""})
    assert seen == [first]
    ended = (handle, first)
    outcome(scope, "rknn_destroy_mem", made.calls["rknn_destroy_mem"], ended, library.rknn_destroy_mem(*ended))
    scope.restore({first_name: ""})
    assert seen == [first]
    scope.restore({second_name: ""})
    assert seen == [first, second]
    outcome(scope, "rknn_destroy", made.calls["rknn_destroy"], (handle,), library.rknn_destroy(handle))
    scope.restore({second_name: ""})
    assert seen == [first, second]
    library.close()


def test_memory_of_another_program_is_not_used_on_a_board() -> None:
    library: Any = SimpleNamespace(genuine=True, close=lambda: None)
    with pytest.raises(ParameterError, match="on a board"):
        replay(trace_of(call("rknn_create_mem_from_phys", "NULL", 0, None, 64)), table(), lambda: library)


def test_bytes_are_as_many_as_the_call_says() -> None:
    scope = Scope(table(), None, lambda key: SHORT)
    assert bytes(ffi.buffer(Data(1).build(scope, "key", ["key", 4]), 4)) == SHORT
    for entries, role in (([None, 5], Data(1)), ([None, -1], Data(1)), ([None, MAX_DATA + 1], Data(1, out=True))):
        with pytest.raises(ParameterError):
            role.build(scope, "key", entries)


@pytest.mark.parametrize("says", [0, 10, 1 << 20])
def test_data_that_unpack_to_more_or_less_than_they_say(says: int) -> None:
    bomb = bytes(1 << 16)
    trace = trace_of(data=(bomb,))
    trace.sizes[hash_of(bomb)] = says
    with pytest.raises(ParameterError, match="damaged"):
        trace.data(hash_of(bomb))


LINES = {
    "a call that is a list": {"call": ["rknn_run"]},
    "a process that is a list": {"call": "rknn_run", "process": []},
    "data of a negative size": {"blob": "0", "size": -1},
    "data of an endless size": {"blob": "0", "size": float("inf")},
    "data without a name": {"blob": [], "size": 1},
}


@pytest.mark.parametrize("which", LINES)
def test_lines_that_are_none_of_a_recording(which: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{json.dumps(HEAD)}\n{json.dumps(LINES[which])}\n")
    with pytest.raises(ParameterError, match="line 2"):
        read_trace(path)


def test_too_many_processes_and_too_deep_a_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [HEAD, *({"call": "rknn_run", "process": number} for number in range(MAX_PROCESSES + 1))]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(ParameterError, match=f"line {MAX_PROCESSES + 2}"):
        read_trace(path)
    path.write_text(f"{json.dumps(HEAD)}\n{'[' * 100_000}\n")
    with pytest.raises(ParameterError, match="line 2"):
        read_trace(path)


def test_a_difference_is_text_and_no_escapes_of_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [HEAD, call("rknn_run", "NULL", "NULL", result="\x1b[2J", process=1)]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    done = CliRunner().invoke(app, ["replay", str(path)])
    assert done.exit_code == 3, done.output
    assert "recorded \\u001b[2J" in done.output
    assert "\x1b" not in done.output
