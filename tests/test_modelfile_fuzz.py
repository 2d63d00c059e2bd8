"""Damaged files of all kinds end in a typed error or in a sound model: never in a crash, another exception, or much memory.

Most damage to a file of ours is found by a checksum; therefore the greater part of the files here is damaged before the checksums are
computed, so that the checks behind them are reached. Each case is made from a seed and its number.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import json
import random
import struct
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from builders import every_operator_model
from vendor_files import nb_file, rknn_description, rknn_file

from anynpu import modelfile
from anynpu.errors import AnynpuError, ModelFormatError
from anynpu.modelfile import vendorfile
from anynpu.modelfile.container import HEADER, WEIGHTS, Section, pack, unpack
from anynpu.modelfile.recognize import FileKind, identify
from anynpu.npu import RunControl
from anynpu.npu.engines.float_native import native_stretch
from anynpu.npu.engines.reference import execute_layer
from anynpu.program import Custom, Float, Program

HARMLESS = "accepted"
SLACK = 4 << 20
"""Allocations that do not depend on the size of the file."""


@functools.cache
def ours() -> bytes:
    return modelfile.to_bytes(every_operator_model(sides=(4,)))


def container(header: bytes, weights: bytes | None) -> bytes:
    """A file of ours with valid checksums."""
    parts = {HEADER: header, **({} if weights is None else {WEIGHTS: weights})}
    return b"".join(pack(b"RKNN", [Section(kind, len(part), lambda part=part: [part]) for kind, part in parts.items()]))


# --- damage to bytes


def flipped(data: bytes, dice: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 8, 64))):
        damaged[dice.randrange(len(damaged))] ^= 1 << dice.randrange(8)
    return bytes(damaged)


def overwritten(data: bytes, dice: random.Random) -> bytes:
    """A number of 1 to 8 bytes is replaced by a small, a huge or an arbitrary one, at an aligned place near the beginning or anywhere."""
    size = dice.choice((1, 2, 4, 8))
    place = dice.randrange(0, min(len(data), dice.choice((64, 512, len(data)))) - 8, 4)
    value = dice.choice((0, 1, 255, (1 << 8 * size) - 1, 1 << (8 * size - 1), dice.getrandbits(8 * size))) & ((1 << 8 * size) - 1)
    return data[:place] + value.to_bytes(size, "little") + data[place + size :]


def cut(data: bytes, dice: random.Random) -> bytes:
    return data[: dice.randrange(dice.choice((32, 128, 1024, len(data))))]


def spliced(data: bytes, dice: random.Random) -> bytes:
    """A piece is left out, doubled, or moved."""
    a, b = sorted(dice.randrange(len(data)) for _ in range(2))
    return dice.choice((data[:a] + data[b:], data[:b] + data[a:], data[b:] + data[:b], data[:4] + data[a:b] + data[4:]))


def bytes_damaged(data: bytes, dice: random.Random) -> bytes:
    return dice.choice((flipped, flipped, overwritten, overwritten, cut, spliced))(data, dice)


# --- damage to JSON

STRANGE: tuple[Any, ...] = (
    *(0, 1, 2, 3, 4, 7, 8, 16, 255, 256, 257, 1 << 16, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, 10**19),
    *(-1, -2, -128, -(1 << 31), -(1 << 63), 0.0, 0.5, -1.5, 1e-320, 1e308, True, False, None, "", "x", "image", "c1", "rows"),
    *("int8", "int16", "float32", "nhwc", "plain", "nc1hwc2", "Conv", "Float", "\ud800", "\0", "x" * 5000),
    *([], {}, [0], [1, 1], [0, 0, 0, 0], [-1] * 4, [1 << 40] * 4, [1] * 9, {"offset": 0, "size": 0}),
    *({"offset": 0, "dtype": "int8", "shape": [0]}, {"offset": 64, "dtype": "float32", "shape": [8]}),
)


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value inside a JSON document."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        document = document[step]
    return document


def json_damaged(document: Any, ways: list[tuple[Any, ...]], dice: random.Random) -> Any:
    """A copy with one to three values replaced, removed, renamed, moved or repeated."""
    document = copy.deepcopy(document)
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        way = dice.choice(ways)
        try:
            parent = at(document, way[:-1])
            damage_entry(document, parent, way[-1], ways, dice)
        except (KeyError, IndexError, TypeError, AttributeError):
            continue  # an earlier change took this place away
    return document


def damage_entry(document: Any, parent: Any, key: Any, ways: list[tuple[Any, ...]], dice: random.Random) -> None:
    match dice.randrange(9):
        case 0:
            del parent[key]
        case 1:
            parent[key] = copy.deepcopy(at(document, dice.choice(ways)))
        case 2 if isinstance(parent, list):
            parent.insert(key, copy.deepcopy(parent[key]))
        case 2 if isinstance(parent, dict):
            parent[dice.choice(("x", "type", "shape", str(key) + "2"))] = parent.pop(key)
        case 3 if isinstance(parent, list) and len(parent) > 1:
            other = dice.randrange(len(parent))
            parent[key], parent[other] = parent[other], parent[key]
        case 4 | 5 if isinstance(parent[key], int) and not isinstance(parent[key], bool):
            parent[key] += dice.choice((-1, 1, 64, -64, 1 << 20))
        case _:
            parent[key] = copy.deepcopy(dice.choice(STRANGE))


def kind_of_place(document: Any, way: tuple[Any, ...]) -> tuple[Any, ...]:
    """Places whose values could stand for each other: of the same type, under the same name, or in a list of the same name."""
    names = [step for step in way if isinstance(step, str)]
    return (names[-1:], type(at(document, way)))


def values_damaged(document: Any, alike: list[list[tuple[Any, ...]]], dice: random.Random) -> Any:
    """A copy with one or two values replaced by what could stand there: a number near by, or the value of a place like it."""
    document = copy.deepcopy(document)
    for _ in range(dice.choice((1, 1, 2))):
        group = dice.choice(alike)
        way, other = dice.choice(group), dice.choice(group)
        parent, key = at(document, way[:-1]), way[-1]
        if isinstance(parent[key], int) and dice.random() < 0.7:
            parent[key] = dice.choice((0, 1, 2, -1, parent[key] - 1, parent[key] + 1, 2 * parent[key], -parent[key], 1 << 24))
        elif isinstance(parent[key], list) and dice.random() < 0.5:
            dice.shuffle(parent[key])
        else:
            parent[key] = copy.deepcopy(at(document, other))
    return document


# --- the kinds of cases


@functools.cache
def parts_of_ours() -> tuple[Any, list[tuple[Any, ...]], bytes]:
    sections = {kind: bytes(part) for kind, part in unpack(memoryview(ours())).items()}
    document = json.loads(sections[HEADER])
    return document, list(places(document)), sections[WEIGHTS]


def our_bytes(dice: random.Random) -> bytes:
    return bytes_damaged(ours(), dice)


def our_json(dice: random.Random) -> bytes:
    document, ways, weights = parts_of_ours()
    header = json.dumps(json_damaged(document, ways, dice)).encode()
    return container(header, dice.choice((weights, weights, weights, None)))


@functools.cache
def places_of_ours() -> list[list[tuple[Any, ...]]]:
    document, ways, _ = parts_of_ours()
    groups = collections.defaultdict(list)
    for way in ways:
        groups[str(kind_of_place(document, way))].append(way)
    return list(groups.values())


def our_values(dice: random.Random) -> bytes:
    document, _, weights = parts_of_ours()
    try:
        changed = values_damaged(document, places_of_ours(), dice)
    except (KeyError, IndexError, TypeError):  # the first change took the place of the second away
        changed = document
    return container(json.dumps(changed).encode(), weights)


def our_header_bytes(dice: random.Random) -> bytes:
    document, _, weights = parts_of_ours()
    return container(bytes_damaged(json.dumps(document).encode(), dice), weights)


def our_weights(dice: random.Random) -> bytes:
    document, _, weights = parts_of_ours()
    return container(json.dumps(document).encode(), bytes_damaged(weights, dice))


def rknn_bytes(dice: random.Random) -> bytes:
    return bytes_damaged(rknn_file(version=dice.choice((1, 2, 6))), dice)


def rknn_json(dice: random.Random) -> bytes:
    document = rknn_description()
    return rknn_file(json_damaged(document, list(places(document)), dice), payload=dice.randbytes(dice.choice((0, 1, 300))))


def nb_bytes(dice: random.Random) -> bytes:
    return bytes_damaged(nb_file(version=dice.choice((0x10009, 0x10014, 0x1001E, 0x20000))), dice)


def nb_fields(dice: random.Random) -> bytes:
    """One number of the header or of an entry is wrong."""
    data = bytearray(nb_file())
    place = dice.choice((4, 8, 76, 84, 88, 348, 376, 380, 384, 388, 392, 396, 472, 476, 500, 508))
    value = dice.choice((0, 1, 7, 117, len(data), len(data) - 1, 0x7FFFFFFF, 0xFFFFFFFF, dice.getrandbits(32)))
    struct.pack_into("<I", data, place, value)
    return bytes(data)


CASES: dict[Callable[[random.Random], bytes], int] = {
    our_bytes: 2500,
    our_json: 3000,
    our_values: 1500,
    our_header_bytes: 900,
    our_weights: 600,
    rknn_bytes: 1000,
    rknn_json: 700,
    nb_bytes: 900,
    nb_fields: 500,
}


def outcome(data: bytes) -> str:
    """Use a file in all ways there are; returns how that ended. Any exception that is not ours goes through."""
    kind, found = identify(data), ""
    for inspect, own in ((vendorfile.read_rknn, FileKind.RKNN), (vendorfile.read_nb, FileKind.NB)):
        if kind is own:
            try:
                info = inspect(data)
            except AnynpuError as error:
                found = type(error).__name__
            else:
                found = f"{len(info.inputs)} inputs, {len(info.outputs)} outputs"
    try:
        model = modelfile.read(data)
    except AnynpuError as error:
        return f"{found} {type(error).__name__} {'' if error.hint else 'without a hint'}"
    modelfile.encode(model)
    execute(model.programs[0])
    return HARMLESS


def execute(program: Program) -> None:
    """What was accepted can be executed: no index of it leads outside an array."""
    dice = np.random.default_rng(0)
    arrays = {name: dice.integers(0, 100, spec.memory_shape).astype(spec.dtype.storage) for name, spec in program.tensors.items()}
    with np.errstate(all="ignore"):
        for layer in program.layers:
            if isinstance(layer.op, Custom):
                assert all(constant.spec.nbytes == constant.value.nbytes for constant in layer.op.constants)
            elif not isinstance(layer.op, Float):
                execute_layer(program, layer, arrays)
    for stretch in program.float_stretches():
        native = native_stretch(program, stretch)
        if native is not None:
            native.bind(arrays)(RunControl())


def test_there_are_enough_of_them() -> None:
    assert sum(CASES.values()) >= 10_000


@pytest.mark.full
@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_damaged_files(make: Callable[[random.Random], bytes]) -> None:
    results = collections.Counter(outcome(make(random.Random(f"{make.__name__} {number}"))) for number in range(CASES[make]))
    assert len(results) > 1, results  # the damage is neither always harmless nor always stopped at the same door
    assert not any("without a hint" in result for result in results), results
    assert results[HARMLESS] < 0.9 * CASES[make], results


@pytest.mark.full
def test_the_memory_that_damaged_files_take() -> None:
    """Reading takes at most MAX_GROWTH times the size of the file, and a constant."""
    outcome(ours())  # what is imported or cached on first use does not count
    tracemalloc.start()
    try:
        for make in CASES:
            for number in range(40):
                data = make(random.Random(f"memory {make.__name__} {number}"))
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
                outcome(data)
                _, peak = tracemalloc.get_traced_memory()
                assert peak - before <= modelfile.file.MAX_GROWTH * len(data) + SLACK, (make.__name__, number)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "header",
    [
        b"[" + b"{}," * 300_000 + b"0]",
        b"[" + b'{"a":0},' * 100_000 + b"0]",
        b"[" + b"[]," * 300_000 + b"0]",
        b'{"weights":{"size":0,"digest":"'
        + b"0" * 32
        + b'"},"model":{"chip":"rk3588","dtype":"","programs":['
        + b"{}," * 200_000
        + b"{}]}}",
    ],
    ids=["dicts", "pairs", "lists", "programs"],
)
def test_the_memory_that_hostile_headers_take(header: bytes) -> None:
    data = container(header, b"")
    tracemalloc.start()
    try:
        with pytest.raises(AnynpuError):
            modelfile.read(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= modelfile.file.MAX_GROWTH * len(data) + SLACK


HOSTILE_LISTS: dict[str, tuple[str, tuple[Any, ...], str]] = {
    "shape": ("programs.0.tensors.image.shape", (), "1"),
    "attribute": ("programs.0.layers.FLOAT.op.operators.0.attributes.x", (), "1"),
    "attribute of texts": ("programs.0.layers.FLOAT.op.operators.0.attributes.x", (), '""'),
    "nodes": ("programs.0.layers.0.nodes", (), '""'),
    "numbers": ("preprocess.image", ("mean", "std"), "1"),
}


@pytest.mark.parametrize("which", HOSTILE_LISTS)
def test_the_work_that_long_lists_make(which: str) -> None:
    """Reading makes less than one call for each byte of the header, which keeps the largest header to a few seconds."""
    way, names, item = HOSTILE_LISTS[which]
    document = json.loads(bytes(unpack(memoryview(ours()))[HEADER]))
    node: Any = document["model"]
    steps = way.split(".")
    for step in steps[:-1]:
        if step == "FLOAT":
            step = next(str(index) for index, layer in enumerate(node) if layer["op"]["type"] == "Float")
        node = node[int(step)] if isinstance(node, list) else node.setdefault(step, {})
    node[steps[-1]] = {name: ["@"] for name in names} if names else ["@"]
    text = json.dumps(document, separators=(",", ":")).replace('"@"', ",".join([item] * 50_000))
    data = container(text.encode(), bytes(unpack(memoryview(ours()))[WEIGHTS]))
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        with contextlib.suppress(AnynpuError):
            modelfile.read(data)
    finally:
        sys.setprofile(before)
    assert calls < len(text)


def test_a_header_beyond_the_limit_is_told_its_limit() -> None:
    limit = modelfile.file._MAX_HEADER
    with pytest.raises(ModelFormatError, match=f"{limit + 1} bytes; at most {limit} are possible") as refusal:
        modelfile.read(container(b" " * (limit + 1), b""))
    assert "fewer input shapes" in refusal.value.hint
