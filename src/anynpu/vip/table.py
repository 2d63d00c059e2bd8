"""Allwinner's entry in the list of vendors."""

from __future__ import annotations

from ..chips.allwinner import ALLWINNER
from ..program.arithmetic import WeightScales
from ..tensor import DType
from ..vendors import Alias, DropIn, FileFormat, Format, Vendor, at_first_use

MARK = b"VPMN"
_MAX_VERSION = 0x0FFFFFFF


def _recognises(head: bytes) -> bool:
    return head[:4] == MARK and len(head) >= 12 and 1 <= int.from_bytes(head[4:8], "little") <= _MAX_VERSION


VENDOR = Vendor(
    name="vip",
    title="Allwinner",
    interface="VIPLite",
    chips=ALLWINNER,
    formats={
        "w8a8": Format("w8a8", "uint8", weights=WeightScales.TENSOR),
        "fp16": Format("fp16", "float16", floats=True),
        "w16a16": Format("w16a16", "int16 dynamic fixed point", DType.INT16, WeightScales.FIXED_POINT, fixed_point=True),
        "i8": Format("i8", "int8", weights=WeightScales.CHANNEL_SYMMETRIC),
        "i8dfp": Format("i8dfp", "int8 dynamic fixed point", weights=WeightScales.FIXED_POINT, fixed_point=True),
        "bf16": Format("bf16", "bfloat16", half=DType.BFLOAT16, floats=True),
    },
    aliases={  # what users of ACUITY call them
        "uint8": Alias("w8a8"),
        "asymmetric_affine": Alias("w8a8"),
        "asymmetric_affine-u8": Alias("w8a8"),
        "int8": Alias("i8"),
        "asymmetric_affine-i8": Alias("i8", per_channel=False),
        "pcq": Alias("i8", per_channel=True),
        "perchannel_symmetric_affine": Alias("i8", per_channel=True),
        "perchannel_symmetric_affine-i8": Alias("i8", per_channel=True),
        "int8_dfp": Alias("i8dfp"),
        "dynamic_fixed_point-i8": Alias("i8dfp"),
        "int16": Alias("w16a16"),
        "dynamic_fixed_point": Alias("w16a16"),
        "dynamic_fixed_point-i16": Alias("w16a16"),
        "float16": Alias("fp16"),
        "bfloat16": Alias("bf16"),
        "qbfloat16": Alias("bf16"),
    },
    picture_node=True,
    mark=MARK,
    native_buffers=True,
    suffixes=(".nb",),
    files=(FileFormat("nb", "the vendor's compiler", _recognises, at_first_use("anynpu.vip.files:read"), version_text=hex),),
    library_variable="ANYNPU_VIP_LIBRARY",
    library_names=("libNBGlinker.so", "libVIPlite.so"),
    library_helpers=("libVIPhal.so", "libVIPuser.so"),
    library_folders=(
        "/usr/lib",
        "/usr/lib64",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib/arm-linux-gnueabihf",
        "/usr/local/lib",
        "/vendor/lib64",
        "/vendor/lib",
    ),
    system_marks=("dev/vipcore", "dev/galcore"),
    system_words="/dev/vipcore",
    device_tree="allwinner",
    device_nodes=("dev/vipcore", "dev/dma_heap/system"),
    container_nodes=("dev/galcore",),
    providers=("VIPLiteExecutionProvider",),
    memory_names=("vip",),
    open_backend=at_first_use("anynpu.vip.backend:open_backend"),
    diagnose=at_first_use("anynpu.vip.diagnosis:diagnose"),
    target_words=at_first_use("anynpu.vip.generations:chip_words"),
    check_target=at_first_use("anynpu.vip.generations:check_chip"),
    port=at_first_use("anynpu.vip.info:port"),
    board_files=lambda chip: {"dev/vipcore": ""},
    dropin=DropIn(
        bindings=at_first_use("anynpu.vip.interface:bindings"),
        open=at_first_use("anynpu.vip.software.library:open_for_programs"),
        tracing=at_first_use("anynpu.vip.tracing:table"),
        open_device=at_first_use("anynpu.vip.library:open_library"),
        failure=-11,
        code_name=at_first_use("anynpu.vip.constants:status_name"),
        libraries={"libVIPlite": None, "libNBGlinker": "a733"},
        log_variable="ANYNPU_LOG_LEVEL",
        log_name="VIPLite",
    ),
    commands={"vpm-run": "anynpu.vip.command:command"},
)
