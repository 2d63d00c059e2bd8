"""The examples of docs/tasks.md run as they stand."""

from __future__ import annotations

from documentation import blocks, section


def test_the_examples_run() -> None:
    found = blocks(section("tasks"))
    assert len(found) == 2
    names: dict[str, object] = {}
    for block in found:
        exec(compile(block, "tasks.md", "exec"), names)
