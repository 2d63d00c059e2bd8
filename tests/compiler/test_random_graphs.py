"""Random networks: they compile for every family of chips, run, and stay near float32."""

from __future__ import annotations

import numpy as np
import pytest

from anynpu.program import Float, Program

from .random_nets import RandomNet
from .running import Run, execute

FAMILIES = ("rk3588", "rv1106", "t527")
SEEDS = range(60)


def deviations(run: Run) -> list[float]:
    """By output: root mean square of the error relative to the size of the values."""
    found = []
    for index in range(len(run.program.outputs)):
        wanted = np.stack([entry[index] for entry in run.expected]).astype(np.float64)
        given = np.stack([entry[index] for entry in run.results]).astype(np.float64)
        found.append(float(np.sqrt(np.square(wanted - given).mean()) / max(np.ptp(wanted), abs(wanted).max(), 1e-9)))
    return found


def overlaps(program: Program) -> list[tuple[str, str]]:
    """Pairs of tensors that share memory while both are needed, found the slow way: byte ranges and moments, all against all."""
    moments: dict[str, set[int]] = {}
    for stretch in program.float_stretches():
        # a segment of float layers runs all at once: whatever goes in or out of it is needed from its first layer to its last
        for name in (*stretch.inputs, *stretch.outputs):
            moments.setdefault(program.views.get(name, name), set()).update((stretch.first, stretch.last - 1))
    for index, layer in enumerate(program.layers):
        if not isinstance(layer.op, Float):
            for name in (*layer.inputs, *layer.outputs):
                moments.setdefault(program.views.get(name, name), set()).add(index)
    lives = {name: (min(seen), max(seen)) for name, seen in moments.items() if name in program.memory.offsets}
    places = {name: (program.memory.offsets[name], program.memory.offsets[name] + program.tensors[name].nbytes) for name in lives}
    return [
        (one, other)
        for one in lives
        for other in lives
        if one < other
        and lives[one][0] <= lives[other][1]
        and lives[other][0] <= lives[one][1]
        and places[one][0] < places[other][1]
        and places[other][0] < places[one][1]
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_network(seed: int) -> None:
    proto = RandomNet(seed).build()
    for chip in FAMILIES:
        run = execute(proto, chip, count=2)
        assert max(deviations(run)) < 0.012, (chip, deviations(run), run.kinds)
        assert overlaps(run.program) == []
        assert all(0 <= offset <= run.program.memory.size for offset in run.program.memory.offsets.values())


@pytest.mark.parametrize("seed", range(0, 60, 5))
def test_random_network_in_float16(seed: int) -> None:
    run = execute(RandomNet(seed).build(), dtype="fp16", count=2)
    assert max(deviations(run)) < 2e-3
    assert overlaps(run.program) == []


def test_random_networks_are_what_they_claim() -> None:
    """They have ten nodes and more, many operators, segments of float layers, and memory that is really shared."""
    protos = [RandomNet(seed).build() for seed in SEEDS]
    assert all(len(proto.graph.node) >= 10 for proto in protos)
    assert len({node.op_type for proto in protos for node in proto.graph.node}) > 25
    runs = [execute(proto, count=1) for proto in protos[10:20]]
    assert any(len(run.program.float_stretches()) > 1 for run in runs)
    total = sum(run.program.tensors[name].nbytes for run in runs for name in run.program.memory.offsets)
    assert sum(run.program.memory.size for run in runs) < 0.8 * total
