"""Every type of product on every chip, in every layout, against numpy; and the arithmetic of quantized products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from anynpu import chips
from anynpu._rknn import ffi
from anynpu.program.convert import bfloat16_to_float32
from anynpu.rknn import SoftwareLibrary
from anynpu.rknn.constants import rknn_matmul_type, rknn_tensor_type

from .matmul_calls import CHIPS, NUMPY, TYPES, Calls, native_b, native_rows, possible, random_matrix

Array = npt.NDArray[Any]
CASES = [pytest.param(chip, kind, id=f"{chip}-{kind.name[5:]}") for chip in CHIPS for kind in possible(chip)]
PER_LAYER_ASYM, PER_CHANNEL, PER_CHANNEL_ASYM, PER_GROUP, PER_GROUP_ASYM = 1, 2, 3, 4, 5


@pytest.fixture(scope="module")
def libraries() -> Iterator[dict[str, SoftwareLibrary]]:
    made = {chip: SoftwareLibrary(chip) for chip in CHIPS}
    yield made
    for library in made.values():
        library.close()


def b_rules(chip: str, types: tuple[str, ...]) -> Any:
    """The rules of B: its own; beside an A of another type those of the type that C is the sum of."""
    a, b, c = types
    return chips.get(chip).matmul[a if a == b else "int8" if c == "int32" else "float16"]


def c_block(chip: str, types: tuple[str, ...]) -> int:
    return {"int8": 16, "float16": 8, "bfloat16": 8}.get(types[2]) or chips.get(chip).matmul[types[0]].c_block


def read_c(calls: Calls, m: int, n: int, kind: str, block: int | None) -> Array:
    dtype = np.dtype(np.uint16 if kind == "bfloat16" else NUMPY[kind])
    flat = calls.bytes("C").view(dtype)
    if block is None:
        matrix = flat.reshape(m, n)
    else:
        matrix = np.array([[flat[((j // block) * m + i) * block + j % block] for j in range(n)] for i in range(m)], dtype)
    return bfloat16_to_float32(np.ascontiguousarray(matrix)) if kind == "bfloat16" else matrix.copy()


def expected(a: Array, b: Array, kind: str) -> Array:
    """The product without quantization."""
    if a.dtype == np.int8:
        exact = a.astype(np.int64) @ b.astype(np.int64)
        if kind in ("int8", "int16"):
            exact = np.clip(exact, *{"int8": (-128, 127), "int16": (-32768, 32767)}[kind])
        return exact
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for step in range(a.shape[1]):
        total = total + a[:, step : step + 1].astype(np.float32) * b[step].astype(np.float32)
    return total


def rounded(values: Array, kind: str) -> Array:
    """float32 as C holds it, bfloat16 as float32."""
    if kind == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16)
    if kind == "bfloat16":
        bits = values.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return values.astype(np.float32) if kind == "float32" else values


@pytest.mark.parametrize(("chip", "kind"), CASES)
def test_products_in_all_layouts(libraries: dict[str, SoftwareLibrary], chip: str, kind: rknn_matmul_type) -> None:
    rng = np.random.default_rng(int(kind))
    types = TYPES[kind]
    limits, rules = chips.get(chip).matmul[types[0]], b_rules(chip, types)
    for m, k, n in ((1, limits.k_multiple, limits.n_multiple), (5, 3 * limits.k_multiple, 2 * limits.n_multiple)):
        a, b = random_matrix(rng, types[0], (m, k)), random_matrix(rng, types[1], (k, n))
        wanted = rounded(expected(a, b, types[2]), types[2])
        orders = (b, native_b(b, rules.b_block_n, rules.b_block_k, rules.segment_k), b.T)
        for b_layout in (0, 1, 2) if limits.transposed_b else (0, 1):
            for ac_layout in (0, 1):
                with Calls(libraries[chip]) as calls:
                    assert calls.create(m, k, n, kind, B_layout=b_layout, AC_layout=ac_layout) == 0
                    calls.allocate()
                    calls.write("A", native_rows(a, limits.a_block) if ac_layout else a, types[0])
                    calls.write("B", orders[b_layout], types[1])
                    assert calls.run() == 0
                    block = c_block(chip, types) if ac_layout else None
                    assert np.array_equal(read_c(calls, m, n, types[2], block), wanted), (m, k, n, b_layout, ac_layout)


@pytest.mark.parametrize(("chip", "kind"), CASES)
def test_attributes(libraries: dict[str, SoftwareLibrary], chip: str, kind: rknn_matmul_type) -> None:
    types = TYPES[kind]
    limits, rules = chips.get(chip).matmul[types[0]], b_rules(chip, types)
    m, k, n = 3, 2 * limits.k_multiple, 3 * max(limits.n_multiple, 16)
    bits = {"int4": 4, "int8": 8, "float16": 16, "bfloat16": 16, "int16": 16, "int32": 32, "float32": 32}
    a_block, block = limits.a_block, c_block(chip, types)
    dims = {
        ("A", 0): (m, k),
        ("A", 1): (k // a_block, m, a_block),
        ("B", 0): (k, n),
        ("B", 1): (n // rules.b_block_n, k // rules.b_block_k, rules.b_block_n, rules.b_block_k),
        ("B", 2): (n, k),
        ("C", 0): (m, n),
        ("C", 1): (n // block, m, block),
    }
    for b_layout in (0, 1, 2) if limits.transposed_b else (0, 1):
        for ac_layout in (0, 1):
            with Calls(libraries[chip]) as calls:
                assert calls.create(m, k, n, kind, B_layout=b_layout, AC_layout=ac_layout) == 0
                for name, dtype, layout in zip("ABC", types, (ac_layout, b_layout, ac_layout), strict=True):
                    attribute = calls.attribute(name)
                    shape = dims[name, layout]
                    assert tuple(attribute.dims[i] for i in range(attribute.n_dims)) == shape
                    assert attribute.size == np.prod(shape) * bits[dtype] // 8
                    assert rknn_tensor_type(attribute.type).name == f"RKNN_TENSOR_{dtype.upper()}"


@pytest.mark.parametrize(("chip", "segment"), [("rk3588", 8192), ("rk3576", 4096)])
def test_long_k_in_segments(libraries: dict[str, SoftwareLibrary], chip: str, segment: int) -> None:
    rng = np.random.default_rng(17)
    k, n = 10240, 32
    a, b = random_matrix(rng, "int8", (2, k)), random_matrix(rng, "int8", (k, n))
    with Calls(libraries[chip]) as calls:
        assert calls.create(2, k, n, 2, B_layout=1) == 0
        calls.allocate()
        calls.write("A", a, "int8")
        calls.write("B", native_b(b, 32, 32, segment), "int8")
        assert calls.run() == 0
        assert np.array_equal(read_c(calls, 2, n, "int32", None), a.astype(np.int64) @ b)
        converted = np.empty(k * n, np.int8)
        code = calls.library.rknn_B_normal_layout_to_native_layout(
            ffi.from_buffer(np.ascontiguousarray(b)), ffi.from_buffer(converted), k, n, calls.info
        )
        assert code == 0
        assert np.array_equal(converted, native_b(b, 32, 32, segment))


def quantised(
    library: SoftwareLibrary,
    kind: int,
    a: Array,
    b: Array,
    fields: dict[str, int],
    parameters: dict[str, tuple[Any, Any]],
) -> Array:
    """C of a product with parameters."""
    types = TYPES[rknn_matmul_type(kind)]
    with Calls(library) as calls:
        assert calls.create(len(a), len(b), b.shape[1], kind, **fields) == 0, calls.why()
        calls.allocate()
        for name, (scale, zero_point) in parameters.items():
            assert calls.set_parameters(name, scale, zero_point) == 0, calls.why()
        calls.write("A", a, types[0])
        calls.write("B", b, types[1])
        assert calls.run() == 0, calls.why()
        return read_c(calls, len(a), b.shape[1], types[2], None)


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("by_channel", [False, True])
def test_int8_results(libraries: dict[str, SoftwareLibrary], asymmetric: bool, by_channel: bool) -> None:
    rng = np.random.default_rng(19)
    a, b = random_matrix(rng, "int8", (6, 96)), random_matrix(rng, "int8", (96, 64))
    za, zc = (9, -30) if asymmetric else (0, 0)
    zb = rng.integers(-20, 20, 64 if by_channel else 1) * int(asymmetric)
    sa, sc = np.float32(0.02), np.float32(0.4)
    sb = rng.uniform(0.01, 0.03, 64 if by_channel else 1).astype(np.float32)
    exact = (a.astype(np.int64) - za) @ (b.astype(np.int64) - zb)
    multiplier = (np.float64(sa) * sb / sc).astype(np.float32)
    wanted = np.clip(np.rint(exact.astype(np.float32) * multiplier) + zc, -128, 127)
    fields = {"B_quant_type": 2 * by_channel + asymmetric, "AC_quant_type": int(asymmetric)}
    c = quantised(libraries["rk3588"], 3, a, b, fields, {"A": (sa, za), "B": (sb, zb), "C": (sc, zc)})
    assert np.array_equal(c, wanted)
    assert (np.abs(c.astype(np.int32)) < 127).mean() > 0.5  # most are inside the limits, which would hide a difference


def test_int32_is_normalised_to_the_largest_scale_by_channel(libraries: dict[str, SoftwareLibrary]) -> None:
    rng = np.random.default_rng(23)
    a, b = random_matrix(rng, "int8", (6, 96)), random_matrix(rng, "int8", (96, 64))
    scales = rng.uniform(0.01, 0.03, 64).astype(np.float32)
    exact = a.astype(np.int64) @ b
    wanted = np.rint(exact * (scales.astype(np.float64) / scales.max()))
    c = quantised(libraries["rk3588"], 2, a, b, {"B_quant_type": PER_CHANNEL}, {"B": (scales, None)})
    assert np.array_equal(c, wanted)
    assert not np.array_equal(c, exact)
    same = quantised(libraries["rk3588"], 2, a, b, {"B_quant_type": PER_CHANNEL}, {"B": (np.full(64, 0.1), None)})
    assert np.array_equal(same, exact)
    unset = quantised(libraries["rk3588"], 2, a, b, {"B_quant_type": PER_CHANNEL}, {})
    assert np.array_equal(unset, exact)
    layer = quantised(libraries["rk3588"], 2, a, b, {}, {"A": (0.5, None), "B": (0.25, None)})
    assert np.array_equal(layer, exact)


@pytest.mark.parametrize("chip", ["rk3588", "rk3576"])
def test_integer_zero_points(libraries: dict[str, SoftwareLibrary], chip: str) -> None:
    rng = np.random.default_rng(29)
    kind, b_kind = (2, "int8") if chip == "rk3588" else (11, "int4")
    a, b = random_matrix(rng, "int8", (3, 64)), random_matrix(rng, b_kind, (64, 64))
    zeros = rng.integers(-8, 8, 64)
    c = quantised(
        libraries[chip],
        kind,
        a,
        b,
        {"B_quant_type": PER_CHANNEL_ASYM, "AC_quant_type": 1},
        {"A": (1.0, -77), "B": (np.ones(64), zeros)},
    )
    assert np.array_equal(c, (a.astype(np.int64) + 77) @ (b.astype(np.int64) - zeros))


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("scheme", ["layer", "channel", "group"])
@pytest.mark.parametrize("kind", [kind for kind in possible("rk3576") if TYPES[kind][1] != TYPES[kind][0]])
def test_mixed_types(libraries: dict[str, SoftwareLibrary], kind: rknn_matmul_type, scheme: str, asymmetric: bool) -> None:
    types = TYPES[kind]
    if types[2] == "int32" and scheme == "group":
        with Calls(libraries["rk3576"]) as calls:
            assert calls.create(1, 64, 64, kind, B_quant_type=PER_GROUP, group_size=32) == -5
            assert "PER_GROUP_SYM is not possible for int8 x int4 -> int32" in calls.why()
        return
    rng = np.random.default_rng(31)
    k, n, group = 96, 64, 32
    a, b = random_matrix(rng, types[0], (4, k)), random_matrix(rng, types[1], (k, n))
    shape = {"layer": (1,), "channel": (n,), "group": (k // group, n)}[scheme]
    scales = rng.uniform(0.001, 0.002, shape).astype(np.float32)
    zeros = rng.integers(-7, 7, shape) * int(asymmetric)
    sa = np.float32(1) if types[0] == "float16" else np.float32(0.03)
    za = 5 if asymmetric and types[0] == "int8" else 0
    fields = {
        "B_quant_type": {"layer": 0, "channel": 2, "group": 4}[scheme] + asymmetric,
        "AC_quant_type": int(asymmetric),
        "group_size": group,
    }
    parameters: dict[str, tuple[Any, Any]] = {"B": (scales, zeros)}
    if types[0] == "int8":
        parameters["A"] = (sa, za)
    c = quantised(libraries["rk3576"], kind, a, b, fields, parameters)
    if types[2] == "int32":
        exact = (a.astype(np.int64) - za) @ (b.astype(np.int64) - zeros)
        assert np.array_equal(c, np.rint(exact * (scales.astype(np.float64) / scales.max())))
        return
    total = np.zeros((4, n), np.float32)
    for first in range(0, k, group if scheme == "group" else k):
        part = slice(first, first + (group if scheme == "group" else k))
        index = first // group if scheme == "group" else slice(None)
        shifted = b[part].astype(np.int64) - zeros[index]
        sums = (a[:, part].astype(np.int64) - za) @ shifted if za or types[0] == "int8" else expected(a[:, part], shifted, "")
        total = total + sums.astype(np.float32) * (np.float64(sa) * scales[index]).astype(np.float32)
    assert np.array_equal(c, rounded(total, types[2]))


@pytest.mark.parametrize("scheme", [0, PER_LAYER_ASYM, PER_GROUP, PER_GROUP_ASYM])
def test_int8_to_float32(libraries: dict[str, SoftwareLibrary], scheme: int) -> None:
    rng = np.random.default_rng(37)
    k, n, group = 128, 32, 64
    a, b = random_matrix(rng, "int8", (3, k)), random_matrix(rng, "int8", (k, n))
    groups = k // group if scheme >= PER_GROUP else 1
    scales = rng.uniform(0.001, 0.002, (groups, n if scheme >= PER_GROUP else 1)).astype(np.float32)
    zeros = rng.integers(-9, 9, scales.shape) * (scheme % 2)
    fields = {"B_quant_type": scheme, "group_size": group}
    c = quantised(libraries["rk3588"], 9, a, b, fields, {"A": (0.5, None), "B": (scales, zeros)})
    total = np.zeros((3, n), np.float32)
    for index in range(groups):
        part = slice(index * k // groups, (index + 1) * k // groups)
        sums = a[:, part].astype(np.int64) @ (b[part].astype(np.int64) - zeros[index])
        total = total + sums.astype(np.float32) * (0.5 * scales[index].astype(np.float64)).astype(np.float32)
    assert np.array_equal(c, total)


def test_float16_accumulates_in_float32(libraries: dict[str, SoftwareLibrary]) -> None:
    a = np.full((1, 4096), 1, np.float16)
    b = np.full((4096, 16), 1, np.float16)
    assert (quantised(libraries["rk3588"], 1, a, b, {}, {}) == 4096).all()  # float16 sums would stick at 2048
    big = quantised(libraries["rk3588"], 4, a * 32, b, {}, {})
    assert np.isinf(big).all()  # 131072 is no float16


def test_int16_saturates(libraries: dict[str, SoftwareLibrary]) -> None:
    a, b = np.full((1, 1024), -8, np.int8), np.full((1024, 64), -8, np.int8)
    assert (quantised(libraries["rk3588"], 10, a, b, {}, {}) == 32767).all()
    assert (quantised(libraries["rk3588"], 10, a, -b - 1, {}, {}) == -32768).all()
