"""What the libraries look like from the outside: names, sonames, dependencies, headers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tools import need

from anynpu.dropin.environment import include_folder, library_folder
from anynpu.rknn.software.queries import API_VERSION

from .running import PROGRAMS, build, clean_environment, run

ABI = Path(__file__).parents[2] / "src" / "anynpu" / "rknn" / "abi.h"
MINI = (
    "create_mem create_mem2 create_mem_from_fd create_mem_from_phys destroy destroy_mem dup_context init inputs_set mem_sync outputs_get "
    "outputs_release query run set_input_shape set_input_shapes set_internal_mem set_io_mem set_weight_mem wait"
)


def declared() -> set[str]:
    text = re.sub(r"/\*.*?\*/", "", ABI.read_text(encoding="utf-8"), flags=re.DOTALL)
    return set(re.findall(r"^[a-z][\w *]*?(rknn_\w+)\(", text, re.MULTILINE))


def tool(name: str, *arguments: str | Path) -> str:
    return subprocess.run([need(name), *map(str, arguments)], capture_output=True, text=True, check=True, timeout=600).stdout


@pytest.mark.parametrize(
    ("library", "names"), [("librknnrt", declared()), ("librknnmrt", {f"rknn_{name}" for name in MINI.split()})]
)
def test_exactly_the_calls_are_exported_and_without_versions(library: str, names: set[str]) -> None:
    lines = tool("nm", "-D", "--defined-only", library_folder() / f"{library}.so").splitlines()
    assert {line.split()[-1] for line in lines} == names


def test_the_declared_calls_are_those_of_the_interface() -> None:
    assert len(declared()) == 36
    assert {f"rknn_{name}" for name in MINI.split()} < declared()


@pytest.mark.parametrize("library", ["librknnrt", "librknnmrt"])
def test_the_file_is_what_programs_expect(library: str) -> None:
    path = library_folder() / f"{library}.so"
    dynamic = tool("readelf", "-dW", path)
    assert f"Library soname: [{library}.so]" in dynamic
    assert "NODELETE" in dynamic
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
    assert all(re.match(r"lib(c|dl|pthread)\.so|ld-linux", name) for name in needed), needed
    assert re.search(rf"^{library} version: {re.escape(API_VERSION)} \(", tool("strings", path), re.MULTILINE)


@pytest.mark.parametrize(("compiler", "standard"), [("cc", "-std=c99"), ("c++", "-std=c++11"), ("c++", "-std=c++20")])
def test_headers_compile_alone_and_together(compiler: str, standard: str, tmp_path: Path) -> None:
    headers = ["rknn_api.h", "rknn_matmul_api.h", "rknn_custom_op.h"]
    for chosen in ([headers[0]], [headers[1]], [headers[2]], headers):
        source = tmp_path / "source.c"
        lines = [f'#include "{name}"\n' for name in chosen]
        lines += ["const char *name(void);\n", "const char *name(void) { return get_type_string(RKNN_TENSOR_INT8); }\n"]
        source.write_text("".join(lines))
        language = "c" if compiler == "cc" else "c++"
        flags = [standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-x", language, "-c", source, "-o", tmp_path / "object.o"]
        done = subprocess.run(
            [need(compiler), f"-I{include_folder()}", *map(str, flags)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_headers_and_bindings_agree(tmp_path: Path) -> None:
    """Sizes and offsets of every struct, as a C program sees them, against the Python bindings."""
    from anynpu._rknn import ffi

    types, _, _ = ffi.list_types()
    structs = [name for name in types if ffi.typeof(name).kind == "struct" and name.startswith("rknn_")]
    assert len(structs) >= 24
    wanted, lines = [], []
    for name in structs:
        wanted.append(f"{name} {ffi.sizeof(name)}")
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, _ in ffi.typeof(name).fields:
            wanted.append(f"{name}.{field} {ffi.offsetof(name, field)}")
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
    includes = "".join(f"#include <{name}>\n" for name in ("stddef.h", "stdio.h", "rknn_matmul_api.h", "rknn_custom_op.h"))
    source = tmp_path / "sizes.c"
    source.write_text(f"{includes}int main(void) {{ {' '.join(lines)} return 0; }}\n")
    program = tmp_path / "sizes"
    subprocess.run([need("cc"), str(source), f"-I{include_folder()}", "-o", str(program)], check=True, timeout=600)
    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout.split("\n")[:-1] == wanted


def test_names_of_constants(tmp_path: Path) -> None:
    program = build("names.c", tmp_path / "names", library=None)
    assert run([program]).stdout.split() == [
        "FP32",
        "FP16",
        "INT8",
        "BF16",
        "UNKNOW",
        "AFFINE",
        "NONE",
        "NC1HWC2",
        "INT8_MM_INT8_TO_INT32",
    ]


CMAKE = """
cmake_minimum_required(VERSION 3.16)
project(client C)
find_package(anynpu REQUIRED)
add_executable(full full.c)
target_link_libraries(full PRIVATE anynpu::rknnrt)
add_executable(mini mini.c)
target_link_libraries(mini PRIVATE anynpu::rknnmrt)
"""
CLIENT = '#include <stdio.h>\n#include "rknn_api.h"\nint main(void) { printf("%d\\n", rknn_destroy(1)); return 0; }\n'


@pytest.mark.full
@pytest.mark.parametrize("folder", [library_folder(), library_folder().parent])
def test_cmake_finds_the_package(folder: Path, tmp_path: Path) -> None:
    cmake = need("cmake")
    (tmp_path / "CMakeLists.txt").write_text(CMAKE)
    for name in ("full.c", "mini.c"):
        (tmp_path / name).write_text(CLIENT)
    configure = [cmake, "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={folder}"]
    for command in (configure, [cmake, "--build", tmp_path / "build"]):
        subprocess.run([str(part) for part in command], check=True, capture_output=True, timeout=600)
    for name in ("full", "mini"):  # the build has put the library's folder into the program
        assert run([tmp_path / "build" / name], clean_environment(LD_LIBRARY_PATH=None)).stdout == "-7\n"


def test_pkg_config_finds_the_package(tmp_path: Path) -> None:
    environment = clean_environment(PKG_CONFIG_PATH=str(library_folder() / "pkgconfig"))
    flags = run([need("pkg-config"), "--cflags", "--libs", "rknnrt"], environment).stdout.split()
    source = tmp_path / "client.c"
    source.write_text(CLIENT)
    subprocess.run([need("cc"), str(source), *flags, "-o", str(tmp_path / "client")], check=True, timeout=600)
    assert run([tmp_path / "client"]).stdout == "-7\n"


def test_every_program_of_the_tests_is_used() -> None:
    used = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parents[1].rglob("*.py"))
    for program in PROGRAMS.iterdir():
        assert f'"{program.name}"' in used or program.suffix == ".h", program.name
