"""``anynpu bench``: how fast a model runs here, and how fast the chip is predicted to be."""

from __future__ import annotations

import os
import statistics
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ... import chips, modelfile
from ..._util.types import Array
from ...chips.timing import Prediction, fps, predict
from ...errors import AnynpuError
from ...session import InferenceSession, SessionOptions, make_provider_options
from ..helpers.console import plain_table, print_json, results
from ..helpers.flags import with_flags
from ..helpers.options import FaultsOption, JsonOption, use_faults


@dataclass(frozen=True)
class BenchResult:
    """One way of running. Times are milliseconds of the host; latency counts from the request to its result.

    :ivar convert: from the caller's arrays to the device's inputs
    :ivar copy: from the device's outputs to the caller's arrays
    """

    mode: str
    cores: str
    requests: int
    p50: float
    p90: float
    p95: float
    p99: float
    per_second: float
    convert: float
    run: float
    copy: float


@with_flags(SessionOptions)
def command(
    given: dict[str, Any],
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A compiled model.", exists=True, dir_okay=False, readable=True)],
    asynchronous: Annotated[
        bool, typer.Option("--async", help="Only the asynchronous run, with several requests in flight.")
    ] = False,
    sync: Annotated[bool, typer.Option("--sync", help="Only one request after the other.")] = False,
    cores: Annotated[
        str | None, typer.Option("--cores", metavar="0,1,2", help="Cores to use in turn; all of them by default.")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.05, max=600.0, help="How long each measurement lasts.")] = 3.0,
    warmup: Annotated[int, typer.Option("--warmup", min=0, max=10_000, help="Requests before the first that counts.")] = 3,
    depth: Annotated[int | None, typer.Option("--depth", min=1, max=1000, help="Requests in flight at a time.")] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="DEVICE", help="sim, sim:rk3588, rknn, rknn:PATH ...; see anynpu doctor.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Write the last requests as a trace for Perfetto.", dir_okay=False),
    ] = None,
    faults: FaultsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure latency and throughput, one request after the other and on all cores.

    Host time is measured; the time of the chip is predicted where the software NPU runs the model.

    \b
    Example:
      anynpu bench yolo.rknn
      anynpu bench yolo.rknn --async --cores 0,1,2 --seconds 10
      ANYNPU_REALTIME=1 anynpu bench yolo.rknn       (at the speed of the chip)
    """
    use_faults(faults, os.environ)
    schedule = _schedule(cores)
    both = sync == asynchronous
    measured: list[BenchResult] = []
    description = ""
    if both or sync:
        with _session(model, device, schedule[:1] if schedule else None, given) as session:
            description = session.device
            measured.append(_sync(session, seconds, warmup))
            _write_trace(session, trace if sync and not both else None)
    if both or asynchronous:
        with _session(model, device, schedule, given) as session:
            description = session.device
            measured.append(_async(session, seconds, warmup, depth, schedule))
            _write_trace(session, trace)
    prediction = _prediction(model)
    if as_json:
        print_json(_json(model, description, measured, prediction))
        return
    _print(description, measured, prediction)


def _schedule(cores: str | None) -> list[int] | None:
    if cores is None:
        return None
    try:
        numbers = [int(part) for part in cores.split(",")]
    except ValueError:
        raise typer.BadParameter(f"'{cores}' is not a list of cores such as 0,1,2", param_hint="'--cores'") from None
    return numbers


def _session(model: Path, device: str | None, schedule: list[int] | None, given: dict[str, Any]) -> InferenceSession:
    options = make_provider_options(schedule=schedule, max_queue_size=1000, sequential_callbacks=False, **given)
    return InferenceSession(model, provider_options=options, device=device)


def _feed(session: InferenceSession) -> dict[str, Array]:
    """Random values for every input."""
    rng = np.random.default_rng(0)
    feed: dict[str, Array] = {}
    for entry in session.get_inputs():
        shape = [extent if isinstance(extent, int) else 1 for extent in entry.shape]
        if entry.type in ("tensor(int64)", "tensor(int32)", "tensor(bool)"):
            feed[entry.name] = np.zeros(shape, {"tensor(int64)": np.int64, "tensor(int32)": np.int32}.get(entry.type, np.bool_))
        else:
            feed[entry.name] = rng.integers(0, 256, shape, np.uint8)
    return feed


def _sync(session: InferenceSession, seconds: float, warmup: int) -> BenchResult:
    feed = _feed(session)
    for _ in range(warmup):
        session.run(None, feed)
    times: list[float] = []
    begin = time.perf_counter()
    end = begin + seconds
    while time.perf_counter() < end or not times:
        start = time.perf_counter()
        session.run(None, feed)
        times.append(time.perf_counter() - start)
    elapsed = time.perf_counter() - begin
    return _measurement("sync", "one", times, elapsed, session)


def _async(session: InferenceSession, seconds: float, warmup: int, depth: int | None, schedule: list[int] | None) -> BenchResult:
    """Keeps *depth* requests in flight: a callback frees the place of its request."""
    feed = _feed(session)
    count = depth or 2 * (len(set(schedule)) if schedule else session.cores)
    for _ in range(warmup):
        session.run(None, feed)
    times: list[float] = []
    failures: list[str] = []
    places = threading.Semaphore(count)

    def finished(_: object, start: float, error: str | None) -> None:
        times.append(time.perf_counter() - start)
        if error:
            failures.append(error)
        places.release()

    begin = time.perf_counter()
    end = begin + seconds
    while time.perf_counter() < end and not failures:
        places.acquire()
        session.run_async(None, feed, finished, time.perf_counter())
    for _ in range(count):
        places.acquire()
    elapsed = time.perf_counter() - begin
    if failures:
        raise AnynpuError(f"a request failed: {failures[0]}")
    cores = ",".join(map(str, schedule)) if schedule else "all"
    return _measurement("async", cores, times, elapsed, session)


def _measurement(mode: str, cores: str, times: list[float], elapsed: float, session: InferenceSession) -> BenchResult:
    ordered = sorted(times)
    p50, p90, p95, p99 = (1000 * ordered[min(len(ordered) - 1, len(ordered) * share // 100)] for share in (50, 90, 95, 99))
    convert, run, copy = (_phase(session, name) for name in ("inputs", "run", "outputs"))
    return BenchResult(mode, cores, len(times), p50, p90, p95, p99, len(times) / elapsed, convert, run, copy)


def _phase(session: InferenceSession, name: str) -> float:
    """The median of one part of a request, in milliseconds."""
    durations = [event["dur"] for event in session.trace() if event.get("ph") == "X" and event["name"] == name]
    return statistics.median(durations) / 1000 if durations else 0.0


def _write_trace(session: InferenceSession, path: Path | None) -> None:
    if path is not None:
        session.write_trace(path)


def _prediction(model: Path) -> Prediction | None:
    """What the chip takes; None for a file that only the vendor's library can read."""
    try:
        compiled = modelfile.read_or_twin(model)
    except AnynpuError:
        return None
    return predict(compiled.programs[0], chips.get(compiled.chip))


def _print(description: str, measured: list[BenchResult], prediction: Prediction | None) -> None:
    console = results()
    console.print(description)
    numbers = ("p50", "p90", "p95", "p99", "inf/s", "convert", "run", "copy")
    table = plain_table("host", "cores", *numbers, right=numbers)
    for one in measured:
        times = [f"{value:.2f}" for value in (one.p50, one.p90, one.p95, one.p99)]
        phases = [f"{value:.2f}" for value in (one.convert, one.run, one.copy)]
        table.add_row(one.mode, one.cores, *times, f"{one.per_second:.1f}", *phases)
    console.print(table)
    console.print("times in ms; convert, run and copy are medians of one request")
    if prediction is not None:
        cores = prediction.chip.cores
        console.print(
            f"device (predicted): {prediction.latency_us / 1000:.2f} ms on one core, {fps(prediction):.1f} inf/s on {cores}: "
            f"{prediction.confidence}"
        )


def _json(model: Path, description: str, measured: list[BenchResult], prediction: Prediction | None) -> dict[str, Any]:
    predicted = None
    if prediction is not None:
        predicted = {
            "chip": prediction.chip.name,
            "latency_ms": round(prediction.latency_us / 1000, 4),
            "fps_all_cores": round(fps(prediction), 3),
            "confidence": str(prediction.confidence),
        }
    return {"model": model.name, "device": description, "host": [asdict(one) for one in measured], "predicted": predicted}
