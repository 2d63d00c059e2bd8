"""Draw the images of the documentation into docs/images: python tools/images.py [NAME ...] [--data FOLDER].

Charts come from tables of the documentation, from the imports of the package, or from models that this program compiles; the latency
chart needs the folder of published measurements that tools/timing_fit.py reads. Screenshots need a browser.
"""

from __future__ import annotations

import argparse
import base64
import csv
import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
IMAGES = DOCS / "images"

TEAL, CORAL, GRAY, INK = "#00897b", "#d9534f", "#8a8f98", "#24292f"
FONT = "font-family='system-ui, sans-serif'"


def _text(x: float, y: float, text: str, *, size: int = 15, anchor: str = "start", color: str = INK, bold: bool = False) -> str:
    weight = " font-weight='600'" if bold else ""
    return f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' text-anchor='{anchor}' fill='{color}'{weight}>{escape(text)}</text>"


def _box(x: float, y: float, width: float, height: float, text: str, *, fill: str = "#e0f2f1", second: str = "") -> list[str]:
    middle = x + width / 2
    parts = [
        f"<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='8' fill='{fill}' stroke='{INK}' stroke-opacity='.35'/>"
    ]
    parts.append(_text(middle, y + height / 2 + (5 if not second else -4), text, anchor="middle", bold=True))
    return [*parts, _text(middle, y + height / 2 + 17, second, size=13, anchor="middle", color="#57606a")] if second else parts


def _arrow(x1: float, y1: float, x2: float, y2: float, label: str = "") -> list[str]:
    parts = [f"<line x1='{x1}' y1='{y1}' x2='{x2}' y2='{y2}' stroke='{INK}' stroke-width='1.6' marker-end='url(#tip)'/>"]
    return [*parts, _text((x1 + x2) / 2, min(y1, y2) - 8, label, size=13, anchor="middle")] if label else parts


def _svg(name: str, width: int, height: int, title: str, parts: Iterable[str]) -> None:
    tip = "<defs><marker id='tip' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='8' markerHeight='8' orient='auto'>"
    tip += f"<path d='M0 0 L8 4 L0 8 z' fill='{INK}'/></marker></defs>"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' role='img' {FONT}>"
    back = f"<rect width='{width}' height='{height}' rx='10' fill='#fff'/>"
    body = "\n".join([head, f"<title>{escape(title)}</title>", tip, back, *parts, "</svg>"])
    (IMAGES / f"{name}.svg").write_text(body + "\n", encoding="utf-8")


def _page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def accuracy() -> None:
    """Detections that quantized YOLOX-nano keeps, from the table of validation.md."""
    table = _page("validation").partition("<!-- accuracy: detections kept -->")[2]
    kept = {
        name.strip(" `"): float(share) for name, share in re.findall(r"^\| ([^|]+) \| \d+, ([\d.]+) % \|", table, re.MULTILINE)
    }
    names = {
        "plain": "plain min/max",
        "the vendor's graph and ranges": "vendor's rules",
        "default": "anynpu default",
        "best": "anynpu best",
    }
    parts = [_text(24, 36, "Detections kept after int8 quantization: YOLOX-nano, 628 detections of the float model", bold=True)]
    for index, (row, label) in enumerate(names.items()):
        y = 62 + 44 * index
        color = TEAL if label.startswith("anynpu") else GRAY
        parts.append(_text(150, y + 20, label, anchor="end"))
        parts.append(f"<rect x='164' y='{y}' width='{5.2 * kept[row]:.1f}' height='28' rx='4' fill='{color}'/>")
        parts.append(_text(174 + 5.2 * kept[row], y + 20, f"{kept[row]:.1f} %", bold=True))
    _svg("accuracy", 780, 250, "Detections kept after int8 quantization", parts)


def workflow() -> None:
    """From ONNX to the software NPU and to a board."""
    parts = [
        *_box(20, 85, 130, 56, "ONNX", second="TFLite, PyTorch"),
        *_box(330, 22, 170, 56, "anynpu model", second=".anynpu"),
        *_box(640, 22, 190, 56, "software NPU", second="laptop, CI"),
        *_box(330, 148, 170, 56, "vendor model", second=".rknn", fill="#fff3e0"),
        *_box(640, 148, 190, 56, "board", second="NPU", fill="#fff3e0"),
        *_arrow(150, 100, 330, 56),
        *_arrow(150, 126, 330, 170),
        *_arrow(500, 50, 640, 50, "anynpu run, exec"),
        *_arrow(500, 176, 640, 176, "vendor's library"),
        *_arrow(415, 148, 415, 80),
        _text(172, 68, "anynpu compile", size=13),
        _text(168, 172, "anynpu build", size=13),
        _text(426, 118, "same scales", size=13),
    ]
    _svg("workflow", 850, 226, "ONNX to anynpu model and software NPU; ONNX to vendor model and board", parts)


def layout() -> None:
    """Memory of an image as NHWC with padded rows, and of channels as NC1HWC2."""
    parts = [_text(24, 34, "NHWC with w_stride: width 5, w_stride 8", bold=True)]
    for row in range(3):
        for column in range(8):
            fill = "#b2dfdb" if column < 5 else "#eceff1"
            parts.append(f"<rect x='{24 + 44 * column}' y='{50 + 34 * row}' width='42' height='30' rx='3' fill='{fill}'/>")
            parts.append(_text(45 + 44 * column, 70 + 34 * row, "RGB" if column < 5 else "pad", size=12, anchor="middle"))
    parts.append(_text(24, 172, "row y begins at y * w_stride * C", size=13))
    parts.append(_text(430, 34, "NC1HWC2: 5 channels, C2 = 4", bold=True))
    for block in range(2):
        parts.append(_text(430, 70 + 64 * block, f"C1 = {block}", size=13))
        for pixel in range(3):
            for channel in range(4):
                number = 4 * block + channel
                fill = "#ffe0b2" if number < 5 else "#eceff1"
                x = 490 + 108 * pixel + 25 * channel
                parts.append(f"<rect x='{x}' y='{50 + 64 * block}' width='24' height='30' rx='3' fill='{fill}'/>")
                parts.append(_text(x + 12, 70 + 64 * block, f"c{number}" if number < 5 else "0", size=12, anchor="middle"))
    parts += [_text(490 + 108 * pixel, 100, f"pixel {pixel}", size=11, color=GRAY) for pixel in range(3)]
    parts.append(_text(430, 172, "channel c is element c % C2 of block c // C2", size=13))
    _svg("layout", 850, 190, "Memory layouts NHWC with w_stride and NC1HWC2", parts)


def architecture() -> None:
    """The levels of the packages, from the image in architecture.md."""
    picture = _page("architecture").partition("<!-- written by tools/architecture_page.py -->")[2].partition("<!-- end")[0]
    levels: list[list[str]] = []
    for number, name in re.findall(r"^( ?\d+|  )  (\w+)", picture, re.MULTILINE):
        if number.strip():
            levels.append([])
        levels[-1].append(name)
    parts = []
    for row, names in enumerate(levels):
        y = 16 + 44 * row
        parts.append(_text(28, y + 24, str(len(levels) - 1 - row), size=13, color=GRAY))
        width = 700 / len(names)
        for column, name in enumerate(names):
            parts += _box(56 + width * column, y, width - 10, 36, name)
    parts.append(_text(28, 36 + 44 * len(levels), "A package imports packages of lower levels only.", size=13))
    _svg("architecture", 780, 50 + 44 * len(levels), "Levels of the packages", parts)


def latency(data: Path) -> None:
    """Predicted and measured latency of networks that the fit had not seen."""
    with (data / "published_fps.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["dtype"] == "INT8"]
    measured = {(row["graph"].removesuffix(".onnx"), row["chip"]): 1000 / float(row["published_fps"]) for row in rows}
    table = _page("validation").partition("<!-- written by tools/timing_page.py -->")[2]
    names = ("rk3588", "rk3576", "rk3566", "rk3562")
    points = []
    for model, *cells in re.findall(r"^\| ([\w.-]+) \|" + r" \**([+-][\d.]+) %\** \|" * 4, table, re.MULTILINE):
        matches = [graph for graph, _ in measured if graph.startswith(model)]
        for chip, error in zip(names, cells, strict=True):
            if matches and (matches[0], chip) in measured:
                points.append((model, chip, measured[matches[0], chip], float(error)))
    assert len(points) > 60, len(points)

    from math import log10

    def place(value: float) -> float:
        return (log10(value) - log10(2)) / (log10(300) - log10(2)) * 420

    colors = dict(zip(names, (TEAL, "#3f6fb5", "#b5803f", "#8e5ea2"), strict=True))
    parts = [_text(24, 30, "Latency of int8 networks, ms (each left out of the fit)", bold=True)]
    parts.append(f"<line x1='80' y1='480' x2='500' y2='60' stroke='{GRAY}' stroke-dasharray='5 4'/>")
    for tick in (2, 5, 10, 20, 50, 100, 200):
        parts.append(_text(80 + place(tick), 500, str(tick), size=12, anchor="middle"))
        parts.append(_text(72, 484 - place(tick), str(tick), size=12, anchor="end"))
        parts.append(
            f"<path d='M{80 + place(tick):.1f} 480 v-420 M80 {480 - place(tick):.1f} h420' stroke='#e6e8eb' fill='none'/>"
        )
    for model, chip, real, error in points:
        predicted = real * (1 + error / 100)
        x, y = 80 + place(real), 480 - place(predicted)
        parts.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4.5' fill='{colors[chip]}' fill-opacity='.75'/>")
        if abs(error) > 40:
            parts.append(_text(x + 9, y + 4, f"{model}, {chip}: {error:+.0f} %", size=12))
    parts += [_text(290, 524, "measured", anchor="middle"), _text(84, 54, "predicted", size=13)]
    for index, chip in enumerate(names):
        parts.append(f"<circle cx='540' cy='{96 + 24 * index}' r='5' fill='{colors[chip]}'/>")
        parts.append(_text(552, 101 + 24 * index, chip))
    _svg("latency", 640, 540, "Predicted and measured latency", parts)


def _detector(folder: Path, **options: Any) -> Any:
    """The text detector of the demonstration for rk3588, calibrated with pages of flat paper."""
    import anynpu
    from anynpu.cli.demo import detection
    from anynpu.cli.demo.pages import PAGE_SIZE, Grain

    pages = detection.calibration_pages(folder / "pages", 16, Grain.NONE)
    shapes = {"x": (1, 3, PAGE_SIZE, PAGE_SIZE)}
    return anynpu.compile(
        detection.find_detector(), "rk3588", dataset=pages, mean=detection.MEAN, std=detection.STD, shapes=shapes, **options
    )


def panels(folder: Path) -> None:
    """One page three times: float, plain int8, the default."""
    import cv2
    import numpy as np
    import onnxruntime

    import anynpu
    from anynpu.cli.demo import detection
    from anynpu.cli.demo.pages import Grain, captioned, page, side_by_side
    from anynpu.tasks.draw import draw
    from anynpu.tasks.text import find_text

    session = onnxruntime.InferenceSession(str(detection.find_detector()))
    plain = _detector(
        folder, algorithm="minmax", accuracy="fast", without=("heads", "clip", "groups", "float16", "asymmetric", "curves")
    )
    ours = _detector(folder)
    worst: tuple[float, int] = (2.0, 0)
    maps: dict[int, list[Any]] = {}
    with anynpu.Device("rk3588") as device:
        contexts = [device.load(model).context() for model in (plain, ours)]
        for seed in range(10_000, 10_012):
            image = page(seed, grain=Grain.NONE)
            (expected,) = session.run(None, {"x": detection._normalized(image)})
            maps[seed] = [expected, *(context.run({"x": image[None]}, layout="nhwc")[0] for context in contexts)]
            worst = min(worst, (detection.cosine(expected, maps[seed][1]), seed))
    image = page(worst[1], grain=Grain.NONE)
    shown = []
    for name, output in zip(("float32", "int8, plain min/max", "int8, anynpu default"), maps[worst[1]], strict=True):
        found = find_text(output, min_score=0.5, unclip=2.0)
        likeness = detection.cosine(maps[worst[1]][0], output)
        shown.append(captioned(draw(image, found), f"{name}: {len(found)} boxes, cosine {likeness:.3f}"))
    image = np.ascontiguousarray(side_by_side(shown)[..., ::-1])
    image = cv2.resize(image, None, fx=0.7, fy=0.7, interpolation=cv2.INTER_AREA)
    cv2.imwrite(str(IMAGES / "panels.png"), image, [cv2.IMWRITE_PNG_COMPRESSION, 9])


def layer_error(folder: Path) -> None:
    """Cumulative and isolated signal to noise of each layer of a quantized text detector."""
    import numpy as np

    from anynpu.cli.demo import detection
    from anynpu.cli.demo.pages import PAGE_SIZE, Grain, page
    from anynpu.comparison import CompiledSubject, OnnxSubject, compare

    model = _detector(folder, accuracy="fast")
    samples = [{"x": page(10_000 + seed, grain=Grain.NONE).transpose(2, 0, 1)[None].astype(np.float32)} for seed in range(2)]
    reference = OnnxSubject(
        detection.find_detector(), "fp32", shapes={"x": (1, 3, PAGE_SIZE, PAGE_SIZE)}, preprocess=model.preprocess
    )
    comparison = compare(reference, CompiledSubject(model, "int8"), samples)
    rows = [(one.so_far.snr, one.alone.snr) for one in comparison.layers if one.alone is not None]
    lines = {"cumulative": (CORAL, [row[0] for row in rows]), "isolated": (TEAL, [row[1] for row in rows])}
    step, top = 680 / max(1, len(rows) - 1), 60.0
    parts = [_text(24, 30, "Signal to noise of each layer, PP-OCRv4 detection, int8", bold=True)]
    for tick in range(0, 61, 10):
        y = 300 - 250 * tick / top
        parts += [f"<path d='M70 {y:.1f} h680' stroke='#e6e8eb'/>", _text(62, y + 4, f"{tick} dB", size=12, anchor="end")]
    for index, (name, (color, values)) in enumerate(lines.items()):
        places = (f"{70 + step * at:.1f},{300 - 250 * min(max(value, 0.0), top) / top:.1f}" for at, value in enumerate(values))
        parts.append(f"<polyline points='{' '.join(places)}' fill='none' stroke='{color}' stroke-width='2'/>")
        parts.append(_text(560 + 110 * index, 30, name, color=color, bold=True))
    parts.append(_text(410, 328, "layers in execution order", size=13, anchor="middle"))
    _svg("layer-error", 780, 344, "Cumulative and isolated error of each layer", parts)


SHOTS: tuple[tuple[str, Sequence[str]], ...] = (
    ("report", ("report", "yolo.onnx", "--dataset", "street/", "--std", "255,255,255", "--html", "report.html")),
    ("profile", ("profile", "yolo.onnx", "--target", "rk3588", "--html", "profile.html")),
    ("compare", ("compare", "yolo.onnx", "yolo.rknn", "--dataset", "street/", "--html", "compare.html")),
)
"""Pages of commands, made in the folder of the samples."""


def screenshots(folder: Path, into: Path = IMAGES, sizes: Sequence[tuple[int, bool, str]] = ((1100, False, ""),)) -> None:
    """The five pages in a browser: width, dark or not, and what the name of the file gets."""
    sys.path.insert(0, str(ROOT / "tests"))
    browser = runpy.run_path(str(ROOT / "tests" / "browser.py"))["Page"]
    from anynpu.cli.demo.samples import write_samples
    from anynpu.serve import ServeOptions, Server
    from anynpu.serve.playground import Playground

    samples = folder / "samples"
    write_samples(samples)
    for _, command in SHOTS:
        subprocess.run(
            [sys.executable, "-m", "anynpu", *command, "-q"], cwd=samples, check=True, stdout=subprocess.DEVNULL, timeout=600
        )

    def shoot(name: str, address: str, ready: Callable[[Any], None], height: int = 860) -> None:
        for width, dark, suffix in sizes:
            with browser(address, width=width, height=height if width > 600 else 1400, dark=dark) as shown:
                ready(shown)
                view = {"x": 0, "y": 0, "width": width, "height": height if width > 600 else 1400, "scale": 1}
                data = shown.call("Page.captureScreenshot", clip=view, captureBeyondViewport=True)["data"]
                (into / f"page-{name}{suffix}.png").write_bytes(base64.b64decode(data))
                wide = shown.value("document.documentElement.scrollWidth > innerWidth")
                print(f"page-{name}{suffix}: {width} px{', wider than the window' if wide else ''}")

    for name, _ in SHOTS:
        shoot(name, (samples / f"{name}.html").as_uri(), lambda shown: None)
    options = ServeOptions(port=0, grpc_port=0, device="sim:rk3588")
    with Server([str(samples / "detector.rknn")], options, mounts=[Playground(options)]) as server:
        shoot(
            "status",
            f"http://{server.http_address}/status",
            lambda shown: shown.wait_for("document.body.innerText.includes('detector')"),
        )

        def play(shown: Any) -> None:
            shown.choose("#model", samples / "detector.onnx")
            shown.choose("#pictures", samples / "street" / "001.jpg")
            shown.wait_for("!document.querySelector('#go').disabled")
            shown.click("#go")
            shown.wait_for("document.querySelector('#results').dataset.state === 'done'")

        shoot("playground", f"http://{server.http_address}/playground", play, height=1100)


def main() -> None:
    """Draw the images that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--data", type=Path, help="the folder with published measurements, for latency")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        drawings: dict[str, Callable[[], None]] = {
            "accuracy": accuracy,
            "workflow": workflow,
            "layout": layout,
            "architecture": architecture,
            "panels": lambda: panels(folder),
            "layer-error": lambda: layer_error(folder),
            "screenshots": lambda: screenshots(folder),
        }
        if options.data:
            drawings["latency"] = lambda: latency(options.data)
        for each in options.names or drawings:
            drawings[each]()


if __name__ == "__main__":
    main()
