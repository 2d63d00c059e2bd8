"""Changes model files where it hurts: inside their structure, with checksums that are right.

A model file is taken as what it decodes to: sections, of which the header is a JSON tree, and the weights are arrays that the tree refers
to. Mutators work on those and know nothing of single operators, so that new operators and fields are covered without a change here. Each
takes a :class:`Sample`, changes it in place, and may fail with an exception where the sample has no such place.
"""

from __future__ import annotations

import copy
import json
import pickle
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from anynpu.modelfile.container import HEADER, WEIGHTS, Section, pack, unpack

__all__ = ["MUTATORS", "Sample", "mutant", "take_apart"]

Way = tuple[Any, ...]

EDGES = (
    0,
    1,
    2,
    3,
    7,
    8,
    15,
    16,
    31,
    63,
    64,
    127,
    128,
    255,
    256,
    65535,
    65536,
    (1 << 31) - 1,
    1 << 31,
    1 << 32,
    1 << 40,
    (1 << 63) - 1,
)
GEOMETRIES = (1, 1, 1, 2, 3, 16, 255, 4095, 4096, 65536, (1 << 19) - 1, 1 << 19, (1 << 20) - 1, 1 << 20)
"""Strides, dilations and kernels, up to the largest that a file may have."""
NUMBERS = (0.0, -0.0, 1.0, -1.0, 1e-320, 1e-38, 1e30, 3.4e38, 1e308, -1e308)
TEXTS = (
    "",
    "x",
    "\0",
    "a\0b",
    "\ud800",
    "\u202e",
    "\x1b[31m",
    "x" * 5000,
    "../../etc/passwd",
    "NaN",
    "image",
    "int8",
    "float16",
    "bool",
)
MAX_FILE = 2 << 20
"""Bytes of a mutant: reading takes time for each of them, and sanitizers make it ten times as long."""
STRANGE: tuple[Any, ...] = (
    None,
    True,
    False,
    [],
    {},
    [[]],
    [0],
    [-1] * 4,
    [1 << 40] * 3,
    [1] * 9,
    {"offset": 0, "dtype": "int8", "shape": [0]},
)


@dataclass
class Sample:
    """A model file taken apart.

    :ivar magic: its first four bytes
    :ivar document: the header
    :ivar sections: all others, by kind
    :ivar finish: the last change, to the packed file
    :ivar ways: the way to every value inside the header, as it was at first
    """

    magic: bytes
    document: Any
    sections: dict[int, bytearray]
    finish: Callable[[bytes], bytes] = lambda data: data
    ways: list[Way] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ways = self.ways or list(places(self.document))

    def copy(self) -> Sample:
        """Another one, to be changed; by way of pickle, which is faster than deepcopy."""
        document = pickle.loads(pickle.dumps(self.document))
        return Sample(self.magic, document, {kind: bytearray(part) for kind, part in self.sections.items()}, ways=self.ways)

    def file(self) -> bytes:
        """The bytes of the file, with checksums that are right."""
        header = json.dumps(self.document, separators=(",", ":")).encode("utf-8", "surrogatepass")
        parts: dict[int, bytes] = {HEADER: header, **{kind: bytes(part) for kind, part in self.sections.items()}}
        return self.finish(
            b"".join(pack(self.magic, [Section(kind, len(part), lambda part=part: [part]) for kind, part in parts.items()]))
        )


def take_apart(data: bytes) -> Sample:
    """The sample that a sound file is."""
    sections = unpack(memoryview(data))
    document = json.loads(bytes(sections[HEADER]))
    return Sample(data[:4], document, {kind: bytearray(part) for kind, part in sections.items() if kind != HEADER})


def mutant(sample: Sample, dice: random.Random, *, geometries: bool = False) -> bytes:
    """A file with one to four changes; with *geometries* up to three of extreme geometries, and seldom another one."""
    changed = sample.copy()
    chosen = [change_geometry] * dice.choice((1, 1, 2, 3)) if geometries else []
    count = dice.choice((0, 0, 0, 1) if geometries else (1, 1, 1, 2, 2, 4))
    for mutate in [*chosen, *dice.choices(list(MUTATORS), list(MUTATORS.values()), k=count)]:
        try:
            mutate(changed, dice)
        except (LookupError, TypeError, ValueError, AttributeError):
            continue  # there is no such place, or an earlier change took it away
    data = changed.file()
    return data if len(data) <= MAX_FILE else data[:MAX_FILE]


# --- places


def places(node: Any, way: Way = ()) -> Iterator[Way]:
    """The way to every value inside a JSON tree."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield (*way, key)
        yield from places(value, (*way, key))


def at(node: Any, way: Way) -> Any:
    for step in way:
        node = node[step]
    return node


def find(sample: Sample, dice: random.Random, wanted: Callable[[Any, Way], bool]) -> tuple[Any, Any]:
    """The parent and key of one value for which *wanted* holds; LookupError if none is met soon."""
    for _ in range(1000):
        way = dice.choice(sample.ways)
        if wanted(at(sample.document, way), way):
            return at(sample.document, way[:-1]), way[-1]
    raise LookupError("there is no such value")


def name_of(way: Way) -> str:
    """The innermost name on a way: that of a field, also for the entries of a list in it."""
    return next((step for step in reversed(way) if isinstance(step, str)), "")


def is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def a_program(sample: Sample, dice: random.Random) -> Any:
    return dice.choice(sample.document["model"]["programs"])


# --- values


def change_integer(sample: Sample, dice: random.Random) -> None:
    parent, key = find(sample, dice, lambda value, _: is_number(value))
    value = parent[key]
    parent[key] = dice.choice(
        (
            value + 1,
            value - 1,
            value * 2,
            value // 2,
            -value,
            value ^ 1 << dice.randrange(40),
            dice.choice(EDGES),
            -dice.choice(EDGES),
        )
    )


def change_float(sample: Sample, dice: random.Random) -> None:
    parent, key = find(sample, dice, lambda value, _: isinstance(value, float))
    parent[key] = dice.choice((parent[key] * dice.choice((-1, 0.5, 2, 1e10, 1e-30)), dice.choice(NUMBERS)))


def change_text(sample: Sample, dice: random.Random) -> None:
    parent, key = find(sample, dice, lambda value, _: isinstance(value, str))
    parent[key] = dice.choice((dice.choice(TEXTS), parent[key] + dice.choice(TEXTS), parent[key][:-1]))


def borrow(sample: Sample, dice: random.Random) -> None:
    """The value of a place like it: of the same name and type, so that it often makes sense."""
    way = dice.choice(sample.ways)
    kind = type(at(sample.document, way))
    parent, key = find(sample, dice, lambda value, other: name_of(other) == name_of(way) and type(value) is kind and other != way)
    at(sample.document, way[:-1])[way[-1]] = copy.deepcopy(parent[key])


def change_list(sample: Sample, dice: random.Random) -> None:
    parent, key = find(sample, dice, lambda value, _: isinstance(value, list) and len(value) > 0)
    values = parent[key]
    place = dice.randrange(len(values))
    match dice.randrange(5):
        case 0:
            values.insert(place, copy.deepcopy(values[place]))
        case 1:
            del values[place]
        case 2:
            dice.shuffle(values)
        case 3:
            values.append(copy.deepcopy(values[-1]))
        case _:
            values[:] = values[place:] + values[:place]


def remove_field(sample: Sample, dice: random.Random) -> None:
    parent, key = find(sample, dice, lambda value, way: isinstance(way[-1], str))
    del parent[key]


def strange_value(sample: Sample, dice: random.Random) -> None:
    parent, key = find(sample, dice, lambda value, way: True)
    parent[key] = copy.deepcopy(dice.choice(STRANGE))


def deepen(sample: Sample, dice: random.Random) -> None:
    parent, key = find(sample, dice, lambda value, way: True)
    inner = parent[key]
    for _ in range(dice.choice((1, 10, 400))):
        inner = [inner] if dice.random() < 0.5 else {"x": inner}
    parent[key] = inner


# --- programs


def rewire(sample: Sample, dice: random.Random) -> None:
    """A layer reads or writes another tensor."""
    program = a_program(sample, dice)
    layer = dice.choice(program["layers"])
    ports = layer[dice.choice(("inputs", "inputs", "outputs"))]
    ports[dice.randrange(len(ports))] = dice.choice(list(program["tensors"]))


def move_layer(sample: Sample, dice: random.Random) -> None:
    layers = a_program(sample, dice)["layers"]
    place, other = dice.randrange(len(layers)), dice.randrange(len(layers))
    match dice.randrange(4):
        case 0:
            layers[place], layers[other] = layers[other], layers[place]
        case 1:
            layers[place]["op"] = copy.deepcopy(layers[other]["op"])
        case 2:
            layers.insert(other, copy.deepcopy(layers[place]))
        case _:
            del layers[place]


def reshape(sample: Sample, dice: random.Random) -> None:
    """A tensor gets another shape, and all tensors of that shape with it: many operators keep a shape, and accept this."""
    program = a_program(sample, dice)
    old = dice.choice(list(program["tensors"].values()))["shape"]
    new = list(old)
    place = dice.randrange(len(new))
    new[place] = dice.choice((1, 2, 3, 5, 17, new[place] + 1, max(1, new[place] - 1), 2 * new[place]))
    alone = dice.random() < 0.3
    for spec in program["tensors"].values():
        if spec["shape"] == old:
            spec["shape"] = list(new)
            if alone:
                break
    replan(sample, dice)


def replan(sample: Sample, dice: random.Random) -> None:
    """Every tensor has space of its own again, however large it is."""
    for program in sample.document["model"]["programs"]:
        place = 0
        for name in program["memory"].get("offsets", {}):
            spec = program["tensors"][name]
            size = 8
            for extent in spec["shape"]:
                size *= max(1, extent)
            program["memory"]["offsets"][name] = place
            place += size + -size % 64
        program["memory"]["size"] = place


def change_geometry(sample: Sample, dice: random.Random) -> None:
    """A convolution or pooling gets an extreme stride, dilation and pads that give the same output, so that most such files are valid."""
    program = a_program(sample, dice)
    layer = dice.choice([layer for layer in program["layers"] if "weights" in layer["op"] or "kernel" in layer["op"]])
    op = layer["op"]
    source, target = (program["tensors"][layer[ports][0]]["shape"][-2:] for ports in ("inputs", "outputs"))
    pooling = "kernel" in op
    kernel = op["kernel"] if pooling else op["weights"]["shape"][1:3]
    strides, dilations, pads = [1, 1], [1, 1], [0, 0, 0, 0]
    for axis in range(2):
        if pooling and dice.random() < 0.5:
            kernel[axis] = dice.choice((kernel[axis], *GEOMETRIES))
        strides[axis], dilations[axis] = dice.choice(GEOMETRIES), dice.choice(GEOMETRIES)
        reach = (kernel[axis] - 1) * dilations[axis]
        rest = dice.choice((0, 0, strides[axis] - 1))
        missing = max(0, (target[axis] - 1) * strides[axis] + rest + reach + 1 - source[axis])
        most = reach if pooling else reach + 4096
        before = dice.choice((0, missing // 2, missing, min(missing, most)))
        pads[axis], pads[axis + 2] = before, missing - before
    op.update(strides=strides, dilations=dilations, pads=pads)
    if pooling and dice.random() < 0.5:
        op["count_include_pad"] = True


def shift_memory(sample: Sample, dice: random.Random) -> None:
    memory = a_program(sample, dice)["memory"]
    name = dice.choice(list(memory["offsets"]))
    memory["offsets"][name] = dice.choice(
        (0, 64, memory["size"], memory["size"] - 1, dice.choice(list(memory["offsets"].values())) + dice.choice((0, 1, 2, 64)))
    )


def swap_kind(sample: Sample, dice: random.Random) -> None:
    """Another element type or layout, for one tensor or for all of that kind."""
    program = a_program(sample, dice)
    specs = list(program["tensors"].values())
    field = dice.choice(("dtype", "layout"))
    old = dice.choice(specs).get(field)
    new = dice.choice(
        ("int8", "uint8", "int16", "float16", "float32", "bfloat16", "int32", "int64", "bool")
        if field == "dtype"
        else ("nhwc", "plain", "nchw", "nc1hwc2")
    )
    for spec in specs:
        if spec.get(field) == old:
            spec[field] = new
            if dice.random() < 0.5:
                break


def add_view(sample: Sample, dice: random.Random) -> None:
    program = a_program(sample, dice)
    names = list(program["tensors"])
    program.setdefault("views", {})[dice.choice(names)] = dice.choice(names)


def many(sample: Sample, dice: random.Random) -> None:
    """Much of something small."""
    parent, key = find(sample, dice, lambda value, way: isinstance(value, list) and 0 < len(value) < 50 and way[-1] != "programs")
    parent[key] = [copy.deepcopy(dice.choice(parent[key])) for _ in range(dice.choice((100, 1000)))]


# --- weights and other sections


def change_array(sample: Sample, dice: random.Random) -> None:
    """An array gets other values: extreme ones of its type, or anything."""
    reference, _ = find(
        sample,
        dice,
        lambda value, way: (
            way[-1] == "dtype" and "shape" in at(sample.document, way[:-1]) and "offset" in at(sample.document, way[:-1])
        ),
    )
    size = {"8": 1, "6": 2, "2": 4, "4": 8}.get(reference["dtype"][-1], 1)
    for extent in reference["shape"]:
        size *= extent
    memory, start = sample.sections[WEIGHTS], reference["offset"]
    size = min(size, len(memory))  # another change may have made the array larger than all weights
    patterns = (
        b"\0",
        b"\xff",
        b"\x80",
        b"\x7f",
        b"\0\x80",
        b"\0\0\0\x80",
        b"\0\0\x80\x7f",
        b"\0\0\xc0\x7f",
        b"\xff\xff\x7f\x7f",
        b"\0\x7c",
        b"\xff\xff\xff\x7f",
        b"\1\0\0\0",
    )
    if dice.random() < 0.5:
        pattern = dice.choice(patterns)
        memory[start : start + size] = (pattern * (size // len(pattern) + 1))[:size]
    else:
        for _ in range(dice.choice((1, 4, 64))):
            place = start + dice.randrange(size)
            memory[place : place + 4] = dice.randbytes(4) if place + 4 <= start + size else b"\xff" * (start + size - place)


def change_reference(sample: Sample, dice: random.Random) -> None:
    """An array lies elsewhere, is another's, or has another type or shape of the same size."""
    (reference, _), (other, _) = (find(sample, dice, lambda value, way: way[-1] == "offset") for _ in range(2))
    match dice.randrange(4):
        case 0:
            reference["offset"] = dice.choice(
                (other["offset"], other["offset"] + 64, 0, reference["offset"] + 1, dice.choice(EDGES))
            )
        case 1:
            reference.update(copy.deepcopy(other))
        case 2:
            reference["shape"] = dice.choice(
                ([*reference["shape"], 1], reference["shape"][::-1], [1, *reference["shape"]], reference["shape"][:-1])
            )
        case _:
            reference["dtype"] = other.get("dtype", "float64")


def change_section(sample: Sample, dice: random.Random) -> None:
    """Bytes of any section but the header."""
    part = sample.sections[dice.choice(list(sample.sections))]
    for _ in range(dice.choice((1, 1, 4, 16))):
        place = dice.randrange(len(part))
        part[place : place + dice.choice((1, 1, 2, 4))] = dice.randbytes(1) if dice.random() < 0.7 else b""
    size = len(sample.sections.get(WEIGHTS, b""))
    sample.document["weights"]["size"] = size - size % 64 if dice.random() < 0.5 else size


def change_container(sample: Sample, dice: random.Random) -> None:
    """A number of the prefix or of the table of sections; the checksum fits it."""
    field, value = dice.randrange(16), dice.choice((*EDGES, dice.getrandbits(32)))

    def finish(data: bytes) -> bytes:
        changed = bytearray(data)
        count = struct.unpack_from("<I", data, 16)[0]
        fields = [("<I", 12), ("<I", 16), ("<Q", 24)]
        for entry in range(count):
            fields += [("<I", 32 + 24 * entry), ("<Q", 40 + 24 * entry), ("<Q", 48 + 24 * entry)]
        form, place = fields[field % len(fields)]
        old = struct.unpack_from(form, changed, place)[0]
        struct.pack_into(
            form,
            changed,
            place,
            dice.choice((value, old + 1, old - 1 if old else 0, old + 64)) % (1 << 8 * struct.calcsize(form)),
        )
        struct.pack_into("<I", changed, 20, 0)
        struct.pack_into("<I", changed, 20, zlib.crc32(changed[: 32 + 24 * count]))
        return bytes(changed)

    sample.finish = finish


def cut(sample: Sample, dice: random.Random) -> None:
    where = dice.random()
    sample.finish = lambda data: data[: int(where * len(data))] if where < 0.8 else data + dice.randbytes(200)


MUTATORS: dict[Callable[[Sample, random.Random], None], int] = {
    change_integer: 10,
    change_float: 6,
    change_text: 3,
    borrow: 10,
    change_list: 5,
    remove_field: 3,
    strange_value: 2,
    deepen: 1,
    rewire: 8,
    move_layer: 6,
    reshape: 12,
    change_geometry: 6,
    shift_memory: 4,
    swap_kind: 6,
    add_view: 3,
    many: 1,
    change_array: 16,
    change_reference: 6,
    change_section: 4,
    change_container: 2,
    cut: 1,
}
"""How often each is chosen."""
