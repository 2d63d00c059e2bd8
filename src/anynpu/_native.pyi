"""Types of the compiled extension. The declarations themselves, with what they do, are in native/anynpu_native.h and engine.h."""

from typing import Any

ffi: Any

class _Library:
    ANYNPU_F32: int
    ANYNPU_F16: int
    ANYNPU_BF16: int
    ANYNPU_I8: int
    ANYNPU_BY_ROW: int
    ANYNPU_BY_COLUMN: int
    ANYNPU_BLOCKED: int
    ANYNPU_U8: int
    ANYNPU_I16: int
    ANYNPU_U16: int
    ANYNPU_I32: int
    ANYNPU_U32: int
    ANYNPU_I64: int
    ANYNPU_U64: int
    ANYNPU_BOOL: int
    ANYNPU_TYPES: int
    ANYNPU_MOVE: int
    ANYNPU_FLIP: int
    ANYNPU_LINE: int
    ANYNPU_TABLE: int
    ANYNPU_INTEGERS: int
    ANYNPU_VALUES: int
    ANYNPU_CHANNEL_PADDING: int
    ANYNPU_ADD: int
    ANYNPU_SUB: int
    ANYNPU_MUL: int
    ANYNPU_MAX: int
    ANYNPU_MIN: int
    ANYNPU_FLOAT_ADD: int
    ANYNPU_FLOAT_SUB: int
    ANYNPU_FLOAT_MUL: int
    ANYNPU_FLOAT_DIV: int
    ANYNPU_FLOAT_POW: int
    ANYNPU_FLOAT_MAX: int
    ANYNPU_FLOAT_MIN: int
    ANYNPU_FLOAT_SIGMOID: int
    ANYNPU_FLOAT_EXP: int
    ANYNPU_FLOAT_LOG: int
    ANYNPU_FLOAT_SQRT: int
    ANYNPU_FLOAT_TANH: int
    ANYNPU_FLOAT_ERF: int
    ANYNPU_FLOAT_RECIPROCAL: int
    ANYNPU_FLOAT_NEG: int
    ANYNPU_FLOAT_ABS: int
    ANYNPU_FLOAT_CLIP: int
    ANYNPU_FLOAT_LEAKY_RELU: int
    ANYNPU_FLOAT_GELU: int
    ANYNPU_FLOAT_HARD_SIGMOID: int
    ANYNPU_FLOAT_SUM: int
    ANYNPU_FLOAT_MEAN: int
    ANYNPU_FLOAT_LARGEST: int
    ANYNPU_FLOAT_SMALLEST: int
    ANYNPU_PAD_CONSTANT: int
    ANYNPU_PAD_REFLECT: int
    ANYNPU_PAD_EDGE: int
    ANYNPU_LAYER_CONV: int
    ANYNPU_LAYER_CONV_TRANSPOSE: int
    ANYNPU_LAYER_SUBPIXEL: int
    ANYNPU_LAYER_MATMUL: int
    ANYNPU_LAYER_BINARY: int
    ANYNPU_LAYER_TABLE: int
    ANYNPU_LAYER_CONCAT: int
    ANYNPU_LAYER_MOVE: int
    ANYNPU_LAYER_PAD: int
    ANYNPU_LAYER_POOL: int
    ANYNPU_LAYER_RESIZE: int
    ANYNPU_LAYER_CONVERT: int
    ANYNPU_LAYER_FLOAT_BINARY: int
    ANYNPU_LAYER_FLOAT_UNARY: int
    ANYNPU_LAYER_FLOAT_REDUCE: int
    ANYNPU_LAYER_FLOAT_SOFTMAX: int
    ANYNPU_LAYER_FLOAT_NORMALIZE: int
    ANYNPU_LAYER_FLOAT_MATMUL: int
    ANYNPU_LAYER_FLOAT_CAST: int
    ANYNPU_CODES_I8: int
    ANYNPU_CODES_I8_WIDE: int
    ANYNPU_CODES_I16: int
    ANYNPU_FINISHED: int
    ANYNPU_STOPPED: int
    ANYNPU_EXPIRED: int

    def anynpu_level_count(self) -> int: ...
    def anynpu_level_name(self, level: int) -> Any: ...
    def anynpu_level(self) -> Any: ...
    def anynpu_has_level(self, level: int) -> int: ...
    def anynpu_use_level(self, name: bytes) -> int: ...
    def anynpu_peak(self, rounds: int) -> int: ...
    ANYNPU_FINITE: int
    ANYNPU_INFINITE: int
    ANYNPU_NAN: int
    def anynpu_worst_float(self, type: int, values: Any, count: int) -> int: ...
    def anynpu_minmax_f32(self, values: Any, count: int, range: Any) -> None: ...
    def anynpu_minmax_channels_f32(self, values: Any, n: int, c: int, hw: int, low: Any, high: Any) -> None: ...
    def anynpu_histogram_f32(self, values: Any, count: int, low: float, inverse_step: float, bins: int, counts: Any) -> None: ...
    def anynpu_columns_f32(self, window: Any, values: Any, positions: Any, count: int, taps: Any, columns: Any) -> None: ...
    def anynpu_channel_columns_f32(
        self, window: Any, values: Any, positions: Any, count: int, taps: Any, stride: int, columns: Any
    ) -> None: ...
    def anynpu_round_columns_f64(
        self,
        columns: int,
        outputs: int,
        energy: Any,
        stride: int,
        size: Any,
        lowest: Any,
        highest: Any,
        gradient: Any,
        chosen: Any,
        differences: Any,
    ) -> int: ...
    def anynpu_suppress_f64(
        self, boxes: Any, classes: Any, order: Any, count: int, overlap: float, most: int, kept: Any
    ) -> int: ...
    def anynpu_convert(self, conversion: Any, source: Any, target: Any) -> None: ...
    def anynpu_unpack_int4(self, source: Any, target: Any, count: int, is_signed: int) -> None: ...
    def anynpu_pack_int4(self, source: Any, target: Any, count: int) -> None: ...
    def anynpu_choose(self, layer: Any, level: int) -> int: ...
    def anynpu_kernel_name(self, layer: Any) -> Any: ...
    def anynpu_packed_weights_size(self, layer: Any) -> int: ...
    def anynpu_pack_weights(self, layer: Any, weights: Any) -> None: ...
    def anynpu_packed_size(self, layer: Any) -> int: ...
    def anynpu_pack(self, layer: Any, weights: Any, packed: Any) -> None: ...
    def anynpu_scratch_size(self, layer: Any) -> int: ...
    def anynpu_execute(
        self,
        layers: Any,
        count: int,
        tensors: Any,
        scratch: Any,
        stop: Any,
        deadline_ns: int,
        clock_ns: Any,
        reached: Any,
    ) -> int: ...
    def anynpu_matrix_kernel_name(self, b: Any) -> Any: ...
    def anynpu_matrix_packed_size(self, b: Any) -> int: ...
    def anynpu_matrix_pack(self, b: Any, values: Any, k_stride: int, n_stride: int, packed: Any) -> None: ...
    def anynpu_matrix_scratch_size(self, b: Any, m: int) -> int: ...
    def anynpu_matrix_multiply(self, b: Any, packed: Any, a: Any, m: int, c: Any, scratch: Any) -> None: ...
    def anynpu_matrix_source_scratch_size(self, b: Any, m: int) -> int: ...
    def anynpu_matrix_multiply_source(
        self, b: Any, source: Any, values: Any, a: Any, a_stride: int, m: int, c: Any, workers: Any, scratch: Any
    ) -> None: ...
    def anynpu_infer(self, one: Any, times: Any) -> int: ...
    def anynpu_workers_open(self, threads: int) -> Any: ...
    def anynpu_worth_sharing(self, layers: Any, count: int, least: float) -> int: ...
    def anynpu_workers_threads(self, workers: Any) -> int: ...
    def anynpu_workers_close(self, workers: Any) -> None: ...
    def anynpu_execute_shared(
        self,
        sharing: Any,
        layers: Any,
        count: int,
        tensors: Any,
        scratch: Any,
        stop: Any,
        deadline_ns: int,
        clock_ns: Any,
        reached: Any,
    ) -> int: ...

lib: _Library
