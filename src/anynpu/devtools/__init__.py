"""Tools for programs that call an NPU: sanitizer, fault injection, record and replay."""
