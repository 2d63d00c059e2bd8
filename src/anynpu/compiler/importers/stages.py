"""A graph in stages: between two of them stand custom operators, which no runtime but the caller's own code can execute."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from ..graph import Graph, Node

__all__ = ["Stage", "needed_nodes", "stages"]


@dataclass(eq=False)
class Stage:
    """Nodes that run together, and the custom ones that can run after them."""

    nodes: list[Node] = field(default_factory=list)
    customs: list[Node] = field(default_factory=list)

    def entering(self, graph: Graph) -> list[str]:
        """Tensors that its nodes read and do not make; constants do not count."""
        made = {name for node in self.nodes for name in node.outputs}
        read = dict.fromkeys(name for node in self.nodes for name in node.inputs)
        return [name for name in read if name and name not in made and name not in graph.constants]

    def leaving(self, nodes: Sequence[Node], wanted: Set[str]) -> list[str]:
        """Results of its nodes that are *wanted*, or that others of *nodes* read."""
        mine = {id(node) for node in self.nodes}
        read = {name for node in nodes if id(node) not in mine for name in node.inputs} | wanted
        return [name for node in self.nodes for name in node.outputs if name in read]


def stages(nodes: Sequence[Node]) -> list[Stage]:
    """The stages of *nodes*, which are in topological order; one where there is no custom node."""
    result = [Stage()]
    level: dict[str, int] = {}
    for node in nodes:
        own = max((level.get(name, 0) for name in node.inputs), default=0)
        while len(result) <= own:
            result.append(Stage())
        (result[own].customs if node.custom else result[own].nodes).append(node)
        level.update(dict.fromkeys(node.outputs, own + 1 if node.custom else own))
    return result


def needed_nodes(graph: Graph, wanted: Set[str]) -> list[Node]:
    """The nodes that *wanted* tensors depend on, in topological order."""
    needed = set(wanted)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if any(name in needed for name in node.outputs):
            kept.append(node)
            needed.update(node.inputs)
    return kept[::-1]
