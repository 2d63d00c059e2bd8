"""Sentence embeddings: two integer inputs with a batch and a length that are open, and cosine similarities."""

import sys

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(f"{sys.argv[1]}/embeddings.onnx")
wanted = {node.name: node.type for node in session.get_inputs()}
assert wanted == {"input_ids": "tensor(int64)", "attention_mask": "tensor(int64)"}
tokens = np.random.default_rng(4).integers(0, 50, (3, 6))
mask = np.ones_like(tokens)
mask[1, 4:] = 0
(sentence,) = session.run(["sentence"], {"input_ids": tokens, "attention_mask": mask})
unit = sentence / np.linalg.norm(sentence, axis=1, keepdims=True)
RESULTS = {"sentence": sentence, "similarities": unit @ unit.T}
