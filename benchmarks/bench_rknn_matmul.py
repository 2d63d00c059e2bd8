"""``rknn_matmul_run`` in int8 beside onnxruntime's MatMulInteger, called directly; what the layouts cost is listed apart.

onnxruntime has the right factor as a constant, which it packs once. It multiplies unsigned by signed bytes fast and signed by signed
slowly, so both are shown: the same operands, and the fastest that it can do with as many products.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from anynpu._rknn import ffi
from anynpu.rknn import Matmul, SoftwareLibrary
from anynpu.rknn.software.matmul import from_blocks, to_blocks

from . import print_table
from .engine_timing import cpu_times, verdict

SHAPES = (
    (1024, 1024, 1024),
    (1, 4096, 4096),
    (2, 4096, 4096),
    (4, 4096, 4096),
    (8, 4096, 4096),
    (16, 4096, 4096),
    (32, 4096, 4096),
)
LAYOUTS = {
    "normal": ("normal", "normal"),
    "B native": ("native", "normal"),
    "B transposed": ("transposed", "normal"),
    "all native": ("native", "native"),  # A and C are converted in each run
}
SECONDS = 2.0
GOAL = 1.0

Array = npt.NDArray[Any]


def session(m: int, b: Array, a_type: int) -> Any:
    """MatMulInteger of an input and the constant *b*, on one thread."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    k, n = b.shape
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["a", "b"], ["c"])],
        "product",
        [helper.make_tensor_value_info("a", a_type, [m, k])],
        [helper.make_tensor_value_info("c", TensorProto.INT32, [m, n])],
        [numpy_helper.from_array(b, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def main() -> None:
    """One table of products and one of conversions: one thread, CPU time, candidates that take turns."""
    from onnx import TensorProto

    library = SoftwareLibrary("rk3588")
    products, conversions = [], []
    for m, k, n in SHAPES:
        rng = np.random.default_rng(k)
        a, b = (rng.integers(-128, 128, shape, np.int8) for shape in ((m, k), (k, n)))
        signed, unsigned = session(m, b, TensorProto.INT8), session(m, b, TensorProto.UINT8)
        shifted = a.view(np.uint8) ^ 0x80
        slow = {"signed": partial(signed.run, None, {"a": a})}
        candidates: dict[str, Any] = {"unsigned": partial(unsigned.run, None, {"a": shifted})}
        made = []
        for name, (b_layout, ac_layout) in LAYOUTS.items():
            product = Matmul(m, k, n, "int8", device=library, b_layout=b_layout, ac_layout=ac_layout)  # type: ignore[arg-type]
            product.set_b(b)
            if not np.array_equal(product(a), signed.run(None, {"a": a})[0]):
                raise AssertionError("the two disagree")
            made.append(product)
            candidates[name] = product.run
        times = cpu_times(candidates, SECONDS) | cpu_times(slow, SECONDS / 4)  # apart: the others take more turns without it
        for name in LAYOUTS:
            ratio = times[name].best / times["unsigned"].best
            products.append(
                [
                    f"{m} x {k} x {n}",
                    name,
                    *(times[column].milliseconds for column in (name, "signed", "unsigned")),
                    f"{times[name].best / times['signed'].best:.2f}",
                    f"{ratio:.2f}",
                    verdict(ratio, GOAL) if name != "all native" else "-",
                ]
            )
        conversions.append([f"{m} x {k} x {n}", *_conversions(library, a, b)])
        for product in made:
            product.close()
    header = ["M x K x N", "layout", "rknn_matmul_run", "int8 by int8", "uint8 by int8", "ratio", "ratio to uint8", "goal"]
    print_table("int8 products on rk3588, ms CPU, one thread, best (median); onnxruntime MatMulInteger is 1", header, products)
    header = ["M x K x N", "B to native", "A to native", "C from native", "numpy copies B"]
    print_table("conversions of layouts, ms CPU, best (median)", header, conversions)
    library.close()


def _conversions(library: SoftwareLibrary, a: Array, b: Array) -> list[str]:
    (m, k), n = a.shape, b.shape[1]
    target, info = np.empty_like(b), ffi.new("rknn_matmul_info *", {"type": 2})
    native_c = np.zeros((n // 4, m, 4), np.int32)
    convert = partial(library.rknn_B_normal_layout_to_native_layout, ffi.from_buffer(b), ffi.from_buffer(target), k, n, info)
    times = cpu_times(
        {
            "b": convert,
            "a": partial(to_blocks, a, 16),
            "c": partial(from_blocks, native_c, m, n, 4),
            "copy": partial(np.copyto, target, b),
        },
        SECONDS / 4,
    )
    return [times[name].milliseconds for name in ("b", "a", "c", "copy")]


if __name__ == "__main__":
    main()
