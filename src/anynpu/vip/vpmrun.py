"""``vpm-run``: run networks on files, as the tool of the boards' SDK does, with the lines it prints and the files it writes.

What differs from the SDK's tool, each a fault of that tool:

* A ``sample.txt`` with the line ends of Windows, or with blanks at the end of a line, is read.
* The average over several loops is that of all loops, not the numbers of the first one.
* Where outputs are named and nothing is compared or saved, because ``-b 0`` is missing, a line reports it.
* Numbers for a float16 input are rounded to the nearest, not cut.
* A golden file of another size than the output is a failure, not a comparison of what is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .._util.types import Array
from .._vip import ffi
from ..errors import AnynpuError, JobCancelled, ParameterError
from ..vendors.devices import DeviceChoice
from .awnn import to_float
from .constants import vip_buffer_quantize_format_e, vip_network_property_e, vip_status_e
from .info import TensorInfo
from .interface import VipLibrary
from .library import check, open_library
from .network import Network, query_hardware

# ``sample.txt``: which networks ``vpm-run`` runs, on what, and what should come out.
#
# Sections are ``[network]``, ``[input]``, ``[golden]`` and ``[output]``, each alone on its line; the lines behind it name files,
# one each. A ``[network]`` begins the next task. ``#`` begins a comment. Blanks at the end of a line and the line ends of Windows
# do not matter.


MAX_TASKS = 128
_MAX_LINE_LENGTH = 254
_SECTIONS = ("[network]", "[input]", "[golden]", "[output]")


@dataclass
class SampleEntry:
    """One network, and the files of its inputs and outputs, as the sample names them."""

    network: str = ""
    inputs: list[str] = field(default_factory=list)
    goldens: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


def read_sample(path: str | Path) -> list[SampleEntry]:
    """The tasks of a file."""
    source = Path(path)
    try:
        text = source.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ParameterError(f"{source} cannot be read: {error.strerror or error}", hint="name a sample.txt with -s") from error
    tasks: list[SampleEntry] = []
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        if len(entry) > _MAX_LINE_LENGTH:
            raise _wrong(source, number, f"it has {len(entry)} characters, at most {_MAX_LINE_LENGTH} are possible")
        if entry in _SECTIONS:
            section = entry
            if section == "[network]":
                tasks.append(SampleEntry())
            continue
        if entry.startswith("[") and entry.endswith("]"):
            raise _wrong(source, number, f"there is no section {entry}")
        if not tasks or not section:
            raise _wrong(source, number, "it comes before [network]")
        _add(tasks[-1], section, entry, source, number)
    if not tasks:
        raise ParameterError(f"{source} has no [network]", hint="a line [network], and after it the path of a .nb file")
    for task in tasks:
        if not task.network:
            raise ParameterError(f"{source} has a [network] without a file", hint="put the path of a .nb file after it")
    if len(tasks) > MAX_TASKS:
        raise ParameterError(f"{source} has {len(tasks)} networks, at most {MAX_TASKS} are possible", hint="divide it")
    return tasks


def _add(task: SampleEntry, section: str, entry: str, source: Path, number: int) -> None:
    if section == "[network]":
        if task.network:
            raise _wrong(source, number, "a second file for one [network]")
        task.network = entry
    else:
        {"[input]": task.inputs, "[golden]": task.goldens, "[output]": task.outputs}[section].append(entry)


def _wrong(source: Path, number: int, why: str) -> ParameterError:
    return ParameterError(f"{source}, line {number}: {why}", hint=f"sections are {', '.join(_SECTIONS)}")


FAILED, RUN_FAILED, CANCELLED = -1, -2, -15
_BYTES, _TEXT = (".dat", ".bin"), (".tensor", ".txt")
_TOP = 5

Write = Callable[[str], None]


@dataclass(frozen=True)
class VpmOptions:
    """What the command line states.

    :ivar bypass: outputs are neither compared nor saved
    :ivar memory: bytes for ``vip_init``, on V85x
    :ivar core: -1 for any
    """

    sample: str
    loops: int = 1
    device: int = 0
    timeout_ms: int = 0
    bypass: bool = True
    memory: int = 0
    show_top5: bool = False
    save_text: bool = False
    core: int = -1
    preload: bool = False


class _Prepared:
    """A task whose network is in memory."""

    def __init__(self, index: int, task: SampleEntry, network: Network) -> None:
        self.index = index
        self.task = task
        self.network = network
        self.goldens: list[bytes] = []
        self.profiles: list[tuple[int, int]] = []


def vpm_run(options: VpmOptions, write: Write, *, device: str | DeviceChoice | VipLibrary | None = None) -> int:
    """Run, and give the number that the tool ends with: 0, -1 (a file or a result is wrong), -2 (a run failed), -15 (it was
    cancelled).

    :param write: is given each line
    """
    ret = FAILED
    try:
        ret = _run(options, write, device)
    except JobCancelled as error:
        write(f"Error: {error.one_line}")
        ret = CANCELLED
    except AnynpuError as error:
        write(f"Error: {error.one_line}")
    write(f"vpm run ret={ret}")
    return ret


def _run(options: VpmOptions, write: Write, device: str | DeviceChoice | VipLibrary | None) -> int:
    library = open_library(device)
    for line in _first_lines(options, library.vip_get_version()):
        write(line)
    write(f"init vip lite, driver version=0x{library.vip_get_version():08x}...")
    check(library, "vip_init", library.vip_init(options.memory))
    try:
        if not library.genuine:  # a board's driver prints this itself
            write(f"VIPLite driver software version {library.generation.driver}")
        write("vip lite init OK.")
        write("")
        hardware = query_hardware(library)
        write(f"cid=0x{hardware.customer_id:x}, device_count={hardware.devices}")
        for number, cores in enumerate(hardware.cores):
            write(f"  device[{number}] core_count={cores}")
        return _run_tasks(options, write, library)
    finally:
        library.vip_destroy()


def _first_lines(options: VpmOptions, version: int) -> list[str]:
    """What the tool states about its options; that of VIPLite 2.0 states more."""
    if version < 0x00020000:
        return [
            f"loop_count={options.loops}, device_id={options.device}, file_name={options.sample} bypass={int(options.bypass)}"
        ]
    return [
        f"loop_count={options.loops}, device_index={options.device}, core_index={options.core}, file_name={options.sample}, "
        f"time_out=0x{options.timeout_ms:x}, bypass={int(options.bypass)}",
        f"enable_npd=0, preload={int(options.preload)}",
        f"show_top5{int(options.show_top5)}, save_txt={int(options.save_text)}",
    ]


def _run_tasks(options: VpmOptions, write: Write, library: VipLibrary) -> int:
    tasks = read_sample(options.sample)
    write(f"config file read network count={len(tasks)}")
    write(f"init test resources, task_count: {len(tasks)} ...")
    write("create/prepare networks ...")
    prepared: list[_Prepared] = []
    ret = FAILED
    try:
        for index, task in enumerate(tasks):
            prepared.append(_prepare(index, task, options, write, library))
        _say_what_is_not_checked(options, tasks, write)
        ret = _loop(prepared, options, write)
    finally:
        write(f"destroy test resource task_count={len(tasks)}")
        for entry in prepared:
            entry.network.close()
    return ret


def _prepare(index: int, task: SampleEntry, options: VpmOptions, write: Write, library: VipLibrary) -> _Prepared:
    write(f"task i={index}, binary name: {task.network}")
    write(f"nbg name={task.network}")
    start = time.perf_counter()
    network = Network(task.network, device=library, prepare=False)
    try:
        write(f"create network {index}: {_us(start)} us.")
        for info in network.inputs:
            write(
                f"input {info.index} dim {_dims(info)}, data_format={int(info.data_format)}, "
                f"quant_format={int(info.quant_format)}, name={info.name}, {_quantization(info)}"
            )
        for info in network.outputs:
            write(
                f"ouput {info.index} dim {_dims(info)}, data_format={int(info.data_format)}, name={info.name}, {_quantization(info)}"
            )
        write(f"memory pool size={network.memory_pool_size}byte")
        if library.generation.version >= 0x00010D00:
            write(f"network core count={_core_count(network)}")
        start = time.perf_counter()
        _configure(network, options, library)
        network.prepare()
        write(f"prepare network {index}: {_us(start)} us.")
        start = time.perf_counter()
        entry = _Prepared(index, task, network)
        _read_files(entry, write)
        write(f"read input and golden {index}: {_us(start)} us.")
        return entry
    except BaseException:
        network.close()
        raise


def _configure(network: Network, options: VpmOptions, library: VipLibrary) -> None:
    properties = vip_network_property_e
    network.set_property(properties.VIP_NETWORK_PROP_SET_DEVICE_ID, ffi.new("uint32_t *", options.device))
    if options.timeout_ms:
        network.set_property(properties.VIP_NETWORK_PROP_SET_TIME_OUT, ffi.new("uint32_t *", options.timeout_ms))
    if library.generation.version >= 0x00020000:
        network.set_property(properties.VIP_NETWORK_PROP_SET_CORE_INDEX, ffi.new("int32_t *", options.core))
        if options.preload:
            network.set_property(properties.VIP_NETWORK_PROP_SET_VIPSRAM_PRELOAD, ffi.new("int32_t *", 1))
    elif options.core >= 0 or options.preload:
        raise ParameterError("-c and --preload are for VIPLite 2.0", hint=f"this is {library.generation.name}: leave them out")


def _read_files(entry: _Prepared, write: Write) -> None:
    task, network = entry.task, entry.network
    if len(task.inputs) != len(network.inputs):
        raise ParameterError(
            f"input count mismatch: the network has {len(network.inputs)}, the sample names {len(task.inputs)}",
            hint="one line after [input] for each input",
        )
    for what, files in (("output", task.outputs), ("golden", task.goldens)):
        if files and len(files) != len(network.outputs):
            raise ParameterError(
                f"{what} count mismatch: the network has {len(network.outputs)}, the sample names {len(files)}",
                hint=f"one line after [{what}] for each output, or none",
            )
    write(f"golden file count={len(task.goldens)}")
    for info, name in zip(network.inputs, task.inputs, strict=True):
        write(f"input {info.index} name: {name}")
        _load_input(network, info, name, write)
    for name in task.goldens:
        if Path(name).suffix not in _BYTES:
            raise ParameterError(f"{name} cannot be a golden file", hint=f"its name must end with {' or '.join(_BYTES)}")
        entry.goldens.append(_bytes_of(name))


def _load_input(network: Network, info: TensorInfo, name: str, write: Write) -> None:
    suffix = Path(name).suffix
    buffer = network.bind_input(info.index)
    memory = buffer.bytes()
    if suffix in _BYTES:
        data = np.frombuffer(_bytes_of(name), np.uint8)
        if data.size != memory.size:
            write(f"input {info.index}: the file has {data.size} bytes, the buffer {memory.size}")
        memory[:] = 0
        memory[: min(data.size, memory.size)] = data[: memory.size]
    elif suffix in _TEXT:
        codes = info.encode(_numbers_of(name, info))
        memory[: codes.nbytes] = codes.reshape(-1).view(np.uint8)
    else:
        raise ParameterError(f"{name} is of no kind that is known", hint=f"names end with {', '.join((*_BYTES, *_TEXT))}")
    buffer.flush()


def _say_what_is_not_checked(options: VpmOptions, tasks: list[SampleEntry], write: Write) -> None:
    wanted = options.show_top5 or options.save_text or any(task.goldens or task.outputs for task in tasks)
    if options.bypass and wanted:
        write("bypass=1: outputs are neither compared, saved nor shown; use -b 0")


def _loop(prepared: list[_Prepared], options: VpmOptions, write: Write) -> int:
    ret = 0
    for loop in range(1, options.loops + 1):
        for entry in prepared:
            write(f"task: {entry.index}, loop count: {loop}")
            write(f"start to run network={entry.task.network}")
            start = time.perf_counter()
            try:
                entry.network.execute()
            except AnynpuError as error:
                write(f"fail to run network, status={error.code}, taskId={entry.index}")
                write(f"Error: {error.one_line}")
                return CANCELLED if error.code == vip_status_e.VIP_ERROR_CANCELED else RUN_FAILED
            write(f"run time for this network {entry.index}: {_us(start)} us.")
            write("run network done...")
            profile = entry.network.profile
            entry.profiles.append((profile.microseconds, profile.cycles))
            write(f"profile inference time={profile.microseconds}us, cycle={profile.cycles}")
            if not options.bypass and not _check_outputs(entry, options, write):
                ret = FAILED
    if options.loops > 1:
        for entry in prepared:
            times, cycles = (round(sum(numbers) / len(numbers)) for numbers in zip(*entry.profiles, strict=True))
            write(f"task: {entry.index}, profile avg inference time={times}us, avg cycle={cycles}, loops={options.loops}")
    return ret


def _check_outputs(entry: _Prepared, options: VpmOptions, write: Write) -> bool:
    """Show, save and compare what came out; False if it is not what it should be."""
    passed = True
    for index, info in enumerate(entry.network.outputs):
        buffer = entry.network.bind_output(index)
        buffer.invalidate()
        data = buffer.bytes().tobytes()
        floats = to_float(buffer.array(), info)
        if options.show_top5:
            write(" --- Top5 ---")
            for place in np.argsort(-floats, kind="stable")[:_TOP]:
                write(f"{place:3d}: {floats[place]:8.6f}")
        if options.save_text:
            Path(f"output_{index}.txt").write_text(_text(floats), encoding="ascii")
        if entry.task.outputs:
            _save(entry.task.outputs[index], data, floats)
        if entry.goldens:
            if entry.goldens[index] == data:
                write(f"    Test output {index} passed.")
            else:
                passed = False
                Path(f"failed_output_{index}.dat").write_bytes(data)
                Path(f"failed_output_{index}.txt").write_text(_text(floats), encoding="ascii")
                write(f"Test output {index} failed")
                if len(entry.goldens[index]) != len(data):
                    write(f"the golden file has {len(entry.goldens[index])} bytes, the output {len(data)}")
    return passed


def _save(name: str, data: bytes, floats: Array) -> None:
    suffix = Path(name).suffix
    if suffix in _BYTES:
        Path(name).write_bytes(data)
    elif suffix in _TEXT:
        Path(name).write_text(_text(floats), encoding="ascii")
    else:
        raise ParameterError(f"{name} is of no kind that is known", hint=f"names end with {', '.join((*_BYTES, *_TEXT))}")


def _text(floats: Array) -> str:
    return "".join(f"{number:.16f}\n" for number in floats.tolist())


def _bytes_of(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise ParameterError(
            f"{name} cannot be read: {error.strerror or error}", hint="paths are relative to where you are"
        ) from error


def _numbers_of(name: str, info: TensorInfo) -> Array:
    try:
        numbers = np.array(_bytes_of(name).split(), np.float32)
    except ValueError as error:
        raise ParameterError(f"{name} is not one number a line", hint=str(error)) from error
    if numbers.size != info.elements:
        raise ParameterError(f"{name} has {numbers.size} numbers, '{info.name}' takes {info.elements}", hint="one number a line")
    return numbers.reshape(info.shape)


def _dims(info: TensorInfo) -> str:
    """Four at least: those that are not there are zero."""
    return " ".join(str(extent) for extent in (*info.dims, *(0,) * (4 - len(info.dims))))


def _quantization(info: TensorInfo) -> str:
    if info.quant_format == vip_buffer_quantize_format_e.VIP_BUFFER_QUANTIZE_TF_ASYMM:
        return f"scale={info.scale:.6f}, zero_point={info.zero_point}"
    if info.quant_format == vip_buffer_quantize_format_e.VIP_BUFFER_QUANTIZE_DYNAMIC_FIXED_POINT:
        return f"dfp={info.fixed_point_pos}"
    return "none-quant"


def _core_count(network: Network) -> int:
    value = ffi.new("uint8_t *")
    library = network.library
    status = library.vip_query_network(network.handle, int(vip_network_property_e.VIP_NETWORK_PROP_CORE_COUNT), value)
    check(library, "vip_query_network", status)
    return int(value[0])


def _us(start: float) -> int:
    return round((time.perf_counter() - start) * 1e6)
