"""Detect objects: names and stride from the model's metadata, boxes above a threshold, the rest suppressed."""

import ast
import sys

import numpy as np
import onnxruntime as ort


def suppressed(boxes, scores, limit=0.5):
    """The numbers of the boxes that stay."""
    order, kept = scores.argsort(kind="stable")[::-1], []
    while len(order):
        first, rest = order[0], order[1:]
        kept.append(int(first))
        low = np.maximum(boxes[first, :2], boxes[rest, :2])
        high = np.minimum(boxes[first, 2:], boxes[rest, 2:])
        both = np.clip(high - low, 0, None).prod(1)
        area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
        order = rest[both / (area[first] + area[rest] - both + 1e-9) < limit]
    return kept


options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
session = ort.InferenceSession(f"{sys.argv[1]}/detector.onnx", sess_options=options, providers=["CPUExecutionProvider"])
meta = session.get_modelmeta().custom_metadata_map
names, stride = ast.literal_eval(meta["names"]), int(meta["stride"])
image = np.random.default_rng(2).random((1, 3, 32, 32), np.float32)
(raw,) = session.run(["output0"], {"images": image})
predictions = raw[0].T
cells = np.stack(np.meshgrid(np.arange(8), np.arange(8)), -1).reshape(-1, 2)
centres, sizes = (cells + predictions[:, :2]) * stride, predictions[:, 2:4] * 16
boxes = np.concatenate([centres - sizes / 2, centres + sizes / 2], 1)
kept = suppressed(boxes, predictions[:, 4:].max(1))
RESULTS = {"raw": raw, "names": sorted(names.values()), "stride": stride, "number kept is plausible": 0 < len(kept) < 64}
