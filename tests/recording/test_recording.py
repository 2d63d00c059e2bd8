"""Recordings: three programs are replayed as they were, and a changed byte of a model is found at the call that it changes first."""

from __future__ import annotations

import base64
import errno
import json
import os
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dropin.running import board_environment, build, clean_environment, run
from rknn.matmul_calls import Calls as Matmul
from rknn.support import get_outputs, opened, picture_model, pixels, set_picture
from typer.testing import CliRunner
from vip.support import Calls, small_file

from anynpu import modelfile
from anynpu._rknn import ffi
from anynpu._vip import ffi as vip_ffi
from anynpu.cli.app import app
from anynpu.devtools import faults
from anynpu.devtools.recording import Recorder, Trace, read_trace, replay
from anynpu.errors import ParameterError
from anynpu.rknn import SoftwareLibrary
from anynpu.rknn.constants import rknn_matmul_type, rknn_query_cmd
from anynpu.rknn.tracing import table
from anynpu.vendors.libraries import instrumented
from anynpu.vip import SoftwareLibrary as VipSoftware
from anynpu.vip.tracing import table as vip_table

SESSION = """
import sys
import numpy as np
from anynpu.session import InferenceSession
with InferenceSession(sys.argv[1], device="sim:rk3588") as session:
    source = session.get_inputs()[0]
    rng = np.random.default_rng(1)
    for _ in range(3):
        session.run(None, {source.name: rng.integers(0, 255, source.shape).astype(np.float32)})
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("record.c", tmp_path_factory.mktemp("record") / "record")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(picture_model().save(tmp_path_factory.mktemp("model") / "model.rknn"))


def record(path: Path, *command: str | Path) -> Trace:
    environment = board_environment("rk3588") if command[0] != sys.executable else clean_environment()
    run(list(command), environment | {"ANYNPU_RECORD": str(path)})
    return read_trace(path)


def changed(model: Path, path: Path) -> Path:
    """The model with one byte of its weights changed, and its checksum fixed."""
    whole = modelfile.read(model)
    layer = next(layer for layer in whole.programs[0].layers if hasattr(layer.op, "weights"))
    weights: Any = layer.op.weights
    array = np.array(weights)
    array.reshape(-1).view(np.uint8)[0] ^= 0x40
    object.__setattr__(layer.op, "weights", array)
    whole.save(path)
    return path


@pytest.mark.parametrize("way", ["general", "zero-copy", "session"])
def test_three_programs_are_replayed_as_they_were(way: str, program: Path, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    command = (sys.executable, "-c", SESSION, model) if way == "session" else (program, way, model)
    trace = record(path, *command)
    names = [entry["call"] for entry in trace.calls]
    assert names.count("rknn_run") == 3
    assert ("rknn_set_io_mem" in names) == (way == "zero-copy")
    place = ["--device", "sim:rk3588"] if way == "session" else ["--target", "rk3588"]
    done = CliRunner().invoke(app, ["replay", str(path), *place])
    assert done.exit_code == 0, done.output
    assert done.output == f"{len(names)} calls, all as recorded\n"


@pytest.mark.parametrize(("way", "call"), [("general", "rknn_outputs_get"), ("zero-copy", "rknn_run")])
def test_a_changed_byte_is_found_at_the_first_call_that_it_changes(
    way: str, call: str, program: Path, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    trace = record(path, program, way, model)
    other = changed(model, tmp_path / "other.rknn")
    done = CliRunner().invoke(app, ["replay", str(path), "--model", str(other), "--json"])
    assert done.exit_code == 3, done.output
    found = json.loads(done.output)["difference"]
    assert found["call"] == call
    assert found["number"] == 1 + next(number for number, entry in enumerate(trace.calls) if entry["call"] == call)
    assert "differ" in found["found"]


def test_a_chip_for_which_the_model_is_not(program: Path, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    options = ["--chip", "rk3588", "--record", path, "--", program, "general", model]
    run([sys.executable, "-m", "anynpu.cli", "exec", *options], clean_environment(ANYNPU_PYTHON=None, LD_LIBRARY_PATH=None))
    done = CliRunner().invoke(app, ["replay", str(path), "--target", "rk3566"])
    assert done.exit_code == 3
    assert "call 1, rknn_init" in done.output
    assert "rk3566" in done.output


def recorded(library: SoftwareLibrary, path: Path, *, payload: bool = True) -> Trace:
    Recorder(library, table(), str(path), payload=payload)
    handle = opened(library, picture_model())
    assert set_picture(library, handle, pixels()) == 0
    assert library.rknn_run(handle, ffi.NULL) == 0
    get_outputs(library, handle, 2)
    assert library.rknn_run(handle + 1, ffi.NULL) < 0
    assert library.rknn_destroy(handle) == 0
    library.close()
    return read_trace(path)


def test_calls_that_fail_are_part_of_it(tmp_path: Path) -> None:
    trace = recorded(SoftwareLibrary("rk3588"), tmp_path / "trace.jsonl")
    assert [entry["result"] for entry in trace.calls] == [0, 0, 0, 0, 0, -7, 0]
    found = replay(trace, table(), lambda: SoftwareLibrary("rk3588"))
    assert found.difference is None
    trace.calls[2]["result"] = -1
    found = replay(trace, table(), lambda: SoftwareLibrary("rk3588"))
    assert found.difference is not None
    assert str(found.difference) == "call 3, rknn_run (thread 1): result: recorded -1, here 0"


def test_hashes_alone_are_smaller_and_cannot_be_replayed(tmp_path: Path) -> None:
    small = recorded(SoftwareLibrary("rk3588"), tmp_path / "small.jsonl", payload=False)
    recorded(SoftwareLibrary("rk3588"), tmp_path / "large.jsonl")
    assert (tmp_path / "small.jsonl").stat().st_size < (tmp_path / "large.jsonl").stat().st_size / 2
    with pytest.raises(ParameterError, match="not the bytes"):
        replay(small, table(), lambda: SoftwareLibrary("rk3588"))


def test_a_full_disk_leaves_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    path, write, room = tmp_path / "trace.jsonl", os.write, [100]
    library = SoftwareLibrary("rk3588")
    Recorder(library, table(), str(path))
    handle = opened(library, picture_model())
    assert set_picture(library, handle, pixels()) == 0

    def full(fd: int, data: bytes) -> int:
        if not os.path.samestat(os.fstat(fd), path.stat()):
            return write(fd, data)
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(fd, data[: room[0]])
        room[0] -= written
        return written

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        assert library.rknn_run(handle, ffi.NULL) == 0
        get_outputs(library, handle, 2)
    assert [record.getMessage() for record in caplog.records if record.name == "anynpu.devtools.recording"] == [
        f"the recording {path} has a gap: calls cannot be written: No space left on device"
    ]
    assert library.rknn_run(handle, ffi.NULL) == 0
    assert library.rknn_destroy(handle) == 0
    library.close()
    trace = read_trace(path)
    assert [entry["call"] for entry in trace.calls] == ["rknn_init", "rknn_inputs_set"]
    assert trace.gap.endswith("at least 3 calls were not written, and 2 after it were not read")
    done = CliRunner().invoke(app, ["replay", str(path)])
    assert done.exit_code == 0, done.output
    assert done.output == f"2 calls, all as recorded\n{trace.gap}\n"


@pytest.mark.parametrize("query", ["CUSTOM_STRING", "SDK_VERSION", "IN_OUT_NUM", "OUTPUT_ATTR"])
def test_an_answer_into_memory_that_was_not_cleared(tmp_path: Path, query: str) -> None:
    library = SoftwareLibrary("rk3588")
    Recorder(library, table(), str(tmp_path / "trace.jsonl"))
    handle = opened(library, picture_model())
    command = rknn_query_cmd[f"RKNN_QUERY_{query}"]
    struct = {"CUSTOM_STRING": "rknn_custom_string", "SDK_VERSION": "rknn_sdk_version", "IN_OUT_NUM": "rknn_input_output_num"}
    size = ffi.sizeof(struct.get(query, "rknn_tensor_attr"))
    memory = ffi.new("char[]", bytes(4) + b"\x5a" * (size + 12))
    assert library.rknn_query(handle, int(command), ffi.cast("void *", memory), size + 8) == 0
    assert query == "IN_OUT_NUM" or b"\x5a" not in bytes(ffi.buffer(memory, size)), "the whole answer is written"
    assert bytes(ffi.buffer(memory))[size : size + 16] == b"\x5a" * 16, "and nothing after it"
    library.close()
    trace = read_trace(tmp_path / "trace.jsonl")
    assert replay(trace, table(), lambda: SoftwareLibrary("rk3588")).difference is None
    trace.calls[-1]["result"] = -1
    found = replay(trace, table(), lambda: SoftwareLibrary("rk3588")).difference
    assert str(found) == f"call 2, rknn_query(RKNN_QUERY_{query}) (thread 1): result: recorded -1, here 0"


def test_a_last_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    whole = recorded(SoftwareLibrary("rk3588"), path)
    assert whole.gap == ""
    os.truncate(path, path.stat().st_size - 10)
    trace = read_trace(path)
    assert trace.calls == whole.calls[:-1]
    assert "at least 1 calls were not written" in trace.gap
    assert replay(trace, table(), lambda: SoftwareLibrary("rk3588")).difference is None


def test_matrix_products(tmp_path: Path) -> None:
    library = SoftwareLibrary("rk3588")
    Recorder(library, table(), str(tmp_path / "trace.jsonl"))
    with Matmul(library) as calls:
        assert calls.create(4, 32, 32, int(rknn_matmul_type.RKNN_INT8_MM_INT8_TO_INT32)) == 0
        calls.allocate()
        for value in (3, 5):
            calls.bytes("A")[:], calls.bytes("B")[:] = value, 2
            assert calls.run() == 0
    library.close()
    trace = read_trace(tmp_path / "trace.jsonl")
    runs = [entry for entry in trace.calls if entry["call"] == "rknn_matmul_run"]
    assert runs[0]["memory_after"] != runs[1]["memory_after"]
    assert replay(trace, table(), lambda: SoftwareLibrary("rk3588")).difference is None


def test_products_of_several_shapes_with_their_parameters(tmp_path: Path) -> None:
    library = SoftwareLibrary("rk3588")
    Recorder(library, table(), str(tmp_path / "trace.jsonl"))
    kind = int(rknn_matmul_type.RKNN_INT8_MM_INT8_TO_INT32)
    info = ffi.new("rknn_matmul_info *", {"K": 64, "N": 32, "type": kind, "B_layout": 1, "B_quant_type": 2})
    plain, native = ffi.new("int8_t[]", [value % 100 for value in range(64 * 32)]), ffi.new("int8_t[]", 64 * 32)
    assert library.rknn_B_normal_layout_to_native_layout(plain, native, 64, 32, info) == 0
    assert library.rknn_B_normal_layout_to_native_layout(plain, native, 64, 32, ffi.cast("rknn_matmul_info *", 32)) < 0
    shapes = ffi.new("rknn_matmul_shape[]", [{"M": 1, "K": 64, "N": 32}, {"M": 4, "K": 64, "N": 32}])
    attributes = ffi.new("rknn_matmul_io_attr[]", 2)
    with Matmul(library) as calls:
        assert library.rknn_matmul_create_dynamic_shape(calls.handle, info, 2, shapes, attributes) == 0
        calls.attributes = ffi.addressof(attributes, 1)
        calls.allocate()
        assert calls.set_parameters("B", np.linspace(0.1, 1, 32), np.zeros(32)) == 0, calls.why()
        params, scale = ffi.new("rknn_quant_params *"), ffi.new("float *")
        assert library.rknn_matmul_get_quant_params(calls.context, params, scale) == 0
        calls.bytes("A")[:], calls.bytes("B")[:] = 3, np.frombuffer(ffi.buffer(native), np.uint8)
        for index in (1, 0):
            assert library.rknn_matmul_set_dynamic_shape(calls.context, ffi.addressof(shapes, index)) == 0
            calls.attributes = ffi.addressof(attributes, index)
            for name in "ABC":
                assert library.rknn_matmul_set_io_mem(calls.context, calls.memory[name], calls.attribute(name)) == 0
            assert calls.run() == 0
    library.close()
    trace = read_trace(tmp_path / "trace.jsonl")
    assert {entry["call"] for entry in trace.calls} >= {"rknn_matmul_set_dynamic_shape", "rknn_matmul_get_quant_params"}
    assert replay(trace, table(), lambda: SoftwareLibrary("rk3588")).difference is None
    got = next(entry for entry in trace.calls if entry["call"] == "rknn_matmul_get_quant_params")
    got["left"][1][1] = [7, 7]
    found = replay(trace, table(), lambda: SoftwareLibrary("rk3588")).difference
    assert found is not None
    assert found.call == "rknn_matmul_get_quant_params"


def test_groups_power_and_a_second_network(tmp_path: Path) -> None:
    library = VipSoftware("t527")
    Recorder(library, vip_table(), str(tmp_path / "trace.jsonl"))
    calls = Calls(library)
    file = small_file("t527")
    network, (source,), _ = calls.ready(file)
    second = vip_ffi.new("vip_network *")
    calls.ok(library.vip_dup_network(vip_ffi.from_buffer(file), len(file), 0x200, network, second))
    frequency = vip_ffi.new("vip_power_frequency_t *", [50])
    calls.ok(library.vip_power_management(vip_ffi.NULL, 1, frequency))
    calls.ok(library.vip_set_log_path(vip_ffi.new("char[]", str(tmp_path).encode())))
    group = vip_ffi.new("vip_group *")
    calls.ok(library.vip_create_group(1, group))
    calls.ok(library.vip_add_network(group[0], network))
    for value in (7, 9):
        calls.bytes(source)[:] = value
        calls.ok(library.vip_run_group(group[0], 1))
    calls.bytes(source)[:] = 11
    calls.ok(library.vip_trigger_group(group[0], 1))
    calls.ok(library.vip_wait_group(group[0]))
    calls.ok(library.vip_query_group(group[0], 0, vip_ffi.new("vip_inference_profile_t *")))
    calls.ok(library.vip_destroy_group(group[0]))
    calls.ok(library.vip_destroy_network(second[0]))
    library.close()
    trace = read_trace(tmp_path / "trace.jsonl")
    runs = [entry for entry in trace.calls if entry["call"] in ("vip_run_group", "vip_wait_group")]
    assert len({json.dumps(entry["memory_after"], sort_keys=True) for entry in runs}) == 3, "inputs of the networks are in it"
    assert replay(trace, vip_table(), lambda: VipSoftware("t527")).difference is None


def test_a_library_of_viplite(tmp_path: Path) -> None:
    library = VipSoftware("t527")
    Recorder(library, vip_table(), str(tmp_path / "trace.jsonl"))
    calls = Calls(library)
    network, (source,), _ = calls.ready()
    calls.bytes(source)[:] = 7
    assert library.vip_run_network(network) == 0
    calls.bytes(source)[:] = 9
    assert library.vip_trigger_network(network) == 0
    assert library.vip_wait_network(network) == 0
    library.close()
    trace = read_trace(tmp_path / "trace.jsonl")
    assert replay(trace, vip_table(), lambda: VipSoftware("t527")).difference is None
    other = small_file("t527", "w8a8", 5)
    assert replay(trace, vip_table(), lambda: VipSoftware("t527"), model=other).difference is None
    run_call = next(entry for entry in trace.calls if entry["call"] == "vip_wait_network")
    (name, key), *_ = run_call["memory_after"].items()
    run_call["memory_after"][name] = key[::-1]
    found = replay(trace, vip_table(), lambda: VipSoftware("t527")).difference
    assert found is not None
    assert (found.call, found.what) == ("vip_wait_network", "memory_after")


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    for name, text in {"empty": "", "text": "hello\n", "newer": '{"trace": 99}\n', "list": "[]\n"}.items():
        path = tmp_path / f"{name}.jsonl"
        path.write_text(text)
        assert CliRunner().invoke(app, ["replay", str(path)]).exit_code == 1


@pytest.mark.parametrize("data", ["?", "AAAA", base64.b64encode(zlib.compress(b"other")).decode()])
def test_damaged_data_are_refused(data: str, tmp_path: Path) -> None:
    trace = recorded(SoftwareLibrary("rk3588"), tmp_path / "trace.jsonl")
    trace._data = dict.fromkeys(trace._data, data)
    with pytest.raises(ParameterError, match="damaged"):
        replay(trace, table(), lambda: SoftwareLibrary("rk3588"))


def test_a_call_that_takes_functions_is_named(tmp_path: Path) -> None:
    trace = recorded(SoftwareLibrary("rk3588"), tmp_path / "trace.jsonl")
    trace.calls.insert(1, {"call": "rknn_register_custom_ops", "thread": 1, "result": 0})
    with pytest.raises(ParameterError, match="call 2, rknn_register_custom_ops, cannot be made again: it registers functions"):
        replay(trace, table(), lambda: SoftwareLibrary("rk3588"))


def test_every_call_is_in_the_tables() -> None:
    for kind, made in ((SoftwareLibrary, table()), (VipSoftware, vip_table())):
        calls = {name for name in dir(kind) if name.startswith((f"{made.vendor}_", "vip_"))}
        assert calls - set(made.calls) - set(made.opaque) <= {"rknn_custom_op_get_op_attr"}


def test_nothing_is_wrapped_where_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANYNPU_RECORD", raising=False)
    library = SoftwareLibrary("rk3588")
    before = dict(vars(library))
    assert vars(instrumented(library)) == before
    library.close()


def test_a_recording_under_faults_is_replayed_with_the_same_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [{"kind": "code", "call": "rknn_run", "code": "RKNN_ERR_TIMEOUT", "at": 2}]
    (tmp_path / "plan.json").write_text(json.dumps({"fault": entries}))
    monkeypatch.setenv("ANYNPU_RECORD", str(tmp_path / "trace.jsonl"))
    with faults.inject({"fault": entries}):
        library = instrumented(SoftwareLibrary("rk3588"))
        handle = opened(library, picture_model())
        assert set_picture(library, handle, pixels()) == 0
        assert [library.rknn_run(handle, ffi.NULL) for _ in range(3)] == [0, -2, 0]
        library.close()
    monkeypatch.delenv("ANYNPU_RECORD")
    command = ["replay", str(tmp_path / "trace.jsonl")]
    plain = CliRunner().invoke(app, command)
    assert plain.exit_code == 3
    assert "result: recorded -2, here 0" in plain.output
    monkeypatch.setenv("ANYNPU_FAULTS", str(tmp_path / "plan.json"))
    assert CliRunner().invoke(app, command).exit_code == 0
