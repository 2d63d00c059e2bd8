"""Small helpers that every package may use; none of them is part of the public API."""
