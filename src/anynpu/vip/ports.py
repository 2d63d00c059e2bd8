"""Inputs and outputs of a model as programs for a VIP see them."""

from __future__ import annotations

from dataclasses import replace

from ..program import Model
from ..tensor import Affine, DType, Layout, TensorSpec

__all__ = ["port"]


def port(model: Model, spec: TensorSpec) -> TensorSpec:
    """Planes lie one after the other, and uint8 stands where the engine has int8 of other numbers."""
    preprocess = model.preprocess.get(spec.name)
    if preprocess is not None and preprocess.picture:
        return TensorSpec(spec.name, spec.shape, DType.UINT8, Layout.NHWC)
    spec = replace(spec, layout=Layout.row_major(len(spec.shape)))
    quantization = spec.quantization
    if model.dtype == "w8a8" and spec.dtype is DType.INT8 and isinstance(quantization, Affine) and quantization.is_per_tensor:
        moved = Affine.per_tensor(quantization.scale, quantization.zero_point + 128)
        return replace(spec, dtype=DType.UINT8, quantization=moved)
    return spec
