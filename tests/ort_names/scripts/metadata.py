"""Print what a model states about itself."""

import sys

import onnxruntime as ort

RESULTS = {}
for name in ("classifier", "detector", "recogniser", "embeddings"):
    session = ort.InferenceSession(f"{sys.argv[1]}/{name}.onnx", providers=["CPUExecutionProvider"])
    meta = session.get_modelmeta()
    RESULTS[name] = {
        "producer": meta.producer_name,
        "graph": meta.graph_name,
        "version": meta.version,
        "domain": meta.domain,
        "description": meta.description,
        "properties": dict(meta.custom_metadata_map),
        "inputs": [(node.name, [str(axis) for axis in node.shape], node.type) for node in session.get_inputs()],
        "outputs": [(node.name, [str(axis) for axis in node.shape], node.type) for node in session.get_outputs()],
    }
