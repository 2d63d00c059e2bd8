"""The registers of the RK3588 NPU that a command stream writes, with their fields.

A command word is ``target << 48 | value << 16 | register``. The target names the block, with bit 0 set. A convolution task writes the
registers of :data:`ORDER`, which has 126 entries because four registers come twice, and ends with four words of the program counter.

Sources: the register header and the streams of Mesa's rocket driver (MIT) and public sweeps on RK3588 boards (CC-BY-4.0). Lookup tables:
the registers that the vendor's compiler wrote for RV1103 with the bytes that a board made of them (dnhkng/open-rknpu, MIT), the sweeps for
the registers of the RK3588, and NVIDIA's documentation of NVDLA, whose block of tables the chip has, for the fields.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "BLOCKS",
    "DESCRIPTIONS",
    "Field",
    "LOOKUP_DATA",
    "LOOKUP_TABLE",
    "ORDER",
    "PC_BASE_ADDRESS",
    "PC_REGISTER_AMOUNTS",
    "REGISTERS",
    "Register",
    "TARGETS",
    "describe",
    "field",
    "signed",
]

BLOCKS = {
    0x0101: "PC",
    0x0201: "CNA",
    0x0801: "CORE",
    0x1001: "DPU",
    0x2001: "DPU_RDMA",
    0x4001: "PPU",
    0x8001: "PPU_RDMA",
}
"""Targets of command words, by number."""

TARGETS = {name: target for target, name in BLOCKS.items()}

PC_BASE_ADDRESS = 0x0010
PC_REGISTER_AMOUNTS = 0x0014

LOOKUP_TABLE, LOOKUP_DATA = 0x4100, 0x4104
"""The port through which lookup tables are written: which table from which entry on, and entry after entry."""


@dataclass(frozen=True)
class Field:
    """Bits ``low`` to ``high`` of a register; *signed* fields are in two's complement."""

    name: str
    high: int
    low: int
    signed: bool = False

    @property
    def mask(self) -> int:
        """The bits of the field at their place in the register."""
        return ((1 << (self.high - self.low + 1)) - 1) << self.low

    def read(self, value: int) -> int:
        """The field of a register's *value*."""
        found = (value & self.mask) >> self.low
        return signed(found, self.high - self.low + 1) if self.signed else found

    def write(self, number: int) -> int:
        """A register value with *number* in the field; bits that do not fit are cut off."""
        return (number << self.low) & self.mask


@dataclass(frozen=True)
class Register:
    """One register: its block, its number within a command word, and its fields (none: a plain number of 32 bits)."""

    block: str
    number: int
    name: str
    fields: tuple[Field, ...] = ()

    @property
    def label(self) -> str:
        """Block and name, as disassemblies and errors print them."""
        return f"{self.block}.{self.name}"


def signed(value: int, bits: int) -> int:
    """The low *bits* of *value* as a number in two's complement.

    >>> signed(0xFFF6, 16)
    -10
    """
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


_CFG = "BYPASS 0, ALU_BYPASS 1, MUL_BYPASS 4, MUL_PRELU 5, RELU_BYPASS 6, RELUX_EN 7, ALU_SRC 8, ALU_ALGO 19:16"
_MUL = "SRC 0, TRUNCATE_SRC 1, SHIFT 13:8, OPERAND 31:16s"
_CVT = "OFFSET 15:0s, SCALE 31:16s"

_TABLE = f"""
CNA
100C CONV_CON1 CONV_MODE 3:0, IN_PRECISION 6:4, PROC_PRECISION 9:7, ARGB_IN 15:12, DECONV 16, GROUP_LINE_OFF 29, NONALIGN_DMA 30
1010 CONV_CON2 FEATURE_GRAINS 13:4, KERNEL_GROUP 23:16
1014 CONV_CON3 X_STRIDE 2:0, Y_STRIDE 5:3, DECONV_X 10:8, DECONV_Y 13:11, X_DILATION 20:16, Y_DILATION 25:21
1020 DATA_SIZE0 HEIGHT 10:0, WIDTH 26:16
1024 DATA_SIZE1 CHANNEL 15:0, CHANNEL_REAL 29:16
1028 DATA_SIZE2 DATAOUT_WIDTH 10:0
102C DATA_SIZE3 ATOMICS 21:0
1030 WEIGHT_SIZE0
1034 WEIGHT_SIZE1 BYTES_PER_KERNEL 18:0
1038 WEIGHT_SIZE2 KERNELS 13:0, HEIGHT 20:16, WIDTH 28:24
1040 CBUF_CON0 DATA_BANK 3:0, WEIGHT_BANK 7:4, FC_DATA_BANK 10:8, DATA_REUSE 12, WEIGHT_REUSE 13
1044 CBUF_CON1 DATA_ENTRIES 13:0
104C CVT_CON0 BYPASS 0, TYPE 1, ROUND 2, SIGN 3, TRUNCATE_0 9:4, TRUNCATE_1 15:10, TRUNCATE_2 21:16, TRUNCATE_3 27:22
1050 CVT_CON1 {_CVT}
1054 CVT_CON2 {_CVT}
1058 CVT_CON3 {_CVT}
105C CVT_CON4 {_CVT}
1060 FC_CON0
1064 FC_CON1
1068 PAD_CON0 TOP 3:0, LEFT 7:4
1070 FEATURE_DATA_ADDR
1074 FC_CON2
1078 DMA_CON0 DATA_BURST 3:0, WEIGHT_BURST 19:16
107C DMA_CON1 LINE_STRIDE 27:0
1080 DMA_CON2 SURF_STRIDE 27:0s
1084 FC_DATA_SIZE0 DMA_HEIGHT 10:0, DMA_WIDTH 29:16
1088 FC_DATA_SIZE1 DMA_CHANNEL 15:0
1100 DCOMP_CTRL
1104 DCOMP_REGNUM
1110 DCOMP_ADDR0
1140+16 DCOMP_AMOUNT
1180 CVT_CON5
1184 PAD_CON1
CORE
3010 MISC_CFG QD_EN 0, DW_EN 1, PROC_PRECISION 10:8
3014 DATAOUT_SIZE_0 WIDTH 15:0, HEIGHT 31:16
3018 DATAOUT_SIZE_1 CHANNEL 15:0
301C CLIP_TRUNCATE CLIP_TRUNCATE 4:0, ROUND_TYPE 6
3030 CORE_3030
DPU
4004 S_POINTER POINTER_PP_EN 1, EXECUTER_PP_EN 2, PP_MODE 3
400C FEATURE_MODE_CFG FLYING 0, OUTPUT_MODE 2:1, CONV_MODE 4:3, BURST 8:5
4010 DATA_FORMAT PROC_PRECISION 2:0, BS_MUL_SHIFT_NEG 9:4, BN_MUL_SHIFT_NEG 15:10, EW_TRUNCATE_NEG 25:16, IN_PRECISION 28:26, \
OUT_PRECISION 31:29
4014 DPU_4014
4020 DST_BASE_ADDR
4024 DST_SURF_STRIDE DST_SURF_STRIDE 31:4
4030 DATA_CUBE_WIDTH WIDTH 12:0
4034 DATA_CUBE_HEIGHT HEIGHT 12:0
4038 DATA_CUBE_NOTCH
403C DATA_CUBE_CHANNEL CHANNEL 12:0, ORIG_CHANNEL 28:16
4040 BS_CFG {_CFG}
4044 BS_ALU_CFG
4048 BS_MUL_CFG {_MUL}
404C BS_RELUX_CMP
4050 BS_OW_CFG OW_SRC 0, OD_BYPASS 1, SIZE_E_0 4:2, SIZE_E_1 7:5, SIZE_E_2 10:8
4054 BS_OW_OP OW_OP 15:0s
4058 WDMA_SIZE_0 CHANNEL 12:0
405C WDMA_SIZE_1 WIDTH 12:0, HEIGHT 28:16
4060 BN_CFG {_CFG}
4064 BN_ALU_CFG
4068 BN_MUL_CFG {_MUL}
406C BN_RELUX_CMP
4070 EW_CFG BYPASS 0, OP_BYPASS 1, OP_TYPE 2, OP_SRC 6, LUT_BYPASS 7, OP_CVT_BYPASS 8, RELU_BYPASS 9, RELUX_EN 10, ALU_ALGO 19:16, \
EDATA_SIZE 23:22, DATA_MODE 29:28, CVT_ROUND 30, CVT_TYPE 31
4074 EW_CVT_OFFSET
4078 EW_CVT_SCALE SCALE 15:0, SHIFT 21:16, TRUNCATE 31:22
407C EW_RELUX_CMP
4080 OUT_CVT_OFFSET
4084 OUT_CVT_SCALE SCALE 15:0s, FP32TOFP16 16
4088 OUT_CVT_SHIFT SHIFT 11:0, MINUS_EXP 19:12, CVT_ROUND 30, CVT_TYPE 31
4090+8 EW_OP_VALUE
40C0 SURFACE_ADD SURFACE_ADD 31:4
40C4 DPU_40C4
4100 LUT_ACCESS_CFG ADDRESS 9:0, TABLE 16, WRITE 17
4104 LUT_ACCESS_DATA DATA 15:0s
4108 LUT_CFG LO_LE_MUX 3:2, UFLOW_PRIORITY 4, OFLOW_PRIORITY 5, HYBRID_PRIORITY 6
410C LUT_INFO LE_OFFSET 7:0, LE_INDEX_SELECT 15:8, LO_INDEX_SELECT 23:16
4110 LUT_LE_START
4114 LUT_LE_END
4118 LUT_LO_START
411C LUT_LO_END
4120 LUT_LE_SLOPE_SCALE UFLOW 15:0s, OFLOW 31:16s
4124 LUT_LE_SLOPE_SHIFT UFLOW 4:0, OFLOW 9:5
4128 LUT_LO_SLOPE_SCALE UFLOW 15:0s, OFLOW 31:16s
412C LUT_LO_SLOPE_SHIFT UFLOW 4:0, OFLOW 9:5
DPU_RDMA
5004 S_POINTER POINTER_PP_EN 1, EXECUTER_PP_EN 2, PP_MODE 3
500C DATA_CUBE_WIDTH WIDTH 12:0
5010 DATA_CUBE_HEIGHT HEIGHT 12:0, EW_LINE_NOTCH 28:16
5014 DATA_CUBE_CHANNEL CHANNEL 12:0
5018 SRC_BASE_ADDR
501C BRDMA_CFG DATA_USE 4:1
5020 BS_BASE_ADDR
5028 NRDMA_CFG
502C BN_BASE_ADDR
5034 ERDMA_CFG DISABLE 0, OV4K 1, DATA_SIZE 3:2, NONALIGN 28, SURF_MODE 29, DATA_MODE 31:30
5038 EW_BASE_ADDR
5040 EW_SURF_STRIDE EW_SURF_STRIDE 31:4
5044 FEATURE_MODE_CFG FLYING 0, CONV_MODE 2:1, FP16TOFP32 3, MRDMA_DISABLE 4, PROC_PRECISION 7:5, COMB_USE 10:8, BURST 14:11, \
IN_PRECISION 17:15
5048 SRC_DMA_CFG
504C SURF_NOTCH SURF_NOTCH 31:4
5064 PAD_CFG
5068 WEIGHT_ARBITRATION
506C EW_SURF_NOTCH EW_SURF_NOTCH 31:4
PC
0010 BASE_ADDRESS
0014 REGISTER_AMOUNTS
"""
"""A line for each register: number in hexadecimal (``+n``: n registers in a row), name, fields as NAME HIGH:LOW (s: signed)."""


def _field(text: str) -> Field:
    name, bits = text.split()
    is_signed = bits.endswith("s")
    high, _, low = bits.rstrip("s").partition(":")
    return Field(name, int(high), int(low or high), is_signed)


def _registers() -> dict[int, Register]:
    found: dict[int, Register] = {}
    block = ""
    for line in _TABLE.split("\n"):
        number, _, rest = line.partition(" ")
        if not rest:
            block = number or block
            continue
        name, _, fields = rest.partition(" ")
        parsed = tuple(_field(text) for text in fields.split(",") if text)
        first, _, count = number.partition("+")
        for index in range(int(count or 1)):
            register = int(first, 16) + 4 * index
            found[register] = Register(block, register, f"{name}_{index}" if count else name, parsed)
    return found


REGISTERS: dict[int, Register] = _registers()
"""All registers by number; numbers of different blocks do not overlap."""


def _run(first: int, count: int) -> tuple[int, ...]:
    return tuple(range(first, first + 4 * count, 4))


ORDER: tuple[int, ...] = (
    *(0x1040, 0x1104, 0x1100, 0x100C, 0x4004, 0x5004, 0x100C, 0x1010, 0x1014, 0x1020, 0x1024, 0x1028, 0x102C, 0x1030, 0x1034),
    *(0x1038, 0x1040, 0x1044, 0x104C, 0x1050, 0x1054, 0x1058, 0x105C, 0x1060, 0x1064, 0x1068, 0x1070, 0x1074, 0x1078, 0x107C),
    *(0x1080, 0x1084, 0x1088, 0x1100, 0x1104, 0x1110, *_run(0x1140, 16), 0x1180, 0x1184),
    *(0x3010, 0x3014, 0x3018, 0x301C, 0x3030),
    *(0x400C, 0x4010, 0x4014, 0x4020, 0x4024, *_run(0x4030, 23), *_run(0x4090, 8), 0x40C0, 0x40C4, *_run(0x4100, 12)),
    *(0x500C, 0x5010, 0x5014, 0x5018, 0x501C, 0x5020, 0x5028, 0x502C, 0x5034, 0x5038, 0x5040, 0x5044, 0x5048, 0x504C, 0x5064),
    *(0x5068, 0x506C),
)
"""The 126 registers of a convolution task in the order in which Mesa writes them; no order is known to be required."""


def field(register: int, name: str) -> Field:
    """A field of a register by name."""
    return next(entry for entry in REGISTERS[register].fields if entry.name == name)


DESCRIPTIONS = {
    0x1040: "buffer banks for features and weights",
    0x1044: "64-byte entries of one input row",
    0x1068: "padding before the first row and column",
    0x1070: "address of the input",
    0x107C: "bytes of an input row / 4",
    0x1080: "bytes of an input plane / 16, less a row",
    0x1110: "address of the weights",
    0x1184: "value of the padding",
    0x4020: "address of the output",
    0x4024: "bytes of an output plane",
    0x4054: "added to every weight",
    0x4080: "zero point of the output",
    0x4084: "output multiplier",
    0x4088: "output shift",
    0x5018: "address of the added tensor, even planes",
    0x5020: "address of the bias or the channel table",
    0x5038: "address of the added tensor, odd planes",
}
"""What the registers that matter most hold, for the disassembly."""


def describe(register: Register, value: int) -> str:
    """A value as text: its fields by name, or the number in hexadecimal.

    >>> describe(REGISTERS[0x4030], 55)
    'WIDTH=55'
    """
    if not register.fields:
        return f"{value:#x}"
    parts = [f"{entry.name}={entry.read(value)}" for entry in register.fields if value & entry.mask]
    known = 0
    for entry in register.fields:
        known |= entry.mask
    if value & ~known:
        parts.append(f"other bits {value & ~known:#x}")
    return ", ".join(parts) or "0"
