"""What ``run_options`` may say."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ..errors import JobCancelled

__all__ = ["DISPATCH_BATCH", "dispatches_batch"]

log = logging.getLogger("anynpu.session")

DISPATCH_BATCH = "ztu_modelrt_dispatch_batch"
"""The key that spreads the samples of a batch over the cores."""


def dispatches_batch(run_options: Any) -> bool:
    """Whether *run_options* (a dict, or an object with ``get_run_config_entry``) ask for it; an error if they say ``terminate``.

    >>> dispatches_batch({"ztu_modelrt_dispatch_batch": "1"}), dispatches_batch(None)
    (True, False)
    """
    if run_options is None:
        return False
    if getattr(run_options, "terminate", False) is True:
        raise JobCancelled("the run was not begun: run_options.terminate is set", hint="set it to False")
    if isinstance(run_options, Mapping):
        value = run_options.get(DISPATCH_BATCH, False)
    elif hasattr(run_options, "get_run_config_entry"):
        try:
            value = run_options.get_run_config_entry(DISPATCH_BATCH)
        except Exception as error:  # onnxruntime raises a RuntimeError of its own for a key that is not there
            log.debug("run_options have no %s: %s", DISPATCH_BATCH, error)
            return False
    else:
        return False
    return value if isinstance(value, bool) else str(value).strip().lower() in ("1", "true", "on", "yes")
