"""The order of execution: float steps together, so that there are few islands and few conversions."""

from __future__ import annotations

from .graph import Graph
from .steps import Step

__all__ = ["schedule"]


def schedule(graph: Graph, steps: list[Step]) -> list[Step]:
    """A topological order that alternates between all integer steps that can run and all float steps that can run."""
    known = {*graph.inputs, *graph.constants}
    waiting = list(steps)
    ordered: list[Step] = []
    floats = False
    idle = 0
    while waiting and idle < 2:
        progressed = False
        later: list[Step] = []
        for step in waiting:
            if step.is_float is floats and all(name in known for name in _needs(graph, step)):
                ordered.append(step)
                known.update(step.outputs)
                progressed = True
            else:
                later.append(step)
        waiting = later
        idle = 0 if progressed else idle + 1
        floats = not floats if not progressed else floats
    assert not waiting, "steps form a cycle"
    return ordered


def _needs(graph: Graph, step: Step) -> set[str]:
    if not step.is_float:
        return set(step.reads)
    made = {name for node in step.nodes for name in node.outputs}
    return {name for node in step.nodes for name in node.inputs if name and name not in made and name not in graph.constants}
