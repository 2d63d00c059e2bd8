"""``anynpu demo``: text detection on the software NPU, from model to image."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated

import typer

from ... import chips
from ..._util import optional as _optional
from ..._util.output_files import write_output
from ...analysis.profile import Profile, profile_page, profile_program
from ...chips.timing import fps
from ...program.report import report
from ..demo.pages import Grain
from ..helpers.console import print_json, progress_bar, results
from ..helpers.options import DEFAULT_CHIP, JsonOption, TargetOption
from ..helpers.summary import summary_line


def command(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Folder for the results.", file_okay=False)
    ] = Path("demo"),
    pages: Annotated[int, typer.Option(min=1, help="Number of pages for calibration.")] = 16,
    target: TargetOption = DEFAULT_CHIP,
    grain: Annotated[Grain, typer.Option(help="Noise on the pages. int8 is least accurate on gray and none.")] = Grain.COLOR,
    as_json: JsonOption = False,
) -> None:
    """Text detection from model to image.

    Compiles PP-OCRv4 detection to int8, runs it on the software NPU and compares it with float32. The
    model comes from the installed package rapidocr-onnxruntime; the pages are drawn.

    \b
    Example:
      anynpu demo
      anynpu demo --target rk3576 --pages 8 --output /tmp/demo
    """
    from ..demo import detection

    detector = detection.find_detector()
    folder = detection.calibration_pages(output / "pages", pages, grain)
    with progress_bar(f"compiling PP-OCRv4 detection for {target} (int8, {pages} pages)") as progress:
        model = detection.compile_detector(detector, folder, target, pages, progress)
    saved = model.save(output / "det.rknn")
    comparison = detection.compare(detector, model, grain)
    profile = profile_program(model.programs[0], chips.get(target))
    picture, page = output / "page.png", output / "profile.html"
    write_output(picture, _optional.cv2().imencode(".png", comparison.picture[..., ::-1])[1].tobytes())
    write_output(page, profile_page(profile, "PP-OCRv4 detection"))
    mean, worst = statistics.mean(comparison.cosines), min(comparison.cosines)
    milliseconds = 1000 * statistics.median(comparison.seconds)
    if as_json:
        files = {"picture": str(picture), "profile": str(page), "model": str(saved)}
        times = {"host_ms": round(milliseconds, 2), "predicted_ms": round(profile.prediction.latency_us / 1000, 3)}
        print_json({"chip": target, "cosine": mean, "worst_cosine": worst, **times, **files})
        return
    console = results()
    console.print(summary_line(report(model)))
    cores = chips.get(target).cores
    console.print(f"running on the software NPU: {target}, {cores} core{'s' if cores > 1 else ''}")
    console.print(f"  accuracy   cosine {mean:.3f} to fp32 over {len(comparison.cosines)} pages, worst {worst:.3f}")
    console.print(f"  host       {milliseconds:.0f} ms per page on this machine")
    console.print(f"  {target:<10} {_predicted(profile)}")
    console.print(f"image: {picture}    profile: {page}    model: {saved}    next: docs/quickstart.md")


def _predicted(profile: Profile) -> str:
    prediction, cores = profile.prediction, profile.chip.cores
    text = f"predicted {prediction.latency_us / 1000:.1f} ms per page on one core"
    if cores > 1:
        text += f", {fps(prediction):.0f} pages/s on {cores}"
    return f"{text}: {prediction.confidence}"
