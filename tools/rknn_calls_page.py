"""Write the tables of docs/rknn.md from the catalogue and the table below: python tools/rknn_calls_page.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from anynpu import chips
from anynpu.chips import CALLS, QUERIES, Chip

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "rknn.md"
TESTS = ROOT / "tests" / "rknn"
MARK = "<!-- everything below is written by tools/rknn_calls_page.py -->"

DOCUMENTS, LOGGED, CHOICE, HERE, NOWHERE = "documents", "logged", "choice", "only here", "nowhere"

CALL_NOTES: dict[str, tuple[str, str, str]] = {
    "rknn_init": ("test_calls_contexts", DOCUMENTS, "process priority and GPU preference are accepted and change nothing"),
    "rknn_set_core_mask": ("test_calls_contexts", DOCUMENTS, "operators that cannot be split run on core 0"),
    "rknn_dup_context": ("test_calls_contexts", DOCUMENTS, "rejected for dynamic shapes"),
    "rknn_destroy": ("test_calls_contexts", CHOICE, "a run in another thread ends between two layers"),
    "rknn_query": ("test_queries", DOCUMENTS, "see the table of queries"),
    "rknn_inputs_set": (
        "test_calls_running",
        DOCUMENTS,
        "more types are converted than the documents list; where `index` repeats, the position counts",
    ),
    "rknn_run": ("test_calls_running", DOCUMENTS, "`rknn_run_extend` works: not blocking, time limits, numbers of frames"),
    "rknn_wait": ("test_calls_running", HERE, "no runtime of the vendor has it; here it waits for a frame"),
    "rknn_outputs_get": (
        "test_calls_running",
        DOCUMENTS,
        "`size` must be set for preallocated buffers; where `index` repeats, the position counts and `index` is written back",
    ),
    "rknn_outputs_release": ("test_calls_running", DOCUMENTS, ""),
    "rknn_create_mem_from_mb_blk": ("test_availability", NOWHERE, "declared by the vendor, offered on no chip"),
    "rknn_create_mem_from_phys": ("test_calls_memory", CHOICE, "physical addresses are tokens; pass the virtual address as well"),
    "rknn_create_mem_from_fd": ("test_calls_memory", DOCUMENTS, "without a virtual address the descriptor is mapped"),
    "rknn_create_mem": ("test_calls_memory", DOCUMENTS, "a real descriptor, which can be mapped"),
    "rknn_destroy_mem": ("test_calls_memory", DOCUMENTS, ""),
    "rknn_set_weight_mem": ("test_calls_contexts", DOCUMENTS, "the engine keeps a packed copy besides"),
    "rknn_set_internal_mem": ("test_calls_contexts", DOCUMENTS, "intermediate tensors are really there"),
    "rknn_set_io_mem": ("test_zero_copy", DOCUMENTS, "types and layouts as the documents list them for each runtime"),
    "rknn_set_input_shapes": ("test_calls_contexts", DOCUMENTS, ""),
    "rknn_mem_sync": (
        "test_calls_memory",
        DOCUMENTS,
        "nothing to do: host and device see the same memory, but under the [sanitizer](failures.md#sanitizer)",
    ),
    "rknn_matmul_create": ("test_matmul_calls", DOCUMENTS, ""),
    "rknn_matmul_set_io_mem": ("test_matmul_calls", DOCUMENTS, ""),
    "rknn_matmul_set_core_mask": ("test_matmul_calls", DOCUMENTS, ""),
    "rknn_matmul_run": ("test_matmul_calls", CHOICE, "saturation of int16 is not documented"),
    "rknn_matmul_destroy": ("test_matmul_calls", DOCUMENTS, ""),
    "rknn_register_custom_ops": ("test_customop_calls", DOCUMENTS, "[Custom operators](#custom-operators)"),
    "rknn_custom_op_get_op_attr": ("test_customop_calls", DOCUMENTS, ""),
    "rknn_set_batch_core_num": ("test_calls_contexts", DOCUMENTS, ""),
}

LATER_CALLS: dict[str, tuple[str, str, str, str]] = {
    "rknn_create_mem2": (
        "rknn_create_mem",
        "test_calls_memory",
        DOCUMENTS,
        "SRAM is accounted for; cache flags count under the [sanitizer](failures.md#sanitizer)",
    ),
    "rknn_set_input_shape": ("rknn_set_input_shapes", "test_availability", CHOICE, "deprecated; for models with one input"),
    "rknn_matmul_create_dynamic_shape": ("rknn_matmul_create", "test_matmul_calls", DOCUMENTS, ""),
    "rknn_matmul_create_dyn_shape": ("rknn_matmul_create", "test_matmul_calls", DOCUMENTS, "the older name"),
    "rknn_matmul_set_dynamic_shape": ("rknn_matmul_create", "test_matmul_calls", DOCUMENTS, ""),
    "rknn_matmul_set_quant_params": ("rknn_matmul_create", "test_matmul_calls", CHOICE, "rounding is our own"),
    "rknn_matmul_get_quant_params": ("rknn_matmul_create", "test_matmul_calls", CHOICE, ""),
    "rknn_B_normal_layout_to_native_layout": ("rknn_matmul_create", "test_matmul_calls", DOCUMENTS, ""),
}
"""Calls that the reference 1.6.0 lacks, with the call whose column they follow."""

QUERY_NOTES: dict[str, tuple[str, str, str]] = {
    "RKNN_QUERY_IN_OUT_NUM": ("test_queries", DOCUMENTS, ""),
    "RKNN_QUERY_INPUT_ATTR": ("test_attributes", LOGGED, "the native attributes on RV1103 and RV1106"),
    "RKNN_QUERY_OUTPUT_ATTR": ("test_attributes", LOGGED, ""),
    "RKNN_QUERY_PERF_DETAIL": ("test_queries", CHOICE, "predicted times in the vendor's columns; an empty text on small chips"),
    "RKNN_QUERY_PERF_RUN": ("test_queries", CHOICE, "predicted, see [Predicted latency](choose-a-chip.md#predicted-latency)"),
    "RKNN_QUERY_SDK_VERSION": ("test_queries", CHOICE, "version 2.3.2; names anynpu in place of a build"),
    "RKNN_QUERY_MEM_SIZE": ("test_queries", CHOICE, "sizes of our own memory plan; structs of 8 bytes are filled as well"),
    "RKNN_QUERY_CUSTOM_STRING": ("test_queries", DOCUMENTS, ""),
    "RKNN_QUERY_NATIVE_INPUT_ATTR": ("test_attributes", LOGGED, ""),
    "RKNN_QUERY_NATIVE_OUTPUT_ATTR": ("test_attributes", LOGGED, ""),
    "RKNN_QUERY_NATIVE_NC1HWC2_INPUT_ATTR": ("test_queries", DOCUMENTS, "another name of `RKNN_QUERY_NATIVE_INPUT_ATTR`"),
    "RKNN_QUERY_NATIVE_NC1HWC2_OUTPUT_ATTR": ("test_queries", DOCUMENTS, "another name of `RKNN_QUERY_NATIVE_OUTPUT_ATTR`"),
    "RKNN_QUERY_NATIVE_NHWC_INPUT_ATTR": ("test_queries", DOCUMENTS, ""),
    "RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR": ("test_queries", DOCUMENTS, "for outputs of 4 axes"),
    "RKNN_QUERY_INPUT_DYNAMIC_RANGE": ("test_queries", DOCUMENTS, "`RKNN_ERR_MODEL_INVALID` without dynamic shapes"),
    "RKNN_QUERY_CURRENT_INPUT_ATTR": ("test_queries", DOCUMENTS, "fails before shapes are set"),
    "RKNN_QUERY_CURRENT_OUTPUT_ATTR": ("test_queries", DOCUMENTS, ""),
    "RKNN_QUERY_CURRENT_NATIVE_INPUT_ATTR": ("test_queries", DOCUMENTS, ""),
    "RKNN_QUERY_CURRENT_NATIVE_OUTPUT_ATTR": ("test_queries", DOCUMENTS, ""),
}


def _table(heading: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    heading = list(heading)
    lines = [heading, ["---"] * len(heading), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines] + [""]


def _groups(names: Iterable[str], answers: Callable[[Chip], Mapping[str, bool]]) -> list[Chip]:
    """One chip of each column."""
    first: dict[tuple[bool, ...], Chip] = {}
    for chip in _rknn_chips():
        first.setdefault(tuple(answers(chip)[name] for name in names), chip)
    return list(first.values())


def _rknn_chips() -> list[Chip]:
    return [chip for chip in chips.all_chips() if chip.family == "rknn"]


def _heading(names: Iterable[str], answers: Callable[[Chip], Mapping[str, bool]]) -> list[str]:
    names = list(names)
    titles = []
    for chip in _groups(names, answers):
        same = [other.name for other in _rknn_chips() if all(answers(other)[name] == answers(chip)[name] for name in names)]
        titles.append(", ".join(same))
    return titles


def _calls() -> list[str]:
    def rows() -> Iterable[list[str]]:
        for name in CALLS:
            yield row(name, name, *CALL_NOTES[name])
        for name, (like, *notes) in LATER_CALLS.items():
            yield row(name, like, *notes)

    def row(name: str, like: str, test: str, fidelity: str, remark: str) -> list[str]:
        cells = ["yes" if chip.calls[like] else "no" for chip in _groups(CALLS, lambda chip: chip.calls)]
        return [f"`{name}`", *cells, f"`{test}`", fidelity, remark]

    heading = ["call", *_heading(CALLS, lambda chip: chip.calls), "tested by", "fidelity", "remarks"]
    return _table(heading, rows())


def _queries() -> list[str]:
    groups = _groups(QUERIES, lambda chip: chip.queries)
    rows = []
    for name in QUERIES:
        test, fidelity, remark = QUERY_NOTES[name]
        rows.append([f"`{name}`", *("yes" if chip.queries[name] else "no" for chip in groups), f"`{test}`", fidelity, remark])
    small = ["yes" if chip.library == "librknnmrt" else "no" for chip in groups]
    rows.append(["`RKNN_QUERY_DEVICE_MEM_INFO`", *small, "`test_queries`", CHOICE, "later than the reference"])
    return _table(["query", *_heading(QUERIES, lambda chip: chip.queries), "tested by", "fidelity", "remarks"], rows)


def tables() -> str:
    """The generated part of the page."""
    parts = [["### Calls", "", *_calls()], ["### Queries", "", *_queries()]]
    return "\n".join(line for part in parts for line in part).rstrip() + "\n"


def updated(page: str) -> str:
    """*page* with its generated part renewed."""
    head, _, _ = page.partition(MARK)
    return f"{head}{MARK}\n\n{tables()}"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
