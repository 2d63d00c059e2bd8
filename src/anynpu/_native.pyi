"""Types of the compiled extension. The declarations themselves, with what they do, are in native/anynpu_native.h."""

from typing import Any

ffi: Any

class _Library:
    ANYNPU_F32: int
    ANYNPU_F16: int
    ANYNPU_BF16: int
    ANYNPU_I8: int
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

    def anynpu_level_count(self) -> int: ...
    def anynpu_level_name(self, level: int) -> Any: ...
    def anynpu_level(self) -> Any: ...
    def anynpu_use_level(self, name: bytes) -> int: ...
    def anynpu_minmax_f32(self, values: Any, count: int, range: Any) -> None: ...
    def anynpu_minmax_channels_f32(self, values: Any, n: int, c: int, hw: int, low: Any, high: Any) -> None: ...
    def anynpu_histogram_f32(self, values: Any, count: int, low: float, inverse_step: float, bins: int, counts: Any) -> None: ...
    def anynpu_convert(self, conversion: Any, source: Any, target: Any) -> None: ...
    def anynpu_unpack_int4(self, source: Any, target: Any, count: int, is_signed: int) -> None: ...
    def anynpu_pack_int4(self, source: Any, target: Any, count: int) -> None: ...

lib: _Library
