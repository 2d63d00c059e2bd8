"""The same network, which under anynpu is compiled as int8 with calibration data; an ordinary session with default arguments."""

import sys

import numpy as np
import onnxruntime as rt

sess = rt.InferenceSession(sys.argv[1] + "/classifier8.onnx")
x = np.load(sys.argv[1] + "/data/0.npy")
out = sess.run(None, {sess.get_inputs()[0].name: x})[0]
assert out.dtype == np.float32, out.dtype
RESULTS = {"int8 probabilities": out}
