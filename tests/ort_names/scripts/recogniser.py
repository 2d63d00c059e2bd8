"""Read text lines of several widths: characters from the model's metadata, greedy decoding."""

import sys

import numpy as np
from onnxruntime import InferenceSession

session = InferenceSession(f"{sys.argv[1]}/recogniser.onnx", providers=["CPUExecutionProvider"])
characters = ["", *session.get_modelmeta().custom_metadata_map["character"].splitlines()]
assert [str(axis) for axis in session.get_inputs()[0].shape] == ["batch", "3", "16", "width"]
rng = np.random.default_rng(3)
texts, scores = [], []
for width, lines in ((32, 1), (48, 2), (32, 1)):
    (steps,) = session.run(None, {"x": rng.random((lines, 3, 16, width), np.float32)})
    scores.append(steps)
    for line in steps.argmax(2):
        fresh = np.concatenate([[True], line[1:] != line[:-1]])
        texts.append("".join(characters[index] for index in line[fresh]))
RESULTS = {"texts": texts, **{f"scores {number}": array for number, array in enumerate(scores)}}
