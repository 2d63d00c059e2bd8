"""Makes the provider call all that it uses of onnxruntime: ``every_call.py PROVIDER FOLDER``.

FOLDER has dynamic.onnx, an EPContext model with dynamic shapes, and plain.onnx, an ONNX model with an operator of another domain.
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort

provider, folder = sys.argv[1], Path(sys.argv[2])
ort.register_execution_provider_library("anynpu", provider)
ort.register_execution_provider_library("anynpu.virtual", provider)
devices = [device for device in ort.get_ep_devices() if device.ep_name == "AnynpuExecutionProvider"]


def session(name: str, entries: dict[str, str], **options: str) -> ort.InferenceSession:
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    for key, value in entries.items():
        settings.add_session_config_entry(key, value)
    settings.add_provider_for_devices(devices[:1], options)
    return ort.InferenceSession(str(folder / name), settings)


dynamic = session("dynamic.onnx", {})
for side in (16, 24):
    assert dynamic.run(None, {"images": np.ones((1, 3, side, side), np.float32)})[0].any()

entries = {"ep.context_enable": "1", "ep.context_file_path": str(folder / "written.onnx")}
feed = {"x": np.ones((1, 3, 16, 16), np.float32)}
expected = ort.InferenceSession(str(folder / "plain.onnx")).run(None, feed)[0]
got = session("plain.onnx", entries, cache_dir=str(folder / "cache")).run(None, feed)[0]
np.testing.assert_allclose(got, expected, atol=2e-3)

reason = ""
try:
    session("dynamic.onnx", {}, wrong="1")
except Exception as error:
    reason = str(error)
assert "there is no option 'wrong'" in reason
ort.unregister_execution_provider_library("anynpu.virtual")
print(ort.__version__)
