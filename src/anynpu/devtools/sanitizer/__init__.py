"""The sanitizer: finds what a program does wrong with an NPU, before a board does.

``with anynpu.sanitize():`` watches a block of Python, ``ANYNPU_SANITIZE=1`` and ``anynpu exec --sanitize`` a program. This
package holds what all vendors share: the kinds of findings, the report, stacks, the pages that a program touched, and judgments
about values. What the calls of an interface mean is known to the observers of each vendor, beside their software libraries.
"""

from .report import KINDS, Finding, Kind, Reporter, Suppressions
from .watch import Described, Observer, delist, enlist, judge, sanitize, set_aside

__all__ = [
    "KINDS",
    "Described",
    "Finding",
    "Kind",
    "Observer",
    "Reporter",
    "Suppressions",
    "delist",
    "enlist",
    "judge",
    "sanitize",
    "set_aside",
]
