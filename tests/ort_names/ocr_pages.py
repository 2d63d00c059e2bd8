"""Reads pages that it draws with rapidocr-onnxruntime as it is installed, and prints the lines of each as JSON: ``ocr_pages.py COUNT``."""

from __future__ import annotations

import json
import sys

import cv2
import numpy as np
from rapidocr_onnxruntime import RapidOCR

LINES = (
    "The quick brown fox",
    "jumps over the lazy dog",
    "invoice number 20387",
    "total amount 1549.00",
    "board with three cores",
    "neural network unit",
    "read by an ordinary program",
)

engine = RapidOCR()
found = []
for number in range(int(sys.argv[1])):
    page = np.full((320, 480, 3), 255, np.uint8)
    for row in range(4):
        text = LINES[(number + 2 * row) % len(LINES)]
        cv2.putText(page, text, (10 + number, 60 + 70 * row), cv2.FONT_HERSHEY_SIMPLEX, 0.9, (0, 0, 0), 2, cv2.LINE_AA)
    lines, _ = engine(page)
    found.append([text for _, text, _ in lines or []])
sys.stdout.write(json.dumps(found))
