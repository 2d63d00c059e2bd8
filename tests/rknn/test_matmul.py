"""The Python class for products of matrices."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pytest
from documentation import blocks, section

from anynpu import chips
from anynpu.errors import DeviceClosed, ParameterError, ShapeError, TensorTypeError, UnsupportedCall
from anynpu.rknn import Matmul, SoftwareLibrary
from anynpu.rknn.constants import rknn_matmul_type

from .matmul_calls import TYPES, possible, random_matrix

B_LAYOUTS: tuple[Literal["normal", "native", "transposed"], ...] = ("normal", "native", "transposed")
AC_LAYOUTS: tuple[Literal["normal", "native"], ...] = ("normal", "native")


@pytest.fixture
def library() -> Iterator[SoftwareLibrary]:
    made = SoftwareLibrary("rk3588")
    yield made
    made.close()


@pytest.mark.parametrize("chip", ["rk3588", "rk3576"])
def test_all_types_and_layouts(chip: str) -> None:
    rng = np.random.default_rng(1)
    library = SoftwareLibrary(chip)
    for kind in possible(chip):
        a_type, b_type, c_type = TYPES[kind]
        a, b = random_matrix(rng, a_type, (3, 128)), random_matrix(rng, b_type, (128, 64))
        wanted = a.astype(np.float64) @ b
        if c_type in ("int8", "int16"):
            wanted = np.clip(wanted, np.iinfo(c_type).min, np.iinfo(c_type).max)
        for b_layout in B_LAYOUTS:
            for ac_layout in AC_LAYOUTS:
                with Matmul(3, 128, 64, kind, device=library, b_layout=b_layout, ac_layout=ac_layout) as product:
                    product.set_b(b)
                    c = product(a)
                assert c.dtype == ("float32" if c_type == "bfloat16" else c_type)
                exact = c_type.startswith("int")
                tolerance = 0 if exact else {"float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-2}[c_type] * np.abs(wanted).max()
                with np.errstate(over="ignore"):
                    finite = np.isfinite(wanted.astype(c.dtype))
                assert np.abs(c.astype(np.float64) - wanted)[finite].max() <= tolerance, (kind, b_layout, ac_layout)
    library.close()


def test_the_examples_of_the_page_run() -> None:
    names: dict[str, object] = {}
    found = blocks(section("rknn", "Matmul"))
    assert len(found) == 2
    for block in found:
        exec(compile(block, "rknn.md", "exec"), names)


@pytest.mark.parametrize(("row", "kinds"), [("rk3588", 1), ("rk3576", 2), ("rk3566", 3)])
def test_the_types_of_the_page_are_those_of_the_catalogue(row: str, kinds: int) -> None:
    table = section("rknn", "Matmul types")
    found = set()
    for line in re.findall(r"^\| (\w+ x \w+ -> .*) \|$", table, re.MULTILINE):
        product, *answers = (cell.strip() for cell in line.split("|"))
        factors, results = product.split(" -> ")
        if answers[kinds - 1] == "yes":
            found |= {(*factors.split(" x "), result.strip(" \\*")) for result in results.split(",")}
    assert found == set(chips.get(row).matmul_types)


def test_kinds_have_short_and_long_names(library: SoftwareLibrary) -> None:
    for kind, meant in (
        ("int8", 2),
        ("float16", 1),
        ("int4", 10),
        ("int8 x int8 -> float32", 9),
        ("int8,int8,int8", 3),
        (rknn_matmul_type.RKNN_FLOAT16_MM_FLOAT16_TO_FLOAT16, 4),
    ):
        with Matmul(1, 64, 64, kind, device=library) as product:
            assert product.kind == meant
    with pytest.raises(TensorTypeError, match="no product 'int7'"):
        Matmul(1, 64, 64, "int7", device=library)


def test_views_are_the_memory(library: SoftwareLibrary) -> None:
    with Matmul(2, 64, 32, "int8", device=library, b_layout="native", ac_layout="native") as product:
        assert (product.a.shape, product.b.shape, product.c.shape) == ((4, 2, 16), (1, 2, 32, 32), (8, 2, 4))
        product.a[:] = 1
        product.b[:] = 3
        product.run()
        assert (product.c == 192).all()
        product.b[0, 1, 5, 31] = 4  # k = 63, n = 5
        product.bind("B")
        product.run()
        assert product.result[:, 5].tolist() == [193, 193]
        assert product.result.base is None or not np.shares_memory(product.result, product.c)
    with Matmul(2, 64, 64, "int4", device=library) as product:
        assert product.a.shape == (64,)
        product.a[:] = 0x21
        product.set_b(np.ones((64, 64), np.int8))
        product.run()
        assert (product.c == 96).all()


def test_rows_may_vary(library: SoftwareLibrary) -> None:
    rng = np.random.default_rng(2)
    b = random_matrix(rng, "int8", (64, 32))
    with Matmul([1, 4, 16], 64, 32, device=library, ac_layout="native") as product:
        product.set_b(b)
        for rows in (4, 1, 16, 4):
            a = random_matrix(rng, "int8", (rows, 64))
            assert np.array_equal(product(a), a.astype(np.int64) @ b)
            assert (product.m, product.c.shape) == (rows, (8, rows, 4))
        with pytest.raises(ShapeError, match="A has 2 rows"):
            product(a[:2])
        assert repr(product).startswith("<Matmul [1, 4, 16] x 64 x 32, int8 x int8 -> int32, software NPU, rk3588")


def test_quantisation(library: SoftwareLibrary) -> None:
    rng = np.random.default_rng(3)
    a, b = random_matrix(rng, "int8", (2, 64)), random_matrix(rng, "int8", (64, 32))
    scales = rng.uniform(0.5, 1, 32).astype(np.float32)
    exact = a.astype(np.int64) @ b
    with Matmul(2, 64, 32, "int8", device=library, b_scales="channel") as product:
        product.set_b(b)
        product.set_quantization("B", scales)
        assert product.normalised_scale == scales.max()
        assert np.abs(product(a) * product.normalised_scale - exact * scales).max() <= 1
    with Matmul(2, 64, 32, "int8 x int8 -> float32", device=library, b_scales="group", group_size=32) as product:
        product.set_b(b)
        grouped = rng.uniform(0.5, 1, (2, 32)).astype(np.float32)
        product.set_quantization("B", grouped)
        wanted = sum((a[:, g * 32 : g * 32 + 32].astype(np.int64) @ b[g * 32 : g * 32 + 32]) * grouped[g] for g in range(2))
        assert np.allclose(product(a), wanted, rtol=1e-5)
    with Matmul(2, 64, 32, "int8 x int8 -> int8", device=library, symmetric=False) as product:
        product.set_b(b)
        product.set_quantization("A", 0.1, 4)
        product.set_quantization("B", 0.1, -3)
        product.set_quantization("C", 20.0, 7)
        shifted = (a.astype(np.int64) - 4) @ (b.astype(np.int64) + 3)
        assert np.abs(product(a) - np.clip(np.rint(shifted * 0.01 / 20) + 7, -128, 127)).max() <= 1
    with Matmul(2, 64, 32, "float16", device=library) as product, pytest.raises(ParameterError, match="float16, which is not"):
        product.set_quantization("A", 1.0)


def test_errors_say_what_is_wrong(library: SoftwareLibrary) -> None:
    with pytest.raises(ParameterError, match="K = 65 and N = 32 do not fit int8 x int8 -> int32 on rk3588") as caught:
        Matmul(1, 65, 32, device=library)
    assert caught.value.call == "rknn_matmul_create"
    assert "K is a multiple of 32" in caught.value.hint
    with Matmul(1, 64, 32, device=library) as product:
        wrong: Any
        for wrong in (np.zeros((1, 64), np.uint8), [[1] * 64]):
            with pytest.raises(TensorTypeError, match="int8 was meant"):
                product(wrong)
        with pytest.raises(ShapeError, match=r"B has shape \[32, 64\]"):
            product.set_b(np.zeros((32, 64), np.int8))
        with pytest.raises(ShapeError):
            product(np.zeros((1, 63), np.int8))
        with pytest.raises(ParameterError):
            product.set_core_mask(5)
        product.set_core_mask(7)
    with Matmul(1, 64, 64, "int4", device=library) as product, pytest.raises(TensorTypeError, match="int4 does not have"):
        product.set_b(np.full((64, 64), 8, np.int8))
    with pytest.raises(UnsupportedCall), Matmul(1, 64, 32, device="sim:rk3566") as product:
        product.set_core_mask(1)
    with pytest.raises(UnsupportedCall, match="rknn_matmul_create is not available on rv1106"):
        Matmul(1, 64, 32, device="sim:rv1106")


def test_closing(library: SoftwareLibrary) -> None:
    product = Matmul(1, 64, 32, device=library)
    product.close()
    product.close()
    for use in (product.run, lambda: product.a, lambda: product.result, lambda: product.set_core_mask(1)):
        with pytest.raises(DeviceClosed, match="the product was closed"):
            use()
    with pytest.raises(ParameterError):
        Matmul(1, 64, 32, device=library, core_mask=5)  # gives back what it had made
    forgotten = Matmul(1, 64, 32, device=library)
    del forgotten
    gc.collect()
    assert len(library.handles) == 0
    assert len(library.memories) == 0
