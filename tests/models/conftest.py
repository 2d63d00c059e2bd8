"""Real networks, found and compiled once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from real_models import RealModels

import anynpu

from .networks import NETWORKS, Network


@dataclass(frozen=True)
class Compiled:
    """A network, its ONNX file, and its int8 program for rk3588, calibrated with some images."""

    network: Network
    path: Path
    model: anynpu.Model


@pytest.fixture(scope="session")
def paths(real_models: RealModels) -> dict[str, Path]:
    """The ONNX file of each trained network."""
    return {name: getattr(real_models, name) for name in NETWORKS}


@pytest.fixture(scope="session")
def compiled(paths: dict[str, Path]) -> Callable[[str], Compiled]:
    """Compile a trained network by name; the second request gets the first one's model."""

    @cache
    def by_name(name: str) -> Compiled:
        network = NETWORKS[name]
        pictures = network.pictures(8 if name == "classification" else 16)  # quick tests wait for the smallest
        return Compiled(network, paths[name], network.compile(paths[name], "rk3588", samples=pictures))

    return by_name


@pytest.fixture(scope="session")
def classification(compiled: Callable[[str], Compiled]) -> Compiled:
    """The smallest network, for quick tests."""
    return compiled("classification")
