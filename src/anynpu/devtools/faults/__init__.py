"""Fault injection: repeatable failures of a board at a chosen job or call.

A *plan* lists faults; an :class:`Injector` decides, event by event, which of them happen. The software NPU asks it where one is in force
(``with faults.inject(plan):``, or the environment variable ``ANYNPU_FAULTS``), and nothing is asked otherwise.

* :mod:`.plan`: the faults as data, read from TOML, JSON or a dictionary
* :mod:`.injector`: which of them happen when; seeded
* :mod:`.clock`: how long something takes, in real or in simulated time
* :mod:`.calls`: around the calls of a library object
* :mod:`.jobs`: around the jobs of a device
* :mod:`.scope`: which injector is in force

>>> plan = Plan.of({"fault": [{"kind": "code", "call": "rknn_run", "code": "RKNN_ERR_TIMEOUT", "at": 3}]})
>>> plan.faults[0].at
3
"""

from __future__ import annotations

from .clock import FaultClock, SimulatedTime, WallTime
from .injector import Injector
from .plan import KINDS, Fault, Plan, read_plan
from .scope import VARIABLE, active, inject

__all__ = [
    "KINDS",
    "VARIABLE",
    "Fault",
    "FaultClock",
    "Injector",
    "Plan",
    "SimulatedTime",
    "WallTime",
    "active",
    "inject",
    "read_plan",
]
