"""One run at a speed of the chip, and a session with another speed: ``realtime.py PROVIDER MODEL``."""

import sys
import time

import numpy as np
import onnxruntime as ort

provider, model = sys.argv[1:]
ort.register_execution_provider_library("anynpu", provider)
devices = [device for device in ort.get_ep_devices() if device.ep_name == "AnynpuExecutionProvider"]


def session(**options: str) -> ort.InferenceSession:
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.add_provider_for_devices(devices, options)
    return ort.InferenceSession(model, settings)


slow = session(realtime="0.0001")
feed = {"images": np.zeros((1, 3, 32, 32), np.float32)}
began = time.perf_counter()
slow.run(None, feed)
print(time.perf_counter() - began)
session()
session(realtime="0.0001")
try:
    session(realtime="1")
except Exception as error:
    print(str(error).splitlines()[0])
