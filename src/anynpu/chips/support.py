"""The two support tables of the RKNN C API reference 1.6.0: which calls and which queries each kind of chip answers."""

from __future__ import annotations

from typing import Literal

__all__ = ["CALLS", "QUERIES", "Column", "calls", "queries"]

Column = Literal["single", "multi", "mini", "mini_b", "none"]
"""A column of the tables.

``single``: one core, librknnrt (RK3562, RK3566, RK3568). ``multi``: several cores (RK3588).
``mini``: librknnmrt (RV1103, RV1106). Not in the reference are ``mini_b``, which is ``mini`` without NHWC outputs, and ``none``,
for chips without the RKNN API.
"""

_MULTI_ONLY = frozenset({"rknn_set_core_mask", "rknn_matmul_set_core_mask", "rknn_set_batch_core_num"})
_NOWHERE = frozenset({"rknn_wait", "rknn_create_mem_from_mb_blk"})
_NOT_MINI = frozenset(
    {
        *("rknn_dup_context", "rknn_inputs_set", "rknn_outputs_get", "rknn_set_input_shapes"),
        *("rknn_matmul_create", "rknn_matmul_set_io_mem", "rknn_matmul_run", "rknn_matmul_destroy"),
        *("rknn_register_custom_ops", "rknn_custom_op_get_op_attr"),
    }
)

CALLS = (
    "rknn_init",
    "rknn_set_core_mask",
    "rknn_dup_context",
    "rknn_destroy",
    "rknn_query",
    "rknn_inputs_set",
    "rknn_run",
    "rknn_wait",
    "rknn_outputs_get",
    "rknn_outputs_release",
    "rknn_create_mem_from_mb_blk",
    "rknn_create_mem_from_phys",
    "rknn_create_mem_from_fd",
    "rknn_create_mem",
    "rknn_destroy_mem",
    "rknn_set_weight_mem",
    "rknn_set_internal_mem",
    "rknn_set_io_mem",
    "rknn_set_input_shapes",
    "rknn_mem_sync",
    "rknn_matmul_create",
    "rknn_matmul_set_io_mem",
    "rknn_matmul_set_core_mask",
    "rknn_matmul_run",
    "rknn_matmul_destroy",
    "rknn_register_custom_ops",
    "rknn_custom_op_get_op_attr",
    "rknn_set_batch_core_num",
)
"""The calls, in the order of Table 4-1."""

_QUERIES_NOT_MINI = frozenset(
    {
        *("RKNN_QUERY_PERF_DETAIL", "RKNN_QUERY_PERF_RUN", "RKNN_QUERY_INPUT_DYNAMIC_RANGE"),
        *("RKNN_QUERY_CURRENT_INPUT_ATTR", "RKNN_QUERY_CURRENT_OUTPUT_ATTR"),
        *("RKNN_QUERY_CURRENT_NATIVE_INPUT_ATTR", "RKNN_QUERY_CURRENT_NATIVE_OUTPUT_ATTR"),
    }
)

QUERIES = (
    "RKNN_QUERY_IN_OUT_NUM",
    "RKNN_QUERY_INPUT_ATTR",
    "RKNN_QUERY_OUTPUT_ATTR",
    "RKNN_QUERY_PERF_DETAIL",
    "RKNN_QUERY_PERF_RUN",
    "RKNN_QUERY_SDK_VERSION",
    "RKNN_QUERY_MEM_SIZE",
    "RKNN_QUERY_CUSTOM_STRING",
    "RKNN_QUERY_NATIVE_INPUT_ATTR",
    "RKNN_QUERY_NATIVE_OUTPUT_ATTR",
    "RKNN_QUERY_NATIVE_NC1HWC2_INPUT_ATTR",
    "RKNN_QUERY_NATIVE_NC1HWC2_OUTPUT_ATTR",
    "RKNN_QUERY_NATIVE_NHWC_INPUT_ATTR",
    "RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR",
    "RKNN_QUERY_INPUT_DYNAMIC_RANGE",
    "RKNN_QUERY_CURRENT_INPUT_ATTR",
    "RKNN_QUERY_CURRENT_OUTPUT_ATTR",
    "RKNN_QUERY_CURRENT_NATIVE_INPUT_ATTR",
    "RKNN_QUERY_CURRENT_NATIVE_OUTPUT_ATTR",
)
"""The commands of ``rknn_query``, in the order of Table 4-2."""


def calls(column: Column) -> dict[str, bool]:
    """Table 4-1, one column."""
    if column == "none":
        return dict.fromkeys(CALLS, False)
    missing = _NOWHERE
    if column != "multi":
        missing |= _MULTI_ONLY
    if column in ("mini", "mini_b"):
        missing |= _NOT_MINI
    return {name: name not in missing for name in CALLS}


def queries(column: Column) -> dict[str, bool]:
    """Table 4-2, one column."""
    if column == "none":
        return dict.fromkeys(QUERIES, False)
    missing = _QUERIES_NOT_MINI if column in ("mini", "mini_b") else frozenset()
    if column == "mini_b":
        missing |= {"RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR"}
    return {name: name not in missing for name in QUERIES}
