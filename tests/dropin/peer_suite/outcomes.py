"""A pytest plugin: one line of JSON for each test that has ended, at once, since a test may never end. ``PEER_OUTCOMES`` is the file."""

from __future__ import annotations

import json
import os
from typing import Any

REASON_LENGTH = 300


def pytest_collection_modifyitems(items: list[Any]) -> None:
    _write({"collected": [item.nodeid for item in items]})


def pytest_runtest_logstart(nodeid: str) -> None:
    _write({"begins": nodeid})


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or report.outcome != "passed":
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
        _write({"test": report.nodeid, "outcome": report.outcome, "reason": text[-REASON_LENGTH:]})


def _write(entry: dict[str, Any]) -> None:
    with open(os.environ["PEER_OUTCOMES"], "a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
