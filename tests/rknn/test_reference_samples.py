"""The samples of the C API reference 1.6.0, line by line, in the order of the document. Matmuls and custom operators have
files of their own.

``printf`` became an assertion about what would be printed. Each test names the section of its sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anynpu._rknn import ffi
from anynpu.rknn import SoftwareLibrary
from anynpu.rknn.constants import Flag, rknn_core_mask, rknn_mem_sync_mode, rknn_query_cmd, rknn_tensor_format, rknn_tensor_type

from .customop_helpers import Callbacks, RawContext, chain_model, view
from .support import HEIGHT, WIDTH, dynamic_model, file_bytes, memory_array, picture_model, pixels, resolution_model

NULL = ffi.NULL
Q = rknn_query_cmd


def sizeof(struct: str) -> int:
    return ffi.sizeof(struct)


@pytest.fixture
def model_data() -> bytes:
    return file_bytes(picture_model())


@pytest.fixture
def model_paths(tmp_path: Path) -> tuple[Any, Any]:
    """Two models on disk, as C strings."""
    pointers = []
    for letter, model in (("a", picture_model()), ("b", picture_model(seed=1))):
        path = tmp_path / f"model_{letter}.rknn"
        path.write_bytes(file_bytes(model))
        pointers.append(ffi.new("char[]", str(path).encode()))
    return pointers[0], pointers[1]


@pytest.fixture
def ctx(library: SoftwareLibrary, model_data: bytes) -> Iterator[int]:
    context = ffi.new("rknn_context *")
    assert library.rknn_init(context, ffi.from_buffer(model_data), len(model_data), 0, NULL) == 0
    yield context[0]
    assert library.rknn_destroy(context[0]) == 0


@pytest.fixture
def dynamic_ctx(library: SoftwareLibrary) -> Iterator[int]:
    data, context = file_bytes(dynamic_model()), ffi.new("rknn_context *")
    assert library.rknn_init(context, ffi.from_buffer(data), len(data), 0, NULL) == 0
    yield context[0]
    assert library.rknn_destroy(context[0]) == 0


@pytest.fixture
def io_num(library: SoftwareLibrary, ctx: int) -> Any:
    number = ffi.new("rknn_input_output_num *")
    assert library.rknn_query(ctx, Q.RKNN_QUERY_IN_OUT_NUM, number, sizeof("rknn_input_output_num")) == 0
    return number


def run_once(library: SoftwareLibrary, ctx: int) -> None:
    """What the samples leave out with three dots."""
    in_data = pixels()
    inputs = ffi.new("rknn_input[1]")
    inputs[0].type, inputs[0].size = int(rknn_tensor_type.RKNN_TENSOR_UINT8), in_data.nbytes
    inputs[0].fmt, inputs[0].buf = int(rknn_tensor_format.RKNN_TENSOR_NHWC), ffi.from_buffer(in_data)
    assert library.rknn_inputs_set(ctx, 1, inputs) == 0
    assert library.rknn_run(ctx, NULL) == 0


# 4.3.1


def test_4_3_1_init(library: SoftwareLibrary, model_data: bytes) -> None:
    ctx = ffi.new("rknn_context *")
    ret = library.rknn_init(ctx, ffi.from_buffer(model_data), len(model_data), 0, NULL)
    assert ret == 0


def test_4_3_1_internal_memory_of_two_models(library: SoftwareLibrary, model_paths: tuple[Any, Any]) -> None:
    model_path_a, model_path_b = model_paths
    ctx_a, ctx_b = ffi.new("rknn_context *"), ffi.new("rknn_context *")
    mem_size_a, mem_size_b = ffi.new("rknn_mem_size *"), ffi.new("rknn_mem_size *")

    assert library.rknn_init(ctx_a, model_path_a, 0, Flag.RKNN_FLAG_MEM_ALLOC_OUTSIDE, NULL) == 0
    assert library.rknn_query(ctx_a[0], Q.RKNN_QUERY_MEM_SIZE, mem_size_a, sizeof("rknn_mem_size")) == 0

    assert library.rknn_init(ctx_b, model_path_b, 0, Flag.RKNN_FLAG_MEM_ALLOC_OUTSIDE, NULL) == 0
    assert library.rknn_query(ctx_b[0], Q.RKNN_QUERY_MEM_SIZE, mem_size_b, sizeof("rknn_mem_size")) == 0

    max_internal_size = max(mem_size_a.total_internal_size, mem_size_b.total_internal_size)
    internal_mem_max = library.rknn_create_mem(ctx_a[0], max_internal_size)

    internal_mem_a = library.rknn_create_mem_from_fd(
        ctx_a[0], internal_mem_max.fd, internal_mem_max.virt_addr, mem_size_a.total_internal_size, 0
    )
    assert library.rknn_set_internal_mem(ctx_a[0], internal_mem_a) == 0

    internal_mem_b = library.rknn_create_mem_from_fd(
        ctx_b[0], internal_mem_max.fd, internal_mem_max.virt_addr, mem_size_b.total_internal_size, 0
    )
    assert library.rknn_set_internal_mem(ctx_b[0], internal_mem_b) == 0

    # beyond the sample: with their weights set, the two run in turn as well as they do alone
    for ctx, mem_size in ((ctx_a, mem_size_a), (ctx_b, mem_size_b)):
        weight_mem = library.rknn_create_mem(ctx[0], mem_size.total_weight_size)
        assert library.rknn_set_weight_mem(ctx[0], weight_mem) == 0
    results = []
    for ctx in (ctx_a, ctx_b, ctx_a, ctx_b):
        run_once(library, ctx[0])
        results.append(outputs_of(library, ctx[0]))
    assert memory_array(internal_mem_max).any()
    alone = []
    for path in model_paths:
        ctx = ffi.new("rknn_context *")
        assert library.rknn_init(ctx, path, 0, 0, NULL) == 0
        run_once(library, ctx[0])
        alone.append(outputs_of(library, ctx[0]))
    assert results == alone * 2
    assert alone[0] != alone[1]


def outputs_of(library: SoftwareLibrary, ctx: int) -> list[bytes]:
    outputs = ffi.new("rknn_output[2]", [{"index": 0}, {"index": 1}])
    assert library.rknn_outputs_get(ctx, 2, outputs, NULL) == 0
    data = [bytes(ffi.buffer(outputs[i].buf, outputs[i].size)) for i in (0, 1)]
    assert library.rknn_outputs_release(ctx, 2, outputs) == 0
    return data


def test_4_3_1_shared_weights(library: SoftwareLibrary, tmp_path: Path) -> None:
    paths = []
    for side, remove_weight in ((8, False), (12, True)):  # resolution A is whole, resolution B has no weights
        path = tmp_path / f"resolution_{side}.rknn"
        path.write_bytes(file_bytes(resolution_model(side), remove_weight))
        paths.append(ffi.new("char[]", str(path).encode()))
    model_path_a, model_path_b = paths

    ctx_a, ctx_b = ffi.new("rknn_context *"), ffi.new("rknn_context *")
    assert library.rknn_init(ctx_a, model_path_a, 0, 0, NULL) == 0

    extend = ffi.new("rknn_init_extend *")
    extend.ctx = ctx_a[0]
    assert library.rknn_init(ctx_b, model_path_b, 0, Flag.RKNN_FLAG_SHARE_WEIGHT_MEM, extend) == 0

    picture = np.ones((1, 12, 12, 3), np.float32)
    inputs = ffi.new("rknn_input[1]")
    inputs[0].buf, inputs[0].size = ffi.from_buffer(picture), picture.nbytes
    inputs[0].fmt = int(rknn_tensor_format.RKNN_TENSOR_NHWC)
    assert library.rknn_inputs_set(ctx_b[0], 1, inputs) == 0
    assert library.rknn_run(ctx_b[0], NULL) == 0


# 4.3.2 to 4.3.5


def test_4_3_2_set_core_mask(library: SoftwareLibrary, ctx: int) -> None:
    core_mask = rknn_core_mask.RKNN_NPU_CORE_0
    ret = library.rknn_set_core_mask(ctx, core_mask)
    assert ret == 0


def test_4_3_3_set_batch_core_num(library: SoftwareLibrary) -> None:
    model_data = file_bytes(picture_model(batch=2))
    ctx = ffi.new("rknn_context *")
    assert library.rknn_init(ctx, ffi.from_buffer(model_data), len(model_data), 0, NULL) == 0
    ret = library.rknn_set_batch_core_num(ctx[0], 2)
    assert ret == 0


def test_4_3_4_dup_context(library: SoftwareLibrary, ctx: int) -> None:
    ctx_in = ffi.new("rknn_context *", ctx)
    ctx_out = ffi.new("rknn_context *")
    ret = library.rknn_dup_context(ctx_in, ctx_out)
    assert ret == 0
    run_once(library, ctx_out[0])


def test_4_3_5_destroy(library: SoftwareLibrary, model_data: bytes) -> None:
    ctx = ffi.new("rknn_context *")
    assert library.rknn_init(ctx, ffi.from_buffer(model_data), len(model_data), 0, NULL) == 0
    ret = library.rknn_destroy(ctx[0])
    assert ret == 0


# 4.3.6


def test_4_3_6_1_sdk_version(library: SoftwareLibrary, ctx: int) -> None:
    version = ffi.new("rknn_sdk_version *")
    ret = library.rknn_query(ctx, Q.RKNN_QUERY_SDK_VERSION, version, sizeof("rknn_sdk_version"))
    assert ret == 0
    assert ffi.string(version.api_version).startswith(b"2.3.2 (")
    assert ffi.string(version.drv_version) == b"0.9.8"


def test_4_3_6_2_in_out_num(library: SoftwareLibrary, ctx: int) -> None:
    io_num = ffi.new("rknn_input_output_num *")
    ret = library.rknn_query(ctx, Q.RKNN_QUERY_IN_OUT_NUM, io_num, sizeof("rknn_input_output_num"))
    assert ret == 0
    assert (io_num.n_input, io_num.n_output) == (1, 2)


@pytest.mark.parametrize(
    ("command", "dims"),
    [
        (Q.RKNN_QUERY_INPUT_ATTR, [[1, HEIGHT, WIDTH, 3]]),  # 3)
        (Q.RKNN_QUERY_NATIVE_INPUT_ATTR, [[1, HEIGHT, WIDTH, 3]]),  # 9)
        (Q.RKNN_QUERY_NATIVE_NHWC_INPUT_ATTR, [[1, HEIGHT, WIDTH, 3]]),  # 11)
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_4_3_6_input_attributes(
    library: SoftwareLibrary, ctx: int, io_num: Any, command: rknn_query_cmd, dims: list[list[int]]
) -> None:
    input_attrs = ffi.new("rknn_tensor_attr[]", io_num.n_input)
    for i in range(io_num.n_input):
        input_attrs[i].index = i
        ret = library.rknn_query(ctx, command, ffi.addressof(input_attrs, i), sizeof("rknn_tensor_attr"))
        assert ret == 0
    assert [list(one.dims)[: one.n_dims] for one in input_attrs] == dims


@pytest.mark.parametrize(
    ("command", "dims"),
    [
        (Q.RKNN_QUERY_OUTPUT_ATTR, [[1, 20, HEIGHT, WIDTH], [1, 10]]),  # 4)
        (Q.RKNN_QUERY_NATIVE_OUTPUT_ATTR, [[1, 2, HEIGHT, WIDTH, 16], [1, 10]]),  # 10)
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_4_3_6_output_attributes(
    library: SoftwareLibrary, ctx: int, io_num: Any, command: rknn_query_cmd, dims: list[list[int]]
) -> None:
    output_attrs = ffi.new("rknn_tensor_attr[]", io_num.n_output)
    for i in range(io_num.n_output):
        output_attrs[i].index = i
        ret = library.rknn_query(ctx, command, ffi.addressof(output_attrs, i), sizeof("rknn_tensor_attr"))
        assert ret == 0
    assert [list(one.dims)[: one.n_dims] for one in output_attrs] == dims


def test_4_3_6_12_nhwc_outputs(library: SoftwareLibrary) -> None:
    """Of a model whose outputs all have four axes."""
    model_data = file_bytes(resolution_model(8))
    ctx, io_num = ffi.new("rknn_context *"), ffi.new("rknn_input_output_num *")
    assert library.rknn_init(ctx, ffi.from_buffer(model_data), len(model_data), 0, NULL) == 0
    assert library.rknn_query(ctx[0], Q.RKNN_QUERY_IN_OUT_NUM, io_num, sizeof("rknn_input_output_num")) == 0
    output_attrs = ffi.new("rknn_tensor_attr[]", io_num.n_output)
    for i in range(io_num.n_output):
        output_attrs[i].index = i
        ret = library.rknn_query(
            ctx[0], Q.RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR, ffi.addressof(output_attrs, i), sizeof("rknn_tensor_attr")
        )
        assert ret == 0
    assert list(output_attrs[0].dims)[:4] == [1, 6, 6, 8]


def test_4_3_6_5_perf_detail(library: SoftwareLibrary, model_data: bytes) -> None:
    ctx = ffi.new("rknn_context *")
    ret = library.rknn_init(ctx, ffi.from_buffer(model_data), len(model_data), Flag.RKNN_FLAG_COLLECT_PERF_MASK, NULL)
    assert ret == 0
    run_once(library, ctx[0])
    perf_detail = ffi.new("rknn_perf_detail *")
    ret = library.rknn_query(ctx[0], Q.RKNN_QUERY_PERF_DETAIL, perf_detail, sizeof("rknn_perf_detail"))
    assert ret == 0
    assert b"Network Layer Information Table" in ffi.string(perf_detail.perf_data)


def test_4_3_6_6_perf_run(library: SoftwareLibrary, model_data: bytes) -> None:
    ctx = ffi.new("rknn_context *")
    ret = library.rknn_init(ctx, ffi.from_buffer(model_data), len(model_data), 0, NULL)
    assert ret == 0
    run_once(library, ctx[0])
    perf_run = ffi.new("rknn_perf_run *")
    ret = library.rknn_query(ctx[0], Q.RKNN_QUERY_PERF_RUN, perf_run, sizeof("rknn_perf_run"))
    assert ret == 0
    assert perf_run.run_duration > 0


def test_4_3_6_7_mem_size(library: SoftwareLibrary, model_data: bytes) -> None:
    ctx = ffi.new("rknn_context *")
    ret = library.rknn_init(ctx, ffi.from_buffer(model_data), len(model_data), Flag.RKNN_FLAG_MEM_ALLOC_OUTSIDE, NULL)
    assert ret == 0
    mem_size = ffi.new("rknn_mem_size *")
    ret = library.rknn_query(ctx[0], Q.RKNN_QUERY_MEM_SIZE, mem_size, sizeof("rknn_mem_size"))
    assert ret == 0
    assert mem_size.total_weight_size > 0
    assert mem_size.total_internal_size > 0


def test_4_3_6_8_custom_string(library: SoftwareLibrary, model_data: bytes) -> None:
    ctx = ffi.new("rknn_context *")
    ret = library.rknn_init(ctx, ffi.from_buffer(model_data), len(model_data), 0, NULL)
    assert ret == 0
    custom_string = ffi.new("rknn_custom_string *")
    ret = library.rknn_query(ctx[0], Q.RKNN_QUERY_CUSTOM_STRING, custom_string, sizeof("rknn_custom_string"))
    assert ret == 0
    assert ffi.string(custom_string.string) == b"RGB"


def dynamic_ranges(library: SoftwareLibrary, ctx: int, n_input: int) -> Any:
    dyn_range = ffi.new("rknn_input_range[]", n_input)
    for i in range(n_input):
        dyn_range[i].index = i
        ret = library.rknn_query(ctx, Q.RKNN_QUERY_INPUT_DYNAMIC_RANGE, ffi.addressof(dyn_range, i), sizeof("rknn_input_range"))
        assert ret == 0
    return dyn_range


def test_4_3_6_13_dynamic_range(library: SoftwareLibrary, dynamic_ctx: int) -> None:
    dyn_range = dynamic_ranges(library, dynamic_ctx, 2)
    assert [one.shape_number for one in dyn_range] == [2, 2]


def set_first_shapes(library: SoftwareLibrary, ctx: int, n_input: int) -> None:
    """4.3.19."""
    dyn_range = dynamic_ranges(library, ctx, n_input)
    input_attrs = ffi.new("rknn_tensor_attr[]", n_input)
    for i in range(n_input):
        input_attrs[i].index = i
        one = ffi.addressof(input_attrs, i)
        assert library.rknn_query(ctx, Q.RKNN_QUERY_INPUT_ATTR, one, sizeof("rknn_tensor_attr")) == 0
    for i in range(n_input):
        for j in range(input_attrs[i].n_dims):
            # use the first shape of inputs
            input_attrs[i].dims[j] = dyn_range[i].dyn_range[0][j]
    ret = library.rknn_set_input_shapes(ctx, n_input, input_attrs)
    assert ret >= 0, library.last_error()


@pytest.mark.parametrize(
    ("command", "dims"),
    [
        (Q.RKNN_QUERY_CURRENT_INPUT_ATTR, [[1, 8, 8, 3], [1, 4]]),  # 14)
        (Q.RKNN_QUERY_CURRENT_OUTPUT_ATTR, [[1, 4, 8, 8], [1, 4]]),  # 15)
        (Q.RKNN_QUERY_CURRENT_NATIVE_INPUT_ATTR, [[1, 8, 8, 3], [1, 4]]),  # 16)
        (Q.RKNN_QUERY_CURRENT_NATIVE_OUTPUT_ATTR, [[1, 2, 8, 8, 16], [1, 4]]),  # 17)
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_4_3_6_current_attributes(
    library: SoftwareLibrary, dynamic_ctx: int, command: rknn_query_cmd, dims: list[list[int]]
) -> None:
    set_first_shapes(library, dynamic_ctx, 2)
    attrs = ffi.new("rknn_tensor_attr[]", 2)
    for i in range(2):
        attrs[i].index = i
        ret = library.rknn_query(dynamic_ctx, command, ffi.addressof(attrs, i), sizeof("rknn_tensor_attr"))
        assert ret == 0
    assert [list(one.dims)[: one.n_dims] for one in attrs] == dims


# 4.3.7 to 4.3.10


def test_4_3_7_to_4_3_10_general_interface(library: SoftwareLibrary, ctx: int, io_num: Any) -> None:
    img_width, img_height, img_channels = WIDTH, HEIGHT, 3
    in_data = pixels()

    inputs = ffi.new("rknn_input[1]")
    inputs[0].index = 0
    inputs[0].type = int(rknn_tensor_type.RKNN_TENSOR_UINT8)
    inputs[0].size = img_width * img_height * img_channels
    inputs[0].fmt = int(rknn_tensor_format.RKNN_TENSOR_NHWC)
    inputs[0].buf = ffi.from_buffer(in_data)
    inputs[0].pass_through = 0
    ret = library.rknn_inputs_set(ctx, 1, inputs)
    assert ret == 0

    ret = library.rknn_run(ctx, NULL)
    assert ret == 0

    outputs = ffi.new("rknn_output[]", io_num.n_output)
    for i in range(io_num.n_output):
        outputs[i].index = i
        outputs[i].is_prealloc = 0
        outputs[i].want_float = 1
    ret = library.rknn_outputs_get(ctx, io_num.n_output, outputs, NULL)
    assert ret == 0
    assert [one.size for one in outputs] == [20 * HEIGHT * WIDTH * 4, 10 * 4]
    assert np.isfinite(np.frombuffer(ffi.buffer(outputs[1].buf, outputs[1].size), np.float32)).all()

    ret = library.rknn_outputs_release(ctx, io_num.n_output, outputs)
    assert ret == 0


# 4.3.11 to 4.3.17


def test_4_3_11_create_mem_from_phys(library: SoftwareLibrary, ctx: int) -> None:
    buffer = np.zeros(256, np.uint8)
    input_phys, input_virt, size = 0x12340000, ffi.from_buffer(buffer), 256
    input_mems = [library.rknn_create_mem_from_phys(ctx, input_phys, input_virt, size)]
    assert (input_mems[0].phys_addr, input_mems[0].size) == (input_phys, size)


def test_4_3_12_create_mem_from_fd(library: SoftwareLibrary, ctx: int) -> None:
    source = library.rknn_create_mem(ctx, 256)
    input_fd, input_virt, size = source.fd, source.virt_addr, 256
    input_mems = [library.rknn_create_mem_from_fd(ctx, input_fd, input_virt, size, 0)]
    assert (input_mems[0].fd, input_mems[0].size) == (input_fd, size)


def test_4_3_13_and_4_3_14_create_mem_and_destroy_mem(library: SoftwareLibrary, ctx: int) -> None:
    size = 256
    input_mems = [library.rknn_create_mem(ctx, size)]
    assert input_mems[0].size == size
    ret = library.rknn_destroy_mem(ctx, input_mems[0])
    assert ret == 0


def test_4_3_15_and_4_3_16_weight_and_internal_memory(library: SoftwareLibrary, model_data: bytes) -> None:
    ctx, mem_size = ffi.new("rknn_context *"), ffi.new("rknn_mem_size *")
    flag = Flag.RKNN_FLAG_MEM_ALLOC_OUTSIDE
    assert library.rknn_init(ctx, ffi.from_buffer(model_data), len(model_data), flag, NULL) == 0
    assert library.rknn_query(ctx[0], Q.RKNN_QUERY_MEM_SIZE, mem_size, sizeof("rknn_mem_size")) == 0
    weight_mems = [library.rknn_create_mem(ctx[0], mem_size.total_weight_size)]
    ret = library.rknn_set_weight_mem(ctx[0], weight_mems[0])
    assert ret == 0
    internal_tensor_mems = [library.rknn_create_mem(ctx[0], mem_size.total_internal_size)]
    ret = library.rknn_set_internal_mem(ctx[0], internal_tensor_mems[0])
    assert ret == 0
    run_once(library, ctx[0])


def test_4_3_17_and_4_3_20_set_io_mem_and_mem_sync(library: SoftwareLibrary, ctx: int) -> None:
    output_attrs = ffi.new("rknn_tensor_attr[1]")
    ret = library.rknn_query(ctx, Q.RKNN_QUERY_NATIVE_OUTPUT_ATTR, ffi.addressof(output_attrs, 0), sizeof("rknn_tensor_attr"))
    assert ret == 0
    output_mems = [library.rknn_create_mem(ctx, output_attrs[0].size_with_stride)]
    assert library.rknn_set_io_mem(ctx, output_mems[0], ffi.addressof(output_attrs, 0)) == 0

    run_once(library, ctx)
    ret = library.rknn_mem_sync(ctx, output_mems[0], rknn_mem_sync_mode.RKNN_MEMORY_SYNC_FROM_DEVICE)
    assert ret >= 0
    assert memory_array(output_mems[0]).any()


def test_4_3_20_mem_sync_of_an_operator_s_tensor(library: SoftwareLibrary) -> None:
    """The sample passes ``&outputs[0].mem``, which tensors of custom operators have."""
    context = RawContext(library, chain_model(("Double", {})))

    def compute(op_ctx: Any, inputs: Any, n_inputs: int, outputs: Any, n_outputs: int) -> int:
        view(outputs[0])[:] = 2 * view(inputs[0])
        mode = rknn_mem_sync_mode.RKNN_MEMORY_SYNC_FROM_DEVICE
        ret = library.rknn_mem_sync(context.handle, ffi.addressof(outputs[0], "mem"), mode)
        assert library.rknn_mem_sync(context.handle, NULL, mode) < 0
        return int(ret)

    operator = Callbacks("Double", compute=compute)
    assert context.register(operator.struct) == 0
    assert context.run(np.ones((1, 8))) == 0, context.error
    assert (context.output((1, 8)) == 2).all()


# 4.3.19


def test_4_3_19_set_input_shapes(library: SoftwareLibrary, dynamic_ctx: int) -> None:
    set_first_shapes(library, dynamic_ctx, 2)
    picture, vector = np.zeros((1, 8, 8, 3), np.float32), np.zeros((1, 4), np.float32)
    inputs = ffi.new("rknn_input[2]")
    for i, array in enumerate((picture, vector)):
        inputs[i].index, inputs[i].buf, inputs[i].size = i, ffi.from_buffer(array), array.nbytes
        inputs[i].fmt = int(rknn_tensor_format.RKNN_TENSOR_NHWC)
    assert library.rknn_inputs_set(dynamic_ctx, 2, inputs) == 0
    assert library.rknn_run(dynamic_ctx, NULL) == 0
