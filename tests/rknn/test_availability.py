"""Which calls and queries each chip answers: the two tables of the C API reference 1.6.0, walked chip by chip.

``y`` is available, ``-`` is not. The columns are those of the reference: RK3562/RK3566/RK3568, RK3588, RV1106/RV1103. Chips that it does
not name belong to the column of their library and cores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anynpu import chips
from anynpu._rknn import ffi
from anynpu.program import Model
from anynpu.rknn import Flag, RknnLibrary, SoftwareLibrary, rknn_query_cmd
from anynpu.rknn.interface import functions

from .conftest import Open
from .support import (
    NULL,
    RKNN_CHIPS,
    attr,
    dynamic_model,
    init,
    opened,
    picture_model,
    pixels,
    set_picture,
)

CALLS = """
rknn_init                    y y y
rknn_set_core_mask           - y -
rknn_dup_context             y y -
rknn_destroy                 y y y
rknn_query                   y y y
rknn_inputs_set              y y -
rknn_run                     y y y
rknn_wait                    - - -
rknn_outputs_get             y y -
rknn_outputs_release         y y y
rknn_create_mem_from_mb_blk  - - -
rknn_create_mem_from_phys    y y y
rknn_create_mem_from_fd      y y y
rknn_create_mem              y y y
rknn_destroy_mem             y y y
rknn_set_weight_mem          y y y
rknn_set_internal_mem        y y y
rknn_set_io_mem              y y y
rknn_set_input_shapes        y y -
rknn_mem_sync                y y y
rknn_matmul_create           y y -
rknn_matmul_set_io_mem       y y -
rknn_matmul_set_core_mask    - y -
rknn_matmul_run              y y -
rknn_matmul_destroy          y y -
rknn_register_custom_ops     y y -
rknn_custom_op_get_op_attr   y y -
rknn_set_batch_core_num      - y -
"""

QUERIES = """
RKNN_QUERY_IN_OUT_NUM                  y y y
RKNN_QUERY_INPUT_ATTR                  y y y
RKNN_QUERY_OUTPUT_ATTR                 y y y
RKNN_QUERY_PERF_DETAIL                 y y -
RKNN_QUERY_PERF_RUN                    y y -
RKNN_QUERY_SDK_VERSION                 y y y
RKNN_QUERY_MEM_SIZE                    y y y
RKNN_QUERY_CUSTOM_STRING               y y y
RKNN_QUERY_NATIVE_INPUT_ATTR           y y y
RKNN_QUERY_NATIVE_OUTPUT_ATTR          y y y
RKNN_QUERY_NATIVE_NC1HWC2_INPUT_ATTR   y y y
RKNN_QUERY_NATIVE_NC1HWC2_OUTPUT_ATTR  y y y
RKNN_QUERY_NATIVE_NHWC_INPUT_ATTR      y y y
RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR     y y y
RKNN_QUERY_INPUT_DYNAMIC_RANGE         y y -
RKNN_QUERY_CURRENT_INPUT_ATTR          y y -
RKNN_QUERY_CURRENT_OUTPUT_ATTR         y y -
RKNN_QUERY_CURRENT_NATIVE_INPUT_ATTR   y y -
RKNN_QUERY_CURRENT_NATIVE_OUTPUT_ATTR  y y -
"""

COLUMN = {
    **dict.fromkeys(("rk3562", "rk3566", "rk3568", "rv1126b"), 0),
    **dict.fromkeys(("rk3588", "rk3576"), 1),
    **dict.fromkeys(("rv1103", "rv1106", "rv1103b", "rv1106b"), 2),
}
POINTERS = {"rknn_create_mem", "rknn_create_mem_from_fd", "rknn_create_mem_from_phys", "rknn_create_mem_from_mb_blk"}
ELSEWHERE = {name for name in functions() if "matmul" in name or "custom_op" in name or "normal_layout" in name}
"""Calls whose success other files test; where they are unavailable is tested here."""

Q = rknn_query_cmd


def rows(table: str) -> dict[str, list[bool]]:
    return {name: [cell == "y" for cell in cells] for name, *cells in map(str.split, table.strip().splitlines())}


class Board:
    """A library with a context of every kind that calls need, on one chip."""

    def __init__(self, library: RknnLibrary, chip: str) -> None:
        self.library = library
        self.chip = chip
        self.model = picture_model(chip)
        self.handle = opened(library, self.model)
        self.outside = opened(library, self.model, Flag.RKNN_FLAG_MEM_ALLOC_OUTSIDE)

    def bind_all(self) -> None:
        for command in (Q.RKNN_QUERY_NATIVE_INPUT_ATTR, Q.RKNN_QUERY_NATIVE_OUTPUT_ATTR):
            count = 1 if command == Q.RKNN_QUERY_NATIVE_INPUT_ATTR else 2
            for index in range(count):
                about = attr(self.library, self.handle, command, index)
                about.pass_through = command == Q.RKNN_QUERY_NATIVE_INPUT_ATTR
                memory = self.library.rknn_create_mem(self.handle, about.size_with_stride)
                assert self.library.rknn_set_io_mem(self.handle, memory, about) == 0

    def run(self) -> int:
        self.bind_all()
        return int(self.library.rknn_run(self.handle, NULL))

    def wait(self) -> int:
        self.bind_all()
        extend = ffi.new("rknn_run_extend *", {"non_block": 1})
        assert self.library.rknn_run(self.handle, extend) == 0
        return int(self.library.rknn_wait(self.handle, extend))

    def sizes(self) -> Any:
        answer = ffi.new("rknn_mem_size *")
        assert self.library.rknn_query(self.outside, Q.RKNN_QUERY_MEM_SIZE, answer, ffi.sizeof("rknn_mem_size")) == 0
        return answer

    def outputs_get(self) -> int:
        set_picture(self.library, self.handle, pixels())
        self.library.rknn_run(self.handle, NULL)
        return int(self.library.rknn_outputs_get(self.handle, 2, ffi.new("rknn_output[2]", [{"index": 0}, {"index": 1}]), NULL))

    def set_input_shapes(self) -> int:
        if COLUMN[self.chip] == 2:
            return int(self.library.rknn_set_input_shapes(self.handle, 1, ffi.new("rknn_tensor_attr[1]")))
        handle = opened(self.library, dynamic_model(self.chip))
        shapes = ffi.new("rknn_tensor_attr[2]")
        for index in (0, 1):
            shapes[index] = attr(self.library, handle, Q.RKNN_QUERY_INPUT_ATTR, index)[0]
        return int(self.library.rknn_set_input_shapes(handle, 2, shapes))

    def address(self) -> Any:
        self.kept = np.zeros(64, np.uint8)
        return ffi.cast("void *", self.kept.ctypes.data)


CALL: dict[str, Callable[[Board], Any]] = {
    "rknn_init": lambda b: init(b.library, b.model)[0],
    "rknn_set_core_mask": lambda b: b.library.rknn_set_core_mask(b.handle, 1),
    "rknn_dup_context": lambda b: b.library.rknn_dup_context(ffi.new("rknn_context *", b.handle), ffi.new("rknn_context *")),
    "rknn_destroy": lambda b: b.library.rknn_destroy(b.handle),
    "rknn_query": lambda b: b.library.rknn_query(b.handle, 0, ffi.new("rknn_input_output_num *"), 8),
    "rknn_inputs_set": lambda b: set_picture(b.library, b.handle, pixels()),
    "rknn_run": Board.run,
    "rknn_wait": Board.wait,
    "rknn_outputs_get": Board.outputs_get,
    "rknn_outputs_release": lambda b: b.library.rknn_outputs_release(b.handle, 2, ffi.new("rknn_output[2]")),
    "rknn_create_mem_from_mb_blk": lambda b: b.library.rknn_create_mem_from_mb_blk(b.handle, b.address(), 0),
    "rknn_create_mem_from_phys": lambda b: b.library.rknn_create_mem_from_phys(b.handle, 0x1000, b.address(), 64),
    "rknn_create_mem_from_fd": lambda b: b.library.rknn_create_mem_from_fd(b.handle, 3, b.address(), 64, 0),
    "rknn_create_mem": lambda b: b.library.rknn_create_mem(b.handle, 64),
    "rknn_destroy_mem": lambda b: b.library.rknn_destroy_mem(b.handle, b.library.rknn_create_mem(b.handle, 64)),
    "rknn_set_weight_mem": lambda b: b.library.rknn_set_weight_mem(
        b.outside, b.library.rknn_create_mem(b.outside, b.sizes().total_weight_size)
    ),
    "rknn_set_internal_mem": lambda b: b.library.rknn_set_internal_mem(
        b.outside, b.library.rknn_create_mem(b.outside, b.sizes().total_internal_size)
    ),
    "rknn_set_io_mem": lambda b: b.library.rknn_set_io_mem(
        b.handle,
        b.library.rknn_create_mem(b.handle, 10_000),
        attr(b.library, b.handle, Q.RKNN_QUERY_NATIVE_OUTPUT_ATTR),
    ),
    "rknn_set_input_shapes": Board.set_input_shapes,
    "rknn_mem_sync": lambda b: b.library.rknn_mem_sync(b.handle, b.library.rknn_create_mem(b.handle, 64), 1),
    "rknn_matmul_create": lambda b: b.library.rknn_matmul_create(
        ffi.new("rknn_matmul_ctx *"), ffi.new("rknn_matmul_info *"), ffi.new("rknn_matmul_io_attr *")
    ),
    "rknn_matmul_set_io_mem": lambda b: b.library.rknn_matmul_set_io_mem(b.handle, NULL, NULL),
    "rknn_matmul_set_core_mask": lambda b: b.library.rknn_matmul_set_core_mask(b.handle, 1),
    "rknn_matmul_run": lambda b: b.library.rknn_matmul_run(b.handle),
    "rknn_matmul_destroy": lambda b: b.library.rknn_matmul_destroy(b.handle),
    "rknn_register_custom_ops": lambda b: b.library.rknn_register_custom_ops(b.handle, NULL, 0),
    "rknn_set_batch_core_num": lambda b: b.library.rknn_set_batch_core_num(b.handle, 1),
}


def test_the_tables_are_whole() -> None:
    assert (len(rows(CALLS)), len(rows(QUERIES))) == (28, 19)
    assert set(CALL) == set(rows(CALLS)) - {"rknn_custom_op_get_op_attr"}  # which has no result that could report
    assert set(COLUMN) == set(RKNN_CHIPS)


@pytest.mark.parametrize("chip", RKNN_CHIPS)
def test_catalogue_has_the_table(chip: str) -> None:
    calls = chips.get(chip).calls
    assert {name: calls[name] for name in rows(CALLS)} == {name: cells[COLUMN[chip]] for name, cells in rows(CALLS).items()}


def outcome(library: SoftwareLibrary, chip: str, name: str) -> tuple[bool, int]:
    """Whether a call was answered, and its code."""
    result = CALL[name](Board(library, chip))
    if name in POINTERS:
        failure = library.last_error()
        return result != NULL, 0 if result != NULL else getattr(failure, "code", 0)
    return result == 0, result


def is_available(chip: str, name: str) -> bool:
    return rows(CALLS)[name][COLUMN[chip]] or name == "rknn_wait"  # works here, though no runtime of the vendor has it


@pytest.mark.parametrize(
    ("name", "chip"),
    [(name, chip) for name in sorted(CALL) for chip in RKNN_CHIPS if not (is_available(chip, name) and name in ELSEWHERE)],
)
def test_calls(chip: str, name: str, open_software: Open) -> None:
    available = is_available(chip, name)
    library = open_software(chip)
    answered, code = outcome(library, chip, name)
    assert (answered, code) == ((True, 0) if available else (False, -13))
    if not available:
        failure = library.last_error()
        assert failure is not None
        assert (failure.call, failure.code) == (name, -13)
        assert "is not available on" in failure.text


@pytest.mark.parametrize("chip", ["rk3566", "rk3588", "rv1106"])
@pytest.mark.parametrize("name", sorted(set(CALL) - ELSEWHERE))
def test_calls_of_a_library_that_follows_its_models(chip: str, name: str, open_software: Open) -> None:
    available = is_available(chip, name)
    assert outcome(open_software(), chip, name) == ((True, 0) if available else (False, -13))


def query(library: RknnLibrary, handle: int, command: int) -> tuple[int, Any]:
    """Ask with an answer of enough space for all of them."""
    room = ffi.new("rknn_input_range *")
    return int(library.rknn_query(handle, command, room, ffi.sizeof("rknn_input_range"))), room


def ready(library: RknnLibrary, model: Model) -> int:
    """A context with its shapes set that has run."""
    handle = opened(library, model, Flag.RKNN_FLAG_COLLECT_PERF_MASK)
    if len(model.programs) > 1:
        shapes = ffi.new("rknn_tensor_attr[]", len(model.inputs))
        for index in range(len(model.inputs)):
            shapes[index] = attr(library, handle, Q.RKNN_QUERY_INPUT_ATTR, index)[0]
        assert library.rknn_set_input_shapes(handle, len(model.inputs), shapes) == 0
    sides = ((Q.RKNN_QUERY_NATIVE_INPUT_ATTR, model.inputs), (Q.RKNN_QUERY_NATIVE_OUTPUT_ATTR, model.outputs))
    for command, specs in sides:
        for index in range(len(specs)):
            about = attr(library, handle, command, index)
            about.pass_through = command == Q.RKNN_QUERY_NATIVE_INPUT_ATTR
            assert library.rknn_set_io_mem(handle, library.rknn_create_mem(handle, about.size_with_stride), about) == 0
    assert library.rknn_run(handle, NULL) == 0
    return handle


@pytest.mark.parametrize("chip", RKNN_CHIPS)
def test_queries(chip: str, open_software: Open) -> None:
    mini = COLUMN[chip] == 2
    library = open_software(chip)
    handle = ready(library, picture_model(chip) if mini else dynamic_model(chip))
    for name, cells in rows(QUERIES).items():
        no_nhwc = name == "RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR" and chip in ("rv1103b", "rv1106b")
        available = cells[COLUMN[chip]] and not no_nhwc
        assert chips.get(chip).queries[name] == available, name
        code, answer = query(library, handle, rknn_query_cmd[name])
        answered = available or (name == "RKNN_QUERY_PERF_DETAIL" and mini)  # with an empty text: see the test of that query
        assert code == (0 if answered else -5), name
        if code:
            assert bytes(ffi.buffer(answer)) == bytes(ffi.sizeof("rknn_input_range")), name
            failure = library.last_error()
            assert failure is not None
            assert name in failure.text


@pytest.mark.parametrize("chip", RKNN_CHIPS)
def test_device_memory_query(chip: str, open_software: Open) -> None:
    """Not in the tables of 1.6.0: later ones give it to the small chips alone."""
    library = open_software(chip)
    code, _ = query(library, ready(library, picture_model(chip)), Q.RKNN_QUERY_DEVICE_MEM_INFO)
    assert code == (0 if COLUMN[chip] == 2 else -5)


@pytest.mark.parametrize("chip", RKNN_CHIPS)
def test_calls_of_later_versions(chip: str, open_software: Open) -> None:
    library = open_software(chip)
    handle = opened(library, picture_model(chip))
    assert library.rknn_create_mem2(handle, 64, 0) != NULL
    code = library.rknn_set_input_shape(handle, ffi.new("rknn_tensor_attr *"))
    failure = library.last_error()
    assert failure is not None
    assert failure.call == "rknn_set_input_shape"
    assert code == (-13 if COLUMN[chip] == 2 else -6)


def test_a_model_is_for_one_chip(open_software: Open) -> None:
    code, _ = init(open_software("rk3588"), picture_model("rk3566"))
    assert code == -13


@pytest.mark.parametrize("chip", RKNN_CHIPS)
def test_every_function_is_there(chip: str, open_software: Open) -> None:
    library = open_software(chip)
    missing = [name for name in functions() if not callable(getattr(library, name, None))]
    assert missing == []
