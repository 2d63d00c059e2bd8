"""Programs in C for Allwinner's boards, through the drop-in libraries: they give the bytes that Python gives."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tools import need

import anynpu
from anynpu.dropin.environment import include_folder, library_folder
from anynpu.vip import Awnn, Network, generations
from anynpu.vip.interface import functions

from .running import PROGRAMS, board_environment, build, checksum, clean_environment, fill_bytes, run

SHAPE = (1, 3, 12, 10)
CHIPS = ("v853", "t527", "a733")
STEPS = int(os.environ.get("ANYNPU_MISUSE_STEPS", "6000"))
"""`make soak` asks for more."""


def network() -> onnx.ModelProto:
    """A convolution that is also an output, and a classifier behind it."""
    rng = np.random.default_rng(8)
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c"], pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["c"], ["features"]),
        helper.make_node("GlobalAveragePool", ["features"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w2"], ["scores"]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 7]),
            helper.make_tensor_value_info("features", TensorProto.FLOAT, [1, 6, 12, 10]),
        ],
        [
            numpy_helper.from_array(rng.normal(size=(6, 3, 3, 3)).astype(np.float32), "w1"),
            numpy_helper.from_array(rng.normal(size=(6, 7)).astype(np.float32), "w2"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    folder = tmp_path_factory.mktemp("vip-models")
    rng = np.random.default_rng(9)
    samples = [{"x": rng.normal(size=SHAPE).astype(np.float32)} for _ in range(3)]
    made = {}
    for chip, dtype in (*((chip, "w8a8") for chip in CHIPS), ("t527", "w16a16"), ("t527", "i8"), ("t527", "fp16")):
        model = anynpu.compile(network(), target=chip, dtype=dtype, dataset=None if dtype == "fp16" else samples)
        made[chip, dtype] = model.save(folder / f"{chip}-{dtype}.nb")
    return made


def results(model: Path, chip: str, seed: int) -> list[bytes]:
    """What Python gets for the bytes that the programs fill in."""
    with Network(model, device=f"sim:{chip}") as network:
        buffer = network.bind_input(0)
        buffer.bytes()[:] = fill_bytes(buffer.size, seed)
        network.execute()
        return [codes.tobytes() for codes in network.get_outputs(decode=False)]


@pytest.mark.parametrize(
    ("chip", "library"), [("v853", "VIPlite"), ("t527", "VIPlite"), ("a733", "NBGlinker"), ("t527", "NBGlinker")]
)
def test_the_call_flow_of_the_reference(models: dict[tuple[str, str], Path], chip: str, library: str, tmp_path: Path) -> None:
    program = build("vip_flow.c", tmp_path / "flow", library=library)
    model = models[chip, "w8a8"]
    lines = run([program, model, "3"], board_environment(chip)).stdout.splitlines()
    generation = generations.generation_of_chip(anynpu.chips.get(chip))
    identity = anynpu.chips.get(chip).vip
    assert identity is not None
    assert lines[0] == f"VIPLite driver software version {generation.driver}"
    assert lines[1] == f"version {generation.version:08x} cid {identity.customer_id:x} cores 1"
    assert lines[2] == "input x 10 12 3 1 format 2"
    expected = [
        f"run {number} output {index} {checksum(data)}"
        for number in range(3)
        for index, data in enumerate(results(model, chip, number))
    ]
    assert lines[3:] == expected


@pytest.mark.parametrize("dtype", ["w8a8", "w16a16", "fp16"])
def test_other_formats(models: dict[tuple[str, str], Path], dtype: str, tmp_path: Path) -> None:
    program = build("vip_flow.c", tmp_path / "flow", library="VIPlite")
    model = models["t527", dtype]
    lines = run([program, model, "1"], board_environment("t527")).stdout.splitlines()
    assert lines[3:] == [f"run 0 output {index} {checksum(data)}" for index, data in enumerate(results(model, "t527", 0))]


@pytest.mark.full
def test_without_a_chip_each_model_says_it(models: dict[tuple[str, str], Path], tmp_path: Path) -> None:
    program = build("vip_flow.c", tmp_path / "flow", library="VIPlite")
    for chip in CHIPS:
        lines = run([program, models[chip, "w8a8"], "1"], clean_environment()).stdout.splitlines()
        assert lines[3].endswith(checksum(results(models[chip, "w8a8"], chip, 0)[0]))


def test_threads_with_duplicates_and_priorities(models: dict[tuple[str, str], Path], tmp_path: Path) -> None:
    program = build("vip_threads.c", tmp_path / "threads", library="VIPlite")
    model = models["t527", "i8"]
    lines = run([program, model], board_environment("t527")).stdout.splitlines()
    assert lines[1:] == [f"case {case} {checksum(results(model, 't527', case)[0])}" for case in range(3)]


def test_buffers_by_descriptor_and_by_address(models: dict[tuple[str, str], Path], tmp_path: Path) -> None:
    program = build("vip_memory.c", tmp_path / "memory", library="NBGlinker")
    model = models["t527", "w8a8"]
    lines = run([program, model], board_environment("t527")).stdout.splitlines()
    assert lines[1:] == [checksum(results(model, "t527", 0)[0])]


@pytest.mark.parametrize("dtype", ["w8a8", *(pytest.param(other, marks=pytest.mark.full) for other in ("i8", "w16a16", "fp16"))])
@pytest.mark.parametrize("linked", [True, False])
def test_libawnn(models: dict[tuple[str, str], Path], dtype: str, linked: bool, tmp_path: Path) -> None:
    """Linked with a VIPLite as well, or with libawnn alone, which then finds one."""
    flags = [f"-L{library_folder()}", "-Wl,--no-as-needed", "-lVIPlite"] if linked else []
    program = build("vip_awnn.c", tmp_path / "awnn", *flags, library="awnn")
    model = models["t527", dtype]
    with Awnn(model, device="sim:t527") as context:
        data = fill_bytes(context.network.inputs[0].nbytes, 0)
        context.set_input_buffers([data])
        context.run()
        floats, raw = context.get_output_buffers(), [context.get_output_buffer(index)[0] for index in range(2)]
        (dumped, *_) = context.dump_io(tmp_path / "python")
        done = run([program, model, tmp_path / "c", str(data.size), "7", "720"], board_environment("t527"))
        expected = [
            line
            for numbers, first in zip(floats, raw, strict=True)
            for line in (f"floats {checksum(numbers.tobytes())}", f"first {first:02x}")
        ]
    assert [line for line in done.stdout.splitlines() if not line.startswith("VIPLite")] == expected
    assert "fail to create the network, status=-7" in done.stderr
    assert (tmp_path / "c.input_0.txt").read_text() == dumped.read_text()
    for index in range(2):
        assert (tmp_path / f"c.output_{index}.txt").read_text() == (tmp_path / f"python.output_{index}.txt").read_text()


@pytest.mark.full
def test_random_calls_and_many_lives(models: dict[tuple[str, str], Path], tmp_path: Path) -> None:
    program = build("vip_misuse.c", tmp_path / "misuse", library="VIPlite")
    done = run([program, models["t527", "w8a8"], str(STEPS), "7", "20"], board_environment("t527"), timeout=600 + STEPS / 100)
    assert done.stdout.splitlines()[-1] == "decent"


def test_calls_can_be_logged(models: dict[tuple[str, str], Path], tmp_path: Path) -> None:
    program = build("vip_flow.c", tmp_path / "flow", library="VIPlite")
    environment = {**board_environment("t527"), "ANYNPU_CALL_LOG": str(tmp_path / "log")}
    run([program, models["t527", "w8a8"], "1"], environment)
    log = (tmp_path / "log").read_text()
    assert re.search(r"vip_create_network\(.*\) = -4 VIP_ERROR_NOT_SUPPORTED .*before vip_init", log)
    assert re.search(r"vip_run_network\(network=0x\w+\) = 0 \[", log)


def test_without_python_calls_fail_as_without_a_device(models: dict[tuple[str, str], Path], tmp_path: Path) -> None:
    source = tmp_path / "client.c"
    source.write_text(
        '#include <stdio.h>\n#include "vip_lite.h"\n'
        'int main(void) { printf("%d %u\\n", (int)vip_init(), vip_get_version()); return 0; }\n'
    )
    command = [
        need("cc"),
        str(source),
        f"-I{include_folder()}",
        f"-L{library_folder()}",
        "-lVIPlite",
        "-o",
        str(tmp_path / "client"),
    ]
    subprocess.run(command, check=True, timeout=600)
    done = run([tmp_path / "client"], clean_environment(ANYNPU_PYTHON="/missing/python"))
    assert done.stdout == "-2 0\n"
    assert "libVIPlite" in done.stderr


def symbols(library: str) -> set[str]:
    path = library_folder() / f"{library}.so"
    done = subprocess.run(
        [need("nm"), "-D", "--defined-only", str(path)], capture_output=True, text=True, check=True, timeout=600
    )
    return {line.split()[-1] for line in done.stdout.splitlines()}


def test_exactly_the_calls_are_exported() -> None:
    assert symbols("libVIPlite") == symbols("libNBGlinker") == set(functions())
    assert symbols("libVIPuser") == symbols("libVIPhal") == set()
    text = (include_folder() / "awnn_lib.h").read_text(encoding="utf-8")
    assert symbols("libawnn") == set(re.findall(r"\b(awnn_\w+)\(", text))
    assert len(symbols("libawnn")) == 9


@pytest.mark.parametrize("library", ["libVIPlite", "libNBGlinker", "libVIPuser", "libVIPhal", "libawnn"])
def test_the_file_is_what_programs_expect(library: str) -> None:
    path = library_folder() / f"{library}.so"
    dynamic = subprocess.run([need("readelf"), "-dW", str(path)], capture_output=True, text=True, check=True, timeout=600).stdout
    assert f"Library soname: [{library}.so]" in dynamic
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
    assert all(re.match(r"lib(c|dl|m|pthread)\.so|ld-linux", name) for name in needed), needed


@pytest.mark.parametrize("v85x", [False, True])
@pytest.mark.parametrize(
    ("compiler", "standard"),
    [
        ("cc", "-std=c99"),
        pytest.param("cc", "-std=c17", marks=pytest.mark.full),
        pytest.param("c++", "-std=c++11", marks=pytest.mark.full),
        ("c++", "-std=c++20"),
    ],
)
def test_headers_compile_for_each_generation(compiler: str, standard: str, v85x: bool, tmp_path: Path) -> None:
    use = {
        False: "vip_init(); awnn_init(); vip_power_management(0, VIP_POWER_PROPERTY_OFF, 0); awnn_set_input_buffers(c, (void **)0);",
        True: "vip_init(1 << 20); awnn_init(1 << 20); vip_power_management(n, VIP_POWER_PROPERTY_OFF, 0); "
        "awnn_set_input_buffers(c, (unsigned char **)0);",
    }[v85x]
    source = tmp_path / "source.c"
    lines = ['#include "vip_lite.h"', '#include "awnn_lib.h"', "void use(vip_network n, Awnn_Context_t *c);"]
    source.write_text("\n".join([*lines, f"void use(vip_network n, Awnn_Context_t *c) {{ (void)n; {use} }}"]) + "\n")
    language = "c" if compiler == "cc" else "c++"
    flags = [standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-x", language, "-c", source, "-o", tmp_path / "object.o"]
    flags += ["-DANYNPU_VIP_V85X"] if v85x else []
    done = subprocess.run(
        [need(compiler), f"-I{include_folder()}", *map(str, flags)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_headers_and_bindings_agree(tmp_path: Path) -> None:
    """Sizes and offsets of every struct, as a C program sees them, against the Python bindings."""
    from anynpu._vip import ffi

    types, _, _ = ffi.list_types()
    structs = [name for name in types if ffi.typeof(name).kind == "struct" and name.endswith("_t")]
    assert len(structs) >= 7
    wanted, lines = [], []
    for name in structs:
        wanted.append(f"{name} {ffi.sizeof(name)}")
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, _ in ffi.typeof(name).fields:
            wanted.append(f"{name}.{field} {ffi.offsetof(name, field)}")
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
    source = tmp_path / "sizes.c"
    source.write_text(
        f"#include <stddef.h>\n#include <stdio.h>\n#include <vip_lite.h>\nint main(void) {{ {' '.join(lines)} return 0; }}\n"
    )
    program = tmp_path / "sizes"
    subprocess.run([need("cc"), str(source), f"-I{include_folder()}", "-o", str(program)], check=True, timeout=600)
    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines() == wanted


def test_what_the_driver_prints_is_that_of_the_generations() -> None:
    native = PROGRAMS.parents[2] / "src" / "anynpu" / "dropin" / "native" / "vip_calls.h"
    found = re.findall(r'\{(0x\w+), "([^"]+)"\}', native.read_text(encoding="utf-8"))
    known = (generations.A, generations.B, generations.C)
    assert [(int(version, 16), driver) for version, driver in found] == [(entry.version, entry.driver) for entry in known]


VENDOR = """
import sys
import numpy as np
import anynpu.vip.network
from anynpu.session import InferenceSession
from anynpu.vip import Awnn, Network, VendorLibrary
from anynpu.vip.vpmrun import VpmOptions, vpm_run

anynpu.vip.network.check_target = lambda *_, **__: None  # this board executes what anynpu compiles
model, path = sys.argv[1:]
library = VendorLibrary(path)
values = np.random.default_rng(2).normal(size=(1, 3, 12, 10)).astype(np.float32)
with Network(model, device="sim:t527") as network:
    due, codes, profile = network.run([values]), network.inputs[0].encode(values), network.profile

def same(found):
    assert all(np.array_equal(one.reshape(-1), other.reshape(-1)) for one, other in zip(found, due, strict=True))

with Network(model, device=library) as network:
    assert network.hardware.customer_id == 0x10000016
    same(network.run([codes]))
    assert network.profile == profile
    with network.duplicate(priority=3, timeout=9) as twin, network.duplicate(weak=True) as weak:
        same(twin.run([values]))
        weak.set_inputs([values])
        weak.trigger()
        weak.wait()
        same(weak.get_outputs())
with Awnn(model, device=library) as context:
    context.set_input_buffers([codes])
    context.run()
    same(context.get_output_buffers())

class Board:
    def open_backend(self, model, options, weights_from):
        from anynpu.vip import open_backend
        return open_backend(model, options, library, weights_from)

with InferenceSession(model, device=Board()) as session:
    assert session.device == "T527, libVIPlite 1.13.0, 1 core", session.device
    for found in session.stream([values] * 5):
        same(found)
    binding = session.io_binding()
    binding.bind_cpu_input("x", values)
    session.run_with_iobinding(binding)
    same(binding.copy_outputs_to_cpu())
open("x.dat", "wb").write(codes.tobytes())
open("sample.txt", "w").write(f"[network]\\n{model}\\n[input]\\nx.dat\\n[output]\\na.txt\\nb.txt\\n")
assert vpm_run(VpmOptions("sample.txt", loops=2, bypass=False), lambda line: None, device=library) == 0
same([np.loadtxt("a.txt", dtype=np.float32), np.loadtxt("b.txt", dtype=np.float32)])
try:
    Network(b"VPMN" + bytes(60), device=library)
except anynpu.errors.ModelError as error:
    assert error.code == -7 and error.call == "vip_create_network"
else:
    raise AssertionError("a model that is none")
print("same")
"""


def test_python_on_a_library_that_is_loaded(models: dict[tuple[str, str], Path], tmp_path: Path) -> None:
    """The way that a board's own library takes: everything of Python runs over function pointers."""
    script = tmp_path / "script.py"
    script.write_text(VENDOR)
    command = [sys.executable, script, models["t527", "w8a8"], library_folder() / "libVIPlite.so"]
    assert run(command, clean_environment(ANYNPU_CHIP="t527"), cwd=tmp_path).stdout.splitlines().count("same") == 1
