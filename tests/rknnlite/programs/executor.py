"""An executor after the pattern of the model zoo's: executor.py MODEL INPUT.npy OUTPUT.npz [MASK]."""

import sys

import numpy as np
from rknnlite.api import RKNNLite


class Executor:
    def __init__(self, model_path, core_mask=RKNNLite.NPU_CORE_AUTO):
        rknn = RKNNLite()
        ret = rknn.load_rknn(model_path)
        if ret != 0:
            print("Load RKNN model failed")
            exit(ret)
        print("--> Init runtime environment")
        ret = rknn.init_runtime(core_mask=core_mask)
        if ret != 0:
            print("Init runtime environment failed")
            exit(ret)
        print("done")
        self.rknn = rknn

    def run(self, inputs):
        if self.rknn is None:
            print("ERROR: rknn has been released")
            return []
        inputs = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        return self.rknn.inference(inputs=inputs)

    def release(self):
        self.rknn.release()
        self.rknn = None


if __name__ == "__main__":
    model = Executor(sys.argv[1], int(sys.argv[4]) if len(sys.argv) > 4 else RKNNLite.NPU_CORE_AUTO)
    assert "rknn" in str(type(model.rknn))
    outputs = model.run([np.load(sys.argv[2])])
    if outputs is None:
        sys.exit(3)
    np.savez(sys.argv[3], *outputs)
    model.release()
