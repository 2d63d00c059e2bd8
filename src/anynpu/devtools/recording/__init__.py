"""The calls of a program as a file, and the file as calls.

``anynpu exec --record trace.jsonl`` (the variable ``ANYNPU_RECORD``) writes every call of a vendor's interface with its arguments, its
result, and the data that go in and come out; ``anynpu replay`` makes the same calls again and names the first that answers differently.

* :mod:`.trace`: the file
* :mod:`.roles`: what an argument is, and how it is written down and made again
* :mod:`.recorder`: around the calls of a library object
* :mod:`.replayer`: the calls again
"""

from __future__ import annotations

from .recorder import RECORD_VARIABLE, record_calls
from .replayer import Difference, Replay, replay
from .trace import Trace, read_trace

__all__ = ["RECORD_VARIABLE", "Difference", "Replay", "Trace", "read_trace", "record_calls", "replay"]
