"""Export a YOLO model for Rockchip's NPUs and predict with the result: export_predict.py MODEL Image [--quantize 8 --data data.yaml].

Plain Ultralytics: nothing here knows of anynpu.
"""

from __future__ import annotations

import argparse
import sys

from ultralytics import YOLO


def main() -> int:
    """Export, predict, print the boxes."""
    parser = argparse.ArgumentParser(description="Export for Rockchip's NPUs and predict.")
    parser.add_argument("model", help="weights, or a YAML file for a network with random ones")
    parser.add_argument("picture")
    parser.add_argument("--chip", default="rk3588")
    parser.add_argument("--size", type=int, default=640)
    parser.add_argument("--quantize", type=int, default=16, choices=(8, 16))
    parser.add_argument("--data", help="a dataset, for quantize 8")
    parser.add_argument("--confidence", type=float, default=0.25)
    given = parser.parse_args()
    extra = {"data": given.data} if given.data else {}
    exported = YOLO(given.model).export(format="rknn", name=given.chip, imgsz=given.size, quantize=given.quantize, **extra)
    print(f"exported {exported}")
    (result,) = YOLO(exported, task="detect").predict(given.picture, imgsz=given.size, conf=given.confidence, verbose=False)
    print(f"boxes {len(result.boxes)}")
    for box in result.boxes.data.tolist():
        print(" ".join(f"{value:.3f}" for value in box))
    return 0


if __name__ == "__main__":
    sys.exit(main())
