"""Rockchip's entry in the list of vendors."""

from __future__ import annotations

from ..chips.rockchip import ROCKCHIP
from ..tensor import DType
from ..vendors import Alias, DropIn, FileFormat, Format, Vendor, at_first_use

MARK = b"RKNN"
ENCRYPTED_MARK = b"CYPTRKNN"
_MAX_VERSION = 0xFFFF


def _recognises(head: bytes) -> bool:
    if head[:8] == ENCRYPTED_MARK:
        return True
    return head[:8] == MARK + bytes(4) and len(head) >= 16 and 1 <= int.from_bytes(head[8:16], "little") <= _MAX_VERSION


VENDOR = Vendor(
    name="rknn",
    title="Rockchip",
    interface="RKNN",
    chips=ROCKCHIP,
    formats={
        "w8a8": Format("w8a8", "int8", groups=2),
        "fp16": Format("fp16", "float16", floats=True),
        "w16a16": Format("w16a16", "int16", DType.INT16, fixed_point=True),
    },
    aliases={"int8": Alias("w8a8"), "int16": Alias("w16a16"), "float16": Alias("fp16")},
    channel_groups=True,
    integer_ends=True,
    mark=MARK,
    suffixes=(".rknn",),
    files=(FileFormat("rknn", "rknn-toolkit2", _recognises, at_first_use("anynpu.rknn.files:read")),),
    library_variable="ANYNPU_RKNN_LIBRARY",
    library_names=("librknnrt.so", "librknnmrt.so"),
    library_folders=(
        "/usr/lib",
        "/usr/lib64",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/local/lib",
        "/oem/usr/lib",
        "/vendor/lib64",
        "/vendor/lib",
    ),
    system_marks=("sys/kernel/debug/rknpu", "sys/class/devfreq/fdab0000.npu", "sys/module/rknpu", "dev/rknpu"),
    system_words="an rknpu driver",
    device_tree="rockchip",
    device_nodes=("dev/dri/renderD129", "dev/dri/renderD128", "dev/dma_heap/system"),
    container_nodes=("dev/mpp_service", "dev/rga"),
    providers=("RKNPU2ExecutionProvider", "RKNNExecutionProvider"),
    memory_names=("rknpu2",),
    open_backend=at_first_use("anynpu.rknn.backend:open_backend"),
    layer_table=at_first_use("anynpu.rknn.context:layer_table"),
    diagnose=at_first_use("anynpu.rknn.diagnosis:diagnose"),
    diagnose_file=at_first_use("anynpu.rknn.diagnosis:diagnose_file"),
    board_files=at_first_use("anynpu.rknn.software.queries:board_files"),
    dropin=DropIn(
        bindings=at_first_use("anynpu.rknn.interface:bindings"),
        open=at_first_use("anynpu.rknn.software.library:SoftwareLibrary"),
        tracing=at_first_use("anynpu.rknn.tracing:table"),
        open_device=at_first_use("anynpu.rknn.library:open_library"),
        failure=-1,
        code_name=at_first_use("anynpu.rknn.constants:code_name"),
        libraries={"librknnrt": None, "librknnmrt": "rv1106"},
        log_variable="RKNN_LOG_LEVEL",
        log_name="RKNN",
        log_untimed=("librknnmrt",),
        first_call="rknn_init",
    ),
)
