"""Types, layouts and quantization as pure functions on numpy arrays, on C kernels that run without the GIL.

:func:`convert` goes from any tensor to any other in one pass; the rest are the single steps by name. Nothing here falls back to numpy:
without the compiled extension the import fails and reports it.

>>> import numpy as np
>>> from anynpu.convert import dequantize_affine, nc1hwc2_to_flat
>>> raw = np.arange(32, dtype=np.int8)                              # what an NPU wrote: [c1=1, h=1, w=2, c2=16]
>>> flat = nc1hwc2_to_flat(raw, 1, 1, 2, 16, channels=3)
>>> flat.tolist()
[0, 16, 1, 17, 2, 18]
>>> dequantize_affine(flat, zero_point=-2, scale=0.5).tolist()
[1.0, 9.0, 1.5, 9.5, 2.0, 10.0]
"""

from .tensors import (
    Conversion,
    convert,
    image_to_codes,
    nc1hwc2_to_flat,
    nc1hwc2_to_nchw,
    nc1hwc2_to_nhwc,
    nchw_to_nc1hwc2,
    nchw_to_nhwc,
    nhwc_to_nc1hwc2,
    nhwc_to_nchw,
)
from .values import (
    bfloat16_to_float32,
    dequantize_affine,
    dequantize_dfp,
    float16_to_float32,
    float32_to_bfloat16,
    float32_to_float16,
    pack_int4,
    quantize_affine,
    quantize_dfp,
    unpack_int4,
)

__all__ = [
    "Conversion",
    "bfloat16_to_float32",
    "convert",
    "dequantize_affine",
    "dequantize_dfp",
    "float16_to_float32",
    "float32_to_bfloat16",
    "float32_to_float16",
    "image_to_codes",
    "nc1hwc2_to_flat",
    "nc1hwc2_to_nchw",
    "nc1hwc2_to_nhwc",
    "nchw_to_nc1hwc2",
    "nchw_to_nhwc",
    "nhwc_to_nc1hwc2",
    "nhwc_to_nchw",
    "pack_int4",
    "quantize_affine",
    "quantize_dfp",
    "unpack_int4",
]
