"""Fit the timing model to published numbers, and state how well it predicts what it has not seen.

    python tools/timing_fit.py --data FOLDER [--page] [--json FILE]
    ANYNPU_TIMING_DATA=FOLDER python tools/timing_fit.py

The folder holds ``published_fps.csv`` with ``graphs/`` beside it, and optionally ``matmul.csv`` and ``allwinner.csv``. The
numbers are not part of the project; the fitted numbers are in ``chips/timing/parameters.py``. ``--page`` writes the tables of
``docs/validation.md``.

int8 networks are fitted by ``anynpu.chips.timing.calibration``, a chip at a time. float16 networks are few, so the four chips are fitted
together: what their hardware has in common is shared, and each number is tethered to what the int8 fit states of the chip. Nothing is
random.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from timing_nets import NETS

from anynpu import chips
from anynpu.chips.timing import predict_matmul, predict_work
from anynpu.chips.timing.calibration import Fit, Measurement, fit, fit_parameters
from anynpu.chips.timing.layers import ProgramWork, relative_rate, work_of
from anynpu.chips.timing.matmul import parse_types
from anynpu.chips.timing.model import Kind, TaskTable, kind_of
from anynpu.chips.timing.parameters import derived_parameters, timing_profile
from anynpu.compiler import ModelOutline

Floats = npt.NDArray[np.float64]
CHIPS = ("rk3588", "rk3576", "rk3566", "rk3562")
FAMILIES = (
    ("yolov5s_relu", "yolov5n", "yolov5m", "yolov5s-seg"),
    ("yolov8n", "yolov8s", "yolov8n-seg"),
    ("yolov10s", "yolo11n", "yolo11m"),
    ("yolox_s",),
    ("yolov6n",),
    ("yolov7-tiny",),
    ("ppyoloe_s", "ppocrv4_det"),
    ("mobilenetv2-12", "RetinaFace_mobile320"),
    ("resnet50-v2-7",),
)


@dataclass(frozen=True)
class Point:
    """A published network on a chip."""

    name: str
    chip: str
    work: ProgramWork
    milliseconds: float

    @property
    def half(self) -> bool:
        return self.work.dtype == "float16"


def read_points(folder: Path) -> list[Point]:
    """All networks on all chips."""
    outlines: dict[str, ModelOutline] = {}
    points = []
    for row in csv.DictReader((folder / "published_fps.csv").open(encoding="utf-8")):
        name = row["graph"]
        outline = outlines.setdefault(name, ModelOutline(folder / "graphs" / name))
        chip = chips.get(row["chip"])
        program = outline.program(chip, dtype="fp16" if row["dtype"] == "FP16" else "w8a8")
        points.append(Point(name.removesuffix(".onnx"), chip.name, work_of(program, chip), 1000.0 / float(row["published_fps"])))
    return points


class HalfFit:
    """The float16 networks of all chips, and the numbers that explain them.

    A point of the search is, in logarithms and relative to where it starts: per chip the bandwidth of weights (4) and the time for a
    normalized element (4); MACs of large and of small CPU cores (2) and how each chip differs from its class (4); the hand-over in
    floors, the time of a head in floors, and the time for an element on the CPU.
    """

    START = np.zeros(17)
    START[8:10] = np.log(0.7)
    START[14] = np.log(4.0)
    START[15] = np.log(0.26)
    WIDTHS = np.array([0.2] * 4 + [0.05] + [0.3] * 3 + [1.0] * 2 + [0.12] * 4 + [0.7, 0.3, 0.4])
    TOLERANCE = 0.15
    TETHER = 0.15

    def __init__(self, points: Sequence[Point]) -> None:
        self.points = list(points)
        tables = [TaskTable(point.work, relative_rate(chips.get(point.chip), "float16")) for point in self.points]
        self._starts = np.cumsum([0, *(len(table.macs) for table in tables[:-1])])
        names = ("macs", "atoms", "bytes", "weights", "cpu", "calls", "cpu_macs", "normalised", "moved", "heads", "scores")
        self._columns = {name: np.concatenate([getattr(table, name) for table in tables]) for name in names}
        places = [np.full(len(table.macs), CHIPS.index(point.chip)) for table, point in zip(tables, self.points, strict=True)]
        self._chip = np.concatenate(places)
        known = [timing_profile(chips.get(name)).parameters for name in CHIPS]
        self._macs, self._bytes, self._lookup, self._floor = (
            np.array([getattr(entry, name) for entry in known])
            for name in ("macs_per_ns", "bytes_per_ns", "lookup_ns", "floor_ns")
        )
        self._measured = np.log([point.milliseconds * 1e6 for point in self.points])

    def numbers(self, x: Floats) -> dict[str, Floats]:
        """What a point of the search stands for."""
        norm = 0.083e-3 * self._floor * np.exp(x[4:8])
        cpu = np.exp([x[8] + x[10], x[8] + x[11], x[9] + x[12], x[9] + x[13]])
        return {
            "weights": self._bytes * np.exp(x[:4]),
            "norm": norm,
            "cpu_macs": cpu,
            "handover": np.exp(x[14:15]),
            "head": np.exp(x[15:16]),
            "cpu": 2.0 * np.exp(x[16:17]),
        }

    def totals(self, x: Floats) -> Floats:
        """Nanoseconds of each network."""
        values, chip, column = self.numbers(x), self._chip, self._columns
        norm, floor = values["norm"][chip], self._floor[chip]
        scores = column["heads"] * values["head"] * floor + column["scores"] * 1.743 * norm
        compute = column["macs"] / self._macs[chip]
        operator = column["normalised"] * norm + column["moved"] * 0.921 * norm + np.where(scores > 0, scores + compute, 0.0)
        memory = column["bytes"] / self._bytes[chip] + column["weights"] / values["weights"][chip]
        lookup = column["atoms"] * self._lookup[chip]
        times = np.maximum.reduce([compute, lookup, memory, operator, np.where(column["calls"] > 0, 0.0, floor)])
        times = times + column["cpu"] * values["cpu"] + column["calls"] * values["handover"] * floor
        return np.asarray(np.add.reduceat(times + column["cpu_macs"] / values["cpu_macs"][chip], self._starts), np.float64)

    def errors(self, x: Floats) -> Floats:
        """Relative errors."""
        return np.asarray(self.totals(x) / np.exp(self._measured) - 1.0, np.float64)

    def solve(self, known: npt.NDArray[np.bool_], start: Floats | None = None) -> Floats:
        """The numbers that fit the *known* points best."""

        def loss(x: Floats) -> float:
            errors = (np.log(self.totals(x)) - self._measured)[known]
            away = (x - self.START) / self.WIDTHS
            return float(np.log1p((errors / self.TOLERANCE) ** 2).sum() + self.TETHER * (away**2).sum())

        return _descend(loss, self.START if start is None else start, self.WIDTHS * 0.3)

    def left_out(self, group: Callable[[Point], str]) -> Floats:
        """The error of each point where all points of its group were unknown."""
        names = [group(point) for point in self.points]
        errors = np.zeros(len(names))
        everything = self.solve(np.ones(len(names), bool))
        for name in dict.fromkeys(names):
            out = np.array([entry == name for entry in names])
            start = everything if out.sum() == 1 else None
            errors[out] = self.errors(self.solve(~out, start))[out]
        return errors


def _descend(loss: Callable[[Floats], float], start: Floats, steps: Floats) -> Floats:
    x, best, steps = start.copy(), loss(start), steps.copy()
    for _ in range(60):
        before = best
        for axis in range(len(x)):
            for sign in (1.0, -1.0):
                candidate = x.copy()
                candidate[axis] += sign * steps[axis]
                value = loss(candidate)
                if value < best - 1e-9:
                    x, best = candidate, value
                    steps[axis] *= 1.4
                    break
            else:
                steps[axis] *= 0.5
        if before - best < 1e-5 and steps.max() < 0.01:
            break
    return x


def fit_int8(points: Sequence[Point]) -> dict[str, Fit]:
    """One fit per chip, started from hardware numbers alone."""
    fits = {}
    for name in CHIPS:
        rows = [Measurement(point.name, point.work, point.milliseconds) for point in points if point.chip == name]
        fits[name] = fit(rows, chips.get(name), derived_parameters(chips.get(name)))
    return fits


def int8_families(points: Sequence[Point]) -> dict[str, list[float]]:
    """Errors of int8 networks whose whole family was unknown, by chip."""
    errors: dict[str, list[float]] = {}
    for name in CHIPS:
        chip = chips.get(name)
        rows = [
            Measurement(point.name, point.work, point.milliseconds) for point in points if point.chip == name and not point.half
        ]
        for family in FAMILIES:
            known = [row for row in rows if row.name not in family]
            made = fit_parameters(known, chip, derived_parameters(chip))
            profile = _with(timing_profile(chip), made)
            for row in rows:
                if row.name in family:
                    predicted = predict_work(row.work, chip, profile).latency_us / 1000.0
                    errors.setdefault(name, []).append(predicted / row.milliseconds - 1.0)
    return errors


def _with(profile: Any, parameters: Any) -> Any:
    from dataclasses import replace

    return replace(profile, parameters=parameters)


def coverage(rows: Sequence[tuple[Point, float]]) -> dict[str, Any]:
    """How many left-out points the 80 % ranges hold; also with widths from the other networks alone."""
    entries = []
    for point, error in rows:
        made = predict_work(point.work, chips.get(point.chip))
        entries.append((point, abs(float(np.log1p(error))), kind_of(made), made.confidence.spread))
    held = [size <= spread for _, size, _, spread in entries]
    others = []
    for point, size, kind, _ in entries:
        like = [entry[1] for entry in entries if entry[2] is kind and entry[0].name != point.name]
        others.append(size <= float(np.quantile(like, 0.8)) if len(like) > 3 else False)
    widths = {kind.name: [entry[1] for entry in entries if entry[2] is kind] for kind in Kind}
    return {
        "held": float(np.mean(held)),
        "held_int8": float(np.mean([inside for inside, entry in zip(held, entries, strict=True) if not entry[0].half])),
        "held_float16": float(np.mean([inside for inside, entry in zip(held, entries, strict=True) if entry[0].half])),
        "held_by_widths_of_other_networks": float(np.mean(others)),
        "widths": {name: float(np.quantile(sizes, 0.8)) for name, sizes in widths.items() if sizes},
    }


def matmul_errors(folder: Path) -> dict[str, Any]:
    """How well products above 200 us are predicted, by layout."""
    found: dict[str, list[float]] = {"native": [], "normal": []}
    for row in csv.DictReader((folder / "matmul.csv").open(encoding="utf-8")):
        if float(row["us"]) <= 200.0:
            continue
        types = parse_types(row["type"])
        made = predict_matmul(
            chips.get(row["chip"]),
            *(int(row[name]) for name in "MKN"),
            dtype=types.a,
            weight_type=types.b,
            result_type=types.c,
            layout="normal" if row["AC_layout"] == "normal" else "native",
        )
        found[row["AC_layout"]].append(made.time_us / float(row["us"]) - 1.0)
    return {
        layout: {
            "products": len(errors),
            "median": float(np.median(np.abs(errors))),
            "within_25": float(np.mean(np.abs(errors) < 0.25)),
            "within_35": float(np.mean(np.abs(errors) < 0.35)),
        }
        for layout, errors in found.items()
    }


def allwinner_errors(folder: Path) -> dict[str, float]:
    """Networks that can be built from their names, with the NPU at its reported clock; memory keeps its own."""
    graphs = {"resnet50 224": "resnet50-v2-7.onnx", "mobilenet_v2 224": "mobilenetv2-12.onnx"}
    found = {}
    for row in csv.DictReader((folder / "allwinner.csv").open(encoding="utf-8")):
        name, (chip_name, _, clock) = row["graph"], row["chip"].partition("@")
        if name not in NETS and name not in graphs:
            continue
        chip = chips.get(chip_name)
        outline = ModelOutline(folder / "graphs" / graphs[name] if name in graphs else NETS[name]())
        program = outline.program(chip, dtype="w16a16" if row["dtype"] == "INT16" else "w8a8")
        made = predict_work(work_of(program, chip), chip)
        slower = chip.clock_hz / 1e6 / float(clock.removesuffix("MHz")) if clock else 1.0
        memory = sum(layer.time_us for layer in made.layers if layer.bound.value == "memory")
        milliseconds = (memory + (made.latency_us - memory) * slower) / 1000.0
        found[f"{name} {row['dtype']} {row['chip']}"] = milliseconds * float(row["fps"]) / 1000.0 - 1.0
    return found


def _median(errors: Sequence[float]) -> float:
    return statistics.median(map(abs, errors))


def _summary(errors: Sequence[float]) -> str:
    sizes = np.abs(errors)
    return f"median {np.median(sizes):.1%}, 90th percentile {np.quantile(sizes, 0.9):.1%}, worst {sizes.max():.1%}"


def main() -> None:
    """Fit, validate, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=os.environ.get("ANYNPU_TIMING_DATA"), help="the folder with the numbers")
    parser.add_argument("--json", type=Path, help="write all results there")
    parser.add_argument("--page", action="store_true", help="write the tables of docs/validation.md")
    options = parser.parse_args()
    if options.data is None:
        parser.error("give --data FOLDER or set ANYNPU_TIMING_DATA")
    folder = Path(options.data)
    points = read_points(folder)
    fits = fit_int8(points)
    half = HalfFit([point for point in points if point.half])
    solved = half.solve(np.ones(len(half.points), bool))
    alone = half.left_out(lambda point: f"{point.name} {point.chip}")
    whole = half.left_out(lambda point: point.name)
    families = int8_families(points)
    by_place = {(point.name, point.chip): point for point in points}
    rows = [(by_place[name, chip], error) for chip, made in fits.items() for name, error in made.left_out.items()]
    rows += list(zip(half.points, alone.tolist(), strict=True))
    result: dict[str, Any] = {
        "int8": {chip: {"median": made.median_error, "worst": made.worst_error} for chip, made in fits.items()},
        "int8_families": {chip: _median(errors) for chip, errors in families.items()},
        "int8_families_worst": {chip: max(map(abs, errors)) for chip, errors in families.items()},
        "int8_left_out": {chip: made.left_out for chip, made in fits.items()},
        "float16": {"median": _median(alone.tolist()), "worst": float(np.abs(alone).max())},
        "float16_models": {"median": _median(whole.tolist()), "worst": float(np.abs(whole).max())},
        "float16_left_out": [
            {"model": point.name, "chip": point.chip, "error": float(one), "error_model_unknown": float(all_)}
            for point, one, all_ in zip(half.points, alone, whole, strict=True)
        ],
        "float16_numbers": {name: np.round(values, 4).tolist() for name, values in half.numbers(solved).items()},
        "parameters": {chip: vars(made.parameters) for chip, made in fits.items()},
        "ranges": coverage(rows),
    }
    for name, check in (("matmul", matmul_errors), ("allwinner", allwinner_errors)):
        if (folder / f"{name}.csv").exists():
            result[name] = check(folder)
    print("int8, one model left out:     ", {chip: f"{made.median_error:.2%}" for chip, made in fits.items()})
    print("int8, families left out:      ", {chip: f"{_median(errors):.2%}" for chip, errors in families.items()})
    print("int8, families left out, worst:", {chip: f"{max(map(abs, errors)):.2%}" for chip, errors in families.items()})
    print("float16, one model of one chip left out: ", _summary(alone.tolist()))
    print("float16, one model of all chips left out:", _summary(whole.tolist()))
    for key in ("float16_numbers", "ranges", "matmul", "allwinner"):
        if key in result:
            print(f"{key}: {json.dumps(result[key], indent=1)}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if options.page:
        import timing_page

        timing_page.write(result)


if __name__ == "__main__":
    main()
