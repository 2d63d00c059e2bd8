"""Tensors of the caller that end where memory ends: a kernel that touched a byte after them would crash the process."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from npu.engines.cases_large import LARGE_BUILDERS, large_case, reference_result
from npu.engines.native_support import single_layer
from npu.engines.test_native_running import page_end

from anynpu.npu.control import RunControl
from anynpu.npu.engines import native_levels
from anynpu.npu.engines.native import NativeEngine
from anynpu.tensor import TensorSpec

SEEDS = 16


def at_the_end(spec: TensorSpec, alive: list[mmap.mmap]) -> npt.NDArray[Any]:
    address, pages = page_end(spec.nbytes)
    alive.append(pages)
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * spec.nbytes).from_address(address))
    return memory.view(spec.dtype.storage).reshape(spec.memory_shape)


@pytest.mark.parametrize("operator", sorted(LARGE_BUILDERS))
def test_inputs_and_outputs_may_end_where_memory_ends(operator: str) -> None:
    engines = [NativeEngine(isa=level) for level in native_levels.available()]
    for seed in range(SEEDS):
        made = large_case(operator, seed)
        wanted = reference_result(made)
        program = single_layer(made)
        for engine in engines:
            alive: list[mmap.mmap] = []
            arrays = {name: at_the_end(spec, alive) for name, spec in program.tensors.items()}
            for name, array in zip(program.inputs, made.inputs, strict=True):
                arrays[name][...] = array
            engine.prepare(program).bind(arrays).run(RunControl())
            for name, array in zip(program.outputs, wanted, strict=True):
                assert np.array_equal(arrays[name], array), f"seed {seed} at level {engine.isa}"
