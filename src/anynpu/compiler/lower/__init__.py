"""From the graph to the layer program: integer forms, placement, operators, memory plan."""
