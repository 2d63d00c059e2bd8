"""The software NPU behind the VIPLite calls."""
