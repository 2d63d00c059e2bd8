"""The shape of a catalogue entry: what is known about a chip, and where each value comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """Where a value comes from.

    :ivar assumed: no document or measurement gives the value for this chip; *text* states what it was taken from instead
    """

    text: str
    assumed: bool = False

    def __str__(self) -> str:
        return f"assumed: {self.text}" if self.assumed else self.text


@dataclass(frozen=True)
class Range:
    """The integers from *low* to *high*, both included.

    >>> 31 in Range(1, 31), 32 in Range(1, 31), str(Range(1, 31))
    (True, False, '1-31')
    """

    low: int
    high: int

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low}-{self.high}"


@dataclass(frozen=True)
class ConvLimits:
    """What a convolution may be; each limit holds for both axes."""

    kernel: Range
    stride: Range
    pad: Range
    dilation: Range


@dataclass(frozen=True)
class ConvTransposeLimits:
    """What a transposed convolution may be.

    :ivar depthwise: one group for each channel is possible
    :ivar grouped: any other number of groups above one is possible
    """

    kernel: Range
    strides: tuple[int, ...]
    depthwise: bool
    grouped: bool


@dataclass(frozen=True)
class PoolLimits:
    """What a max or average pooling may be."""

    channels_max: int
    height_max: int
    width_max: int
    kernel: Range
    stride: Range
    pad: Range
    ceil_mode: bool


@dataclass(frozen=True)
class ResizeLimits:
    """What a resize may be.

    :ivar modes: values of the ONNX attribute ``mode``
    :ivar factors: scale factors, integers only
    """

    modes: tuple[str, ...]
    factors: Range


@dataclass(frozen=True)
class OperatorLimits:
    """What the NPU executes itself; everything else runs on the chip's CPU.

    :ivar npu_operators: ONNX operators that the NPU has at all
    :ivar global_average_pool_max: largest height and width that one pass takes
    :ivar global_average_pool_staged: a larger one is done in several passes, still on the NPU
    :ivar matmul_k_max: longest inner axis of a MatMul inside a network
    :ivar softmax_axes: axes of a tensor of rank 4 (N, C, H, W); empty where the NPU has no Softmax
    :ivar lstm_size_max: largest input or hidden size; None where the NPU has no LSTM
    :ivar transpose_pixels_max: largest height times width that a Transpose may have; None: no limit is known
    """

    npu_operators: frozenset[str]
    conv: ConvLimits
    depthwise: ConvLimits
    conv_transpose: ConvTransposeLimits
    pool: PoolLimits
    global_average_pool_max: int
    global_average_pool_staged: bool
    resize: ResizeLimits
    matmul_k_max: int
    softmax_axes: tuple[int, ...]
    lstm_size_max: int | None
    transpose_pixels_max: int | None


@dataclass(frozen=True)
class MatMulRules:
    """The matmul calls for one type: A is M x K, B is K x N, C is M x N.

    The native layouts are A (K/a_block, M, a_block), B (N/b_block_n, K/b_block_k, b_block_n, b_block_k) and
    C (N/c_block, M, c_block).

    :ivar k_max: longest inner axis
    :ivar segment_k: B is laid out in segments of at most this many rows, each on its own; None: never split
    :ivar transposed_b: B may also lie as N x K
    """

    k_multiple: int
    n_multiple: int
    a_block: int
    b_block_n: int
    b_block_k: int
    c_block: int
    k_max: int
    segment_k: int | None
    transposed_b: bool


@dataclass(frozen=True)
class VipIdentity:
    """How a VIP shows itself to its software.

    :ivar customer_id: the number in a model file's header that must equal the hardware's
    :ivar target: the name that the vendor's compiler calls it by
    :ivar software: version of the VIPLite line
    :ivar linker: the library that exports the ``vip_`` calls
    """

    customer_id: int
    target: str
    software: str
    linker: str


@dataclass(frozen=True, eq=False)
class Chip:
    """One chip.

    Values by type are keyed ``int4``, ``int8``, ``int16``, ``float16``, and ``uint8`` for VIPs. A missing type is not known.

    :ivar name: the catalogue's name, in lower case
    :ivar aliases: other names and variants that mean this entry
    :ivar family: the name of the vendor, see :class:`anynpu.vendors.Vendor`
    :ivar library: the vendor's runtime library
    :ivar generation: the NPU's design
    :ivar vip: only for VIPs
    :ivar macs_per_cycle: dense multiply-accumulates of one core, by type
    :ivar clock_hz: the NPU's highest usual clock
    :ivar buffer_bytes: on-chip convolution buffer of one core
    :ivar sram_bytes: SRAM shared with the rest of the chip that the NPU may use; 0 where there is none
    :ivar dram_bytes: memory inside the package; None where the board brings it
    :ivar channel_block: C2 of NC1HWC2, by type
    :ivar channel_alignment: to what channels are padded after a convolution, by type
    :ivar input_width_alignment: elements to which a row of a bound input of 1, 3 or 4 channels is padded, by type
    :ivar pixel_alignment: to what height times width is padded
    :ivar quantized_types: what a model may be compiled to; ``fp16`` is among them exactly if ``float16`` is true
    :ivar float16: a model may be left unquantized
    :ivar core_masks: values that ``rknn_set_core_mask`` accepts; empty where there is no such call
    :ivar multicore_operators: what one job splits over several cores; the rest runs on core 0
    :ivar multicore_activations: what may be fused to those without losing that
    :ivar matmul: rules of the matmul calls, by type; empty where the chip has none
    :ivar matmul_types: what the matmul calls multiply: the types of A, B and C
    :ivar calls: the calls of the RKNN reference, Table 4-1
    :ivar queries: the commands of ``rknn_query``, Table 4-2
    :ivar sources: by attribute; ``limits.<attribute>`` for the limits, ``<attribute>.<type>`` where a type differs from the rest
    """

    name: str
    aliases: tuple[str, ...]
    family: str
    library: str
    generation: str
    vip: VipIdentity | None
    cores: int
    macs_per_cycle: Mapping[str, int]
    clock_hz: int
    buffer_bytes: int
    sram_bytes: int
    dram_bytes: int | None
    channel_block: Mapping[str, int]
    channel_alignment: Mapping[str, int]
    input_width_alignment: Mapping[str, int]
    pixel_alignment: int
    quantized_types: tuple[str, ...]
    float16: bool
    core_masks: tuple[int, ...]
    multicore_operators: frozenset[str]
    multicore_activations: frozenset[str]
    matmul: Mapping[str, MatMulRules]
    matmul_types: tuple[tuple[str, str, str], ...]
    calls: Mapping[str, bool]
    queries: Mapping[str, bool]
    limits: OperatorLimits
    sources: Mapping[str, Source]

    def __repr__(self) -> str:
        return f"Chip({self.name!r}, {self.family}, cores: {self.cores})"
