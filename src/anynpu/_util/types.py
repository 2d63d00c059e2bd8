"""Names of types that most modules use."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
"""An array of any type."""

Floats = npt.NDArray[np.float64]
"""An array of float64."""
