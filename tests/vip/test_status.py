"""Every status, and what leads to it; wrong targets, each as its generation answers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vendor_files import nb_file

from anynpu import chips
from anynpu._vip import ffi
from anynpu.vip import Network, SoftwareLibrary, check, vip_status_e
from anynpu.vip.constants import vip_network_property_e

from .support import CHIPS, FILE, Calls, small_file

SLOW = 1e-6
"""In real time at this speed, a run of ten microseconds takes ten seconds: time enough to cancel it."""

Opener = Callable[..., Calls]


def prepared(calls: Calls, *, timeout_ms: int = 0) -> Any:
    """A network that can run."""
    network, *_ = calls.ready()
    calls.ok(calls.library.vip_set_network(network, 68, ffi.new("uint32_t *", timeout_ms)))
    return network


def triggered(calls: Calls, *, timeout_ms: int = 0) -> Any:
    """A network whose job is on its way."""
    network = prepared(calls, timeout_ms=timeout_ms)
    calls.ok(calls.library.vip_trigger_network(network))
    return network


def until_busy(calls: Calls) -> None:
    device = calls.library.device_for(chips.get("t527"))
    deadline = time.monotonic() + 120
    while not device.scheduler.busy and time.monotonic() < deadline:
        time.sleep(0.001)


def success(opener: Opener) -> int:
    calls = opener()
    network, *_ = calls.ready()
    return int(calls.library.vip_run_network(network))


def timeout(opener: Opener) -> int:
    calls = opener(realtime=SLOW)
    return int(calls.library.vip_wait_network(triggered(calls, timeout_ms=30)))


def io(opener: Opener) -> int:
    calls = opener()
    params = ffi.new("vip_buffer_create_params_t *", {"num_of_dims": 1, "sizes": [64], "data_format": 2})
    return int(calls.library.vip_create_buffer_from_fd(params, 9999, 64, ffi.new("vip_buffer *")))


def invalid_arguments(opener: Opener) -> int:
    return int(opener().library.vip_create_network(ffi.NULL, 0, FILE, ffi.new("vip_network *")))


def not_supported(opener: Opener) -> int:
    return int(opener(init=False).library.vip_create_group(1, ffi.new("vip_group *")))


def out_of_resource(opener: Opener) -> int:
    calls = opener()
    group = ffi.new("vip_group *")
    calls.ok(calls.library.vip_create_group(1, group))
    calls.ok(calls.library.vip_add_network(group[0], calls.create(small_file())))
    return int(calls.library.vip_add_network(group[0], calls.create(small_file())))


def out_of_memory(opener: Opener) -> int:
    calls = opener("v853", memory=100)
    return int(calls.library.vip_prepare_network(calls.create(small_file("v853"))))


def invalid_network(opener: Opener) -> int:
    return int(opener().library.vip_create_network(ffi.new("char[]", b"missing.nb"), 0, FILE, ffi.new("vip_network *")))


def missing_input_output(opener: Opener) -> int:
    calls = opener()
    network = calls.create(small_file())
    calls.ok(calls.library.vip_prepare_network(network))
    return int(calls.library.vip_run_network(network))


def not_prepared(opener: Opener) -> int:
    calls = opener()
    network = calls.create(small_file())
    buffer = calls.buffer(calls.params(network, 0, is_input=True))
    return int(calls.library.vip_set_input(network, 0, buffer))


def incompatible(opener: Opener) -> int:
    calls = opener("t527")
    data = small_file("a733")
    return int(calls.library.vip_create_network(ffi.from_buffer(data), len(data), 2, ffi.new("vip_network *")))


def failure(opener: Opener) -> int:
    return int(opener().library.vip_flush_buffer(ffi.NULL, 1))


def power(property: int) -> Callable[[Opener], int]:
    def case(opener: Opener) -> int:
        calls = opener()
        network, *_ = calls.ready()
        calls.ok(calls.library.vip_power_management(ffi.NULL, property, ffi.NULL))
        return int(calls.library.vip_run_network(network))

    return case


def recovery(opener: Opener) -> int:
    calls = opener(realtime=SLOW)
    other = prepared(calls)
    for timeout_ms in (100, 1000, 10_000, 100_000):  # until it is time enough for both to be there
        hung = prepared(calls, timeout_ms=timeout_ms)
        calls.ok(calls.library.vip_trigger_network(hung))
        calls.ok(calls.library.vip_trigger_network(other))
        assert calls.library.vip_wait_network(hung) == -1
        calls.library.vip_cancel_network(other)  # if it came too late to be ended with the first
        found = int(calls.library.vip_wait_network(other))
        if found != vip_status_e.VIP_ERROR_CANCELED:
            break
    return found


def cancelled(opener: Opener) -> int:
    calls = opener(realtime=SLOW)
    network = triggered(calls)
    calls.ok(calls.library.vip_cancel_network(network))
    return int(calls.library.vip_wait_network(network))


CASES: dict[str, Callable[[Opener], int]] = {
    "VIP_SUCCESS": success,
    "VIP_ERROR_TIMEOUT": timeout,
    "VIP_ERROR_IO": io,
    "VIP_ERROR_INVALID_ARGUMENTS": invalid_arguments,
    "VIP_ERROR_NOT_SUPPORTED": not_supported,
    "VIP_ERROR_OUT_OF_RESOURCE": out_of_resource,
    "VIP_ERROR_OUT_OF_MEMORY": out_of_memory,
    "VIP_ERROR_INVALID_NETWORK": invalid_network,
    "VIP_ERROR_MISSING_INPUT_OUTPUT": missing_input_output,
    "VIP_ERROR_NETWORK_NOT_PREPARED": not_prepared,
    "VIP_ERROR_NETWORK_INCOMPATIBLE": incompatible,
    "VIP_ERROR_FAILURE": failure,
    "VIP_ERROR_POWER_OFF": power(2),
    "VIP_ERROR_POWER_STOP": power(8),
    "VIP_ERROR_RECOVERY": recovery,
    "VIP_ERROR_CANCELED": cancelled,
}


@pytest.mark.parametrize("name", CASES)
def test_each_status_can_be_reached(open_calls: Opener, name: str) -> None:
    assert vip_status_e(CASES[name](open_calls)).name == name


def test_the_sixteen_statuses_of_the_reference_have_a_case() -> None:
    assert set(CASES) == {status.name for status in vip_status_e if status > -16}


@pytest.mark.parametrize("status", [status for status in vip_status_e if status])
def test_each_status_is_an_exception_with_words(status: vip_status_e) -> None:
    library = SoftwareLibrary("t527")
    with pytest.raises(Exception, match=status.name) as caught:
        check(library, "vip_run_network", int(status))
    assert getattr(caught.value, "code", None) == status


def test_after_a_reset_the_npu_runs_again(open_calls: Opener) -> None:
    calls = open_calls(realtime=SLOW)
    hung = triggered(calls, timeout_ms=30)
    assert calls.library.vip_wait_network(hung) == -1
    calls.ok(calls.library.vip_set_network(hung, 68, ffi.new("uint32_t *", 0)))
    calls.ok(calls.library.vip_trigger_network(hung))
    calls.ok(calls.library.vip_cancel_network(hung))
    assert calls.library.vip_wait_network(hung) == -15


def test_a_job_that_only_waits_too_long_resets_nothing(open_calls: Opener) -> None:
    calls = open_calls(realtime=10 * SLOW)  # the first one is waited for
    first, late, patient = prepared(calls), prepared(calls, timeout_ms=30), prepared(calls)
    for network in (first, late, patient):
        calls.ok(calls.library.vip_trigger_network(network))
    assert calls.library.vip_wait_network(late) == -1
    calls.ok(calls.library.vip_wait_network(first))
    calls.ok(calls.library.vip_cancel_network(patient))
    assert calls.library.vip_wait_network(patient) == -15


def test_cancel_reaches_a_run_that_blocks(open_calls: Opener) -> None:
    calls = open_calls(realtime=SLOW)
    network, *_ = calls.ready()
    statuses: list[int] = []
    thread = threading.Thread(target=lambda: statuses.append(calls.library.vip_run_network(network)))
    thread.start()
    until_busy(calls)
    calls.ok(calls.library.vip_cancel_network(network))
    thread.join(120)
    assert statuses == [-15]


@pytest.mark.parametrize(("generation", "status"), [("A", -7), ("B", -10), ("C", -4)])
@pytest.mark.parametrize("own", [True, False])
def test_a_wrong_target_answers_as_the_generation_does(
    open_calls: Opener, tmp_path: Path, generation: str, status: int, own: bool
) -> None:
    chip = CHIPS[generation]
    other = CHIPS["A" if generation != "A" else "C"]
    target = chips.get(other).vip.customer_id  # type: ignore[union-attr]
    path = tmp_path / "model.nb"
    path.write_bytes(small_file(other) if own else nb_file(customer=target))
    calls = open_calls(chip)
    out = ffi.new("vip_network *", ffi.cast("vip_network", 1))
    assert calls.library.vip_create_network(ffi.new("char[]", os.fsencode(path)), 0, FILE, out) == status
    assert out[0] == ffi.NULL
    text = calls.why(status)
    assert f"binary target={target:#x}" in text
    assert f"actual target={chips.get(chip).vip.customer_id:#x}" in text  # type: ignore[union-attr]


def test_a_file_of_the_vendors_for_this_npu_says_what_to_do(open_calls: Opener, tmp_path: Path) -> None:
    path = tmp_path / "model.nb"
    path.write_bytes(nb_file(customer=0x10000016))
    calls = open_calls("t527")
    assert calls.library.vip_create_network(ffi.new("char[]", os.fsencode(path)), 0, FILE, ffi.new("vip_network *")) == -7
    failure = calls.library.last_error()
    assert failure is not None
    assert "twin" in failure.hint
    (tmp_path / "model.anynpu").write_bytes(small_file())
    calls.create(os.fsencode(path), FILE)  # its anynpu model


@pytest.mark.parametrize("kind", [0, 3, 8, 0x41, -1])
def test_network_types_that_do_not_exist(open_calls: Opener, kind: int) -> None:
    calls = open_calls()
    data = small_file()
    assert calls.library.vip_create_network(ffi.from_buffer(data), len(data), kind, ffi.new("vip_network *")) == -7


def test_modes_of_v85x(open_calls: Opener) -> None:
    calls = open_calls("v853")
    data = small_file("v853")
    out = ffi.new("vip_network *")
    calls.ok(calls.library.vip_create_network(ffi.from_buffer(data), len(data), 0x12, out))
    assert calls.library.vip_create_network(ffi.from_buffer(data), len(data), 0x22, out) == -4


@pytest.mark.parametrize("data", [b"", b"VPMN", b"VPMN" + bytes(200), small_file()[:500]])
def test_files_that_are_none(open_calls: Opener, data: bytes) -> None:
    calls = open_calls()
    status = calls.library.vip_create_network(ffi.from_buffer(data), len(data), 2, ffi.new("vip_network *"))
    assert status == (-7 if data else -3)


def test_python_sees_the_same(open_calls: Opener) -> None:
    from anynpu.errors import DeviceTimeout, JobCancelled, ModelError

    calls = open_calls(realtime=SLOW)
    with pytest.raises(ModelError, match="actual target=0x10000016"):
        Network(small_file("a733"), device=calls.library)
    with Network(small_file(), device=calls.library, timeout=0.03) as network:
        network.bind_input(0)
        with pytest.raises(DeviceTimeout, match="VIP_ERROR_TIMEOUT"):
            network.execute()
        network.set_property(vip_network_property_e.VIP_NETWORK_PROP_SET_TIME_OUT, ffi.new("uint32_t *", 0))
        network.trigger()
        network.cancel()
        with pytest.raises(JobCancelled):
            network.wait()


def test_models_that_viplite_has_no_word_for(open_calls: Opener) -> None:
    from dataclasses import replace

    from anynpu import modelfile

    from .support import small_model

    calls = open_calls()
    model = small_model()
    data = modelfile.to_bytes(replace(model, programs=(*model.programs, *model.programs)))
    assert calls.library.vip_create_network(ffi.from_buffer(data), len(data), 2, ffi.new("vip_network *")) == -7
    assert "2 sets of shapes" in calls.why(-7)
