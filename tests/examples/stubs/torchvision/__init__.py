"""Stands in for torchvision, of which detection needs the suppression of overlapping boxes alone."""

from . import ops

__all__ = ["ops"]
__version__ = "0.28.0"
