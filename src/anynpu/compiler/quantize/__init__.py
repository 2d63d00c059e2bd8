"""Calibration, ranges, quantization configs and their search, weight reconstruction, given scales."""
