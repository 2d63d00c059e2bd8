"""Set everything that examples on the web set."""

import sys

import numpy as np
import onnxruntime as ort

ort.set_default_logger_severity(3)
so = ort.SessionOptions()
so.intra_op_num_threads = 1
so.inter_op_num_threads = 1
so.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
so.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
so.enable_mem_pattern = False
so.enable_cpu_mem_arena = False
so.log_severity_level = 3
so.logid = "web example"
so.add_session_config_entry("session.intra_op.allow_spinning", "0")
so.add_free_dimension_override_by_name("batch", 2)
session = ort.InferenceSession(f"{sys.argv[1]}/recogniser.onnx", so, providers=["CPUExecutionProvider"])
assert so.get_session_config_entry("session.intra_op.allow_spinning") == "0"
assert session.get_session_options().logid == "web example"
assert session.get_inputs()[0].shape[0] == 2
assert session.get_overridable_initializers() == []
x = np.random.default_rng(6).random((2, 3, 16, 32), np.float32)
RESULTS = {"text": session.run(None, {"x": x})[0]}
