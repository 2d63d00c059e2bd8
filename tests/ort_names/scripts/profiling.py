"""Profile a few runs, and read the file."""

import json
import os
import sys
import tempfile

import numpy as np
import onnxruntime as ort

with tempfile.TemporaryDirectory() as folder:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = os.path.join(folder, "profile")
    session = ort.InferenceSession(f"{sys.argv[1]}/classifier.onnx", options, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(9).random((1, 3, 16, 16), np.float32)
    for _ in range(3):
        (probabilities,) = session.run(None, {"input": x})
    name = session.end_profiling()
    with open(name) as file:
        events = json.load(file)
    RESULTS = {
        "probabilities": probabilities,
        "has events": len(events) > 0,
        "begins with the prefix": os.path.basename(name).startswith("profile"),
        "start": session.get_profiling_start_time_ns() > 0,
    }
quiet = ort.InferenceSession(f"{sys.argv[1]}/classifier.onnx", providers=["CPUExecutionProvider"])
RESULTS["quiet"] = quiet.end_profiling()
