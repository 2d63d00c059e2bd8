"""The RKNN API."""
