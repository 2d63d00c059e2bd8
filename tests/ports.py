"""Ports for servers that are started again, or that a test configures before they listen. Whoever can, listens on port 0."""

from __future__ import annotations

import os
import random
import socket
import time

__all__ = ["free_ports"]


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on: above those that Ray gives to its workers (10002 to 19999), and below those that the kernel gives
    to outgoing connections (from 32768). So nobody else takes one before its server listens, or while that is started again."""
    chooser = random.Random(os.getpid() + time.monotonic_ns())
    found: set[int] = set()
    for _ in range(1000):
        port = chooser.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.add(port)
        if len(found) == count:
            return list(found)
    raise AssertionError("there are no free ports")
