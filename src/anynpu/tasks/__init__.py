"""From a network's outputs to boxes, keypoints, masks, classes and text: numpy in, frozen dataclasses out.

>>> import numpy as np
>>> from anynpu import tasks
>>> reader = tasks.reader_for((640, 640), [(1, 84, 8400)])
>>> reader.task, reader.head
('detect', 'yolov8')
>>> len(reader.read([np.zeros((1, 84, 8400), np.float32)]))
0

An image is put into the input by :func:`fit_picture`, and the placement that it returns leads back: ``reader.read(outputs, placement)``
is in the image's own pixels. Each decoder can be called on its own too.
"""

from __future__ import annotations

from .boxes import (
    ANCHORS,
    decode_anchors,
    decode_cells,
    decode_columns,
    decode_distances,
    decode_faces,
    decode_final,
    decode_rows,
    face_priors,
)
from .detect import TASKS, OutputReader, Result, reader_for
from .image_model import PictureReader, Spent
from .labels import COCO, classify, labels_from_file, labels_from_metadata, segment
from .letterbox import FITS, Placement, fit_picture, place
from .results import Classification, Detections, SemanticMap, TextLine, TextRegions, Thresholds
from .suppress import overlap, rotated_overlap, suppress, suppress_rotated
from .text import alphabet_of, crop_text, find_text, read_text, split_line

__all__ = [
    "ANCHORS",
    "COCO",
    "FITS",
    "TASKS",
    "Classification",
    "Detections",
    "OutputReader",
    "PictureReader",
    "Placement",
    "Result",
    "SemanticMap",
    "Spent",
    "TextLine",
    "TextRegions",
    "Thresholds",
    "alphabet_of",
    "classify",
    "crop_text",
    "decode_anchors",
    "decode_cells",
    "decode_columns",
    "decode_distances",
    "decode_faces",
    "decode_final",
    "decode_rows",
    "face_priors",
    "find_text",
    "fit_picture",
    "labels_from_file",
    "labels_from_metadata",
    "overlap",
    "place",
    "read_text",
    "reader_for",
    "rotated_overlap",
    "segment",
    "split_line",
    "suppress",
    "suppress_rotated",
]
