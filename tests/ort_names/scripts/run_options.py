"""Runs with options, in the background, and ones that fail."""

import sys
import threading

import numpy as np
import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, NoSuchFile

session = ort.InferenceSession(f"{sys.argv[1]}/classifier.onnx", providers=["CPUExecutionProvider"])
x = np.random.default_rng(10).random((1, 3, 16, 16), np.float32)
options = ort.RunOptions()
options.log_severity_level = 4
options.logid = "one run"
options.only_execute_path_to_fetches = True
options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
assert options.get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0"
(first,) = session.run(None, {"input": x}, ort.RunOptions())
done, answer = threading.Event(), []


def finished(results, user_data, error):
    answer.extend([results[0], user_data, error])
    done.set()


session.run_async(None, {"input": x}, finished, "mine")
assert done.wait(120)
failures = []
for call in (
    lambda: session.run(None, {"input": x[:, :, :8]}),
    lambda: session.run(["nothing"], {"input": x}),
    lambda: ort.InferenceSession("/no/such/model.onnx", providers=["CPUExecutionProvider"]),
):
    try:
        call()
    except InvalidArgument:
        failures.append("InvalidArgument")
    except NoSuchFile:
        failures.append("NoSuchFile")
    except Fail:
        failures.append("Fail")
stopped = ort.RunOptions()
stopped.terminate = True
try:
    session.run(None, {"input": x}, stopped)
except Exception as error:
    failures.append("terminated" if "terminate" in str(error).lower() else str(error))
RESULTS = {"first": first, "second": answer[0], "user data": answer[1], "error": answer[2], "failures": failures}
