"""Operators in Python work with any library that keeps to the interface: here one in C that knows nothing of ours."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from anynpu._rknn import ffi
from anynpu.errors import CallFailed, CustomOperatorError, DeviceClosed
from anynpu.rknn import CustomOperator, OperatorCall, VendorLibrary, check
from anynpu.rknn.custom_operators import register

from .customop_helpers import build_plugin, function

HANDLE = 77


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_plugin(Path(__file__).with_name("custom_vendor.c"), tmp_path_factory.mktemp("vendor"))


def scale(call: OperatorCall) -> None:
    np.multiply(call.inputs[0].array, call.attr("gain") + call.attr("missing", 0), out=call.outputs[0].array)


def test_an_operator_in_python_on_a_library_in_c(path: Path) -> None:
    library = VendorLibrary(path)
    notes: list[str] = []

    def init(call: OperatorCall) -> None:
        call.private = notes
        notes.append(f"init {call.inputs[0].name} {call.inputs[0].shape} {call.outputs[0].name}")

    def destroy(call: OperatorCall) -> None:
        call.private.append("destroy")

    registration = register(
        library,
        HANDLE,
        [CustomOperator("Scale", scale, init=init, prepare=lambda call: notes.append("prepare"), destroy=destroy)],
    )
    assert library.rknn_run(HANDLE, ffi.NULL) == 0
    output = function(ctypes.CDLL(str(path)), "vendor_output", "float *(*)(void)")()
    assert ffi.unpack(output, 4) == [0.0, 2.5, 5.0, 7.5]
    assert library.rknn_destroy(HANDLE) == 0
    assert notes == ["init x (1, 4) y", "prepare", "destroy"]
    assert registration.take_failure() is None


def failing(call: OperatorCall) -> None:
    raise LookupError("nothing there")


def test_exceptions_come_back_as_the_cause(path: Path) -> None:
    library = VendorLibrary(path)
    with pytest.raises(CustomOperatorError) as caught:
        register(library, HANDLE, [CustomOperator("Scale", scale, init=failing)])
    assert isinstance(caught.value.__cause__, LookupError)
    with pytest.raises(DeviceClosed):
        register(library, HANDLE + 1, [CustomOperator("Scale", scale)])
    registration = register(library, HANDLE, [CustomOperator("Scale", failing)])
    code = library.rknn_run(HANDLE, ffi.NULL)
    with pytest.raises(CustomOperatorError) as again:
        check(library, "rknn_run", code, cause=registration.take_failure())
    assert isinstance(again.value.__cause__, LookupError)
    with pytest.raises(CallFailed):
        check(library, "rknn_run", code, cause=registration.take_failure())
    library.rknn_destroy(HANDLE)
