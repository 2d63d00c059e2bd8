"""Detect objects in an image that is drawn: python detect.py MODEL SIZE [CORES]."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from plugin import Detector


def main() -> int:
    """One image through the plugin."""
    size = int(sys.argv[2])
    detector = Detector(Path(sys.argv[1]), num_cores=int(sys.argv[3]) if len(sys.argv) > 3 else 0, size=size)
    picture = np.random.default_rng(0).integers(0, 256, (1, size, size, 3), np.uint8)
    for kind, score, top, left, bottom, right in detector.detect_raw(picture):
        if score > 0:
            print(f"{int(kind)} {score:.3f} {top:.3f} {left:.3f} {bottom:.3f} {right:.3f}")
    detector.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
