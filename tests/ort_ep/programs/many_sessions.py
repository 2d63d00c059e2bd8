"""Creates and closes sessions: ``many_sessions.py PROVIDER MODEL LIBRARY COUNT``.

It prints resident bytes and open descriptors, ten times.
"""

import gc
import os
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort

provider, model, library, count = sys.argv[1:]
ort.register_execution_provider_library("anynpu", provider)
devices = [device for device in ort.get_ep_devices() if device.ep_name == "AnynpuExecutionProvider"]
for _ in range(10):
    for _ in range(int(count) // 10):
        settings = ort.SessionOptions()
        settings.intra_op_num_threads = settings.inter_op_num_threads = 1
        settings.add_provider_for_devices(devices, {"library": library, "contexts": "3"})
        ort.InferenceSession(model, settings).run(None, {"x": np.zeros((1, 16), np.float32)})
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    print(resident, len(os.listdir("/proc/self/fd")))
