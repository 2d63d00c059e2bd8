"""The fuzzers: what they found is replayed, and each runs for a fixed number of inputs in ``make test-all``; see ``fuzz/driver.py``."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from builders import every_operator_model
from fuzz import commands
from fuzz.driver import CORPUS, SUFFIXES, fuzz
from fuzz.modelfiles import outcome
from fuzz.mutate import mutant, take_apart
from fuzz.streams import STREAMS, running
from tools import need

from anynpu import modelfile
from anynpu.errors import AnynpuError
from anynpu.program import Conv, Pool

STREAM_CASES = {"http": 1500, "grpc": 900}
"""About twenty seconds each, on an idle machine; `make soak` runs each for hours."""
MUTANTS = 400


def inputs(what: str) -> list[Path]:
    found = sorted((CORPUS / what).glob(f"*{SUFFIXES[what]}"))
    assert found, f"the corpus of {what} is empty"
    return found


@pytest.mark.parametrize("what", list(STREAMS))
def test_streams_of_the_corpus(what: str, tmp_path: Path) -> None:
    with running(tmp_path) as harness:
        for path in inputs(what):
            try:
                harness.send(what, path.read_bytes())
            except AssertionError as error:
                raise AssertionError(f"{path.name}: {error}") from error
        harness.check()


@pytest.mark.parametrize("path", inputs("modelfiles"), ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's about overflow: codes of a damaged model mean nothing
def test_model_files_of_the_corpus(path: Path) -> None:
    assert outcome(path.read_bytes()).split(":")[0] in ("run", "not run", "refused")


@pytest.mark.parametrize("what", list(STREAMS))
def test_a_number_is_always_the_same_stream(what: str) -> None:
    """What is found can be found again."""
    made = [[STREAMS[what](random.Random(f"{what} {number}")) for number in range(50)] for _ in range(2)]
    assert made[0] == made[1]
    assert len(set(made[0])) > 25


@pytest.mark.full
@pytest.mark.parametrize("what", list(STREAMS))
def test_streams(what: str, tmp_path: Path) -> None:
    found = fuzz(what, tmp_path, count=STREAM_CASES[what])
    assert not found.findings, found.explained()
    assert found.done == STREAM_CASES[what]
    assert len(found.results) > 2, "all streams end in the same way"


def test_command_streams() -> None:
    """Each is rejected with an error of ours and a finding of the checker, or both engines give the same bytes."""
    results = Counter(commands.outcome(commands.mutant(random.Random(f"mutant {number}"))) for number in range(200))
    assert set(results) == {"run", "run, with findings", "rejected"}


@pytest.mark.full
def test_model_files_under_sanitizers(tmp_path: Path) -> None:
    """`make soak` runs 100,000 mutants with extreme geometries, and 100,000 command streams."""
    need("address sanitizer")
    for what in ("modelfiles", "geometries", "commands"):
        found = fuzz(what, tmp_path, count=MUTANTS)
        assert not found.findings, found.explained()
        assert found.done == MUTANTS
        assert found.results["run"] > MUTANTS // 20, "hardly a mutant runs"


def test_mutants_reach_extreme_geometries() -> None:
    """Valid files whose pads and dilations reach the largest possible ones."""
    sample, largest = take_apart(modelfile.to_bytes(every_operator_model(sides=(4,)))), 0
    for number in range(300):
        dice = random.Random(number)
        try:
            model = modelfile.read(mutant(sample, dice, geometries=True))
        except AnynpuError:
            continue
        windows = [layer.op for layer in model.programs[0].layers if isinstance(layer.op, Conv | Pool)]
        largest = max(largest, *(min(max(op.pads), max(op.dilations)) for op in windows))
    assert largest >= 1 << 19
