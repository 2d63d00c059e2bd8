"""The software NPU behind the RKNN calls."""
