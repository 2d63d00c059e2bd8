"""Where the time goes: a profile of a model, as data, as a page and as a trace.

>>> from anynpu.profiling import profile_page, profile_program
>>> profile = profile_program(model.programs[0], chips.get("rk3588"))      # doctest: +SKIP
>>> print(profile.advice())                                               # doctest: +SKIP
>>> Path("profile.html").write_text(profile_page(profile, "yolo.rknn"))    # doctest: +SKIP
"""

from .charts import BOUND_COLOURS, layer_chart
from .page import profile_page
from .profile import LayerProfile, Profile, profile_program
from .trace import chrome_trace, profile_events

__all__ = [
    "BOUND_COLOURS",
    "LayerProfile",
    "Profile",
    "chrome_trace",
    "layer_chart",
    "profile_events",
    "profile_page",
    "profile_program",
]
