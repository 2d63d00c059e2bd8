"""The aarch64 kernels, cross-compiled and emulated: the bytes of the reference engine with NEON, with dot products and with plain C."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tools import need

from .building import Programs, build_programs
from .replaying import replay

pytestmark = pytest.mark.full  # a cross compiler and an emulator

EMULATOR = "qemu-aarch64"
LEVELS = {"cortex-a72": ("neon", "generic"), "max": ("neon_dotprod", "neon", "generic")}
KERNELS = {
    "neon": {"conv_neon", "depthwise_neon", "simple", "plain"},
    "neon_dotprod": {"conv_neon_dotprod", "depthwise_neon", "simple", "plain"},
    "generic": {"plain"},
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    compiler = need("aarch64 compiler and emulator")
    return build_programs(tmp_path_factory.mktemp("aarch64"), compiler, "aarch64", flags=["-Werror"], link_flags=["-static"])


def test_the_same_bytes_on_every_processor(programs: Programs, recorded: Path) -> None:
    """A Cortex-A72 has no dot products; the emulator's best processor has them."""
    for processor, levels in LEVELS.items():
        done = replay([EMULATOR, "-cpu", processor, str(programs.replay)], recorded)
        assert (done.code, done.failed) == (0, 0), done.text
        assert done.passed >= 2000 * len(levels)
        assert {level: set(uses) for level, uses in done.kernels.items()} == {level: KERNELS[level] for level in levels}
        assert min(min(uses.values()) for uses in done.kernels.values()) >= 50, done.text


def test_the_same_products_on_every_processor(programs: Programs) -> None:
    for processor, levels in LEVELS.items():
        command = [EMULATOR, "-cpu", processor, str(programs.products)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        kernels = {level: "plain" if level == "generic" else f"matmul_{level}" for level in levels}
        assert done.stdout.splitlines()[:-1] == [f"{level}: {kernel}" for level, kernel in kernels.items()]
