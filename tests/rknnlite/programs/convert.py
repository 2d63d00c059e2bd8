"""A conversion script after the pattern of the model zoo's: convert.py MODEL PLATFORM TYPE OUTPUT [DATASET] [SIZE]."""

import sys

from rknn.api import RKNN


def arguments():
    if len(sys.argv) < 5:
        print(f"Usage: python3 {sys.argv[0]} onnx_model_path platform dtype(i8/fp) output_rknn_path [dataset] [size]")
        sys.exit(1)
    dtype = sys.argv[3]
    if dtype not in ("i8", "fp"):
        print(f"ERROR: Invalid model type: {dtype}")
        sys.exit(1)
    dataset = sys.argv[5] if len(sys.argv) > 5 else None
    size = [int(extent) for extent in sys.argv[6].split("x")] if len(sys.argv) > 6 else None
    return sys.argv[1], sys.argv[2], dtype == "i8", sys.argv[4], dataset, size


if __name__ == "__main__":
    model_path, platform, do_quant, output_path, dataset, size = arguments()

    rknn = RKNN(verbose=False)

    print("--> Config model")
    rknn.config(mean_values=[[123.675, 116.28, 103.53]], std_values=[[58.395, 57.12, 57.375]], target_platform=platform)
    print("done")

    print("--> Loading model")
    if size is None:
        ret = rknn.load_onnx(model=model_path)
    else:
        import onnx

        name = onnx.load(model_path, load_external_data=False).graph.input[0].name
        ret = rknn.load_onnx(model=model_path, inputs=[name], input_size_list=[size])
    if ret != 0:
        print("Load model failed!")
        exit(ret)
    print("done")

    print("--> Building model")
    ret = rknn.build(do_quantization=do_quant, dataset=dataset)
    if ret != 0:
        print("Build model failed!")
        exit(ret)
    print("done")

    print("--> Export rknn model")
    ret = rknn.export_rknn(output_path)
    if ret != 0:
        print("Export rknn model failed!")
        exit(ret)
    print("done")

    rknn.release()
