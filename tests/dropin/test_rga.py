"""librga: what its calls make of images, and programs in C and C++ that use them."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from typer.testing import CliRunner

from anynpu.cli.app import app
from anynpu.dropin.environment import library_folder

from .running import PROGRAMS, board_environment, build, clean_environment, run

Bytes = npt.NDArray[np.uint8]

RGBA, RGB, BGRA, RGB565, BGR, NV12, NV21, GREY = 0x0, 0x200, 0x300, 0x400, 0x700, 0xA00, 0xE00, 0x1500
NO_ERROR, SUCCESS, NOT_SUPPORTED, INVALID, ILLEGAL = 2, 1, -1, -3, -4
ROT_90, ROT_180, ROT_270, FLIP_H, FLIP_V, BLEND = 1, 2, 4, 8, 16, 64


class Rect(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("x", "y", "width", "height")]


class Buffer(ctypes.Structure):
    _fields_ = [
        ("vir_addr", ctypes.c_void_p),
        ("phy_addr", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("fd", "width", "height", "wstride", "hstride", "format", "color_space_mode")),
        *((name, ctypes.c_int) for name in ("global_alpha", "rd_mode", "color", "key_max", "key_min")),
        ("nn", ctypes.c_int * 6),
        ("rop_code", ctypes.c_int),
        ("handle", ctypes.c_uint32),
    ]


@cache
def rga() -> Any:
    library = ctypes.CDLL(str(library_folder() / "librga.so"))
    library.wrapbuffer_virtualaddr_t.restype = Buffer
    library.wrapbuffer_virtualaddr_t.argtypes = (ctypes.c_void_p, *(ctypes.c_int,) * 5)
    library.imStrError_t.restype = ctypes.c_char_p
    library.imresize_t.argtypes = (Buffer, Buffer, ctypes.c_double, ctypes.c_double, ctypes.c_int, ctypes.c_int)
    library.imcrop_t.argtypes = (Buffer, Buffer, Rect, ctypes.c_int)
    library.imcopy_t.argtypes = (Buffer, Buffer, ctypes.c_int)
    library.imcvtcolor_t.argtypes = (Buffer, Buffer, *(ctypes.c_int,) * 4)
    library.imfill_t.argtypes = (Buffer, Rect, ctypes.c_int, ctypes.c_int)
    library.imcheck_t.argtypes = (Buffer, Buffer, Buffer, Rect, Rect, Rect, ctypes.c_int)
    pointer = ctypes.c_void_p
    library.improcess_t.argtypes = (Buffer, Buffer, Buffer, Rect, Rect, Rect, ctypes.c_int, pointer, pointer, ctypes.c_int)
    return library


def wrap(array: Bytes, width: int, height: int, form: int, wstride: int = 0, hstride: int = 0) -> Buffer:
    buffer: Buffer = rga().wrapbuffer_virtualaddr_t(array.ctypes.data, width, height, wstride or width, hstride or height, form)
    return buffer


def noise(*shape: int, seed: int = 1) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def process(source: Buffer, target: Buffer, usage: int = 0, srect: Rect | None = None, drect: Rect | None = None) -> int:
    none = Rect()
    result: int = rga().improcess_t(source, target, Buffer(), srect or none, drect or none, none, -1, None, None, usage)
    return result


def linear(image: Bytes, height: int, width: int) -> Bytes:
    """Between the centers of pixels."""

    def axis(into: int, out: int) -> tuple[Any, Any, Any]:
        place = np.clip((np.arange(out) + 0.5) * into / out - 0.5, 0, into - 1)
        first = np.floor(place).astype(int)
        return first, np.minimum(first + 1, into - 1), place - first

    y0, y1, wy = axis(image.shape[0], height)
    x0, x1, wx = axis(image.shape[1], width)
    values = image.astype(np.float64)
    wx, wy = wx[None, :, None], wy[:, None, None]
    upper = values[y0][:, x0] * (1 - wx) + values[y0][:, x1] * wx
    lower = values[y1][:, x0] * (1 - wx) + values[y1][:, x1] * wx
    return np.rint(upper * (1 - wy) + lower * wy).astype(np.uint8)


@pytest.mark.parametrize(("height", "width"), [(12, 20), (3, 4), (7, 5), (6, 8)])
def test_resize(height: int, width: int) -> None:
    source, target = noise(6, 8, 3), np.zeros((height, width, 3), np.uint8)
    assert rga().imresize_t(wrap(source, 8, 6, RGB), wrap(target, width, height, RGB), 0, 0, 0, 1) == SUCCESS
    assert np.abs(target.astype(int) - linear(source, height, width)).max() <= 1


def test_orders_of_channels() -> None:
    source = noise(5, 7, 3)
    for form, order in ((BGR, [2, 1, 0]), (RGBA, [0, 1, 2]), (BGRA, [2, 1, 0])):
        target = np.zeros((5, 7, 3 if form == BGR else 4), np.uint8)
        assert rga().imcvtcolor_t(wrap(source, 7, 5, RGB), wrap(target, 7, 5, form), RGB, form, 0, 1) == SUCCESS
        np.testing.assert_array_equal(target[..., order], source)
        assert form == BGR or np.all(target[..., 3] == 255)


def test_strides_and_areas_leave_the_rest_alone() -> None:
    source, target = noise(10, 12, 3), np.full((9, 16, 3), 99, np.uint8)
    assert (
        process(wrap(source, 10, 8, RGB, 12, 10), wrap(target, 11, 9, RGB, 16, 9), 0, Rect(2, 3, 4, 5), Rect(6, 1, 4, 5))
        == SUCCESS
    )
    np.testing.assert_array_equal(target[1:6, 6:10], source[3:8, 2:6])
    target[1:6, 6:10] = 99
    assert np.all(target == 99)


def test_crop_copy_and_fill() -> None:
    source, target = noise(8, 8, 3), np.zeros((4, 2, 3), np.uint8)
    assert rga().imcrop_t(wrap(source, 8, 8, RGB), wrap(target, 2, 4, RGB), Rect(5, 3, 2, 4), 1) == SUCCESS
    np.testing.assert_array_equal(target, source[3:7, 5:7])
    copy = np.zeros_like(source)
    assert rga().imcopy_t(wrap(source, 8, 8, RGB), wrap(copy, 8, 8, RGB), 1) == SUCCESS
    np.testing.assert_array_equal(copy, source)
    assert rga().imcopy_t(wrap(source, 8, 8, RGB), wrap(target, 2, 4, RGB), 1) == INVALID
    assert rga().imfill_t(wrap(copy, 8, 8, RGB), Rect(1, 2, 3, 4), 0xFF332211 - 2**32, 1) == SUCCESS
    assert np.all(copy[2:6, 1:4] == [0x11, 0x22, 0x33])
    np.testing.assert_array_equal(copy[:, 4:], source[:, 4:])


def yuv(rgb: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """BT.601, limited range."""
    r, g, b = np.moveaxis(rgb, -1, 0)
    luma = 0.299 * r + 0.587 * g + 0.114 * b
    scaled = (luma * 219 / 255 + 16, (b - luma) / 1.772 * 224 / 255 + 128, (r - luma) / 1.402 * 224 / 255 + 128)
    return np.stack(scaled, -1)


@pytest.mark.parametrize(("form", "first"), [(NV12, 1), (NV21, 2)])
def test_video_there_and_back(form: int, first: int) -> None:
    blocks = noise(3, 4, 3).repeat(2, 0).repeat(2, 1)  # colors that two by two pixels share
    video = np.zeros(6 * 8 * 3 // 2, np.uint8)
    assert rga().imcvtcolor_t(wrap(blocks, 8, 6, RGB), wrap(video, 8, 6, form), RGB, form, 0, 1) == SUCCESS
    expected = yuv(blocks.astype(np.float64))
    assert np.abs(video[:48].reshape(6, 8) - expected[..., 0]).max() <= 1
    pairs = video[48:].reshape(3, 4, 2).astype(int)
    assert np.abs(pairs[..., 0] - expected[::2, ::2, first]).max() <= 1
    assert np.abs(pairs[..., 1] - expected[::2, ::2, 3 - first]).max() <= 1
    back = np.zeros_like(blocks)
    assert rga().imcvtcolor_t(wrap(video, 8, 6, form), wrap(back, 8, 6, RGB), form, RGB, 0, 1) == SUCCESS
    assert np.abs(back.astype(int) - blocks).max() <= 4, "two roundings of a limited range"
    same = np.zeros_like(video)
    assert rga().imcopy_t(wrap(video, 8, 6, form), wrap(same, 8, 6, form), 1) == SUCCESS
    np.testing.assert_array_equal(same, video)


def test_grey() -> None:
    source, grey, back = noise(4, 4, 3), np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3), np.uint8)
    assert rga().imcvtcolor_t(wrap(source, 4, 4, RGB), wrap(grey, 4, 4, GREY), RGB, GREY, 0, 1) == SUCCESS
    assert np.abs(grey - source @ np.array([0.299, 0.587, 0.114])).max() <= 0.51
    assert rga().imcvtcolor_t(wrap(grey, 4, 4, GREY), wrap(back, 4, 4, RGB), GREY, RGB, 0, 1) == SUCCESS
    np.testing.assert_array_equal(back, grey[..., None].repeat(3, 2))


@pytest.mark.parametrize(
    ("usage", "turned"),
    [
        (ROT_90, lambda image: np.rot90(image, -1)),
        (ROT_180, lambda image: np.rot90(image, 2)),
        (ROT_270, lambda image: np.rot90(image, 1)),
        (FLIP_H, lambda image: image[:, ::-1]),
        (FLIP_V, lambda image: image[::-1]),
    ],
)
def test_turns_and_mirrors(usage: int, turned: Any) -> None:
    source = noise(4, 6, 3)
    expected = turned(source)
    target = np.zeros(expected.shape, np.uint8)
    assert process(wrap(source, 6, 4, RGB), wrap(target, expected.shape[1], expected.shape[0], RGB), usage) == SUCCESS
    np.testing.assert_array_equal(target, expected)


def test_what_is_refused_says_why() -> None:
    picture = noise(4, 4, 3)
    good, none = wrap(picture, 4, 4, RGB), Rect()
    check = rga().imcheck_t
    assert check(good, good, Buffer(), none, none, none, 0) == NO_ERROR
    assert check(good, wrap(picture, 4, 4, RGB565), Buffer(), none, none, none, 0) == NOT_SUPPORTED
    assert check(good, good, Buffer(), none, none, none, BLEND) == NOT_SUPPORTED
    assert check(wrap(picture, 0, 4, RGB), good, Buffer(), none, none, none, 0) == ILLEGAL
    assert check(good, good, Buffer(), Rect(2, 2, 4, 1), none, none, 0) == INVALID
    assert b"2,2 4x1" in rga().imStrError_t(INVALID)
    assert process(good, good, BLEND) == NOT_SUPPORTED
    assert process(wrap(picture, 4, 4, RGB), Buffer(fd=-1, width=4, height=4, format=RGB)) == INVALID


@pytest.mark.parametrize(("compiler", "standard"), [("cc", "-std=gnu11"), ("c++", "-std=gnu++11")])
def test_programs_in_both_languages(compiler: str, standard: str, tmp_path: Path) -> None:
    copy = tmp_path / ("pictures.cpp" if compiler == "c++" else "pictures.c")
    copy.write_bytes((PROGRAMS / "pictures.c").read_bytes())
    program = build(str(copy), tmp_path / "pictures", standard, compiler=compiler, library="rga")
    assert run([program], board_environment("rk3588")).stdout == "done\n"


def test_a_program_that_was_compiled_with_the_public_layout(tmp_path: Path) -> None:
    program = build("rga_public.cpp", tmp_path / "public", "-std=c++11", compiler="c++", library="rga")
    assert run([program], board_environment("rk3588")).stdout == "done\n"


def test_a_program_that_declares_all_other_calls(tmp_path: Path) -> None:
    program = build("rga_absent.cpp", tmp_path / "absent", "-std=c++11", compiler="c++", library="rga")
    assert run([program], board_environment("rk3588")).stdout == "done\n"


def test_a_c_program_that_letterboxes_with_improcess(tmp_path: Path) -> None:
    program = build("rga_letterbox.c", tmp_path / "letterbox", "-std=gnu11", library="rga")
    command = [sys.executable, "-m", "anynpu.cli", "exec", "--chip", "rk3588", "--", program, tmp_path / "box"]
    assert run(command, clean_environment(LD_LIBRARY_PATH=None)).stdout == "done\n"
    box = np.fromfile(tmp_path / "box", np.uint8).reshape(16, 16, 3)
    np.testing.assert_array_equal(box[4:12], (np.arange(8 * 16 * 3) * 7).astype(np.uint8).reshape(8, 16, 3))
    assert np.all(box[:4] == 0x72)
    assert np.all(box[12:] == 0x72)


CONSTANT, REFLECT, WRAP = 0, 2, 3


@pytest.mark.parametrize(("kind", "mode"), [(CONSTANT, "constant"), (REFLECT, "symmetric"), (WRAP, "wrap")])
@pytest.mark.parametrize(("top", "bottom", "left", "right"), [(1, 2, 3, 4), (0, 0, 9, 0), (13, 0, 0, 1)])
def test_borders(kind: int, mode: Any, top: int, bottom: int, left: int, right: int) -> None:
    source = noise(5, 7, 3)
    target = np.zeros((5 + top + bottom, 7 + left + right, 3), np.uint8)
    from_, into = wrap(source, 7, 5, RGB), wrap(target, target.shape[1], target.shape[0], RGB)
    border = rga().immakeBorderAsync
    border.argtypes = (Buffer, Buffer, *(ctypes.c_int,) * 8, ctypes.c_void_p)
    assert border(from_, into, top, bottom, left, right, kind, 0x302010, 1, -1, None) == SUCCESS
    around = ((top, bottom), (left, right))
    filled = {"constant_values": 0} if mode == "constant" else {}
    expected = np.stack([np.pad(source[..., c], around, mode, **filled) for c in range(3)], axis=-1)
    if mode == "constant":
        outside = np.pad(np.zeros((5, 7), bool), around, constant_values=True)
        expected[outside] = (0x10, 0x20, 0x30)
    np.testing.assert_array_equal(target, expected)
    assert border(from_, from_, top, bottom, left, right, kind, 0, 1, -1, None) == INVALID
    assert border(from_, into, -1, 0, 0, 0, kind, 0, 1, -1, None) == INVALID
    assert border(from_, into, 0, 0, 0, 0, 1, 0, 1, -1, None) == INVALID


def test_translations_and_rectangles() -> None:
    source, target = noise(5, 7, 3), np.full((5, 7, 3), 9, np.uint8)
    translate, rectangle = rga().imtranslate_t, rga().imrectangle_t
    translate.argtypes = (Buffer, Buffer, *(ctypes.c_int,) * 3)
    rectangle.argtypes = (Buffer, Rect, ctypes.c_uint32, ctypes.c_int, ctypes.c_int)
    assert translate(wrap(source, 7, 5, RGB), wrap(target, 7, 5, RGB), 2, 1, 1) == SUCCESS
    np.testing.assert_array_equal(target[1:, 2:], source[:-1, :-2])
    assert np.all(target[0] == 9)
    assert np.all(target[:, :2] == 9)
    assert translate(wrap(source, 7, 5, RGB), wrap(target, 7, 5, RGB), 7, 0, 1) == INVALID
    target[:] = 9
    assert rectangle(wrap(target, 7, 5, RGB), Rect(1, 0, 5, 5), 0x030201, 1, 1) == SUCCESS
    expected = np.full_like(target, 9)
    expected[0:5, 1:6] = (1, 2, 3)
    expected[1:4, 2:5] = 9
    np.testing.assert_array_equal(target, expected)
    assert rectangle(wrap(target, 7, 5, RGB), Rect(1, 0, 5, 5), 0x030201, -1, 1) == SUCCESS
    assert np.all(target[:, 1:6] == (1, 2, 3))
    assert rectangle(wrap(target, 7, 5, RGB), Rect(4, 0, 5, 5), 0, 1, 1) == INVALID
    assert rectangle(wrap(target, 7, 5, RGB), Rect(0, 0, 5, 5), 0, 0, 1) == INVALID


@pytest.mark.parametrize("name", ["rknnrt", "rknnmrt", "rga", "VIPlite", "NBGlinker", "awnn"])
def test_builds_find_every_library(name: str) -> None:
    done = CliRunner().invoke(app, ["lib", "--libs", "-l", name])
    assert done.exit_code == 0
    assert f"-l{name}" in done.output.split()
    package = library_folder() / "pkgconfig" / f"{name}.pc"
    assert f"-l{name}" in package.read_text()
    assert (library_folder() / f"lib{name}.so").is_file()
