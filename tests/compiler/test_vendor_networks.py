"""Whole networks by the rounding of the vendor's simulator: every layer has the values that the simulator of rknn-toolkit2 2.5.0 reported.

``toolkit_networks/README.md`` describes the recorded data.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from typer.testing import CliRunner

import anynpu
from anynpu.analysis.compare import CompiledSubject
from anynpu.cli.app import app

DATA = Path(__file__).parent / "toolkit_networks"
NETWORKS = ("c2f", "catresize", "gemmhs1", "head", "split", "sppf")
ENDS = ("_int8", "-rs", "_rs")
"""What the toolkit appends to the name of a tensor of another type or shape."""

INSIDE = {
    "c2f": {"conv2_0", "conv8_0", "conv13_0", "conv20_0"},
    "catresize": {"a", "b", "d", "s_conv"},
    "gemmhs1": {"c", "g", "g_mm"},
    "head": {"conv2_0", "conv10_0"},
    "split": {"b"},
    "sppf": {"conv2_0", "conv10_0"},
}
"""Tensors inside a layer, before its activation or its sum: the simulator reports them, the compiled model does not hold them."""

Array = npt.NDArray[Any]


def compiled(network: str, folder: Path, arithmetic: str) -> Path:
    source, target = DATA / network, folder / f"{network}.rknn"
    case = json.loads((source / "case.json").read_text())
    (entry,) = onnx.load(source / "model.onnx").graph.input
    arguments = ["compile", str(source / "model.onnx"), "-o", str(target), "--target", case["target"]]
    arguments += ["--quantizer", "vendor", "--arithmetic", arithmetic, "--ranges", str(source / "quantization.cfg")]
    arguments += ["--dataset", str(source / "calibration.npz")]
    for key in ("mean", "std"):
        arguments += [f"--{key}", f"{entry.name}={','.join(map(str, case[key][0]))}"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return target


def read(network: str) -> dict[str, Array]:
    with np.load(DATA / network / "simulator.npz") as file:
        return {name: file[name] for name in file.files}


def values(path: Path, sample: Array) -> dict[str, Array]:
    """Every tensor that the compiled model holds, in real numbers."""
    subject = CompiledSubject(anynpu.load(path), path.name)
    subject.watch(subject.tensors)
    (entry,) = subject.inputs
    return dict(subject.run({entry.name: sample}))


def plain(name: str) -> str:
    for end in ENDS:
        name = name.removesuffix(end)
    return name


def same(ours: Array, theirs: Array) -> bool:
    """Whether two tensors have equal values: the toolkit leaves a Transpose out where it can, so its axes may be in another order."""
    short, wanted = ours.squeeze(), theirs.squeeze()
    if ours.size == theirs.size and ours.shape[-2:] == theirs.shape[-2:] and ours.ndim != theirs.ndim:
        short, wanted = ours.reshape(-1), theirs.reshape(-1)
    orders = itertools.permutations(range(short.ndim)) if short.ndim <= 4 else [tuple(range(short.ndim))]
    return any(
        short.transpose(order).shape == wanted.shape and np.allclose(short.transpose(order), wanted, rtol=1e-6, atol=1e-6)
        for order in orders
    )


@pytest.mark.parametrize("network", NETWORKS)
def test_every_layer_has_the_values_of_the_simulator(network: str, tmp_path: Path) -> None:
    recorded = read(network)
    layers = {name.partition(":")[2]: recorded[name] for name in recorded if name.startswith("layer:")}
    found = values(compiled(network, tmp_path, "simulator"), recorded["input"].astype(np.float32))
    missing = {name for name in layers if name not in found and plain(name) not in found}
    assert missing == INSIDE[network]
    different = [
        name for name, value in layers.items() if name not in missing and not same(found.get(name, found.get(plain(name))), value)
    ]
    assert different == []


@pytest.mark.parametrize("network", NETWORKS)
def test_the_chip_differs_by_single_steps(network: str, tmp_path: Path) -> None:
    """The chip's rounding is another one: outputs differ in single steps, and no tensor is read with the scale of another one."""
    recorded = read(network)
    path = compiled(network, tmp_path, "chip")
    found = values(path, recorded["input"].astype(np.float32))
    for name in json.loads((DATA / network / "case.json").read_text())["outputs"]:
        wanted = recorded[f"layer:{name}"].reshape(-1)
        steps = np.unique(wanted)
        apart = np.abs(found[name].reshape(-1) - wanted) / np.diff(steps).min()
        assert np.mean(apart < 1.5) > 0.98, name
