"""onnxruntime's exceptions at the place where programs import them from."""

from ..exceptions import *  # noqa: F403
from ..exceptions import __all__ as __all__
