"""The chip catalogue: complete, consistent, and equal to the tables it was taken from."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import onnx
import pytest

from anynpu import chips
from anynpu.chips import Chip, OperatorLimits, Range
from anynpu.errors import UnknownChipError

ALL = chips.all_chips()
RKNN = [chip for chip in ALL if chip.family == "rknn"]
VIP = [chip for chip in ALL if chip.family == "vip"]

every_chip = pytest.mark.parametrize("chip", ALL, ids=lambda chip: chip.name)
every_rknn_chip = pytest.mark.parametrize("chip", RKNN, ids=lambda chip: chip.name)

# Tables 4-1 and 4-2 of the RKNN C API reference 1.6.0; columns: RK3562/66/68, RK3588, RV1106/1103.
TABLE_4_1 = """
rknn_init                   y y y
rknn_set_core_mask          n y n
rknn_dup_context            y y n
rknn_destroy                y y y
rknn_query                  y y y
rknn_inputs_set             y y n
rknn_run                    y y y
rknn_wait                   n n n
rknn_outputs_get            y y n
rknn_outputs_release        y y y
rknn_create_mem_from_mb_blk n n n
rknn_create_mem_from_phys   y y y
rknn_create_mem_from_fd     y y y
rknn_create_mem             y y y
rknn_destroy_mem            y y y
rknn_set_weight_mem         y y y
rknn_set_internal_mem       y y y
rknn_set_io_mem             y y y
rknn_set_input_shapes       y y n
rknn_mem_sync               y y y
rknn_matmul_create          y y n
rknn_matmul_set_io_mem      y y n
rknn_matmul_set_core_mask   n y n
rknn_matmul_run             y y n
rknn_matmul_destroy         y y n
rknn_register_custom_ops    y y n
rknn_custom_op_get_op_attr  y y n
rknn_set_batch_core_num     n y n
"""
TABLE_4_2 = """
RKNN_QUERY_IN_OUT_NUM                  y y y
RKNN_QUERY_INPUT_ATTR                  y y y
RKNN_QUERY_OUTPUT_ATTR                 y y y
RKNN_QUERY_PERF_DETAIL                 y y n
RKNN_QUERY_PERF_RUN                    y y n
RKNN_QUERY_SDK_VERSION                 y y y
RKNN_QUERY_MEM_SIZE                    y y y
RKNN_QUERY_CUSTOM_STRING               y y y
RKNN_QUERY_NATIVE_INPUT_ATTR           y y y
RKNN_QUERY_NATIVE_OUTPUT_ATTR          y y y
RKNN_QUERY_NATIVE_NC1HWC2_INPUT_ATTR   y y y
RKNN_QUERY_NATIVE_NC1HWC2_OUTPUT_ATTR  y y y
RKNN_QUERY_NATIVE_NHWC_INPUT_ATTR      y y y
RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR     y y y
RKNN_QUERY_INPUT_DYNAMIC_RANGE         y y n
RKNN_QUERY_CURRENT_INPUT_ATTR          y y n
RKNN_QUERY_CURRENT_OUTPUT_ATTR         y y n
RKNN_QUERY_CURRENT_NATIVE_INPUT_ATTR   y y n
RKNN_QUERY_CURRENT_NATIVE_OUTPUT_ATTR  y y n
"""
COLUMN = {"rk3562": 0, "rk3566": 0, "rk3568": 0, "rk3588": 1, "rv1103": 2, "rv1106": 2}
# not in the tables: what they are taken to be, and how they differ
COLUMN_TAKEN = {"rk3576": 1, "rv1126b": 0, "rv1103b": 2, "rv1106b": 2}


def column(table: str, index: int) -> dict[str, bool]:
    rows = [line.split() for line in table.strip().splitlines()]
    return {name: marks[index] == "y" for name, *marks in rows}


def test_the_catalogue_has_the_promised_chips() -> None:
    assert chips.names() == (
        *("rk3588", "rk3576", "rk3566", "rk3568", "rk3562", "rv1103", "rv1106", "rv1103b", "rv1106b", "rv1126b"),
        *("v851", "v853", "r853", "t527", "mr527", "ai985", "a733", "t736", "mr536", "t536"),
    )
    assert [chip.name for chip in ALL] == list(chips.names())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rk3588", "rk3588"),
        ("RK3588", "rk3588"),
        (" Rk3588S ", "rk3588"),
        ("rk3588j", "rk3588"),
        ("RK3568B2", "rk3568"),
        ("rv1106g3", "rv1106"),
        ("RV1106B", "rv1106b"),
        ("v851s", "v851"),
        ("V851SE", "v851"),
        ("a527", "t527"),
        ("T536", "t536"),
    ],
)
def test_names_and_aliases(name: str, expected: str) -> None:
    assert chips.get(name) is chips.get(expected)
    assert chips.get(name).name == expected


def test_no_name_means_two_chips() -> None:
    spelled = [name for chip in ALL for name in (chip.name, *chip.aliases)]
    assert len(spelled) == len(set(spelled))
    assert all(name == name.strip().lower() for name in spelled)


def test_an_unknown_chip_says_what_there_is() -> None:
    with pytest.raises(UnknownChipError) as caught:
        chips.get("rk3558")
    assert "'rk3558'" in caught.value.message
    near, known = caught.value.hint.split("? Known: ")
    assert near.startswith("did you mean ")
    assert {"rk3588", "rk3568"} <= set(near.removeprefix("did you mean ").split(", "))
    assert known == ", ".join(chips.names())


@pytest.mark.parametrize("name", ["", "zzzzzzzz", None, 3588])
def test_nonsense_still_lists_the_valid_names(name: Any) -> None:
    with pytest.raises(UnknownChipError) as caught:
        chips.get(name)
    assert caught.value.hint == "Known: " + ", ".join(chips.names())


def test_a_near_match_names_each_chip_once() -> None:
    with pytest.raises(UnknownChipError) as caught:
        chips.get("v851x")
    suggested = caught.value.hint.removeprefix("did you mean ").split("?")[0].split(", ")
    assert "v851" in suggested
    assert len(suggested) == len(set(suggested))


@every_chip
def test_every_value_has_a_source(chip: Chip) -> None:
    wanted = {field.name for field in dataclasses.fields(Chip)} - {"sources"}
    wanted |= {f"limits.{field.name}" for field in dataclasses.fields(OperatorLimits)}
    assert wanted <= chip.sources.keys()
    for key, source in chip.sources.items():
        assert source.text, key


def in_use(key: str) -> bool:
    """Whether *key* of ``sources`` speaks of a value that some chip with that entry has."""
    head, _, rest = key.partition(".")
    if not rest:
        return head in {field.name for field in dataclasses.fields(Chip)}
    if head == "limits":
        return rest in {field.name for field in dataclasses.fields(OperatorLimits)}
    return any(rest in getattr(chip, head) for chip in ALL if key in chip.sources)


def test_no_source_speaks_of_a_value_that_does_not_exist() -> None:
    stale = sorted({key for chip in ALL for key in chip.sources if not in_use(key)})
    assert stale == []


def test_a_source_is_found_by_type_or_for_the_whole_value() -> None:
    chip = chips.get("rk3588")
    assert chips.source(chip, "macs_per_cycle.int4").assumed
    assert chips.source(chip, "macs_per_cycle.int8") is chip.sources["macs_per_cycle"]
    assert not chips.source(chip, "calls.rknn_init").assumed
    assert str(chips.source(chip, "macs_per_cycle.int4")).startswith("assumed: ")


@pytest.mark.parametrize("name", COLUMN)
def test_calls_and_queries_equal_the_reference(name: str) -> None:
    chip = chips.get(name)
    assert chip.calls == column(TABLE_4_1, COLUMN[name])
    assert chip.queries == column(TABLE_4_2, COLUMN[name])
    assert list(chip.calls) == list(column(TABLE_4_1, 0))
    assert list(chip.queries) == list(column(TABLE_4_2, 0))
    assert not chip.sources["calls"].assumed
    assert not chip.sources["queries"].assumed


@pytest.mark.parametrize("name", COLUMN_TAKEN)
def test_calls_and_queries_of_chips_that_the_reference_does_not_list(name: str) -> None:
    chip = chips.get(name)
    assert chip.calls == column(TABLE_4_1, COLUMN_TAKEN[name])
    queries = column(TABLE_4_2, COLUMN_TAKEN[name])
    if name in ("rv1103b", "rv1106b"):
        queries["RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR"] = False
    assert chip.queries == queries


def test_the_tables_have_28_calls_and_19_queries() -> None:
    assert (len(chips.CALLS), len(chips.QUERIES)) == (28, 19)


@pytest.mark.parametrize("chip", VIP, ids=lambda chip: chip.name)
def test_vips_answer_no_rknn_call_and_identify_themselves(chip: Chip) -> None:
    assert set(chip.calls) == set(chips.CALLS)
    assert set(chip.queries) == set(chips.QUERIES)
    assert not any(chip.calls.values())
    assert not any(chip.queries.values())
    assert chip.matmul == {}
    assert chip.library == "viplite"
    assert chip.vip is not None
    customer_ids = {0xEE: "v851 v853 r853", 0x10000016: "t527 mr527 ai985", 0x1000003B: "a733 t736 mr536 t536"}
    assert chip.name in customer_ids[chip.vip.customer_id].split()
    assert f"{chip.vip.customer_id:X}" in chip.vip.target


@every_rknn_chip
def test_cores_masks_and_calls_agree(chip: Chip) -> None:
    assert chip.vip is None
    several = chip.cores > 1
    assert chip.calls["rknn_set_core_mask"] is several
    assert chip.calls["rknn_set_batch_core_num"] is several
    assert bool(chip.core_masks) is several
    assert bool(chip.multicore_operators) is several
    for mask in chip.core_masks:
        assert mask == 0xFFFF or mask < (1 << chip.cores), "a mask names a core that the chip does not have"


def test_core_masks() -> None:
    assert set(chips.get("rk3588").core_masks) == {0, 1, 2, 4, 3, 7, 0xFFFF}
    assert set(chips.get("rk3576").core_masks) == {0, 1, 2, 3, 0xFFFF}


def test_what_splits_over_cores() -> None:
    rk3588, rk3576 = chips.get("rk3588"), chips.get("rk3576")
    assert rk3588.multicore_operators == {"Conv", "Add", "Concat", "Mul"}
    assert {"Relu", "Clip", "PRelu", "LeakyRelu"} <= rk3588.multicore_activations
    assert "Sigmoid" not in rk3588.multicore_activations
    assert {"Sigmoid", "Tanh", "HardSwish", "Swish", "Mish"} <= rk3576.multicore_activations


@every_chip
def test_types_agree(chip: Chip) -> None:
    assert ("fp16" in chip.quantized_types) is chip.float16
    assert "w8a8" in chip.quantized_types
    for values in (chip.macs_per_cycle, chip.channel_block, chip.channel_alignment, chip.input_width_alignment):
        assert "int8" in values
        assert all(value > 0 for value in values.values())
        assert not chip.float16 or "float16" in values
        assert "w16a16" not in chip.quantized_types or "int16" in values
    assert set(chip.channel_alignment) == set(chip.channel_block) == set(chip.input_width_alignment)
    for kind, block in chip.channel_block.items():
        assert chip.channel_alignment[kind] % block == 0


def test_accepted_types() -> None:
    accepted = {chip.name: set(chip.quantized_types) for chip in RKNN}
    assert accepted["rk3588"] == accepted["rk3566"] == accepted["rk3568"] == {"w8a8", "fp16"}
    assert accepted["rk3562"] == {"w8a8", "fp16", "w8a16"}
    assert accepted["rk3576"] == accepted["rv1126b"] == {"w8a8", "fp16", "w4a16"}
    assert accepted["rv1103"] == accepted["rv1106"] == {"w8a8", "w16a16"}
    assert accepted["rv1103b"] == accepted["rv1106b"] == {"w8a8"}


@pytest.mark.parametrize(
    ("names", "block", "alignment", "width"),
    [
        (("rk3566", "rk3568"), (8, 4, 4), (16, 8), (8, 4)),
        (("rk3562", "rk3588", "rv1103", "rv1106"), (16, 8, 8), (32, 16), (16, 8)),
        (("rk3576",), (16, 8, 8), (32, 16), (16, 8)),
    ],
)
def test_layouts(names: tuple[str, ...], block: tuple[int, ...], alignment: tuple[int, ...], width: tuple[int, ...]) -> None:
    for name in names:
        chip = chips.get(name)
        assert tuple(chip.channel_block[kind] for kind in ("int8", "float16", "int16")) == block
        assert tuple(chip.channel_alignment[kind] for kind in ("int8", "float16")) == alignment
        assert tuple(chip.input_width_alignment[kind] for kind in ("int8", "float16")) == width


def test_layouts_of_the_b_chips_have_int8_only() -> None:
    for name in ("rv1103b", "rv1106b"):
        assert chips.get(name).channel_block == {"int8": 8}
        assert chips.get(name).input_width_alignment == {"int8": 8}


@every_rknn_chip
def test_matmul_rules_agree_with_themselves(chip: Chip) -> None:
    assert bool(chip.matmul) is chip.calls["rknn_matmul_create"]
    for kind, rules in chip.matmul.items():
        assert (rules.n_multiple, rules.k_multiple) == (rules.b_block_n, rules.b_block_k), kind
        assert rules.k_multiple % rules.a_block == 0
        assert rules.n_multiple % rules.c_block == 0
        assert rules.k_max == 10240
        assert rules.segment_k is None or rules.segment_k % rules.k_multiple == 0
        assert rules.transposed_b is (chip.name not in ("rk3566", "rk3568"))
    assert bool(chip.matmul_types) is bool(chip.matmul)
    assert {kind for a, b, _ in chip.matmul_types for kind in (a, b)} <= chip.matmul.keys()
    assert len(set(chip.matmul_types)) == len(chip.matmul_types)


def test_two_factors_of_different_types_need_a_later_chip() -> None:
    mixed = {chip.name for chip in ALL if any(a != b for a, b, _ in chip.matmul_types)}
    assert mixed == {"rk3576", "rv1126b"}


@pytest.mark.parametrize(
    ("name", "kind", "k", "n", "a", "c", "segment"),
    [
        ("rk3566", "int8", 32, 16, 8, 4, None),
        ("rk3568", "float16", 16, 8, 4, 4, None),
        ("rk3562", "int8", 32, 16, 16, 4, None),
        ("rk3562", "float16", 32, 8, 8, 4, None),
        ("rk3588", "int4", 32, 64, 32, 8, 8192),
        ("rk3588", "int8", 32, 32, 16, 4, 8192),
        ("rk3588", "float16", 32, 16, 8, 4, 8192),
        ("rk3576", "int4", 32, 64, 32, 4, 4096),
        ("rk3576", "int8", 32, 32, 16, 4, 4096),
        ("rk3576", "float16", 32, 16, 8, 4, 4096),
    ],
)
def test_matmul_rules(name: str, kind: str, k: int, n: int, a: int, c: int, segment: int | None) -> None:
    rules = chips.get(name).matmul[kind]
    assert (rules.k_multiple, rules.n_multiple, rules.a_block, rules.c_block, rules.segment_k) == (k, n, a, c, segment)


def test_hardware_figures_of_the_documented_chip() -> None:
    chip = chips.get("rk3588")
    assert (chip.cores, chip.macs_per_cycle["int8"], chip.macs_per_cycle["float16"]) == (3, 1024, 512)
    assert (chip.clock_hz, chip.buffer_bytes, chip.sram_bytes) == (1_000_000_000, 384 * 1024, 956 * 1024)
    for key in ("cores", "macs_per_cycle", "clock_hz", "buffer_bytes", "sram_bytes"):
        assert not chip.sources[key].assumed


@every_chip
def test_operators_and_limits_agree(chip: Chip) -> None:
    limits = chip.limits
    assert bool(limits.softmax_axes) is ("Softmax" in limits.npu_operators)
    assert (limits.lstm_size_max is not None) is ("LSTM" in limits.npu_operators)
    assert chip.multicore_operators <= limits.npu_operators
    assert chip.multicore_activations <= limits.npu_operators
    for needed in (
        "Conv",
        "ConvTranspose",
        "Gemm",
        "MatMul",
        "Add",
        "Concat",
        "MaxPool",
        "Resize",
        "Relu",
        "Sigmoid",
        "HardSwish",
    ):
        assert needed in limits.npu_operators


@pytest.mark.parametrize(
    ("operator", "missing_on"),
    [
        ("Softmax", {"rk3566", "rk3568"}),
        ("GRU", {"rv1103", "rv1106", "rv1103b", "rv1106b"}),
        ("Gather", {"rv1103", "rv1106", "rv1103b", "rv1106b"}),
        ("LSTM", {"rv1103b", "rv1106b"}),
        ("Pow", {"rv1103b", "rv1106b"}),
        ("Min", {"rk3562", "rv1103b", "rv1106b"}),
        ("Greater", {chip.name for chip in RKNN} - {"rk3576", "rv1126b"}),
    ],
)
def test_operators_that_some_chips_lack(operator: str, missing_on: set[str]) -> None:
    assert {chip.name for chip in RKNN if operator not in chip.limits.npu_operators} == missing_on


def test_transposed_convolution_strides() -> None:
    for chip in RKNN:
        expected = (1, 2, 4, 8) if chip.name in ("rk3588", "rk3566", "rk3568") else tuple(range(1, 9))
        assert chip.limits.conv_transpose.strides == expected


def test_shared_limits() -> None:
    limits = chips.get("rk3588").limits
    assert dataclasses.astuple(limits.conv) == ((1, 31), (1, 7), (0, 15), (1, 31))
    assert dataclasses.astuple(limits.depthwise) == ((1, 8), (1, 7), (0, 15), (1, 32))
    assert dataclasses.astuple(limits.pool) == (8192, 8192, 8192, (1, 7), (1, 8), (0, 7), False)
    assert (limits.resize.modes, str(limits.resize.factors)) == (("nearest", "linear"), "2-8")
    assert (limits.matmul_k_max, limits.softmax_axes, limits.lstm_size_max) == (8192, (1, 3), 8192)
    assert limits.transpose_pixels_max == 8192
    assert chips.get("rk3576").limits.transpose_pixels_max is None


def test_operators_are_names_that_onnx_knows() -> None:
    newer_than_some_onnx = {"Swish"}
    unknown = {name for chip in ALL for name in chip.limits.npu_operators if not onnx.defs.has(name)}
    assert unknown <= newer_than_some_onnx


def test_a_range_includes_both_ends() -> None:
    limit = Range(1, 7)
    assert [value in limit for value in (0, 1, 7, 8)] == [False, True, True, False]
    assert 1.5 not in limit
    assert str(limit) == "1-7"


def test_entries_cannot_be_changed() -> None:
    chip = chips.get("rk3588")
    with pytest.raises(dataclasses.FrozenInstanceError):
        chip.cores = 4  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        chip.limits.matmul_k_max = 1  # type: ignore[misc]


def test_the_page_shows_the_catalogue_as_it_is() -> None:
    script = Path(__file__).parents[1] / "tools" / "chips_page.py"
    spec = importlib.util.spec_from_file_location("chips_page", script)
    assert spec is not None
    assert spec.loader is not None
    chips_page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(chips_page)
    page = chips_page.PAGE.read_text(encoding="utf-8")
    assert page == chips_page.updated(page), "run python tools/chips_page.py"
    assert chips_page.SOURCES.read_text(encoding="utf-8") == chips_page.sources()
    for chip in ALL:
        assert f"| {chip.name} |" in page
