"""The few calls of the vendor's converter that EZ RKNN Async's tests make, on our compiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anynpu


class RKNN:
    """Converts one model; each call gives 0, as the vendor's does on success."""

    def __init__(self, verbose: bool = False) -> None:
        self._config: dict[str, Any] = {}
        self._onnx = ""
        self._shapes: dict[str, Sequence[int]] = {}
        self._model: anynpu.Model | None = None

    def config(self, **options: Any) -> int:
        self._config = options
        return 0

    def load_onnx(self, model: str, inputs: Sequence[str] = (), input_size_list: Sequence[Sequence[int]] = ()) -> int:
        self._onnx = model
        self._shapes = dict(zip(inputs, input_size_list, strict=True))
        return 0

    def build(self, do_quantization: bool, dataset: object = None, rknn_batch_size: int | None = None) -> int:
        assert not do_quantization, "the suite converts to float16 only"
        self._model = anynpu.compile(
            self._onnx, target=self._config["target_platform"], dtype="fp16", shapes=self._shapes or None
        )
        return 0

    def export_rknn(self, path: str) -> int:
        assert self._model is not None
        self._model.save(path, remove_weight=self._config["remove_weight"])
        return 0

    def release(self) -> None:
        self._model = None
