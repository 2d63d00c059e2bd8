"""Whether a model file is for an NPU, before it is handed to it: a driver answers with a number, this names both sides."""

from __future__ import annotations

import os
from pathlib import Path

from .. import chips, modelfile
from ..chips import Chip
from ..errors import ModelError
from ..modelfile import vendorfile
from ..modelfile.recognize import FileKind, identify

__all__ = ["check_chip", "check_target", "chip_words", "model_target", "target_words"]


def model_target(source: str | os.PathLike[str] | bytes) -> int | None:
    """The number of the NPU that a file is for; None where it does not say, or is no file for a VIP."""
    kind = identify(source)
    if kind is FileKind.NB:
        return vendorfile.read_nb(source).target_id
    if kind is FileKind.ANYNPU:
        identity = chips.get(modelfile.read(source, verify=False).chip).vip
        return None if identity is None else identity.customer_id
    return None


def target_words(customer_id: int) -> str:
    """An NPU by its number, its name and its chips.

    >>> target_words(0x10000016)
    '0x10000016 (VIP9000NANOSI_PLUS_PID0X10000016: t527, mr527, ai985)'
    >>> target_words(0x15)
    '0x15 (not an NPU of the catalogue)'
    """
    known = [chip for chip in chips.all_chips() if chip.vip is not None and chip.vip.customer_id == customer_id]
    if not known or known[0].vip is None:
        return f"{customer_id:#x} (not an NPU of the catalogue)"
    return f"{customer_id:#x} ({known[0].vip.target}: {', '.join(chip.name for chip in known)})"


def check_target(source: str | os.PathLike[str] | bytes, customer_id: int, *, genuine: bool = False) -> None:
    """Raise if *source* cannot run on the NPU of that number.

    :param genuine: the NPU is a real one, which cannot execute what anynpu compiles
    """
    name = "the model in memory" if isinstance(source, bytes) else Path(source).name
    if genuine and identify(source) is FileKind.ANYNPU:
        raise ModelError(
            f"{name} was compiled by anynpu, for the software NPU; the board's library cannot execute it",
            hint="compile the same ONNX with the vendor's ACUITY, or pass device='sim'",
        )
    target = model_target(source)
    if target is not None and target != customer_id:
        raise ModelError(
            f"binary target={target_words(target)}, actual target={target_words(customer_id)}: {name} is for another NPU",
            hint="compile the model for this chip",
        )


def chip_words(chip: Chip) -> str:
    """The NPU of a chip by its number, its name and its chips."""
    return chip.name if chip.vip is None else target_words(chip.vip.customer_id)


def check_chip(source: Path, chip: Chip) -> bool:
    """Raise if *source* cannot run on *chip*; False if the file does not say for which NPU it is."""
    if chip.vip is None or model_target(source) is None:
        return False
    check_target(source, chip.vip.customer_id)
    return True
