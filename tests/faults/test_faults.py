"""Faults of jobs, calls, memory and models, through the RKNN calls, the VIPLite calls and sessions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rknn.matmul_calls import Calls as Matmul
from rknn.support import file_bytes, get_outputs, init, opened, picture_model, pixels, set_picture
from vip.support import FILE, Calls, small_file, small_model
from vip.support import picture as vip_picture

from anynpu import Device
from anynpu._rknn import ffi
from anynpu._vip import ffi as vip_ffi
from anynpu.devtools import faults
from anynpu.devtools.faults import SimulatedTime
from anynpu.errors import AnynpuError, DeviceMemoryError, DeviceTimeout, DeviceUnavailable, ModelError, OptionError
from anynpu.rknn import SoftwareLibrary
from anynpu.rknn.constants import Code, rknn_matmul_type
from anynpu.rknn.library import open_library
from anynpu.session import InferenceSession
from anynpu.vendors.libraries import instrumented
from anynpu.vip import SoftwareLibrary as VipSoftware
from anynpu.vip.constants import vip_status_e


def plan(*entries: dict[str, Any], seed: int = 1) -> dict[str, Any]:
    return {"seed": seed, "fault": list(entries)}


@pytest.mark.parametrize("code", [code for code in Code if code < 0], ids=lambda code: code.name)
def test_every_code_of_rknn(code: Code) -> None:
    with faults.inject(plan({"kind": "code", "call": "rknn_run", "code": code.name, "at": 2})):
        library = open_library("sim:rk3588")
        handle = opened(library, picture_model())
        assert set_picture(library, handle, pixels()) == 0
        answers = [library.rknn_run(handle, ffi.NULL) for _ in range(3)]
        assert answers == [0, int(code), 0]
        failure = library.last_error()
        assert failure is not None
        assert (failure.call, failure.code) == ("rknn_run", code)
        assert "fault plan" in failure.text


@pytest.mark.parametrize("status", [status for status in vip_status_e if status < 0], ids=lambda status: status.name)
def test_every_status_of_viplite(status: vip_status_e) -> None:
    with faults.inject(plan({"kind": "code", "call": "vip_run_network", "code": int(status), "at": 2})):
        library = instrumented(VipSoftware("a733"))
        calls = Calls(library)
        network, *_ = calls.ready(small_file("a733"))
        assert [library.vip_run_network(network) for _ in range(3)] == [0, status, 0]
        library.close()


def test_calls_that_return_pointers_and_places_for_results() -> None:
    with faults.inject(
        plan({"kind": "code", "call": "rknn_create_mem", "code": -5}, {"kind": "code", "call": "vip_create_network", "code": -6})
    ):
        library = open_library("sim:rk3588")
        handle = opened(library, picture_model())
        assert library.rknn_create_mem(handle, 64) == ffi.NULL
        assert library.rknn_create_mem(handle, 64) != ffi.NULL
        vip = instrumented(VipSoftware("t527"))
        assert vip.vip_init(0) == 0
        network = vip_ffi.new("vip_network *", vip_ffi.cast("vip_network", 77))
        data = small_file()
        assert vip.vip_create_network(vip_ffi.from_buffer(data), len(data), 2, network) == -6
        assert network[0] == vip_ffi.NULL
        vip.close()


@pytest.mark.parametrize("code", ["RKNN_ERR_NONE", -99])
def test_a_code_that_does_not_exist_is_refused_when_the_library_is_opened(code: int | str) -> None:
    with faults.inject(plan({"kind": "code", "call": "rknn_run", "code": code})), pytest.raises(OptionError, match=str(code)):
        open_library("sim:rk3588")


def test_a_plan_holds_for_its_block_only() -> None:
    before = open_library("sim:rk3588")
    with faults.inject(plan({"kind": "code", "call": "rknn_init", "code": -1, "times": 0})):
        inside = open_library("sim:rk3588")
        assert init(inside, picture_model())[0] == -1
        assert inside is not before
        assert init(before, picture_model())[0] == 0
    assert open_library("sim:rk3588") is before
    with faults.inject(plan()):
        assert open_library("sim:rk3588") is not inside, "what was opened in a block ends with it"


def outputs_of(device: Device, runs: int) -> list[Any]:
    with device, device.load(picture_model()).context() as context:
        found: list[Any] = []
        for _ in range(runs):
            try:
                found.append(context.run([pixels()], layout="nhwc")[0].tobytes())
            except AnynpuError as error:
                found.append(type(error))
    return found


def test_jobs_that_hang_are_lost_and_come_back() -> None:
    clock = SimulatedTime()
    faulty = plan({"kind": "hang", "at": 2, "seconds": 3}, {"kind": "lost", "at": 4, "times": 2}, {"kind": "timeout", "at": 7})
    with faults.inject(faulty, clock=clock) as injector:
        found = outputs_of(Device("rk3588"), 8)
    good = found[0]
    assert found == [good, DeviceTimeout, good, DeviceUnavailable, DeviceUnavailable, good, DeviceTimeout, good]
    assert clock.now() == 3
    assert injector.counts == {"hang": 1, "lost": 2, "timeout": 1}


def test_a_hang_ends_when_the_job_is_out_of_time() -> None:
    clock = SimulatedTime()
    with faults.inject(plan({"kind": "hang", "seconds": 1000}), clock=clock), Device("rk3588") as device:
        context = device.load(picture_model()).context()
        with pytest.raises(DeviceTimeout, match="in time"):
            context.run([pixels()], layout="nhwc", timeout=300)
        assert 0 < clock.now() <= 300
        context.run([pixels()], layout="nhwc", timeout=300)


def test_time_that_jobs_take() -> None:
    """In proportion to the first, which is slow by 3."""

    class Proportions(SimulatedTime):
        def __init__(self) -> None:
            super().__init__()
            self.waits = 0

        def wait(self, seconds: float, job: Any) -> None:
            self.waits += 1
            super().wait(seconds, job)

    clock = Proportions()
    faulty = plan({"kind": "slow", "factor": 3}, {"kind": "busy", "at": 2, "seconds": 7}, {"kind": "contention", "at": 3})
    with faults.inject(faulty, clock=clock):
        found = outputs_of(Device("rk3588"), 3)
    assert len(set(found)) == 1
    assert clock.waits == 2, "nobody else is there to contend with"
    assert clock.now() > 7


def test_a_chip_that_gets_hot_is_slower_step_by_step() -> None:
    from anynpu.devtools.faults import FaultyJobs, Injected

    throttle = faults.Fault("throttle", factor=3, ramp=4)
    contention = faults.Fault("contention", factor=3)
    jobs = FaultyJobs(faults.Injector(faults.Plan()), 3)
    assert [jobs._factor(Injected(throttle, n, n), 1) for n in (1, 2, 4, 9)] == [1.5, 2, 3, 3]
    assert [jobs._factor(Injected(contention, 1, 1), busy) for busy in (1, 2, 3)] == [1, 2, 3]


def test_one_wrong_bit_of_one_core() -> None:
    def run() -> list[list[Any]]:
        found = []
        with faults.inject(plan({"kind": "flip", "core": 1, "times": 0, "bit": 3})), Device("rk3588") as device:
            context = device.load(picture_model()).context()
            for core in (0, 1, 2, 1):
                found.append(context.run([pixels()], layout="nhwc", dequantize=False, mask=1 << core))
        return found

    right, first, other, second = run()
    for one, two in zip(right, other, strict=True):
        np.testing.assert_array_equal(one, two)
    for wrong in (first, second):
        bits = sum(int(np.unpackbits(a.view(np.uint8) ^ b.view(np.uint8)).sum()) for a, b in zip(right, wrong, strict=True))
        assert bits <= 1, "a byte of padding may be hit"
    again = run()
    np.testing.assert_array_equal(again[1][0], first[0])


def test_matrix_products_are_jobs_too() -> None:
    faulty = plan({"kind": "hang", "at": 2}, {"kind": "flip", "at": 3}, {"kind": "lost", "at": 5})
    with faults.inject(faulty, clock=SimulatedTime()), Matmul(open_library("sim:rk3588")) as calls:
        assert calls.create(4, 32, 32, int(rknn_matmul_type.RKNN_INT8_MM_INT8_TO_INT32)) == 0
        calls.allocate()
        calls.bytes("A")[:], calls.bytes("B")[:] = 3, 2
        found = []
        for _ in range(5):
            calls.bytes("C")[:] = 0
            found.append((calls.run(), calls.bytes("C").tobytes()))
    codes = [code for code, _ in found]
    assert codes == [0, Code.RKNN_ERR_TIMEOUT, 0, 0, Code.RKNN_ERR_DEVICE_UNAVAILABLE]
    right = found[0][1]
    assert set(np.frombuffer(right, np.int32).tolist()) == {3 * 2 * 32}
    assert found[3][1] == right
    wrong = np.frombuffer(right, np.uint8) ^ np.frombuffer(found[2][1], np.uint8)
    assert int(np.unpackbits(wrong).sum()) == 1


def test_memory_that_is_not_there() -> None:
    with faults.inject(plan({"kind": "memory", "megabytes": 0.001, "times": 0})), Device("rk3588") as device:
        with pytest.raises(DeviceMemoryError):
            device.load(picture_model())
        device.allocate(900).close()


def test_a_library_that_does_not_fit_and_a_model_that_is_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "small.nb"
    path.write_bytes(small_file())
    with faults.inject(plan({"kind": "version"}, {"kind": "model", "at": 2, "times": 2, "keep": 0.4})):
        library = open_library("sim:rk3588")
        data = file_bytes(picture_model())
        assert [init(library, data)[0] for _ in range(4)] == [
            *(Code.RKNN_ERR_DEVICE_UNMATCH, Code.RKNN_ERR_MODEL_INVALID, Code.RKNN_ERR_MODEL_INVALID, 0)
        ]
    with faults.inject(plan({"kind": "version"}, {"kind": "model", "at": 2}, {"kind": "lost", "at": 3})):
        vip = instrumented(VipSoftware("t527"))
        assert vip.vip_init(0) == 0
        network = vip_ffi.new("vip_network *")
        name = vip_ffi.new("char[]", bytes(path))
        answers = [vip.vip_create_network(name, 0, FILE, network) for _ in range(4)]
        assert answers == [vip_status_e.VIP_ERROR_NETWORK_INCOMPATIBLE, vip_status_e.VIP_ERROR_INVALID_NETWORK, -2, 0]
        vip.close()


def test_lost_and_hanging_jobs_through_the_calls() -> None:
    faulty = plan({"kind": "hang", "at": 1}, {"kind": "lost", "at": 3})
    with faults.inject(faulty, clock=SimulatedTime()):
        library = open_library("sim:rk3588")
        handle = opened(library, picture_model())  # one of the events that a lost device counts
        assert set_picture(library, handle, pixels()) == 0
        answers = [library.rknn_run(handle, ffi.NULL) for _ in range(3)]
        assert answers == [Code.RKNN_ERR_TIMEOUT, Code.RKNN_ERR_DEVICE_UNAVAILABLE, 0]
        assert get_outputs(library, handle, 2)
    with faults.inject(plan({"kind": "timeout", "at": 1}, {"kind": "lost", "at": 3}), clock=SimulatedTime()):
        vip = instrumented(VipSoftware("t527"))
        calls = Calls(vip)
        network, *_ = calls.ready()
        answers = [vip.vip_run_network(network) for _ in range(3)]
        assert answers == [vip_status_e.VIP_ERROR_TIMEOUT, vip_status_e.VIP_ERROR_IO, 0]
        vip.close()


@pytest.mark.parametrize(("make", "chip"), [(picture_model, "rk3588"), (small_model, "t527")])
def test_a_session_lives_on_after_each_fault(make: Callable[..., Any], chip: str, tmp_path: Path) -> None:
    path = make(chip).save(tmp_path / "model.rknn")
    array = pixels().transpose(0, 3, 1, 2) if chip == "rk3588" else vip_picture()
    faulty = plan({"kind": "timeout", "every": 3}, {"kind": "hang", "every": 4}, {"kind": "lost", "at": 9, "times": 3})
    with faults.inject(faulty, clock=SimulatedTime()) as injector:
        with InferenceSession(path, device=f"sim:{chip}") as session:
            name = session.get_inputs()[0].name
            futures = [session.submit(None, {name: array}) for _ in range(40)]
            kinds = [type(error) if (error := future.exception(timeout=300)) else None for future in futures]
            assert kinds.count(None) >= 17
            assert all(kind is None or issubclass(kind, AnynpuError) for kind in kinds)
            session.run(None, {name: array})
        assert injector.counts["hang"] >= 10


def test_a_model_that_is_cut_short_is_a_model_error(tmp_path: Path) -> None:
    path = picture_model().save(tmp_path / "model.rknn")
    with faults.inject(plan({"kind": "model"})):
        with pytest.raises(ModelError):
            InferenceSession(path, device="sim:rk3588")
        InferenceSession(path, device="sim:rk3588").close()


def test_nothing_is_wrapped_without_a_plan() -> None:
    library = SoftwareLibrary("rk3588")
    before = dict(vars(library))
    assert vars(instrumented(library)) == before
    with Device("rk3588") as device:
        assert device.faults is None
    library.close()
