"""The order of execution: float steps together, so that there are few conversions; custom operators between them."""

from __future__ import annotations

from ..graph import Graph
from .steps import Step

__all__ = ["schedule"]


def schedule(graph: Graph, steps: list[Step]) -> list[Step]:
    """A topological order of turns: all integer steps that can run, all float steps that can run, all custom ones, and again."""
    known = {*graph.inputs, *graph.constants}
    waiting = list(steps)
    ordered: list[Step] = []
    turn = 0
    idle = 0
    while waiting and idle < _TURNS:
        progressed = False
        later: list[Step] = []
        for step in waiting:
            if _turn(step) == turn and all(name in known for name in _needs(graph, step)):
                ordered.append(step)
                known.update(step.outputs)
                progressed = True
            else:
                later.append(step)
        waiting = later
        idle = 0 if progressed else idle + 1
        turn = turn if progressed else (turn + 1) % _TURNS
    assert not waiting, "steps form a cycle"
    return ordered


_TURNS = 3


def _turn(step: Step) -> int:
    return 2 if step.node.custom else int(step.is_float)


def _needs(graph: Graph, step: Step) -> set[str]:
    if not step.is_float:
        return set(step.reads)
    made = {name for node in step.nodes for name in node.outputs}
    return {name for node in step.nodes for name in node.inputs if name and name not in made and name not in graph.constants}
