"""One model by two rules of rounding: where the chip and the vendor's simulator part."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arithmetic.board_cases import BoardCase
from compiler.board_networks import NETWORKS, calibration_images, network, recorded_ranges

import anynpu
from anynpu.analysis.compare import CompiledSubject, by_arithmetic, compare, rule_sentences, steps_apart
from anynpu.cli.app import run
from anynpu.compiler import pipeline as driver
from anynpu.errors import ParameterError
from anynpu.program import Epilogue, FixedPoint, Model


def compiled(name: str, arithmetic: str | None = None) -> Model:
    case = BoardCase(name)
    options: dict[str, Any] = {"mean": (0, 0, 0), "std": (1, 1, 1), "ranges": recorded_ranges(case)}
    return anynpu.compile(
        network(case), "rv1106", dataset=calibration_images(case), quantizer="vendor", arithmetic=arithmetic, **options
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_the_simulators_rule_is_never_far_from_the_chips(name: str) -> None:
    """On the board's networks: by at most one step in a layer, except that a quotient passes on what its operands have."""
    chip = compiled(name)
    simulated = by_arithmetic(chip, "simulator")
    assert simulated.arithmetic == "simulator"
    case = BoardCase(name)
    samples = [{"input": np.moveaxis(case.input(pattern), -1, 1).astype(np.float32)} for pattern in case.patterns]
    found = compare(CompiledSubject(chip, "chip"), CompiledSubject(simulated, "simulator"), samples)
    for entry in found.layers:
        if entry.alone is not None and entry.step:
            assert steps_apart(entry.alone, entry.step) <= 1, entry.layer
            assert entry.alone.differing < 0.2


def test_layers_without_curves_end_in_floats_as_the_compiler_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one float32 multiplication per output: the multipliers are those of a model compiled so."""
    monkeypatch.setattr(driver, "sums_in_float32", lambda _: False)
    made = by_arithmetic(compiled("depthwise"), "simulator").programs[0].layers
    wanted = compiled("depthwise", "simulator").programs[0].layers
    for one, two in zip(made, wanted, strict=True):
        ours, theirs = one.op.epilogue, two.op.epilogue  # type: ignore[union-attr]
        assert isinstance(ours, Epilogue)
        assert isinstance(theirs, Epilogue)
        assert np.allclose(ours.multiplier, theirs.multiplier, rtol=1e-4)
        assert np.array_equal(ours.zero_point, theirs.zero_point)


def test_what_is_said() -> None:
    chip = compiled("swish")
    case = BoardCase("swish")
    samples = [{"input": np.moveaxis(case.input("ramp"), -1, 1).astype(np.float32)}]
    same = compare(CompiledSubject(chip, "a"), CompiledSubject(chip, "b"), samples)
    assert rule_sentences(same) == ["Both sides give the same values."]
    layer = chip.programs[0].layers[0]
    stage = layer.op.epilogue  # type: ignore[union-attr]
    assert isinstance(stage, FixedPoint)
    broken = replace(layer, op=replace(layer.op, epilogue=replace(stage, zero_point=stage.zero_point + 3)))
    other = replace(chip, programs=(replace(chip.programs[0], layers=(broken, *chip.programs[0].layers[1:])),))
    first, second = rule_sentences(compare(CompiledSubject(chip, "a"), CompiledSubject(other, "b"), samples))
    assert first.startswith("Output output: ")
    assert first.endswith("by up to 3 steps.")
    assert "first difference is in" in second


def test_what_cannot_be_asked_for() -> None:
    with pytest.raises(ParameterError, match="no arithmetic 'exact'"):
        by_arithmetic(compiled("base"), "exact")
    with pytest.raises(ParameterError, match="compiled for the simulator's rule"):
        by_arithmetic(compiled("base", "simulator"), "chip")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, page = compiled("sigmoid").save(tmp_path / "net.rknn"), tmp_path / "page.html"

    def said(*arguments: object) -> tuple[object, str]:
        with pytest.raises(SystemExit) as exit_info:
            run([str(argument) for argument in ("compare", path, *arguments)])
        captured = capsys.readouterr()
        return exit_info.value.code, captured.out or captured.err

    code, text = said("--arithmetic", "chip,simulator", "--html", page)
    assert not code
    assert "net.rknn (simulator) compared with net.rknn (chip), 8 samples" in text
    assert "alone: differ" in text
    assert page.stat().st_size > 1000
    code, text = said("--arithmetic", "chip,simulator", "--json")
    data = json.loads(text)
    assert not code
    assert data["rules"][0].startswith(("Output ", "Both rules"))
    assert 0 <= data["layers"][-1]["so_far"]["differing"] < 0.2
    assert said()[0] == 2
    assert said("--arithmetic", "chip")[0] == 1
