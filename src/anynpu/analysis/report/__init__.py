"""One report for a decision: a model on all chips side by side, with time, memory, accuracy and the price of float16.

>>> from anynpu.decision import decide, decision_page
>>> made = decide("yolo.onnx", dataset="street/", std=(255, 255, 255))     # doctest: +SKIP
>>> print(made.fastest.chip.name)                                          # doctest: +SKIP
"""

from .gather import Accuracy, ChipFigures, Decision, decide, decision_of
from .page import decision_page
from .report import decision_data

__all__ = ["Accuracy", "ChipFigures", "Decision", "decide", "decision_data", "decision_of", "decision_page"]
