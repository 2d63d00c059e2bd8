"""Classify an image: normalize it, run the network, take the best five."""

import sys

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(f"{sys.argv[1]}/classifier.onnx", providers=["CPUExecutionProvider"])
node = session.get_inputs()[0]
assert node.type == "tensor(float)", node.type
picture = np.random.default_rng(1).integers(0, 256, (16, 16, 3)).astype(np.float32) / 255
picture = (picture - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
batch = picture.transpose(2, 0, 1)[None].astype(np.float32)
assert list(batch.shape) == node.shape
(probabilities,) = session.run([session.get_outputs()[0].name], {node.name: batch})
best = probabilities[0].argsort()[::-1][:5]
RESULTS = {"best": int(best[0]), "probabilities": probabilities}
