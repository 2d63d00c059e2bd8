"""Faults on demand."""
