"""Vectors of images that are drawn: python embed.py MODEL SIZE COUNT."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from pool import Pool, available


def main() -> int:
    """All images through the pool; a line for each, in order."""
    model, size, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    chip = available()
    if chip is None:
        print("no board of Rockchip's here", file=sys.stderr)
        return 1
    random = np.random.default_rng(0)
    pictures = [random.standard_normal((1, 3, size, size), np.float32) for _ in range(count)]
    with Pool(model, chip, threads=6) as pool:
        waiting = [pool.submit([picture]) for picture in pictures]
        for number, answer in enumerate(waiting):
            print(number, " ".join(f"{value:.5f}" for value in answer.result()[0].ravel()[:4]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
