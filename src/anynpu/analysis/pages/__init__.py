"""What all pages are made of: the frame of a page, its tables and figures, and the pieces of its charts.

A page is one file: nothing is loaded from elsewhere, and it can be read without a script. Who has something to show
(:mod:`anynpu.analysis.profile`, :mod:`anynpu.analysis.compare`) composes its page from these; nothing here knows what is shown.

``status`` holds the files of the server's status page.
"""

from .document import figure_boxes, html_document, legend, number_cell, sortable_table, text_cell
from .graph import GraphNode, layer_graph
from .svg import LEFT, RIGHT, WIDTH, grid_rows, svg
from .terms import TERMS, with_explanation

__all__ = [
    "GraphNode",
    "LEFT",
    "RIGHT",
    "TERMS",
    "WIDTH",
    "figure_boxes",
    "grid_rows",
    "html_document",
    "layer_graph",
    "legend",
    "number_cell",
    "sortable_table",
    "svg",
    "text_cell",
    "with_explanation",
]
