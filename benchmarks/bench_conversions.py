"""The conversion kernels beside memcpy of the same bytes and beside numpy."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from anynpu._native import ffi, lib
from anynpu.program import Preprocess
from anynpu.program.convert import convert
from anynpu.tensor import Affine, DType, Layout, TensorSpec

from . import interleaved, print_table

Array = np.ndarray[Any, Any]

IMAGE = (1, 3, 640, 640)
HEAD = (1, 255, 80, 80)
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
INPUT = Affine.per_tensor(0.018658, -14)
OUTPUT = Affine.per_tensor(0.0039, -128)
BLOCK = 16


@dataclass(frozen=True)
class Case:
    """One conversion, the same in numpy, and how many times the time of memcpy it may take (None: no goal)."""

    name: str
    source: TensorSpec
    target: TensorSpec
    numpy: Callable[[Array], Array]
    goal: float | None
    preprocess: Preprocess | None = None


def _spec(shape: tuple[int, ...], dtype: DType, layout: Layout, quantization: Affine | None = None) -> TensorSpec:
    return TensorSpec("x", shape, dtype, layout, quantization, c2=BLOCK if layout is Layout.NC1HWC2 else 0)


def _quantized(values: Array, quantization: Affine) -> Array:
    codes: Array = np.rint(values / np.float32(quantization.scale)) + np.float32(quantization.zero_point)
    return codes.clip(-128, 127).astype(np.int8)


def _normalized(image: Array) -> Array:
    return _quantized((image.astype(np.float32) - np.array(MEAN, np.float32)) / np.array(STD, np.float32), INPUT)


def _dequantized(codes: Array) -> Array:
    values: Array = (codes.astype(np.float32) - np.float32(OUTPUT.zero_point)) * np.float32(OUTPUT.scale)
    return values


def _packed(codes: Array) -> Array:
    n, c, h, w = codes.shape
    blocks = -(-c // BLOCK)
    padded = np.pad(codes, ((0, 0), (0, blocks * BLOCK - c), (0, 0), (0, 0)), constant_values=OUTPUT.zero_point)
    return np.ascontiguousarray(padded.reshape(n, blocks, BLOCK, h, w).transpose(0, 1, 3, 4, 2))


def _unpacked(codes: Array) -> Array:
    n, blocks, h, w, _ = codes.shape
    return np.ascontiguousarray(codes.transpose(0, 1, 4, 2, 3).reshape(n, blocks * BLOCK, h, w)[:, : HEAD[1]])


def _cases() -> list[Case]:
    pixels, floats = _spec(IMAGE, DType.UINT8, Layout.NHWC), _spec(IMAGE, DType.FLOAT32, Layout.NCHW)
    codes = _spec(IMAGE, DType.INT8, Layout.NHWC, INPUT)
    nchw, nhwc, blocks = (_spec(HEAD, DType.INT8, layout, OUTPUT) for layout in (Layout.NCHW, Layout.NHWC, Layout.NC1HWC2))
    values = _spec(HEAD, DType.FLOAT32, Layout.NCHW)
    whole = _spec(IMAGE, DType.INT8, Layout.NHWC, Affine.per_tensor(1 / 255, -128))
    to_nhwc: Callable[[Array], Array] = lambda x: np.ascontiguousarray(x.transpose(0, 2, 3, 1))  # noqa: E731
    to_nchw: Callable[[Array], Array] = lambda x: np.ascontiguousarray(x.transpose(0, 3, 1, 2))  # noqa: E731
    return [
        Case("image 640x640x3, mean and std, u8 to i8", pixels, codes, _normalized, 5, Preprocess(MEAN, STD)),
        Case(
            "image 640x640x3, std 255, u8 to i8", pixels, whole, lambda x: (x ^ 0x80).view(np.int8), 5, Preprocess((0,), (255,))
        ),
        Case("quantize 640x640x3, f32 nchw to i8 nhwc", floats, codes, lambda x: to_nhwc(_quantized(x, INPUT)), None),
        Case("dequantize 255x80x80, i8 to f32", nchw, values, _dequantized, 3),
        Case("dequantize 255x80x80, i8 nhwc to f32 nchw", nhwc, values, lambda x: _dequantized(to_nchw(x)), 3),
        Case("dequantize 255x80x80, i8 nc1hwc2 to f32 nchw", blocks, values, lambda x: _dequantized(_unpacked(x)), 3),
        Case("pack 255x80x80, i8 nchw to nc1hwc2", nchw, blocks, _packed, 3),
        Case("unpack 255x80x80, i8 nc1hwc2 to nchw", blocks, nchw, _unpacked, 3),
        Case("pack 255x80x80, i8 nhwc to nc1hwc2", nhwc, blocks, lambda x: _packed(to_nchw(x)), 3),
        Case("unpack 255x80x80, i8 nc1hwc2 to nhwc", blocks, nhwc, lambda x: to_nhwc(_unpacked(x)), 3),
        Case("nhwc to nchw 255x80x80, i8", nhwc, nchw, to_nchw, None),
        Case(
            "cast 640x640x3, f32 to f16", floats, _spec(IMAGE, DType.FLOAT16, Layout.NCHW), lambda x: x.astype(np.float16), None
        ),
    ]


def _memory(spec: TensorSpec) -> Array:
    rng = np.random.default_rng(0)
    if spec.dtype.is_float:
        return rng.normal(size=spec.memory_shape).astype(spec.dtype.storage)
    low, high = spec.dtype.limits
    return rng.integers(low, high, spec.memory_shape, spec.dtype.storage, endpoint=True)


def main() -> None:
    """Print the table. memcpy copies as many bytes as the larger side has."""
    rows = []
    for case in _cases():
        source = _memory(case.source)
        target = convert(source, case.source, case.target, preprocess=case.preprocess)
        if not np.array_equal(target, case.numpy(source)):
            raise RuntimeError(f"{case.name}: numpy gives another result")
        larger = np.zeros(max(source.nbytes, target.nbytes), np.uint8)
        copy = np.zeros_like(larger)
        # numpy on its own: its temporaries would push the others' buffers out of the cache and flatter the ratio
        times = interleaved(
            {
                "ours": partial(convert, source, case.source, case.target, target, case.preprocess),
                "memcpy": partial(np.copyto, copy, larger),
            }
        ) | interleaved({"numpy": partial(case.numpy, source)}, rounds=15)
        ratio = times["ours"] / times["memcpy"]
        verdict = "" if case.goal is None else f"{case.goal:g} {'ok' if ratio <= case.goal else 'MISSED'}"
        rows.append(
            [
                case.name,
                *(f"{times[name] * 1e6:.0f}" for name in ("ours", "memcpy", "numpy")),
                f"{ratio:.2f}",
                verdict,
                f"{times['numpy'] / times['ours']:.1f}",
            ]
        )
    level = ffi.string(lib.anynpu_level()).decode()
    header = ["us", "ours", "memcpy", "numpy", "ours/memcpy", "goal", "numpy/ours"]
    print_table(f"conversions, one thread, {level}", header, rows)


def soak() -> None:
    """A hundred thousand conversions of every kind leave the peak memory where it was."""
    cases = [(case, _memory(case.source)) for case in _cases()]
    prepared = [(case, source, convert(source, case.source, case.target, preprocess=case.preprocess)) for case, source in cases]

    def some(count: int) -> None:
        for number in range(count):
            case, source, target = prepared[number % len(prepared)]
            convert(source, case.source, case.target, target, case.preprocess)

    some(1000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    some(100_000)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"\n100000 conversions: peak memory grew by {grown} KiB")
    if grown > 1024:
        raise RuntimeError(f"conversions leak: {grown} KiB in 100000 calls")
