"""``anynpu vpm-run``: the tool with which people on Allwinner's boards run a network on files."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from .._util.printable import printable
from .vpmrun import VpmOptions, vpm_run


def command(
    sample: Annotated[str | None, typer.Option("-s", metavar="FILE", help="The sample.txt.")] = None,
    loops: Annotated[int, typer.Option("-l", min=1, help="How often each network runs.")] = 1,
    device: Annotated[int, typer.Option("-d", min=0, help="The number of the NPU.")] = 0,
    timeout: Annotated[int, typer.Option("-t", min=0, help="Milliseconds for a run; 0 for no limit.")] = 0,
    bypass: Annotated[int, typer.Option("-b", min=0, max=1, help="1: outputs are neither compared nor saved.")] = 1,
    memory: Annotated[int, typer.Option("-m", min=0, help="Bytes of memory for the driver, on V85x.")] = 0,
    show_top5: Annotated[int, typer.Option("--show_top5", min=0, max=1, help="1: print the five largest values.")] = 0,
    save_txt: Annotated[int, typer.Option("--save_txt", min=0, max=1, help="1: write output_<n>.txt.")] = 0,
    core: Annotated[int, typer.Option("-c", min=-1, help="The core, from VIPLite 2.0 on; -1 for any.")] = -1,
    preload: Annotated[int, typer.Option("--preload", min=0, max=1, help="1: load weights into SRAM before; 2.0.")] = 0,
    layer_profile_dump: Annotated[
        int, typer.Option("--layer_profile_dump", min=0, max=1, help="Not available here; see anynpu profile.")
    ] = 0,
    op_segment: Annotated[str | None, typer.Option("--op_segment", metavar="A,B", help="Not available here.")] = None,
    layer_dump: Annotated[str | None, typer.Option("--layer_dump", metavar="N", help="Not available here.")] = None,
    npu: Annotated[
        str | None, typer.Option("--npu", metavar="DEVICE", help="sim:t527, vip, vip:PATH; by default what there is.")
    ] = None,
    old_form: Annotated[
        list[str] | None, typer.Argument(metavar="[SAMPLE [LOOPS [DEVICE]]]", help="The form of V85x.", show_default=False)
    ] = None,
) -> None:
    """Run the networks of a sample.txt on files, as vpm_run of the boards does.

    \b
    Example:
      anynpu vpm-run -s sample.txt -l 10
      anynpu vpm-run -s sample.txt -b 0 --show_top5 1 --npu sim:t527
    """
    if layer_profile_dump or op_segment is not None or layer_dump is not None:
        raise typer.BadParameter("--layer_profile_dump, --op_segment and --layer_dump need a board's own tool")
    positional = list(old_form or ())
    if len(positional) > 3 or (positional and sample is not None):
        raise typer.BadParameter("give -s FILE, or SAMPLE [LOOPS [DEVICE]]")
    if positional:
        sample = positional[0]
        loops, device = (int(_number(text)) for text in (*positional[1:], *(str(loops), str(device))[len(positional) - 1 :]))
    if sample is None:
        raise typer.BadParameter("give the sample.txt with -s")
    options = VpmOptions(
        sample=sample,
        loops=loops,
        device=device,
        timeout_ms=timeout,
        bypass=bool(bypass),
        memory=memory,
        show_top5=bool(show_top5),
        save_text=bool(save_txt),
        core=core,
        preload=bool(preload),
    )
    ret = vpm_run(options, _line, device=npu)
    raise typer.Exit(ret & 0xFF)


def _line(text: str) -> None:
    sys.stdout.write(f"{printable(text)}\n")
    sys.stdout.flush()  # a board's driver writes between the lines


def _number(text: str) -> int:
    if not text.isdigit():
        raise typer.BadParameter(f"{text!r} is not a number: SAMPLE [LOOPS [DEVICE]]")
    return int(text)
