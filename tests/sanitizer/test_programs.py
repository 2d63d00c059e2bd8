"""Wrong programs: the sanitizer finds their fault and nothing else. The same programs without it: nothing."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterator

import pytest

import anynpu
from anynpu.devtools.sanitizer import KINDS
from anynpu.devtools.sanitizer.memory import accesses_are_known
from anynpu.vip import SoftwareLibrary as VipLibrary

from .rknn_programs import NO_INPUT_FLUSH as INPUT
from .rknn_programs import NON_CACHEABLE, RKNN, TO_DEVICE, memory_array, picture
from .rknn_programs import Board as RknnBoard
from .vip_programs import VIP
from .vip_programs import Board as VipBoard

pytestmark = pytest.mark.usefixtures("only_own_libraries")


@pytest.fixture(autouse=True)
def sanitizer_is_sound(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What goes wrong inside the sanitizer is logged, and must not happen."""
    with caplog.at_level(logging.ERROR, "anynpu.devtools.sanitizer"):
        yield
    assert not [record for record in caplog.records if record.name == "anynpu.devtools.sanitizer"]


TOLD_BY_PAGES = {
    *("runs_on_memory_that_nobody_wrote", "runs_on_a_buffer_that_nobody_wrote", "multiplies_a_matrix_that_nobody_wrote"),
}


def need_pages(name: str) -> None:
    if name in TOLD_BY_PAGES and not accesses_are_known():
        pytest.skip("this system does not report which pages were touched")


@pytest.mark.parametrize("name", RKNN)
def test_rknn_programs(name: str) -> None:
    need_pages(name)
    finding, chip, program = RKNN[name]
    for wrong in (True, False):
        board = RknnBoard(chip)
        with anynpu.sanitize(check=False) as found:
            program(board, wrong)
        board.library.close()
        assert [one.id for one in found.findings] == ([finding] if wrong else []), found.text()
        for one in found.findings:
            assert any(frame.file.endswith("rknn_programs.py") for frame in one.stack.frames())


@pytest.mark.parametrize("name", VIP)
def test_vip_programs(name: str) -> None:
    need_pages(name)
    finding, chip, program = VIP[name]
    for wrong in (True, False):
        board = VipBoard(chip)
        with anynpu.sanitize(check=False) as found:
            program(board, wrong)
        board.library.close()
        assert [one.id for one in found.findings] == ([finding] if wrong else []), found.text()


def test_without_the_sanitizer_programs_do_what_they_did() -> None:
    """They assert the codes that they get; one asserts that it reads stale data, which it only does under the sanitizer."""
    for name, (_, chip, program) in RKNN.items():
        board = RknnBoard(chip)
        if name != "forgets_to_invalidate":
            program(board, True)
        board.library.close()


@pytest.mark.parametrize(("flags", "kind", "stale"), [(0, None, False), (INPUT, None, True), (INPUT, NON_CACHEABLE, False)])
@pytest.mark.parametrize("chip", ["rk3588", "rk3566"])
def test_what_is_not_flushed_is_stale_where_a_board_would_have_it_so(
    chip: str, flags: int, kind: int | None, stale: bool
) -> None:
    """Only with the flag that leaves flushing to the program, and only on memory with a cache."""

    def second_picture(board: RknnBoard) -> bytes:
        handle = board.open(flags)
        source, target = board.bind(handle, flags=kind)
        for number in (0, 1):
            board.write(source, picture(number))
            if number == 0:
                board.sync(handle, source, TO_DEVICE)
            assert board.run(handle) == 0
        result = memory_array(target).tobytes()
        board.close(handle, source, target)
        board.library.close()
        return result

    right = second_picture(RknnBoard(chip))
    with anynpu.sanitize(check=False) as found:
        seen = second_picture(RknnBoard(chip))
    assert (seen != right) == stale
    assert [one.id for one in found.findings] == (["input-not-flushed"] if stale else [])


def test_memory_that_outlives_the_block_stays_coherent() -> None:
    """A session that is opened in the block and used after it sees what it always saw."""
    board = RknnBoard()
    with anynpu.sanitize(check=False) as found:
        handle = board.open()
        source, target = board.bind(handle)
    assert [one.id for one in found.findings] == ["context-leak"]
    board.write(source)
    assert board.run(handle) == 0
    assert memory_array(target).any()
    board.close(handle, source, target)
    board.library.close()


def test_a_library_that_was_watched_ends_with_its_last_user() -> None:
    """A sanitizer goes through all libraries that are not closed for good: each block would take longer than the one before."""
    gc.disable()
    try:
        with anynpu.sanitize(check=False):
            library = VipLibrary("t527")
        watched = weakref.ref(library)
        del library
        assert watched() is None
    finally:
        gc.enable()


def test_there_are_enough_programs_and_they_find_every_kind() -> None:
    found = {finding for finding, _, _ in (*RKNN.values(), *VIP.values())}
    assert len(RKNN) + len(VIP) >= 60
    elsewhere = {name for name in KINDS if name.startswith(("stream-", "job-"))}  # tests/npu/rocket/test_checker.py
    assert set(KINDS) - found == elsewhere
