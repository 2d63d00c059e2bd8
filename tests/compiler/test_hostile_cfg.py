"""A ``.quantization.cfg`` that another owner wrote: rejected with its line or its tensor, and soon."""

from __future__ import annotations

import pytest

from anynpu.compiler.toolkit.quantization_cfg import parse_cfg
from anynpu.errors import AnynpuError, ParameterError

HEAD = "quantize_parameters:\n"


@pytest.mark.parametrize(
    "text",
    [
        f'{HEAD}  "a\\q": 1\n',
        f"{HEAD} x:\n  min: {'[' * 5000}{']' * 5000}\n  max: 1\n",
        f"{HEAD} x:\n  min: {'{a:' * 5000}{'}' * 5000}\n  max: 1\n",
        f"{HEAD} x:\n  min: -1\n  max: 1\n  zero_point: [1e999]\n",
        f"{HEAD} x:\n  min: 0\n  max: 1e-322\n",
        f"{HEAD}a{' ' * 1_000_000}b\n",
        f"{HEAD}{'a' * 2_000_000}: 1\n",
    ],
)
def test_what_makes_no_sense(text: str) -> None:
    with pytest.raises(AnynpuError) as caught:
        parse_cfg(text)
    assert caught.value.hint
    assert len(str(caught.value)) < 1000


def test_long_lists_and_spaces_at_the_end() -> None:
    entries = "      - -1.5\n" * 20_000
    cfg = parse_cfg(f"{HEAD}  x:{' ' * 5000}\n    dtype: int8\n    min:\n{entries}    max: [1.5]\n")
    assert (cfg.entries["x"].low, cfg.entries["x"].high) == (-1.5, 1.5)


def test_a_tensor_that_was_always_zero_has_the_scale_that_the_toolkit_wrote() -> None:
    zero = "min:\n        - 0.0\n    max:\n        - 0.0\n"
    cfg = parse_cfg(
        f"{HEAD}  x:\n    dtype: int8\n    {zero}    scale:\n        - 0.00784313725490196\n    zero_point:\n        - 0\n"
    )
    assert cfg.ranges() == {"x": (0.00784313725490196, 0)}
    with pytest.raises(ParameterError, match="empty"):
        parse_cfg(f"{HEAD}  x:\n    dtype: int8\n    {zero}")
