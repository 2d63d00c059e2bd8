"""Choose the best provider that there is, with options, and fall back to the processor."""

import sys
import warnings

import numpy as np
import onnxruntime as ort

warnings.simplefilter("ignore")  # either package has something to state about a GPU that is not there
available = ort.get_available_providers()
assert set(available) <= set(ort.get_all_providers())
assert isinstance(ort.get_device(), str)
wanted = [("CUDAExecutionProvider", {"device_id": 0}), ("CPUExecutionProvider", {})]
session = ort.InferenceSession(f"{sys.argv[1]}/classifier.onnx", providers=wanted)
assert session.get_providers()
session.disable_fallback()
session.enable_fallback()
x = np.random.default_rng(5).random((1, 3, 16, 16), np.float32)
first = session.run(None, {"input": x})[0]
second = ort.InferenceSession(f"{sys.argv[1]}/classifier.onnx", providers=available).run(None, {"input": x})[0]
RESULTS = {"first": first, "second": second}
