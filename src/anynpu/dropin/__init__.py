"""Drop-in libraries: unmodified programs for a board run on the software NPU."""
