"""Values: what they state of themselves, changed in place, as inputs and outputs, and through DLPack."""

import sys

import numpy as np
import onnxruntime as ort

x = np.random.default_rng(8).random((1, 3, 16, 16), np.float32)
value = ort.OrtValue.ortvalue_from_numpy(x)
facts = [value.shape(), value.data_type(), value.element_type(), value.device_name(), value.tensor_size_in_bytes()]
facts += [value.is_tensor(), value.is_sparse_tensor(), value.is_tensor_sequence(), value.has_value()]
session = ort.InferenceSession(f"{sys.argv[1]}/classifier.onnx", providers=["CPUExecutionProvider"])
(first,) = session.run_with_ort_values(["probabilities"], {"input": value})
value.update_inplace(np.ascontiguousarray(x[..., ::-1]))
(second,) = session.run_with_ort_values(None, {"input": value})
shared = np.from_dlpack(first) if hasattr(first, "__dlpack__") else first.numpy()  # onnxruntime before 1.24 has no DLPack
empty = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.int64)
device = ort.OrtDevice.make("cpu", 0)
RESULTS = {
    "facts": facts,
    "first": first.numpy().copy(),
    "second": second.numpy().copy(),
    "shared": bool((shared == first.numpy()).all()),
    "empty": [empty.shape(), empty.data_type(), empty.element_type()],
    "device": [device.device_type(), device.device_id()],
}
