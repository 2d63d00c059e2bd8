"""Bind inputs and outputs, run twice, read the outputs."""

import sys

import numpy as np
import onnxruntime as ort

session = ort.InferenceSession(f"{sys.argv[1]}/detector.onnx", providers=["CPUExecutionProvider"])
rng = np.random.default_rng(7)
binding = session.io_binding()
image = rng.random((1, 3, 32, 32), np.float32)
binding.bind_cpu_input("images", image)
binding.bind_output("output0")
session.run_with_iobinding(binding)
first = binding.copy_outputs_to_cpu()[0]
value = ort.OrtValue.ortvalue_from_numpy(rng.random((1, 3, 32, 32), np.float32), "cpu", 0)
binding = session.io_binding()
binding.bind_ortvalue_input("images", value)
target = ort.OrtValue.ortvalue_from_shape_and_type([1, 7, 64], np.float32, "cpu", 0)
binding.bind_ortvalue_output("output0", target)
binding.synchronize_inputs()
session.run_with_iobinding(binding)
binding.synchronize_outputs()
second = binding.get_outputs()[0].numpy()
wide = ort.InferenceSession(f"{sys.argv[1]}/recogniser.onnx", providers=["CPUExecutionProvider"])
binding = wide.io_binding()
binding.bind_cpu_input("x", rng.random((1, 3, 16, 32), np.float32))
binding.bind_output("text", "cpu")
wide.run_with_iobinding(binding)
RESULTS = {"first": first, "second": second.copy(), "text": binding.copy_outputs_to_cpu()[0]}
