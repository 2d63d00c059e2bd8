"""Frames of a context that is destroyed while threads wait for them."""

from __future__ import annotations

import threading

from anynpu.rknn.software.context import Frames


def test_waiting_for_all_frames_ends_when_some_are_dropped() -> None:
    frames, begun, go_on = Frames(), threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        go_on.wait(120)

    frames.submit(0, first)
    frames.submit(0, lambda: None)
    assert begun.wait(120)
    waiting = threading.Thread(target=frames.settle, daemon=True)
    closing = threading.Thread(target=frames.close, daemon=True)
    waiting.start()
    waiting.join(0.05)  # it has seen both frames
    closing.start()
    closing.join(0.05)  # the second one is cancelled now
    go_on.set()
    closing.join(120)
    waiting.join(120)
    assert not closing.is_alive()
    assert not waiting.is_alive()
